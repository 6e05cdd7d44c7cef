"""A sink of a Spark job that refuses: nothing is taken in, the query says so, stops cleanly, and nothing is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.helpers import evidence
from tests.helpers.spark_inputs import batch, job, rows, write
from tests.helpers.spark_runs import output, stream
from tidestate.operators import DeliveryId, Refused, count, tumbling, windowed
from tidestate.operators.describe.runs import DurableQuery
from tidestate.recovery.log.acknowledgements import delivered
from tidestate.recovery.log.checkpoint import Checkpoint

pytestmark = pytest.mark.spark


class Sink:
    """Refuses while ``full``, by False and by the exception in turn; remembers what it took and was offered."""

    def __init__(self) -> None:
        self.full = True
        self.offered: list[DeliveryId] = []
        self.took: dict[DeliveryId, list[tuple[object, ...]]] = {}

    def __call__(self, panes: DataFrame, delivery_id: DeliveryId) -> bool:
        self.offered.append(delivery_id)
        if self.full and len(self.offered) % 2:
            raise Refused("not now")
        if self.full:
            return False
        self.took[delivery_id] = rows(panes.toArrow())
        return True

    def check(self, root: Path) -> None:
        """It has everything once, in order."""
        assert list(self.took) == [one.delivery_id for one in Checkpoint.open(root).outputs() if one.panes]
        assert list(self.took.values()) == list(output(root, "panes").values()) != []


def until(query: DurableQuery, reached: Callable[[], object]) -> None:
    deadline = time.monotonic() + 90
    while not reached():
        assert query._failure is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_sink_that_refuses_a_batch_is_waited_for(spark: SparkSession, tmp_path: Path) -> None:
    for number, second in enumerate((1, 30, 45)):
        write(tmp_path / "input", number, batch([(second, "a", second)], number))
    root, sink = tmp_path / "cp", Sink()
    started = job().on_spark(stream(spark, tmp_path / "input"), checkpoint=root, sink=sink, partitions=1)
    query = started.start()
    until(query, lambda: len(sink.offered) > 2)
    assert query.is_active
    assert query.waiting_since_us is not None
    held = query.checkpoint_id
    until(query, lambda: len(sink.offered) > 4)
    assert (len({*sink.offered}), query.checkpoint_id) == (1, held), "nothing is taken in meanwhile"
    query.stop()
    assert (query.is_active, query.waiting_since_us, sink.took) == (False, None, {})
    first, sink.offered = sink.offered[0], []
    opening = threading.Timer(0.2, lambda: setattr(sink, "full", False))
    opening.start()
    query = started.start()  # waits for the sink
    assert not sink.full
    assert {*sink.offered} == {first} == {*sink.took}
    query.process_all_available()
    sink.full = True
    draining = threading.Thread(target=lambda: query.stop(drain=True))
    draining.start()
    until(query, lambda: query.waiting_since_us is not None)
    sink.full = False
    draining.join()
    sink.check(root)
    head = Checkpoint.open(root).head()
    assert head is not None
    assert delivered(Checkpoint.open(root), head.manifest) == head.manifest.id


def test_a_sink_that_refuses_a_tick_holds_batches_too_and_can_be_left(spark: SparkSession, tmp_path: Path) -> None:
    root, sink = tmp_path / "cp", Sink()
    write(tmp_path / "input", 0, batch([(1, "a", 1)]))
    by_clock = windowed(processing_time=True, key="k").window(tumbling("1 second")).aggregate(n=count())
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
    sink.full = False
    query = started.start()
    query.process_all_available()
    query.stop(drain=True)
    assert [one for one in sink.took if one.run == sink.offered[0].run] == [sink.offered[0]]
    sink.check(root)
    assert sum(manifest["counters"].get("events", 0) for manifest in evidence.work(root)) == 2
