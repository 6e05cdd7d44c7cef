"""A join on Spark: two streams in one query, with the pairs of the standalone runner."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import tidestate as ts
from tests.children import lost_pairs
from tests.children.lost_pairs import ASKED, LOST_AFTER, SERVED
from tests.helpers import evidence
from tests.helpers.killed import killed
from tests.helpers.lost_joins import net
from tests.helpers.lost_messages import REBUILD, lose
from tests.helpers.orders_and_shipments import EXPECTED, at
from tests.helpers.process import REMOTE, some
from tests.helpers.spark_inputs import SCHEMA, Event, batch, job, sample, write
from tests.helpers.spark_runs import output, stream
from tests.twins.join import Pane, Twin
from tidestate import OperatorStream, agg
from tidestate.operators.inspect.query import query
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import Memory, Parquet, StoreConfig

pytestmark = pytest.mark.spark

JOINS: dict[str, tuple[OperatorStream, StoreConfig]] = {
    "near in time, all rows": (
        ts.stream(event_time="t").join(
            ts.stream(event_time="t"),
            on="k",
            within=("-1 second", "2 seconds"),
            how="full",
            allowed_lateness="5 seconds",
        ),
        Parquet(max_levels=2, snapshot_bytes=1),
    ),
    "in windows, all of the left": (
        ts.stream(event_time="t").join(
            ts.stream(event_time="t"), on="k", window=ts.sliding("4 seconds", "2 seconds"), how="left"
        ),
        Memory(),
    ),
    "in windows from the first offsets": (
        ts.stream(event_time="t", offset="id").join(
            ts.stream(event_time="t", offset="id"),
            on="k",
            left=ts.side(window=ts.offset_windows(30), retain=ts.Retention(windows=1)),
            right=ts.side(window=ts.offset_windows(40, 13)),
            how="full",
            identity=True,
        ),
        Parquet(max_levels=2, snapshot_bytes=1),
    ),
}


@pytest.mark.parametrize("name", some(JOINS, 1))
def test_pairs_and_ledger_equal_the_standalone_runner(spark: SparkSession, tmp_path: Path, name: str) -> None:
    description, store = JOINS[name]
    lefts, rights = sample(2, 40, seed=1), sample(2, 40, seed=2)
    rights[0] = rights[0].slice(7)  # the sides begin with different ids
    for number, (left, right) in enumerate(zip(lefts, rights, strict=True)):
        write(tmp_path / "left", number, left)
        write(tmp_path / "right", number, right)

    def run(drain: bool) -> None:
        sides = {side: stream(spark, tmp_path / side) for side in ("left", "right")}
        query = description.on_spark(sides, checkpoint=tmp_path / "spark", store=store, partitions=3).start()
        query.processAllAvailable()
        query.stop(drain=drain)

    run(False)  # a restart brings both sides back
    run(True)
    both = [{"left": left, "right": right} for left, right in zip(lefts, rights, strict=True)]
    description.standalone(checkpoint=tmp_path / "alone").run(both, drain=True)
    panes = output(tmp_path / "spark", "panes")
    assert panes == output(tmp_path / "alone", "panes")
    assert sum(map(len, panes.values())) > 50
    assert output(tmp_path / "spark", "late") == output(tmp_path / "alone", "late")


EACH_SIDE = ts.stream(event_time="t", watermark_delay="5 seconds").join(
    ts.stream(event_time="t", watermark_delay="5 seconds"),
    on="k",
    how="full",
    left=ts.side(window=ts.tumbling("8 seconds")),
    right=ts.side(window=ts.sliding("6 seconds", "2 seconds")),
)


@pytest.mark.long  # in every run: operators/joins/test_cut.py
def test_windows_of_each_side_give_the_same_pairs_however_files_come_in_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Where a job was down, its whole backlog is one batch."""
    chance, tables = random.Random(4), {}
    for side in ("left", "right"):
        for number in range(4):
            events: list[Event] = [
                (number * 10 + chance.uniform(0, 10) - chance.uniform(0, 5), chance.choice("abc"), place)
                for place in range(15)
            ]
            tables[side, number] = batch(sorted(events, key=lambda e: e[2] or 0), number * 100)
            write(tmp_path / side, number, tables[side, number])

    def run(files: int) -> list[tuple[object, ...]]:
        reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files)
        sides = {side: reader.parquet(str(tmp_path / side)) for side in ("left", "right")}
        root = tmp_path / f"by-{files}"
        query = EACH_SIDE.on_spark(sides, checkpoint=root, store=Parquet(max_levels=2), partitions=2).start()
        query.processAllAvailable()
        query.stop(drain=True)
        assert not output(root, "late")
        return sorted(map(str, (row for rows in output(root, "panes").values() for row in rows)))

    found = run(1)
    assert len(found) > 60
    assert run(4) == found
    nothing = {side: tables[side, 0].slice(0, 0) for side in ("left", "right")}
    both = [nothing | {side: tables[side, number]} for number in range(4) for side in ("right", "left")]
    EACH_SIDE.standalone(checkpoint=tmp_path / "alone", partitions=3).run(both, drain=True)
    alone = (row for rows in output(tmp_path / "alone", "panes").values() for row in rows)
    assert sorted(map(str, alone)) == found


