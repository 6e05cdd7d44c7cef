"""Several sinks of one job, and sinks that fall behind by choice: each gets every row, in order, and never twice in a
run; what waits is bounded, seen, and kept.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.click_chains import clicks, per_user
from tests.helpers.example_manifest import example
from tests.helpers.forked import ForkedChild
from tests.helpers.spark_inputs import batch, job, sample
from tests.helpers.targets import holds_all_once, target_of
from tidestate.operators import DeliveryId
from tidestate.operators.describe.sinks import Sinks
from tidestate.operators.engine import delivery, driver
from tidestate.operators.engine.exposition import exposition_text
from tidestate.operators.engine.job_metrics import JobFigures, job_families
from tidestate.operators.progress.figures import SinkWaits
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import output_of
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.errors import UnavailableError, UsageError

BATCHES = sample(9, 60)


class Sink:
    """Keeps what it takes; refuses while it is down, or where it is set to fail."""

    def __init__(self, behind: int = 0, *, down: bool = False) -> None:
        self.behind, self.down = behind, down
        self.took: list[DeliveryId] = []
        self.refused = 0
        self.fails: set[int] = set()

    def __call__(self, rows: pa.Table, one: DeliveryId) -> bool:
        if one.checkpoint in self.fails:
            self.fails.discard(one.checkpoint)
            raise OSError("broken")
        self.refused += self.down
        if self.down:
            raise ts.Refused
        self.took.append(one)
        return True


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "PAUSE_S", 0.001)
    monkeypatch.setattr("tidestate.operators.engine.driver.PAUSE_S", 0.0)
    monkeypatch.setattr("tidestate.operators.engine.driver.LONGEST_PAUSE_S", 0.0)
    monkeypatch.setattr("tidestate.operators.engine.driver.LEFT_ALONE", 0)


def put_out(root: Path, kind: str = "panes") -> list[DeliveryId]:
    """All deliveries that there are."""
    outputs = list(Checkpoint.open(root).outputs())
    if kind == "late":
        return [one for output in outputs for one in output.ledgers]
    return [output.delivery_id for output in outputs if output.panes]


def test_each_of_several_gets_everything_once(tmp_path: Path) -> None:
    first, second, late, more = Sink(), Sink(), Sink(), Sink()
    job().standalone(checkpoint=tmp_path, sink=[first, second], late_sink=(late, more)).run(BATCHES, drain=True)
    assert first.took == second.took == put_out(tmp_path) != []
    assert late.took == more.took == put_out(tmp_path, "late") != []


def test_one_that_refuses_holds_all_and_the_others_see_nothing_twice(tmp_path: Path) -> None:
    first, second = Sink(), Sink(down=True)

    def meanwhile(rows: pa.Table, one: DeliveryId) -> bool:
        second.down = second.refused < 3 * (len(second.took) + 1)
        return Sink.__call__(second, rows, one)

    running = job().standalone(checkpoint=tmp_path, sink=[first, meanwhile])
    running.run(BATCHES, drain=True)
    assert first.took == second.took == put_out(tmp_path)
    assert second.refused == 3 * len(second.took)


def test_one_that_breaks_and_a_restart_repeat_for_the_others_what_is_not_recorded(tmp_path: Path) -> None:
    first, second = Sink(), Sink()
    job().standalone(checkpoint=tmp_path, sink=[first, second]).run(BATCHES[:3])
    second.fails = {put_out(tmp_path)[-1].checkpoint + 2}  # of the next start, after its fence
    with pytest.raises(OSError, match="broken"):
        job().standalone(checkpoint=tmp_path, sink=[first, second]).run(BATCHES)
    job().standalone(checkpoint=tmp_path, sink=[first, second]).run(BATCHES, drain=True)
    assert second.took == put_out(tmp_path)
    assert list(dict.fromkeys(first.took)) == put_out(tmp_path)
    assert len(first.took) == len(second.took) + 1, "the one that it took when the other broke"


def test_one_may_fall_behind_and_then_holds(tmp_path: Path) -> None:
    first, second, ends = Sink(), Sink(behind=3, down=True), list[int]()
    running = job().standalone(checkpoint=tmp_path, sink=[first, second])
    for _panes in running.stream(BATCHES):
        waits = running.waits
        ends.append(waits.checkpoints)
        assert waits.since_us is None
        assert waits.behind == (("Sink 1", "panes", 0), ("Sink 2", "panes", waits.checkpoints))
        second.down = second.down and waits.checkpoints < 3
    assert max(ends) == 3
    assert ends[-1] == 0
    running.drain()
    assert first.took == second.took == put_out(tmp_path)


def test_at_its_bound_it_holds_the_intake(tmp_path: Path) -> None:
    """In the middle of a wait: as many checkpoints as it may be behind, and the one that waits for it."""
    first, second, seen = Sink(), Sink(behind=2, down=True), list[tuple[int, SinkWaits]]()
    running = job().standalone(checkpoint=tmp_path, sink=[first, second])

    def asked(rows: pa.Table, one: DeliveryId) -> bool:
        waits = running.waits
        if waits.since_us is not None:
            seen.append((len(evidence.manifests(tmp_path)), waits))
            second.down = len(seen) < 4
        return Sink.__call__(second, rows, one)

    asked.behind = 2  # type: ignore[attr-defined]
    running = job().standalone(checkpoint=tmp_path, sink=[first, asked])
    running.run(BATCHES, drain=True)
    assert len({count for count, _ in seen}) == 1, "nothing is taken in meanwhile"
    assert {waits.checkpoints for _, waits in seen} == {3}
    assert first.took == second.took == put_out(tmp_path)


def test_a_sink_that_is_behind_may_take_a_part_of_a_checkpoint_and_gets_the_rest_alone(tmp_path: Path) -> None:
    """Two operators have late rows in one checkpoint; those of the second are refused at first."""
    took, refused = list[ts.DeliveryId](), list[ts.DeliveryId]()

    def late(_rows: pa.Table, one: DeliveryId) -> bool:
        if one.operator == "second" and len(refused) < 3:
            refused.append(one)
            return False
        took.append(one)
        return True

    late.behind = 9  # type: ignore[attr-defined]
    described = ts.union(*(per_user(name=name).timed_by("window_end") for name in ("first", "second")))
    batches = [clicks((1, "a", "nl", 5), (7300, "a", "nl", 5)), clicks((2, "z", "nl", 1)), clicks((3, "y", "nl", 1))]
    described.standalone(checkpoint=tmp_path, late_sink=late).run(batches, drain=True)
    assert len({*refused}) == 1
    assert took == put_out(tmp_path, "late")
    assert [one.operator for one in took] == ["first", "second"] * 2


def test_one_that_is_behind_is_offered_nothing_after_what_it_refuses(tmp_path: Path) -> None:
    lagging, refused = Sink(behind=9), list[int]()

    def choosy(rows: pa.Table, one: DeliveryId) -> bool:
        if len(refused) < 3:
            refused.append(one.checkpoint)
            return False
        return Sink.__call__(lagging, rows, one)

    choosy.behind = 9  # type: ignore[attr-defined]
    job().standalone(checkpoint=tmp_path, sink=choosy).run(BATCHES, drain=True)
    assert refused == [put_out(tmp_path)[0].checkpoint] * 3
    assert lagging.took == put_out(tmp_path)


def test_a_sink_of_panes_that_is_behind_repeats_nothing_for_that_of_late_rows(tmp_path: Path) -> None:
    panes, late = Sink(behind=100, down=True), Sink()
    for until in (5, 9):
        job().standalone(checkpoint=tmp_path, sink=panes, late_sink=late).run(BATCHES[:until])
    assert panes.took == []
    assert late.took == put_out(tmp_path, "late") != []


def test_a_lane_is_full_at_its_bound_and_rests_after_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine times as long as the refusal took; where that was nothing, twice as long each time, up to five seconds."""
    now, head = [100.0], example()
    monkeypatch.setattr(driver, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for name, value in (("PAUSE_S", 0.05), ("LONGEST_PAUSE_S", 5.0), ("LEFT_ALONE", 9)):
        monkeypatch.setattr(driver, name, value)
    lane = driver.Lane[pa.Table]("sink", "panes", lambda *_: True, 2, head.id - 2)
    assert lane.full(head)
    assert not driver.Lane[pa.Table]("sink", "panes", lambda *_: True, 2, head.id - 1).full(head)

    def rests(seconds: float) -> None:
        now[0] += seconds - 0.01
        assert not lane.lags(head)
        now[0] += 0.02
        assert lane.lags(head)

    assert lane.lags(head)
    lane.refused(2.0)
    rests(18.0)
    for expected in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0):
        lane.refused(0.0)
        rests(expected)
    lane.accepted(output_of(head), head)
    lane.had -= 1
    assert lane.lags(head)
    lane.refused(0.0)
    rests(0.05)


