"""Rules of zones in manifests: jobs against ``zoneinfo``, on hosts with other rules, and after a kill."""

from __future__ import annotations

import pickle
import signal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zoneinfo import available_timezones

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.forked import Forked
from tests.helpers.process import SCRATCH
from tests.helpers.runners import panes
from tests.helpers.zoned import (
    DAY_S,
    HARD,
    HOUR_S,
    SPRING,
    ZONED_ROWS,
    by_zoneinfo,
    changed_rules,
    emitted,
    host_without_zones,
    installation,
    local_days,
    without_tzdata,
    zoned_rows,
)
from tidestate import agg, expr, fn
from tidestate.operators.inspect.plan_from_manifest import plan_from
from tidestate.operators.zones.installed import installed_rules
from tidestate.recovery.log.checkpoint import Checkpoint, manifest_path
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.log.manifest_file import InvalidManifest, check, encode
from tidestate.statestore.errors import CorruptionError, UsageError

BERLIN = "Europe/Berlin"


def head(root: Path) -> Manifest:
    newest = Checkpoint.open(root).newest()
    assert newest is not None
    return newest.manifest


def put_out(root: Path) -> dict[Any, Any]:
    return emitted(panes(root))


@settings(max_examples=settings.default.max_examples)  # type: ignore[union-attr]
@given(st.data(), st.sampled_from(HARD))
def test_local_days_are_those_of_zoneinfo(data: st.DataObject, zone: str) -> None:
    starts = (installed_rules(zone).starts[1:] // 1_000_000).tolist()
    begin = data.draw(st.sampled_from([start for start in starts if start > -2_000_000_000])) - DAY_S
    rows = [(begin + second, 1) for second in data.draw(st.lists(st.integers(0, 3 * DAY_S), min_size=1, max_size=30))]
    cut = data.draw(st.integers(0, len(rows)))
    with TemporaryDirectory(dir=SCRATCH) as root:
        job = local_days(zone, lateness="10 days")
        job.standalone(checkpoint=root).run([zoned_rows(rows[:cut])])
        job.standalone(checkpoint=root).run([zoned_rows(rows[:cut]), zoned_rows(rows[cut:])], drain=True)
        assert put_out(Path(root)) == by_zoneinfo(zone, rows)


def test_rules_are_in_the_manifest_and_readers_go_by_them(tmp_path: Path) -> None:
    local_days(BERLIN).standalone(checkpoint=tmp_path).run([zoned_rows([(SPRING, 1)])])
    state = head(tmp_path).operators["days"]
    assert state.zones == {BERLIN: installed_rules(BERLIN).text}
    assert "zones/1" in head(tmp_path).needs
    with installation(without_tzdata):
        plan = plan_from("days", state)
        assert plan.zones == {BERLIN: installed_rules(BERLIN)}
        assert pickle.loads(pickle.dumps(plan)).zones == plan.zones
        windows = ts.Root(tmp_path).windows().to_table().to_pylist()
        assert [str(row["day"]) for row in windows] == ["2026-03-29"]


def test_a_job_in_utc_has_no_rules(tmp_path: Path) -> None:
    local_days("UTC").standalone(checkpoint=tmp_path).run([zoned_rows([(SPRING, 1)])])
    assert not head(tmp_path).operators["days"].zones
    assert "zones/1" not in head(tmp_path).needs
    written, _ = encode(head(tmp_path))
    assert b'"zones"' not in written


@settings(max_examples=settings.default.max_examples)  # type: ignore[union-attr]
@given(
    st.lists(st.integers(0, 3 * DAY_S), min_size=1, max_size=12),
    st.lists(st.integers(0, 3 * DAY_S), min_size=1, max_size=12),
    st.integers(-DAY_S, 6 * DAY_S),
    st.integers(-DAY_S, 6 * DAY_S) | st.none(),
)
def test_a_day_is_computed_by_one_set_of_rules(
    first: list[int], then: list[int], change: int, until: int | None
) -> None:
    """After a start with other rules panes are those of a job that had the one or the other all along."""
    until = None if until is None or until <= change else SPRING + until
    other = changed_rules(BERLIN, SPRING + change, until=until)
    batches = [zoned_rows([(SPRING + second, 1) for second in each]) for each in (first, then)]
    with TemporaryDirectory(dir=SCRATCH) as folder:
        swapped, alone = Path(folder, "swapped"), Path(folder, "alone")
        job = local_days(BERLIN)
        job.standalone(checkpoint=swapped).run(batches[:1])
        with installation(lambda _name: other):
            job.standalone(checkpoint=swapped).run(batches, drain=True)
        taken = head(swapped).operators["days"].zones[BERLIN] == other.text
        with installation(lambda _name: other if taken else installed_rules(BERLIN)):
            job.standalone(checkpoint=alone).run(batches, drain=True)
        after, whole = put_out(swapped), put_out(alone)
    # Windows of 12 hours that were closed, 6 hours behind the watermark, went by the rules of then.
    open_from = SPRING + max(first) - 18 * HOUR_S
    after, whole = ({key: pane for key, pane in each.items() if key[0] > open_from} for each in (after, whole))
    assert after == whole


@pytest.mark.parametrize(
    ("second", "taken"), [(SPRING + 30 * DAY_S, True), (SPRING - 30 * DAY_S, False), (SPRING + 18 * HOUR_S, False)]
)
def test_other_rules_are_taken_where_no_state_differs(
    second: int, taken: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    until = SPRING - 20 * DAY_S if second == SPRING - 30 * DAY_S else None
    other = changed_rules(BERLIN, second, until=until)
    job, batch = local_days(BERLIN), zoned_rows([(SPRING, 1), (SPRING + HOUR_S, 1)])
    job.standalone(checkpoint=tmp_path).run([batch])
    taken = taken or until is not None  # long before all state
    with installation(lambda _name: other):
        notes = job.plan(tmp_path).notes
        caplog.clear()
        job.standalone(checkpoint=tmp_path).run([batch], drain=True)
    lines = [record.getMessage() for record in caplog.records if "time zone" in record.getMessage()]
    assert lines == [note for note in notes if note.startswith("time zone")]
    assert [("hold from now on" in line, "which the job keeps" in line) for line in lines] == [(taken, not taken)]
    rules = other if taken else installed_rules(BERLIN)
    assert head(tmp_path).operators["days"].zones == {BERLIN: rules.text}


def test_columns_of_any_time_go_by_the_rules_that_they_began_with(tmp_path: Path) -> None:
    """What a column other than the event time holds is not known: it may be of any year."""
    source = ts.stream(event_time="t").with_columns(day=fn.to_date(expr("t + interval '1' hour"), zone=BERLIN))
    job = source.group_by("day").window(ts.tumbling("1 hour")).aggregate(n=agg.count()).named("days")
    job.standalone(checkpoint=tmp_path).run([zoned_rows([(SPRING, 1)])])
    with installation(lambda _name: changed_rules(BERLIN, SPRING + 3_000 * DAY_S)):
        job.standalone(checkpoint=tmp_path).run([zoned_rows([(SPRING, 1)])], drain=True)
    assert head(tmp_path).operators["days"].zones == {BERLIN: installed_rules(BERLIN).text}


def test_kept_rules_are_asked_again_when_time_has_passed(tmp_path: Path) -> None:
    other = changed_rules(BERLIN, SPRING - HOUR_S, until=SPRING + HOUR_S)
    batches = [
        zoned_rows([(SPRING, 1)]),
        zoned_rows([(SPRING + 30 * DAY_S, 1)]),
        zoned_rows([(SPRING + 31 * DAY_S, 1)]),
    ]
    job = local_days(BERLIN)
    job.standalone(checkpoint=tmp_path).run(batches[:1])
    texts = []
    for count in (2, 3):
        with installation(lambda _name: other):
            job.standalone(checkpoint=tmp_path).run(batches[:count])
        texts.append(head(tmp_path).operators["days"].zones[BERLIN])
    assert texts == [installed_rules(BERLIN).text, other.text]


def test_a_fork_and_a_rewind_go_by_the_rules_of_their_manifest(tmp_path: Path) -> None:
    other = changed_rules(BERLIN, SPRING + 30 * DAY_S)
    job, batches = local_days(BERLIN), [zoned_rows([(SPRING, 1)]), zoned_rows([(SPRING + HOUR_S, 1)])]
    job.standalone(checkpoint=tmp_path / "root").run(batches[:1])
    then = head(tmp_path / "root").id
    with installation(lambda _name: other):
        job.standalone(checkpoint=tmp_path / "root").run(batches)
    assert head(tmp_path / "root").operators["days"].zones == {BERLIN: other.text}
    ts.Root(tmp_path / "root").at(then).fork(tmp_path / "fork").execute()
    ts.Root(tmp_path / "root").rewind(then).execute()
    for name in ("fork", "root"):
        assert head(tmp_path / name).operators["days"].zones == {BERLIN: installed_rules(BERLIN).text}


@pytest.mark.parametrize("death", ["before-fence:3", "after-fence:3", "before-manifest:4"])
def test_killed_beside_the_fence_that_takes_other_rules(death: str, tmp_path: Path) -> None:
    roots = [tmp_path / "killed", tmp_path / "alone"]
    for root, end in zip(roots, (death, ""), strict=True):
        local_days(BERLIN).standalone(checkpoint=root).run([zoned_rows([(SPRING, 1)])])
        process = Forked("tests.children.zoned", root, end)
        process.communicate()
        assert process.returncode == (-signal.SIGKILL if end else 0)
    Forked("tests.children.zoned", roots[0], "").communicate()
    assert put_out(roots[0]) == put_out(roots[1])
    assert head(roots[0]).operators["days"].zones == head(roots[1]).operators["days"].zones != {}


def test_a_start_where_a_zone_is_not_installed_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job, batches = local_days(BERLIN), [zoned_rows([(SPRING, 1)]), zoned_rows([(SPRING + HOUR_S, 1)])]
    roots = [tmp_path / "root", tmp_path / "alone"]
    for root in roots:
        job.standalone(checkpoint=root).run(batches[:1])
    with host_without_zones(tmp_path / "zones"):
        notes = job.plan(roots[0]).notes
        caplog.clear()
        job.standalone(checkpoint=roots[0]).run(batches, drain=True)
    lines = [record.getMessage() for record in caplog.records if "time zone" in record.getMessage()]
    assert lines == [note for note in notes if note.startswith("time zone")]
    assert [line.startswith(f"time zone {BERLIN}: this installation does not know it") for line in lines] == [True]
    job.standalone(checkpoint=roots[1]).run(batches, drain=True)
    assert put_out(roots[0]) == put_out(roots[1]) == by_zoneinfo(BERLIN, [(SPRING, 1), (SPRING + HOUR_S, 1)])
    assert head(roots[0]).operators["days"].zones == {BERLIN: installed_rules(BERLIN).text}


def test_a_zone_without_rules_anywhere_is_refused(tmp_path: Path) -> None:
    batch = zoned_rows([(SPRING, 1)])
    local_days(BERLIN).standalone(checkpoint=tmp_path / "root").run([batch])
    before = head(tmp_path / "root")
    with host_without_zones(tmp_path / "zones"):
        for zone, name in ((BERLIN, "new"), ("Europe/Paris", "root")):
            with pytest.raises(UsageError, match="install tzdata"):
                local_days(zone).standalone(checkpoint=tmp_path / name).run([batch])
            with pytest.raises(UsageError, match="time-zone"):
                local_days(zone).plan(tmp_path / name, schema=ZONED_ROWS)
    assert not (tmp_path / "new").exists()
    assert head(tmp_path / "root") == before


def test_every_door_takes_the_rules_of_the_checkpoint_where_a_zone_is_not_installed(tmp_path: Path) -> None:
    job, batches = local_days(BERLIN), [zoned_rows([(SPRING, 1)]), zoned_rows([(SPRING + HOUR_S, 2)])]
    source = ts.stream(event_time="t", offset="v").where(fn.hour("t", zone=BERLIN) == 3)
    by_hand = source.group_by().window(ts.tumbling("12 hours")).aggregate(n=agg.count()).named("days")
    with by_hand.by_hand(ZONED_ROWS, checkpoint=tmp_path / "by-hand") as operator:
        operator.add_messages(batches[0])
    job.standalone(checkpoint=tmp_path / "root").run(batches[:1])
    with job.harness(ZONED_ROWS, folder=tmp_path / "harness") as harness:
        harness.feed(batches[0])
        with host_without_zones(tmp_path / "zones"):
            harness.restart()
            harness.feed(batches[1])
            with by_hand.by_hand(ZONED_ROWS, checkpoint=tmp_path / "by-hand") as operator:
                operator.add_messages(batches[1])
            windows = ts.Root(tmp_path / "root").windows(job=job).to_table()
    assert [(row["n"], str(row["day"])) for row in windows.to_pylist()] == [(1, "2026-03-29")]
    for name in ("by-hand", "harness"):
        assert head(tmp_path / name).operators["days"].zones == {BERLIN: installed_rules(BERLIN).text}
    assert head(tmp_path / "by-hand").totals["accepted"] == 1, "of 3 and 4 o'clock the first"


def test_going_back_takes_the_rules_of_where_it_goes_back_to(tmp_path: Path) -> None:
    job, batches = local_days(BERLIN), [zoned_rows([(SPRING, 1)]), zoned_rows([(SPRING + HOUR_S, 1)])]
    job.standalone(checkpoint=tmp_path / "root").run(batches)
    damaged = tmp_path / "root" / manifest_path(head(tmp_path / "root").id)
    damaged.write_bytes(damaged.read_bytes()[:100])
    with host_without_zones(tmp_path / "zones"):
        runner = job.standalone(checkpoint=tmp_path / "root", policy=ts.Policy(damaged="reset"))
        runner.run(batches, drain=True)
    assert put_out(tmp_path / "root") == by_zoneinfo(BERLIN, [(SPRING, 1), (SPRING + HOUR_S, 1)])


def test_an_operator_fed_by_hand_has_rules(tmp_path: Path) -> None:
    source = ts.stream(event_time="t", offset="v").where(fn.hour("t", zone=BERLIN) == 3)
    job = source.group_by().window(ts.tumbling("12 hours")).aggregate(n=agg.count()).named("days")
    for _ in range(2):
        with job.by_hand(ZONED_ROWS, checkpoint=tmp_path) as operator:
            operator.add_messages(zoned_rows([(SPRING, 1), (SPRING + 12 * HOUR_S, 2)]))
    assert head(tmp_path).operators["days"].zones == {BERLIN: installed_rules(BERLIN).text}


@pytest.mark.parametrize(
    "zones", [{}, {BERLIN: "AAAA"}, {BERLIN: ""}, {"Europe/Paris": "x"}], ids=["none", "garbage", "empty", "other"]
)
def test_rules_that_no_job_writes_are_damage(zones: dict[str, str], tmp_path: Path) -> None:
    local_days(BERLIN).standalone(checkpoint=tmp_path).run([zoned_rows([(SPRING, 1)])])
    state = msgspec.structs.replace(head(tmp_path).operators["days"], zones=zones)
    with pytest.raises(CorruptionError, match="manifest-damaged"):
        plan_from("days", state)


@pytest.mark.parametrize("zones", [{f"Z{number}": "" for number in range(65)}, {"Z": "A" * 16_385}, {"": "A"}])
def test_rules_beyond_the_bounds_are_no_manifest(zones: dict[str, str], tmp_path: Path) -> None:
    local_days(BERLIN).standalone(checkpoint=tmp_path).run([zoned_rows([(SPRING, 1)])])
    manifest = head(tmp_path)
    forged = msgspec.structs.replace(manifest.operators["days"], zones=zones)
    with pytest.raises(InvalidManifest, match="zones"):
        check(msgspec.structs.replace(manifest, operators={"days": forged}))


def test_what_cannot_be_bound() -> None:
    with pytest.raises(UsageError, match="time-zone"):
        local_days("Europe/Berlinn").harness(ZONED_ROWS)
    names = [name for name in sorted(available_timezones()) if name.startswith("America/")][:65]
    columns = {f"c{number}": fn.hour("t", zone=name) for number, name in enumerate(names)}
    grouped = ts.stream(event_time="t").with_columns(**columns).group_by().window(ts.tumbling("1 hour"))
    berlin = installed_rules(BERLIN)
    with installation(lambda _name: berlin), pytest.raises(UsageError, match="at most 64 time zones"):
        grouped.aggregate(n=agg.count()).harness(ZONED_ROWS)