@pytest.mark.long
def test_one_stream_on_both_sides(spark: SparkSession, tmp_path: Path) -> None:
    """Spark reads one source for both, and writes the offsets of two; two filters of it are one stream too."""
    description, _ = JOINS["near in time, all rows"]
    tables = sample(2, 40, seed=3)
    write(tmp_path / "in", 0, tables[0])

    def run(last: bool) -> None:
        orders = stream(spark, tmp_path / "in")
        sides = {"left": orders.where("v > 0"), "right": orders.where("v <= 20")}
        query = description.on_spark(sides, checkpoint=tmp_path / "spark", partitions=2).start()
        query.processAllAvailable()
        assert query.scan is not None
        assert query.scan.direct is not REMOTE
        query.stop(drain=last)

    run(False)
    write(tmp_path / "in", 1, tables[1])
    run(True)
    low, high = pc.field("v") > 0, pc.field("v") <= 20
    both = [{"left": one.filter(low), "right": one.filter(high)} for one in tables]
    description.standalone(checkpoint=tmp_path / "alone").run(both, drain=True)
    panes = output(tmp_path / "spark", "panes")
    assert panes == output(tmp_path / "alone", "panes")
    assert sum(map(len, panes.values())) > 30
    assert output(tmp_path / "spark", "late") == output(tmp_path / "alone", "late")


@pytest.mark.long
def test_a_stream_in_a_union_with_itself(spark: SparkSession, tmp_path: Path) -> None:
    (table,) = sample(1, 40)
    write(tmp_path / "in", 0, table)
    once = stream(spark, tmp_path / "in")
    for name, given, of in (("one", once, [table]), ("three", once.union(once).union(once), [table] * 3)):
        query = job().on_spark(given, checkpoint=tmp_path / name, partitions=2).start()
        query.processAllAvailable()
        query.stop(drain=True)
        job().standalone(checkpoint=tmp_path / f"{name} alone").run([pa.concat_tables(of)], drain=True)
        for kind in ("panes", "late"):
            assert output(tmp_path / name, kind) == output(tmp_path / f"{name} alone", kind)


@pytest.mark.long
def test_a_key_and_a_time_inside_of_structs(spark: SparkSession, tmp_path: Path) -> None:
    (table,) = sample(1, 40)
    write(tmp_path / "in", 0, table)
    given = stream(spark, tmp_path / "in").selectExpr("struct(t, k) as of", "v")
    met = ts.stream("a", event_time="of.t").join(
        ts.stream("b", event_time="of.t"), on="of.k", within=("-1 second", "2 seconds"), name="met"
    )
    counted = met.group_by("of.k").window(ts.tumbling("1 minute"))
    whole = counted.aggregate(n=agg.count()).named("counted")
    query = whole.on_spark({"a": given, "b": given}, checkpoint=tmp_path / "chain", partitions=2).start()
    query.processAllAvailable()
    query.stop(drain=True)
    of = pa.StructArray.from_arrays([table[name].combine_chunks() for name in ("t", "k")], names=["t", "k"])
    rows = pa.table({"of": of, "v": table["v"]})
    pairs = met.standalone(checkpoint=tmp_path / "join").run([{"a": rows, "b": rows}], drain=True).num_rows
    whole.standalone(checkpoint=tmp_path / "alone").run([{"a": rows, "b": rows}], drain=True)
    panes = output(tmp_path / "chain", "panes")
    assert panes == output(tmp_path / "alone", "panes")
    assert sum(row[3] for rows in panes.values() for row in rows) == pairs > 40  # type: ignore[misc]


