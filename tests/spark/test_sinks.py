"""A sink of a Spark job that refuses or is not ready: nothing is taken in, the query says so, stops cleanly or is
killed, and nothing is lost.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.feather as feather
import pytest
from pyspark.sql import DataFrame, SparkSession

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.apis import Notes, Switch
from tests.helpers.arrow_rows import arrow_of
from tests.helpers.checkout import ROOT
from tests.helpers.process import LONG, REMOTE
from tests.helpers.spark_inputs import batch, job, rows, sample, write
from tests.helpers.spark_runs import output, stream
from tidestate import agg
from tidestate.operators import DeliveryId
from tidestate.operators.describe.runs import DurableQuery
from tidestate.recovery.log.acknowledgements import delivered
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import UnavailableError, UsageError
from tools.demo.child import Child

pytestmark = pytest.mark.spark


class Sink:
    """Refuses while ``full``, by False and by the exception in turn; notes what it took and was offered."""

    def __init__(self, folder: Path, *, full: bool = True) -> None:
        self.full = Switch(folder / "full", on=full)
        self.offered: Notes[DeliveryId] = Notes(folder / "offered")
        self.took: Notes[tuple[DeliveryId, list[tuple[object, ...]]]] = Notes(folder / "took")

    def __call__(self, panes: DataFrame, delivery_id: DeliveryId) -> bool:
        self.offered.append(delivery_id)
        if self.full and len(self.offered) % 2:
            raise ts.Refused("not now")
        if self.full:
            return False
        self.took.append((delivery_id, rows(arrow_of(panes))))
        return True

    def check(self, root: Path) -> None:
        """It has everything once, in order."""
        expected = [one.delivery_id for one in Checkpoint.open(root).outputs() if one.panes]
        assert [delivery for delivery, _ in self.took] == expected
        assert [found for _, found in self.took] == list(output(root, "panes").values()) != []


def until(query: DurableQuery, reached: Callable[[], object]) -> None:
    deadline = time.monotonic() + 90
    while not reached():
        assert query.exception() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.long
def test_a_sink_that_refuses_a_batch_is_waited_for(spark: SparkSession, tmp_path: Path) -> None:
    for number, second in enumerate((1, 30, 45)):
        write(tmp_path / "input", number, batch([(second, "a", second)], number))
    root, sink = tmp_path / "cp", Sink(tmp_path / "sink")
    started = job().on_spark(stream(spark, tmp_path / "input"), checkpoint=root, sink=sink, partitions=1)
    query = started.start()
    until(query, lambda: len(sink.offered) > 1)
    assert query.isActive
    until(query, lambda: query.waiting_since_us is not None)  # a client has it with the next lease
    held = query.checkpoint_id
    until(query, lambda: len(sink.offered) > 2)
    assert (len({*sink.offered}), query.checkpoint_id) == (1, held), "nothing is taken in meanwhile"
    query.stop()
    assert (query.isActive, query.waiting_since_us, len(sink.took)) == (False, None, 0)
    before = len(sink.offered)
    opening = threading.Timer(0.2, lambda: sink.full.turn(on=False))
    opening.start()
    query = started.start()  # waits for the sink
    assert not sink.full
    assert {*list(sink.offered)[before:]} == {sink.offered[0]} == {one for one, _ in sink.took}
    query.processAllAvailable()
    sink.full.turn(on=True)
    draining = threading.Thread(target=lambda: query.stop(drain=True))
    draining.start()
    until(query, lambda: query.waiting_since_us is not None)
    sink.full.turn(on=False)
    draining.join()
    sink.check(root)
    head = Checkpoint.open(root).head()
    assert head is not None
    assert delivered(Checkpoint.open(root), head.manifest).panes == head.manifest.id


@pytest.mark.long
def test_a_sink_that_refuses_a_tick_holds_batches_too_and_can_be_left(spark: SparkSession, tmp_path: Path) -> None:
    root, sink = tmp_path / "cp", Sink(tmp_path / "sink")
    write(tmp_path / "input", 0, batch([(1, "a", 1)]))
    by_clock = ts.stream(processing_time=True).group_by("k").window(ts.tumbling("1 second")).aggregate(n=agg.count())
    started = by_clock.on_spark(
        stream(spark, tmp_path / "input"), checkpoint=root, sink=sink, partitions=1, tick="200 milliseconds"
    )
    query = started.start()
    until(query, lambda: len(sink.offered) > 1)
    write(tmp_path / "input", 1, batch([(2, "b", 1)]))
    until(query, lambda: len(sink.offered) > 3)
    query.stop()
    kinds = [one["kind"] for one in evidence.work(root)]
    assert (kinds.count("batch"), kinds[-1]) == (1, "tick"), "the second file waits with the sink"
    sink.full.turn(on=False)
    query = started.start()
    query.processAllAvailable()
    query.stop(drain=True)
    assert [one for one, _ in sink.took if one.run == sink.offered[0].run] == [sink.offered[0]]
    sink.check(root)
    assert sum(manifest["counters"].get("events", 0) for manifest in evidence.work(root)) == 2


class Gate(Sink):
    """Is not ready while ``full``, and then takes everything; of panes and late rows."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.asked: Notes[None] = Notes(folder / "asked")

    def ready(self) -> bool:
        self.asked.append(None)
        return not self.full


