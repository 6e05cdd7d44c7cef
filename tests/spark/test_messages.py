"""Messages that a source delivers twice, on Spark: the orders of the window operator design, with its results."""

from __future__ import annotations

import os
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import tidestate as ts
from tests.children.lost_orders import LOST_AFTER, SERVED, Order, orders
from tests.helpers import evidence
from tests.helpers.apis import Switch, raises_foreign
from tests.helpers.killed import killed
from tests.helpers.lost_messages import REBUILD, lose
from tests.helpers.process import some
from tests.helpers.spark_inputs import write
from tests.helpers.spark_runs import output
from tidestate import Aggregation, GroupedStream, agg, trigger
from tidestate.operators.describe.runs import DurableQuery
from tidestate.operators.inspect.query import query
from tidestate.statestore.errors import UsageError

pytestmark = pytest.mark.spark

TIME = pa.timestamp("us", tz="UTC")
ORDERS = pa.schema([("offset", pa.int64()), ("value", pa.int64()), ("time", TIME)])
M1, M2, M3 = (1, 0, (8, 59, 10)), (2, 5, (9, 0, 1)), (3, 9, (8, 59, 30))
BATCHES = [[M1, M2, M1], [M2, M1], [M3, M1, M3]]
"""What arrives before 9:01:00, the same again, and what comes later."""


def clock(hour: int, minute: int, second: int = 0) -> datetime:
    return datetime(2026, 1, 1, hour, minute, second, tzinfo=UTC)


class DiedError(Exception):
    """Stands for the end of the process."""


def highest(grouped: GroupedStream, layout: str, late: str | None = None) -> Aggregation:
    known = grouped.aggregate(value=agg.max("value"), values=agg.list("offset"))
    if late is not None:
        known = known.allowed_lateness(late)
    return known.messages("offset", layout=layout, equal="value").trigger(early=trigger.each_batch())


TUPLES = highest(
    ts.stream(offset="offset").group_by().window(ts.offset_windows(3, start=1, late=3)), "session_eq_offset"
).named("tuples")
TIMES = highest(
    ts.stream(event_time="time").group_by().window(ts.tumbling("1 minute")), "session_ts_eq_offset", "5 minutes"
).named("times")
RESULTS: dict[str, list[Any]] = {
    "tuples": [(1, 4, 5, [1, 2]), (1, 4, 9, [1, 2, 3])],
    "times": [
        (clock(8, 59), clock(9, 0), 0, [1]),
        (clock(9, 0), clock(9, 1), 5, [2]),
        (clock(8, 59), clock(9, 0), 9, [1, 3]),
    ],
}


@pytest.mark.parametrize("job", some([TUPLES, TIMES], 1), ids=some(["tuples", "times"], 1))
def test_the_orders_of_the_design(spark: SparkSession, tmp_path: Path, job: Aggregation) -> None:
    for number, messages in enumerate(BATCHES):
        rows = [dict(zip(ORDERS.names, (*message[:2], clock(*message[2])), strict=True)) for message in messages]
        write(tmp_path / "orders", number, pa.Table.from_pylist(rows, ORDERS))
        stream = spark.readStream.schema("offset long, value long, time timestamp").parquet(str(tmp_path / "orders"))
        running = job.on_spark(stream, checkpoint=tmp_path / "root", partitions=2).start()
        running.processAllAvailable()
        running.stop()
    panes = [row[:4] for rows in output(tmp_path / "root", "panes").values() for row in rows]
    assert panes == RESULTS[job.graph.description.name]
    kept = query(tmp_path / "root")
    assert kept.get_messages()["offset"].to_pylist() == ([1, 2, 3] if job is TUPLES else [1, 3, 2])
    assert kept.get_messages(equal=9)["offset"].to_pylist() == [3]
    assert kept.get_windows()["events"].to_pylist() == ([3] if job is TUPLES else [2, 1])