@pytest.mark.long  # in every run: operators/joins/test_rebuild.py, and test_messages.py
def test_rows_that_were_lost_are_put_back_with_the_pairs_that_were_missed(
    spark: SparkSession, tmp_path: Path
) -> None:
    near = ts.stream(event_time="t", offset="id").join(
        ts.stream(event_time="t", offset="id"),
        on="k",
        within=("-1 second", "20 seconds"),
        allowed_lateness="1 hour",
        identity=True,
    )
    root, given = tmp_path / "spark", {"left": sample(4, 40, seed=1), "right": sample(4, 40, seed=2)}
    pairs = []
    for first, last in ((0, 2), (2, 3), (3, 4)):
        for side, tables in given.items():
            for number in range(first, last):
                write(tmp_path / side, number, tables[number])
        sides = {side: stream(spark, tmp_path / side) for side in given}
        running = near.on_spark(sides, checkpoint=root, partitions=2, policy=REBUILD).start()
        running.processAllAvailable()
        pairs.append(sum(map(len, output(root, "panes").values())))
        if first == 0:
            running.stop()
            assert lose(root, tables=given)
            assert query(root).replay_from("left").num_rows == 1
        if first == 2:
            past = {side: spark.read.schema(SCHEMA).parquet(str(tmp_path / side)) for side in given}
            assert running.rebuild(past) > 60
            assert running.rebuild(past) == 0
            pairs.append(sum(map(len, output(root, "panes").values())))
            running.stop()
    running.stop(drain=True)
    both = [{"left": left, "right": right} for left, right in zip(*given.values(), strict=True)]
    near.standalone(checkpoint=tmp_path / "alone").run(both, drain=True)
    found, wanted = (
        Counter(row for rows in output(tmp_path / name, "panes").values() for row in rows)
        for name in ("spark", "alone")
    )
    assert found == wanted
    assert pairs[0] < pairs[1] < pairs[2] < found.total(), "some at once, others with the replay"


def test_sides_that_are_no_streams_or_do_not_fit(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "left", 0, sample(1, 5)[0])
    description, _ = JOINS["near in time, all rows"]
    streaming = stream(spark, tmp_path / "left")
    with pytest.raises(UsageError, match="not-a-stream"):
        description.on_spark({"left": streaming, "right": spark.range(3)}, checkpoint=tmp_path / "root")
    other = streaming.selectExpr("v AS k", "t")
    with pytest.raises(UsageError, match="side-types"):
        description.on_spark({"left": streaming, "right": other}, checkpoint=tmp_path / "root")
    with pytest.raises(UsageError, match="column-missing"):
        description.on_spark({"left": streaming, "right": streaming.select("t")}, checkpoint=tmp_path / "root")


@pytest.mark.long
@pytest.mark.parametrize(("example", "death"), [("tuples", 5), ("times", 4)])
def test_orders_and_shipments_killed_have_their_exact_output(tmp_path: Path, example: str, death: int) -> None:
    """Killed before the first manifest with output: of a tick, and of a batch."""
    killed("tests.children.orders_and_shipments", tmp_path, example, death=death)
    root, observed = tmp_path / "checkpoint", {}
    for manifest in evidence.work(root):
        if manifest["panes"]:
            rows = evidence.rows(root, manifest["panes"], ["id", "left_value", "right_cost"])
            observed[manifest["processing_us"]] = sorted(rows)
    assert observed == {at(moment): sorted(rows) for moment, rows in EXPECTED[example][1].items()}
    assert not output(root, "late")


@pytest.mark.long
def test_an_outer_join_that_has_lost_rows_is_killed_in_the_replay(tmp_path: Path) -> None:
    """While it lacks rows it emits pairs only; in the end all is there that the twin has, which has lost nothing."""
    killed("tests.children.lost_pairs", tmp_path, death=SERVED + 3)
    twin, root = Twin(ASKED), tmp_path / "checkpoint"
    wanted = [*(twin.batch(batch, 0) for batch in lost_pairs.rows()), twin.finish()]
    columns = ["kind", "key", "left_value", "right_value"]
    emitted = [
        Counter((*pane, None) for pane in evidence.rows(root, manifest["panes"], columns))
        for manifest in evidence.work(root)
    ]
    served = slice(LOST_AFTER, SERVED)
    assert [sum(alone(panes).values()) for panes in wanted[served]] == [2, 1]
    assert [sum(alone(panes).values()) for panes in emitted[served]] == [0, 0]
    assert emitted[SERVED], "the replay brings pairs that were missed"
    assert sum(alone(emitted[SERVED + 1]).values()) > 0, "what had waited is emitted after it"
    assert net(sum(emitted, Counter())) == net(sum(wanted, Counter()))


def alone(panes: Counter[Pane]) -> Counter[Pane]:
    """What is emitted without a partner."""
    return Counter({pane: often for pane, often in panes.items() if pane[0] == "emit" and None in pane[2:4]})