def test_a_sink_that_is_not_ready_holds_the_intake_and_the_query_and_its_ui_say_so(
    spark: SparkSession, tmp_path: Path
) -> None:
    for number, second in enumerate((1, 30, 2, 99)):
        write(tmp_path / "input", number, batch([(second, "a", second), (None, "b", 1)], number))
    root, panes, late = tmp_path / "cp", Gate(tmp_path / "panes"), Sink(tmp_path / "late", full=False)
    started = job().on_spark(
        stream(spark, tmp_path / "input"), checkpoint=root, sink=panes, late_sink=late, partitions=1
    )
    query = started.start()
    until(query, lambda: len(panes.asked) > 2)
    until(query, lambda: query.waiting_since_us is not None)  # on Spark Connect with the next renewal of its lease
    assert (query.checkpoint_id, len(panes.offered)) == (1, 0)
    waits = query.waits
    assert waits.since_us is not None
    assert (waits.checkpoints, REMOTE or waits.total_us > 0) == (0, True)
    text = query.prometheus()
    assert 'tidestate_sink_waiting{query="job"} 1.0\n' in text
    assert 'tidestate_undelivered_checkpoints{query="job"} 0.0\n' in text

    def noted() -> bool:
        jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
        notes = [jobs.apply(n).description() for n in range(jobs.size())]
        return any("job: waits for a sink since" in str(one) for one in notes)

    if not REMOTE:  # a client has no list of jobs
        until(query, noted)
    query.stop()
    assert query.checkpoint_id == 1, "the batch that waited is taken at the next start"
    panes.full.turn(on=False)
    query = started.start()
    query.processAllAvailable()
    panes.full.turn(on=True)
    with pytest.raises(UnavailableError, match=r"the sink refuses the panes of checkpoint.*sink-refuses"):
        query.stop(drain=True, timeout_s=0.2)
    assert query.manifest.drained
    panes.full.turn(on=False)
    with pytest.raises(UsageError, match="drained"):
        started.start()
    panes.check(root)
    ledgers = [(number, found) for one in Checkpoint.open(root).outputs() for number, found in one.ledgers.items()]
    assert [one for one, _ in late.took] == [number for number, _ in ledgers]
    assert [found for _, found in late.took] == list(output(root, "late").values()) != []


def test_a_sink_that_never_returns_does_not_hold_stop_for_ever(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 0, batch([(1, "a", 1), (30, "a", 1)]))
    called, returns = Switch(tmp_path / "called"), Switch(tmp_path / "returns")

    def hangs(_panes: DataFrame, _id: DeliveryId) -> None:
        called.turn(on=True)
        deadline = time.monotonic() + 60
        while not returns and time.monotonic() < deadline:
            time.sleep(0.02)

    started = job().on_spark(stream(spark, tmp_path / "input"), checkpoint=tmp_path / "cp", sink=hangs, partitions=1)
    query = started.start()
    until(query, lambda: called)
    with pytest.raises(UnavailableError, match="sink-hangs"):
        query.stop(timeout_s=0.1)
    returns.turn(on=True)
    query.stop()
    assert not query.isActive


@pytest.mark.long
@pytest.mark.kill
def test_killed_while_it_is_held_it_delivers_each_row_once(tmp_path: Path) -> None:
    tables = sample(5, 60)
    for number, table in enumerate(tables):
        write(tmp_path / "in", number, table)
    root, received = tmp_path / "root", tmp_path / "received"
    received.mkdir()
    command = [sys.executable, "-m", "tests.children.held", str(tmp_path / "in"), str(root), str(received)]
    for mode in ("unready", "refuse") if LONG else ("unready",):
        child = Child([*command, mode], tmp_path / "log", cwd=ROOT)
        for _ in range(3):
            child.wait_for(lambda event: event["event"] == "held")
        there = len(evidence.manifests(root))
        child.wait_for(lambda event: event["event"] == "held")
        child.kill()
        assert len(evidence.manifests(root)) == there < 7, "no checkpoint while it is held"
    child = Child([*command, "open"], tmp_path / "log", cwd=ROOT)
    child.wait_for(lambda event: event["event"] == "done")
    child.finish()
    job().standalone(checkpoint=tmp_path / "alone").run(tables, drain=True)
    found: dict[str, list[tuple[object, ...]]] = {"panes": [], "late": []}
    for path in received.iterdir():
        found["late" if path.name.count("-") > 1 else "panes"] += rows(feather.read_table(path))
    for kind, got in found.items():
        expected = [row for one in output(tmp_path / "alone", kind).values() for row in one]
        assert sorted(got, key=repr) == sorted(expected, key=repr) != []