def test_a_drain_waits_for_one_that_is_behind(tmp_path: Path) -> None:
    lagging = Sink(behind=100, down=True)
    running = job().standalone(checkpoint=tmp_path, sink=[lagging])
    running.run(BATCHES)
    with pytest.raises(UnavailableError, match="sink-refuses"):
        running.drain(timeout_s=0.05)
    lagging.down = False
    running.drain()
    assert lagging.took == put_out(tmp_path)


def test_what_waits_is_not_collected_and_is_delivered_at_the_next_start(tmp_path: Path) -> None:
    first, lagging = Sink(), Sink(behind=100, down=True)
    job().standalone(checkpoint=tmp_path, sink=[first, lagging]).run(BATCHES)
    there = put_out(tmp_path)
    checkpoint = Checkpoint.open(tmp_path)
    collected = collect(checkpoint, CheckpointRetention(newest=1, grace="0 seconds", panes="0 seconds"), at_us=2**60)
    assert collected.files
    lagging.down = False
    job().standalone(checkpoint=tmp_path, sink=[first, lagging]).run(BATCHES)
    assert lagging.took == there


@pytest.mark.long
def test_by_hand_and_in_the_harness(tmp_path: Path) -> None:
    first, lagging = Sink(), Sink(behind=2, down=True)
    numbered = [one.append_column("offset", one["id"]).append_column("origin", one["id"]) for one in BATCHES]
    with job().by_hand(numbered[0].schema, checkpoint=tmp_path / "hand") as running:

        def wait(_pause_s: float) -> None:
            lagging.down = False

        ts.run_operator(running, numbered, [first, lagging], clock=lambda: 0, drain=True, wait=wait)
    assert first.took == lagging.took == put_out(tmp_path / "hand")
    assert lagging.refused > 2
    first, lagging = Sink(), Sink(behind=100, down=True)
    tested = job().harness(BATCHES[0].schema, folder=tmp_path / "harness", sink=[first, lagging])
    for one in BATCHES:
        tested.feed(one)
    assert (len(first.took), lagging.took) == (len(put_out(tmp_path / "harness")), [])
    lagging.down = False
    tested.feed(batch([]))
    assert first.took == lagging.took


