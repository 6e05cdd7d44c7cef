"""The verbs stop and reprocess, and the same of `Root`: what they print, and what they do to a run elsewhere."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import tidestate as ts
from tests.children.requested import OFFERED, TAKEN, described
from tests.helpers import evidence
from tests.helpers.checkout import ROOT
from tests.helpers.command import tidestate_here
from tests.helpers.forked import ForkedChild
from tests.helpers.requests import asker, until
from tests.helpers.worked_example import STREAM, example
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.requests import ReprocessRequest
from tidestate.statestore.errors import ConflictError, UsageError

JOB = f"{ROOT}/tests/children/requested.py:described"


@contextmanager
def run(root: Path) -> Iterator[ForkedChild]:
    """A run in a process of its own, after all input, which waits for more."""
    child = ForkedChild("tests.children.requested", root, len(TAKEN), log=root.parent / "log")
    try:
        child.wait_for(lambda event: event["event"] == "ready")
        yield child
    finally:
        with suppress(ProcessLookupError):
            child.kill()


def effects(root: Path) -> Counter[evidence.Row]:
    return Counter(row for manifest in evidence.manifests(root) for row in evidence.rows(root, manifest["panes"]))


def test_a_run_elsewhere_is_stopped(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with run(root) as child:
        before = len(evidence.manifests(root))
        planned = tidestate_here("stop", root, columns=80)
        assert planned.returncode == 0, planned.stderr
        assert max(map(len, planned.stdout.splitlines())) <= 80
        assert f"run by process {child.pid} on" in " ".join(planned.stdout.split())
        assert "dry run" in planned.stdout
        facts = json.loads(tidestate_here("stop", root, "--drain", "--json").stdout)
        assert (facts["pid"], facts["runner"], facts["drain"], facts["done"]) == (
            child.pid,
            "standalone",
            True,
            False,
        )
        assert (facts["checkpoint"], facts["drained"]) == (before, False)
        assert len(evidence.manifests(root)) == before
        # A standalone run stops before its next batch, which has to come.
        waited = tidestate_here("stop", root, "--timeout", "1 millisecond", "--confirm")
        assert waited.returncode == 5
        assert "loop-waits" in waited.stderr
        child.tell(40)
        child.wait_for(lambda event: event["event"] == "done")
    assert len(evidence.manifests(root)) == before, "the batch that came was not taken"
    end = asker(root).end(1)
    assert end is not None
    assert end.why == "stopped"
    refused = tidestate_here("stop", root)
    assert refused.returncode == 5
    assert "not-running" in refused.stderr


def test_a_run_elsewhere_puts_late_events_back(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with run(root) as child:
        planned = tidestate_here("reprocess", root, columns=80)
        assert planned.returncode == 0, planned.stderr
        assert max(map(len, planned.stdout.splitlines())) <= 80
        assert "3 events of counted (very_late)" in " ".join(planned.stdout.split())
        assert f"process {child.pid}" in " ".join(planned.stdout.split())
        done = json.loads(tidestate_here("reprocess", root, "--confirm", "--json").stdout)
        assert (done["put_back"], done["checkpoint"], done["done"]) == (3, len(TAKEN) + 2, True)
        assert done["run"]["pid"] == child.pid
        again = tidestate_here("reprocess", root, "--confirm")
        assert "0 events" in again.stdout
        plan = ts.Root(root).reprocess(rows=OFFERED, operator="counted")
        assert plan.as_dict()["given"] == 2
        assert plan.execute().put_back == 2
        assert "0 events" in tidestate_here("reprocess", root, "--reason", "very_late", "--confirm").stdout
        never = tidestate_here("reprocess", root, "--reason", "null_key")
        assert never.returncode == 5
        assert "--reason" in never.stderr
        assert "a null key has no group" in " ".join(never.stderr.split())
        asked = asker(root)
        with pytest.raises(UsageError, match="feed-reason"):
            asked.ask(ReprocessRequest(reason="purged"))
        wrong = tidestate_here("reprocess", root, "--operator", "other")
        assert wrong.returncode == 5
        assert "feed-operator" in wrong.stderr
        assert "--operator" in wrong.stderr
    alone = described().standalone(checkpoint=tmp_path / "alone", partitions=2)
    alone.run(TAKEN)
    alone.reprocess_late()
    alone.reprocess_late(OFFERED)
    assert effects(root) == effects(tmp_path / "alone")


def test_where_none_runs_this_process_puts_them_back(tmp_path: Path) -> None:
    root = tmp_path / "root"
    described().standalone(checkpoint=root, partitions=2).run(TAKEN)
    refused = tidestate_here("reprocess", root)
    assert refused.returncode == 5
    assert "not-running" in refused.stderr
    assert "MODULE:JOB" in refused.stderr
    before = len(evidence.manifests(root))
    facts = json.loads(tidestate_here("reprocess", root, JOB, "--json").stdout)
    assert facts["run"] is None
    assert facts["waiting"] == [{"operator": "counted", "reason": "very_late", "rows": 3, "put_back": True}]
    assert len(evidence.manifests(root)) == before
    done = tidestate_here("reprocess", root, JOB, "--confirm")
    assert done.returncode == 0, done.stderr
    assert "3 events, checkpoint 6" in " ".join(done.stdout.split())
    assert ts.Root(root).reprocess(described()).as_dict()["waiting"] == []
    assert ts.Root(root).reprocess(described(), rows=OFFERED).execute().put_back == 2
    runner = described().standalone(checkpoint=root)
    assert runner.run(TAKEN).num_rows == 0, "the job goes on from there"
    alone = described().standalone(checkpoint=tmp_path / "alone", partitions=2)
    alone.run(TAKEN)
    alone.reprocess_late()
    alone.reprocess_late(OFFERED)
    assert effects(root) == effects(tmp_path / "alone")
    runner.drain()
    with pytest.raises(UsageError, match="drained"):
        ts.Root(root).reprocess(described())


def test_a_plan_that_is_out_of_date_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with run(root):
        stop, fed = ts.Root(root).stop(), ts.Root(root).reprocess()
    here = ts.Root(root).reprocess(described())
    with run(root):
        for plan in (stop, fed):
            with pytest.raises(ConflictError, match="plan-moved"):
                plan.execute()
    with pytest.raises(ConflictError, match="plan-moved"):
        here.execute()


def test_what_is_never_put_back_is_said(tmp_path: Path) -> None:
    job = example("retracting").retain_windows("1 hour")
    job.standalone(checkpoint=tmp_path).run(STREAM)
    plan = ts.Root(tmp_path).reprocess(job)
    counts = {(row["reason"], row["put_back"]): row["rows"] for row in plan.as_dict()["waiting"]}
    assert counts == {("very_late", True): 1, ("null_key", False): 1, ("null_event_time", False): 1}
    lines = " ".join(str(plan).split())
    assert "1 row of" in lines
    assert "(null_key): never put back" in lines
    with pytest.raises(UsageError, match="root-at"):
        ts.Root(tmp_path).at(1).reprocess(job)
    with pytest.raises(UsageError, match="root-at"):
        ts.Root(tmp_path).at(1).stop()


def test_a_loop_that_is_stopped_does_not_drain_and_the_next_one_goes_on(tmp_path: Path) -> None:
    """``run(…, drain=True)`` drains after its whole input alone."""
    job = described()
    runner = job.standalone(checkpoint=tmp_path)
    batches = iter([*TAKEN, *TAKEN])

    def given() -> Iterator[object]:
        for number, rows in enumerate(batches):
            yield rows
            if number == 1:
                until((tmp_path / "control" / "1" / "begun.json").exists)
                with pytest.raises(Exception, match="loop-waits"):
                    ts.Root(tmp_path).stop(timeout="1 millisecond").execute()

    runner.run(given(), drain=True)
    head = Checkpoint.open(tmp_path).chosen(None).manifest
    assert (head.input.batches if head.input else 0, head.drained) == (2, False)
    job.standalone(checkpoint=tmp_path).run(TAKEN, drain=True)
    assert Checkpoint.open(tmp_path).chosen(None).manifest.drained