def test_the_orders_after_the_message_store_was_lost(spark: SparkSession, tmp_path: Path) -> None:
    """What arrives after the loss is served at once. A replay that dies before its manifest changes nothing; the next
    one corrects, and the job is what it would have been.
    """
    job, folder = TIMES.accumulation("retracting"), tmp_path / "orders"
    folder.mkdir()
    stream = spark.readStream.schema("offset long, value long, time timestamp")
    stream = stream.option("maxFilesPerTrigger", 1).parquet(str(folder))
    dying = Switch(tmp_path / "dying")

    def dies(moment: str, _checkpoint_id: int) -> None:
        if moment == "before-manifest" and dying:
            dying.turn(on=False)
            raise DiedError

    root = tmp_path / "root"
    for batches in (BATCHES[:2], BATCHES[2:]):
        for number, messages in enumerate(batches):
            rows = [dict(zip(ORDERS.names, (*message[:2], clock(*message[2])), strict=True)) for message in messages]
            write(folder, 10 * len(batches) + number, pa.Table.from_pylist(rows, ORDERS))
        running = job.on_spark(stream, checkpoint=root, partitions=2, policy=REBUILD).with_hook(dies).start()
        running.processAllAvailable()
        if batches == BATCHES[:2]:
            running.stop()
            assert lose(root)
    assert query(root).replay_from().to_pylist() == [{"origin": 0, "start_offset": 1, "last_offset": 3}]
    dying.turn(on=True)
    replay = spark.read.schema(stream.schema).parquet(str(folder)).where("offset >= 1")
    with raises_foreign(DiedError):
        running.rebuild(replay)
    assert [running.rebuild(replay) for _ in range(2)] == [2, 0]
    running.stop()
    panes = [(*row[:4], row[6]) for row in rows_of(root)]
    first, second = (clock(8, 59), clock(9, 0)), (clock(9, 0), clock(9, 1))
    assert panes == [
        (*first, 0, [1], "emit"),
        (*second, 5, [2], "emit"),
        (*first, 0, [1], "retract"),
        (*first, 9, [3], "emit"),  # without the first message, which was lost
        (*first, 9, [1, 3], "emit"),
        (*first, 9, [3], "retract"),
    ]
    kept = query(root)
    assert kept.get_messages()["offset"].to_pylist() == [1, 3, 2]
    assert not kept.incomplete_windows().num_rows