def test_what_is_no_sink_is_refused() -> None:
    for wrong in (3, [print, 3], Sink(behind=-1)):
        with pytest.raises(UsageError, match=r"\[sink\]"):
            Sinks(wrong)  # type: ignore[arg-type]


def test_metrics_name_each_sink() -> None:
    waits = SinkWaits(None, 0, 7, (("DeltaSink('/lake')", "panes", 7), ("write", "late", 0)))
    text = exposition_text(job_families(JobFigures("job", example(), {}, waits, None)))
    name = 'tidestate_sink_behind_checkpoints{query="job",rows='
    assert f'{name}"panes",sink="DeltaSink(\'/lake\')"}} 7.0\n' in text
    assert f'{name}"late",sink="write"}} 0.0\n' in text


@pytest.mark.slow
def test_killed_while_one_is_behind(tmp_path: Path) -> None:
    places: Any = [f"parquet:{tmp_path / 'first'}", f"delta:{tmp_path / 'lagging'}"]
    command = ("tests.children.lagging_sink", *places, tmp_path / "root", tmp_path / "up")
    child = ForkedChild(*command, log=tmp_path / "log")
    refused = [child.wait_for(lambda event: event["event"] == "refused")["checkpoint"] for _ in range(6)]
    child.kill()
    assert len({*refused}) == 1
    assert len(evidence.work(tmp_path / "root")) < 9, "it was held"
    (tmp_path / "up").touch()
    child = ForkedChild(*command, log=tmp_path / "log")
    child.wait_for(lambda event: event["event"] == "done")
    child.finish()
    for place in places:
        holds_all_once(target_of(place), "append", tmp_path / "root")
