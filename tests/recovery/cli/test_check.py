"""The verb check: each limit against what a root says, and the exit codes of an orchestrator."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import tidestate as ts
from tests.helpers.command import tidestate, tidestate_here
from tests.helpers.example_manifest import example
from tests.helpers.forks import JOB, job
from tests.helpers.moves import rewind
from tests.helpers.process import LONG
from tidestate.operators import DeliveryId
from tidestate.recovery.cli.main import app
from tidestate.recovery.inspect.health import health
from tidestate.recovery.inspect.limits import (
    HealthCheck,
    HealthLimits,
    RejectedRows,
    RootFacts,
    RunningDriver,
    checks_of,
    limits_of,
)
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import END_OF_TIME_US, Manifest
from tidestate.recovery.log.summary import time_text
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.errors import CorruptionError, UsageError

SECOND = 1_000_000
MINUTE, HOUR = 60 * SECOND, 3_600 * SECOND
NOW = 1_800_000_000 * SECOND
SCHEMA = pa.schema([("k", pa.string()), ("t", pa.timestamp("us", "UTC")), ("v", pa.int64())])


def head(sources: dict[str, tuple[str, int]], *, age_us: int = 0, drained: bool = False) -> Manifest:
    """Made so long ago, of one operator; each source has a standing and a watermark, this far behind now."""
    manifest = example(created_us=NOW - age_us, drained=drained)
    found = {
        name: {"standing": standing, "watermark_us": NOW - behind_us, "rows": 1}
        for name, (standing, behind_us) in sources.items()
    }
    name, operator = next(iter(manifest.operators.items()))
    timed = msgspec.structs.replace(operator, progress={"sources": found}, inputs=("input",), configuration={})
    return msgspec.structs.replace(manifest, operators={name: timed})


FACTS = RootFacts(
    head({"a": ("counted", 5 * MINUTE), "b": ("idle", 3 * HOUR)}, age_us=30 * SECOND),
    RunningDriver("process 7 on host", NOW - HOUR, NOW - 20 * SECOND),
    9,
    3,
    RejectedRows(rows=2, events=100, since_us=NOW - HOUR),
    NOW,
)


def broken(facts: RootFacts, **limits: Any) -> list[str]:
    return [check.name for check in checks_of(facts, HealthLimits(**limits)) if not check.holds]


@pytest.mark.parametrize(
    ("limits", "names"),
    [
        ({}, []),
        ({"running": True}, []),
        ({"age_us": 30 * SECOND}, []),
        ({"age_us": 30 * SECOND - 1}, ["age"]),
        ({"lag_us": 5 * MINUTE}, []),
        ({"lag_us": 5 * MINUTE - 1}, ["lag of a"]),
        ({"lag_us": 5 * MINUTE, "count_idle": True}, ["lag of b"]),
        ({"lag_us": 0, "count_idle": True}, ["lag of a", "lag of b"]),
        ({"lag_us": 3 * HOUR, "count_idle": True}, []),
        ({"rejected": 2}, []),
        ({"rejected": 1}, ["rejected"]),
        ({"rejected_share": 0.02}, []),
        ({"rejected_share": 0.019}, ["rejected"]),
        ({"undelivered": 3}, []),
        ({"undelivered": 2}, ["undelivered"]),
        ({"waiting_us": 20 * SECOND}, []),
        ({"waiting_us": 20 * SECOND - 1}, ["waiting"]),
        (
            {"age_us": 0, "lag_us": 0, "undelivered": 0, "waiting_us": 0},
            ["age", "lag of a", "undelivered", "waiting"],
        ),
    ],
)
def test_a_limit_is_the_most_that_holds(limits: dict[str, Any], names: list[str]) -> None:
    assert broken(FACTS, **limits) == names


def test_what_has_ended_or_not_begun_holds() -> None:
    everything = {"running": True, "age_us": 0, "lag_us": 0, "waiting_us": 0}
    drained = head({"a": ("counted", NOW - END_OF_TIME_US)}, age_us=HOUR, drained=True)
    assert broken(replace(FACTS, head=drained, running=None), **everything) == []
    by_end = head({"a": ("counted", HOUR)}, age_us=HOUR, drained=True)
    assert broken(replace(FACTS, head=by_end, running=None), running=True, age_us=0, lag_us=0) == []
    assert broken(replace(FACTS, head=head({"a": ("counted", NOW + END_OF_TIME_US + 1)})), lag_us=0) == []
    assert broken(replace(FACTS, head=head({}), running=None), **everything) == ["running"]


def test_a_driver_whose_clock_is_ahead_is_not_late() -> None:
    ahead = head({"a": ("counted", -MINUTE)}, age_us=-MINUTE)
    assert broken(replace(FACTS, head=ahead), age_us=0, lag_us=0) == []


def test_a_watermark_that_is_an_offset_has_no_lag() -> None:
    manifest = FACTS.head
    operators = {
        name: msgspec.structs.replace(one, configuration={"window": {"kind": "offsets"}})
        for name, one in manifest.operators.items()
    }
    offsets = replace(FACTS, head=msgspec.structs.replace(manifest, operators=operators))
    assert broken(offsets, lag_us=0, count_idle=True) == []


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ({}, HealthLimits()),
        ({"running": "", "count-idle": ""}, HealthLimits(running=True, count_idle=True)),
        ({"max-lag": "10 minutes", "max-age": None}, HealthLimits(lag_us=10 * MINUTE)),
        ({"max-rejected": "100", "within": "1 day"}, HealthLimits(rejected=100, within_us=24 * HOUR)),
        ({"max-rejected": "0.5%"}, HealthLimits(rejected_share=0.005)),
        ({"max-undelivered": "0", "max-waiting": "1 s"}, HealthLimits(undelivered=0, waiting_us=SECOND)),
    ],
)
def test_options_are_text(options: dict[str, str | None], limits: HealthLimits) -> None:
    assert limits_of(options) == limits


@pytest.mark.parametrize(
    "options",
    [
        {"max-rejected": "some"},
        {"max-rejected": "101%"},
        {"max-rejected": "-1"},
        {"max-undelivered": "1.5"},
        {"max-lag": "soon"},
        {"max-lag": ""},
        {"max_lag": "1 hour"},
        {"running": "false"},
    ],
)
def test_a_limit_that_is_none_is_refused(options: dict[str, str | None]) -> None:
    with pytest.raises(UsageError):
        limits_of(options)


def rows(*seconds: int) -> pa.Table:
    times = pa.array([number * SECOND for number in seconds], SCHEMA.field("t").type)
    return pa.table({"k": ["a"] * len(seconds), "t": times, "v": [1] * len(seconds)}, schema=SCHEMA)


def checked(root: Path, limits: HealthLimits) -> dict[str, HealthCheck]:
    return {check.name: check for check in health(Checkpoint.open(root), limits).checks}


def test_a_sink_that_is_behind(tmp_path: Path) -> None:
    """Checkpoints without output are not waited for."""
    JOB.standalone(checkpoint=tmp_path).run([rows(1), rows(2), rows(100), rows(200), rows(201)])
    for limit in (0, 1):
        check = checked(tmp_path, HealthLimits(undelivered=limit))["undelivered"]
        assert (check.holds, check.value) == (False, limit + 1)
    check = checked(tmp_path, HealthLimits(undelivered=2))["undelivered"]
    assert (check.holds, check.value) == (True, 2)


def test_a_job_as_it_runs(tmp_path: Path) -> None:
    taken: list[int] = []

    def sink(_panes: pa.Table, delivery: DeliveryId) -> None:
        taken.append(delivery.checkpoint)

    by_key = job(ts.stream(event_time="t").watermark(ts.watermark.bounded("5 seconds"), by="k"))
    running = by_key.standalone(checkpoint=tmp_path, sink=sink)
    limits = limits_of({"max-rejected": "1", "max-undelivered": "1"})
    found = [checked(tmp_path, limits) for _panes in running.stream([rows(1), rows(100), rows(2, 3, 101)])]
    assert all(checks["running"].holds and checks["undelivered"].holds for checks in found)
    assert [checks["rejected"].value for checks in found] == [0, 0, 2]
    assert [checks["rejected"].holds for checks in found] == [True, True, False]
    ended = checked(tmp_path, HealthLimits(running=True, undelivered=0))
    assert not ended["running"].holds
    assert taken
    assert ended["undelivered"].value == 0, "what was acknowledged at the end counts"


@pytest.mark.parametrize("gone", [False, True])
def test_what_cannot_be_counted_is_no_health(tmp_path: Path, gone: bool) -> None:
    """A sum that lacks a checkpoint is no answer."""
    JOB.standalone(checkpoint=tmp_path).run([rows(1), rows(100), rows(2), rows(200)])
    assert not checked(tmp_path, HealthLimits(rejected=0))["rejected"].holds
    *_, fourth, _newest = sorted((tmp_path / "manifests").iterdir())
    fourth.unlink() if gone else fourth.write_bytes(fourth.read_bytes()[:-20])
    for limits in (HealthLimits(rejected=0), HealthLimits(undelivered=9)):
        with pytest.raises(CorruptionError):
            checked(tmp_path, limits)
    assert checked(tmp_path, HealthLimits(running=True))


def test_none_may_be_missing_at_the_beginning(tmp_path: Path) -> None:
    JOB.standalone(checkpoint=tmp_path).run([rows(1), rows(100)])
    min((tmp_path / "manifests").iterdir()).unlink()
    with pytest.raises(CorruptionError):
        checked(tmp_path, HealthLimits(rejected=0))


def test_abandoned_checkpoints_do_not_count(tmp_path: Path) -> None:
    JOB.standalone(checkpoint=tmp_path).run([rows(1), rows(100), rows(2), rows(200)])
    rewind(Checkpoint.open(tmp_path), 3)
    sorted((tmp_path / "manifests").iterdir())[3].unlink()
    assert checked(tmp_path, HealthLimits(rejected=0, undelivered=1))["rejected"].value == 0


def test_what_was_collected_is_waited_for_and_is_in_no_sum(tmp_path: Path) -> None:
    JOB.standalone(checkpoint=tmp_path).run([rows(1), rows(100), rows(2), rows(200), rows(300)])
    before = checked(tmp_path, HealthLimits(rejected=0, undelivered=2))
    assert (before["rejected"].value, before["undelivered"].value) == (1, 3)
    checkpoint = Checkpoint.open(tmp_path)
    collect(checkpoint, CheckpointRetention(newest=1, grace="0 seconds"))
    after = checked(tmp_path, HealthLimits(rejected=0, undelivered=2))
    assert (after["rejected"].value, after["undelivered"].value) == (0, 3)
    newest = checkpoint.chosen(None).manifest.created_us
    assert f"since {time_text(newest)}" in after["rejected"].found


@pytest.mark.long
def test_a_pipe_that_nobody_reads_changes_no_exit_code(tmp_path: Path) -> None:
    JOB.standalone(checkpoint=tmp_path).run([rows(1)])
    for options, code in ((["--running"], 1), *([(["--running", "--json"], 1), ([], 0)] if LONG else [])):
        ours, theirs = os.pipe()
        os.close(ours)
        assert tidestate("check", tmp_path, *options, stdout=theirs).returncode == code
        os.close(theirs)


@pytest.mark.slow
def test_exit_codes(tmp_path: Path) -> None:
    root = tmp_path / "root"
    assert tidestate_here("check", root).returncode == 4
    starting = tidestate_here("check", root, "--starting-ok", "--json")
    assert (starting.returncode, json.loads(starting.stdout)["checkpoint"]) == (0, None)
    JOB.standalone(checkpoint=root).run([rows(1), rows(100), rows(2)])
    assert CliRunner().invoke(app, ["check", str(root), "--max-rejected", "1"]).exit_code == 0
    unhealthy = tidestate("check", root, "--running", "--max-rejected", "0%", "--max-lag", "1 hour", columns=80)
    assert unhealthy.returncode == 1
    assert [line.partition(":")[2].partition(":")[0] for line in unhealthy.stderr.splitlines()] == [
        " running",
        " lag of input",
        " rejected",
    ]
    assert max(map(len, unhealthy.stdout.splitlines())) <= 80
    printed = json.loads(CliRunner().invoke(app, ["check", str(root), "--running", "--json"]).stdout)
    assert (printed["holds"], [check["name"] for check in printed["checks"] if not check["holds"]]) == (
        False,
        ["running"],
    )
    assert CliRunner().invoke(app, ["check", str(root), "--max-lag", "soon"]).exit_code == 2
    (root / "tidestate.json").rename(tmp_path / "marker")
    assert tidestate_here("check", root, "--starting-ok").returncode == 4
    (tmp_path / "marker").rename(root / "tidestate.json")
    newest = max((root / "manifests").iterdir())
    newest.write_bytes(newest.read_bytes()[:-20])
    assert tidestate("check", root, "--starting-ok").returncode == 3