@pytest.mark.long
def test_a_replay_that_is_killed_is_given_again(tmp_path: Path) -> None:
    """All outputs: what was served without the messages that were lost, and the corrections of the second replay."""
    killed("tests.children.lost_orders", tmp_path, death=LOST_AFTER + 4)
    observed = []
    for manifest in evidence.work(tmp_path / "checkpoint"):
        rows = evidence.rows(tmp_path / "checkpoint", manifest["panes"], COLUMNS)
        observed.append([(at // 1_000_000 - 1_700_000_000, *row) for at, *row in rows])
    assert [Counter(map(repr, rows)) for rows in observed] == [Counter(map(repr, rows)) for rows in naive()]
    assert sum(row[-1] == "retract" for row in observed[LOST_AFTER + 1]) > 3, (
        "what was served without them is corrected"
    )
    left: Counter[str] = Counter()
    for *values, kind in (row for rows in observed for row in rows):
        left[repr(values)] += 1 if kind == "emit" else -1
        assert left[repr(values)] >= 0, "a pane is taken back after it was emitted"
    assert not query(tmp_path / "checkpoint").incomplete_windows().num_rows


COLUMNS = ["window_start", "item", "highest", "offsets", "kind"]


def naive() -> list[list[Any]]:
    """The panes of each checkpoint, by every window in turn."""
    taken: dict[int, Order] = {}
    there: set[int] = set()
    emitted: dict[tuple[int, str], Any] = {}
    observed: list[list[Any]] = []

    def fire(mark: float, touched: set[tuple[int, str]]) -> None:
        panes = []
        for window in {window_of(order) for order in taken.values()}:
            mine = sorted(
                (order for order in taken.values() if window_of(order) == window), key=lambda one: one[1::-1]
            )
            offsets = [order[0] for order in mine if order[0] in there]
            was, now = emitted.get(window), (*window, max(order[3] for order in mine), offsets)
            if window[0] + 60 <= mark and (was is None or (window in touched and was != now)):
                panes += [] if was is None else [(*was, "retract")]
                panes.append((*now, "emit"))
                emitted[window] = now
        observed.append(panes)

    mark = -1e9
    for number, batch in enumerate(orders()):
        if number == LOST_AFTER:
            there.clear()
        if number == SERVED:
            there |= set(taken)
            fire(mark, set(emitted))
        new = {order[0]: order for order in batch if order[0] not in taken}
        taken |= new
        there |= set(new)
        mark = max([mark, *(order[1] - 10 for order in batch)])
        fire(mark, {window_of(order) for order in new.values()})
    fire(float("inf"), set())
    return observed


def window_of(order: Order) -> tuple[int, str]:
    # The first second of the orders is 20 seconds past a minute.
    return (order[1] + 20) // 60 * 60 - 20, order[2]


def rows_of(root: Path) -> list[Any]:
    return [row for rows in output(root, "panes").values() for row in rows]


@pytest.mark.classic("engine replay")
def test_a_job_whose_message_store_was_lost_reads_its_files_again_by_itself(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is what it would have been, and of its files only those are read that had what is missing."""
    caplog.set_level("INFO", "tidestate")
    job, folder, root = TIMES.accumulation("retracting"), tmp_path / "orders", tmp_path / "root"
    folder.mkdir()
    stream = spark.readStream.schema("offset long, value long, time timestamp")
    stream = stream.option("maxFilesPerTrigger", 1).parquet(str(folder)).where("value >= 0")
    old = (0, 3, (8, 40, 0))
    for batches in ([[old]], BATCHES[:2], BATCHES[2:]):
        for messages in batches:
            rows = [dict(zip(ORDERS.names, (*message[:2], clock(*message[2])), strict=True)) for message in messages]
            write(folder, len(list(folder.glob("*.parquet"))), pa.Table.from_pylist(rows, ORDERS))
        policy = ts.Policy(messages="replay")
        running = job.on_spark(stream, checkpoint=root, partitions=2, policy=policy).start()
        running.processAllAvailable()
        running.stop()
        if batches == BATCHES[:2]:
            assert "replay" not in caplog.text
            assert lose(root)
    assert "all messages are back" in caplog.text
    panes = [(*row[:4], row[6]) for row in rows_of(root)]
    first, second = (clock(8, 59), clock(9, 0)), (clock(9, 0), clock(9, 1))
    assert panes == [
        (clock(8, 40), clock(8, 41), 3, [0], "emit"),
        (*first, 0, [1], "emit"),
        (*second, 5, [2], "emit"),
        (*first, 0, [1], "retract"),
        (*first, 9, [1, 3], "emit"),
    ]
    assert not query(root).incomplete_windows().num_rows
    kinds = [one["kind"] for one in evidence.manifests(root)]
    assert kinds.count("feed") == 1, "the first file is not read again, as its window is over"


@pytest.mark.classic("engine replay")
def test_a_stream_that_cannot_be_read_again_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    policy = ts.Policy(messages="replay")
    rate = spark.readStream.format("rate").load().selectExpr("value offset", "value", "timestamp time")
    (tmp_path / "orders").mkdir()
    cleaned = spark.readStream.schema("offset long, value long, time timestamp").option("cleanSource", "delete")
    for stream in (rate, cleaned.parquet(str(tmp_path / "orders"))):
        with pytest.raises(UsageError, match=r"\[replay-source\]"):
            TIMES.on_spark(stream, checkpoint=tmp_path / "root", policy=policy).start()
    assert not (tmp_path / "root").exists()


@pytest.mark.long  # in every run: operators/local/test_lost_messages.py
@pytest.mark.classic("engine replay")
def test_files_that_are_gone_are_reported_and_the_job_goes_on(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark plans a batch of files that it has listed before, and finds out where it reads their rows."""
    folder, root, policy = tmp_path / "orders", tmp_path / "root", ts.Policy(messages="replay")
    stream = spark.readStream.schema("offset long, value long, time timestamp").option("maxFilesPerTrigger", 1)
    folder.mkdir()

    def run(number: int, messages: list[Any]) -> DurableQuery:
        rows = [dict(zip(ORDERS.names, (*message[:2], clock(*message[2])), strict=True)) for message in messages]
        write(folder, number, pa.Table.from_pylist(rows, ORDERS))
        running = TIMES.on_spark(stream.parquet(str(folder)), checkpoint=root, partitions=1, policy=policy).start()
        running.processAllAvailable()
        running.stop()
        return running

    run(0, [M1, M2])
    assert lose(root)
    listed = (folder / "0000.parquet").read_bytes()
    (folder / "0000.parquet").write_bytes(b"no parquet")
    os.utime(folder / "0000.parquet", (1_000_000_000, 1_000_000_000))
    rebuilding = run(1, [M3]).manifest.operators["times"].rebuilding
    assert "the source could not be read again from" in caplog.text
    assert rebuilding is not None
    assert rebuilding.lacking
    assert query(root).get_messages()["offset"].to_pylist() == [3]
    (folder / "0000.parquet").write_bytes(listed)
    os.utime(folder / "0000.parquet", (1_000_000_000, 1_000_000_000))
    run(2, [(4, 7, (9, 0, 5))])
    assert query(root).get_messages()["offset"].to_pylist() == [1, 3, 2, 4]
    assert not query(root).incomplete_windows().num_rows
