"""A root as a table and as a stream of Spark: the rows that one process reads, read by tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import tidestate as ts
from tests.children.second_job import FIRST, SECOND, batches
from tests.helpers.apis import Notes
from tests.helpers.arrow_rows import arrow_of
from tests.helpers.killed import killed
from tests.helpers.moves import rewind
from tests.helpers.process import LONG
from tests.helpers.root_scans import scan_changes, scan_checkpoints, scan_late, scan_panes, scan_state
from tests.helpers.waiting_windows import fed
from tests.helpers.worked_example import STREAM, example
from tidestate import Root
from tidestate.operators.inspect.on_spark import register
from tidestate.operators.inspect.pane_stream import NewestPanes, PaneStream
from tidestate.operators.spark.compat import SPARK_4
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.errors import IncompatibleError, NotFoundError, TidestateError, UsageError

pytestmark = pytest.mark.spark
OF_SPARK_4 = pytest.mark.skipif(not SPARK_4, reason="Spark has had sources in Python since 4.0")
TIMES = [pa.scalar(second * 1_000_000, pa.timestamp("us", "UTC")) for second in range(70)]


def source_of(root: Path, **options: str) -> Any:
    """The format, as Spark makes it in a process of its own."""
    from tidestate.operators.inspect.spark_source import TidestateSource

    return TidestateSource({"path": str(root), **options})


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return sorted(arrow_of(frame).to_pylist(), key=repr)


def same(frame: DataFrame, dataset: Any) -> None:
    assert frame.columns == dataset.schema.names
    assert rows(frame) == sorted(dataset.to_table().to_pylist(), key=repr) != []


def run(root: Path, mode: str = "retracting", stream: list[pa.Table] = STREAM) -> Path:
    example(mode).standalone(checkpoint=root).run(stream)
    return root


def test_frames_on_every_spark_are_the_datasets(spark: SparkSession, tmp_path: Path) -> None:
    root = run(tmp_path / "root")
    frames = [
        (Root(root).panes(spark=spark), scan_panes(root)),
        (Root(root).at(5).panes(net=True, spark=spark), scan_panes(root, 5, net=True)),
        (Root(root).late(spark=spark), scan_late(root)),
        (Root(root).changes(6, 4, spark=spark), scan_changes(root, 6, 4)),
    ]
    run(root, stream=[*STREAM, *STREAM[:1]])
    for frame, dataset in frames:  # both stay at their checkpoint
        same(frame, dataset)
    fed(tmp_path / "state", ts.tumbling("10 seconds"))
    state = Root(tmp_path / "state").state(spark=spark)
    same(state, scan_state(tmp_path / "state"))
    # One of four state partitions is empty.
    assert state.select(sf.spark_partition_id()).distinct().count() == 3
    with pytest.raises(NotFoundError, match="no-such-checkpoint"):
        Root(root).at(99).panes(spark=spark)


def test_a_root_is_read_by_tasks(spark: SparkSession, tmp_path: Path) -> None:
    root = Root(run(tmp_path / "root"))
    earlier = root.at(5)
    frames = [
        (root.panes(spark=spark), root.panes()),
        (root.panes(spark=spark, where=ds.field("checkpoint") > 4), root.panes(where=ds.field("checkpoint") > 4)),
        (earlier.panes(net=True, spark=spark), earlier.panes(net=True)),
        (root.late(spark=spark), root.late()),
        (root.state(spark=spark), root.state()),
        (root.changes(6, 4, spark=spark), root.changes(6, 4)),
        (root.windows(key="a", spark=spark), root.windows(key="a")),
        (earlier.windows(spark=spark), earlier.windows()),
    ]
    for frame, found in frames:
        same(frame, found)
    with pytest.raises(UsageError, match="no-messages"):
        root.messages(spark=spark)


@pytest.mark.skipif(SPARK_4, reason="this Spark has sources in Python")
def test_an_older_spark_has_no_format(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="spark-version"):
        register(spark)


@OF_SPARK_4
def test_the_format_reads_every_kind_also_in_sql(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    root = run(tmp_path)
    kinds = [
        ({}, scan_panes(root)),
        ({"kind": "net", "checkpoint": "5"}, scan_panes(root, 5, net=True)),
        ({"kind": "late"}, scan_late(root)),
        ({"kind": "checkpoints"}, scan_checkpoints(root)),
        ({"kind": "state", "checkpoint": "4"}, scan_state(root, 4)),
        ({"kind": "changes", "since": "4"}, scan_changes(root, 4)),
    ]
    for options, dataset in kinds if LONG else ():  # in every run one in SQL, and all of them in this process, below
        same(spark.read.format("tidestate").options(**options).load(str(root)), dataset)
    spark.sql(f"CREATE OR REPLACE TEMP VIEW net USING tidestate OPTIONS (path '{root}', kind 'net')")
    found = spark.sql("SELECT k, sum(n) AS n FROM net GROUP BY k ORDER BY k").collect()
    assert [tuple(row) for row in found] == [("a", 5), ("b", 1), ("c", 1)]


@OF_SPARK_4
@pytest.mark.parametrize(
    ("options", "scan"),
    [
        ({}, scan_panes),
        ({"kind": "net", "checkpoint": "5"}, partial(scan_panes, checkpoint=5, net=True)),
        ({"kind": "late"}, scan_late),
        ({"kind": "checkpoints"}, scan_checkpoints),
        ({"kind": "state", "checkpoint": "4"}, partial(scan_state, checkpoint=4)),
        ({"kind": "changes", "since": "4"}, partial(scan_changes, since=4)),
    ],
)
def test_the_source_has_the_rows_of_each_kind(
    tmp_path: Path, options: dict[str, str], scan: Callable[[Path], Any]
) -> None:
    """What a task does, without one."""
    source, dataset = source_of(run(tmp_path), **options), scan(tmp_path)
    assert source.schema().names == dataset.schema.names
    if options.get("kind") != "checkpoints":
        run(tmp_path, stream=[*STREAM, *STREAM[:1]])  # it stays at its checkpoint
    reader = source.reader(source.schema())
    read = [batch for share in reader.partitions() for batch in reader.read(share)]
    found = pa.Table.from_batches(read).to_pylist()
    assert sorted(found, key=repr) == sorted(dataset.to_table().to_pylist(), key=repr) != []


def test_a_filter_leaves_other_files_and_state_partitions_alone(spark: SparkSession, tmp_path: Path) -> None:
    root = run(tmp_path / "root")
    of_4 = next(one for one in Checkpoint.open(root).outputs() if one.id == 4)
    (root / of_4.panes[0].path).unlink()
    emitted = (ds.field("checkpoint") == 5) & (ds.field("kind") == "emit")
    found = Root(root).panes(where=emitted, spark=spark)
    assert [row["total"] for row in rows(found)] == [15]
    with pytest.raises(Exception, match="file-missing"):
        Root(root).panes(where=ds.field("checkpoint") == 4, spark=spark).count()
    fed(tmp_path / "state", ts.tumbling("10 seconds"))
    state = Root(tmp_path / "state")
    last = state.state(where=ds.field("slice_end") > TIMES[55], spark=spark)
    assert {row["slice_end"] for row in rows(last)} == {TIMES[60].as_py()}
    assert state.state(where=ds.field("slice_end") > TIMES[61], spark=spark).count() == 0


@OF_SPARK_4
def test_one_table_may_be_filtered_in_many_ways(spark: SparkSession, tmp_path: Path) -> None:
    """A source that took filters would give the rows of the first query to those that push none (Spark 4.3)."""
    register(spark)
    root = run(tmp_path)
    frame, everything = spark.read.format("tidestate").load(str(root)), Root(root).panes(spark=spark)
    for condition in (
        "checkpoint = 5 AND kind = 'emit'",
        "k = 'c' OR last",
        "true",
        "window_end > '1970-01-01 00:00:15'",
    ):
        assert rows(frame.where(condition)) == rows(everything.where(condition)) != [], condition


WRONG = [
    ({}, "no-checkpoint"),
    ({"checkpoint": "99"}, "no-such-checkpoint"),
    ({"kind": "other"}, "read-kind"),
    ({"kind": "changes"}, "read-option"),
    ({"tabel": "groups", "kind": "state"}, "read-option"),
]


@OF_SPARK_4
@pytest.mark.parametrize(("options", "code"), WRONG)
def test_what_is_not_there_is_an_error_with_our_code(tmp_path: Path, options: dict[str, str], code: str) -> None:
    root = run(tmp_path / "root", stream=STREAM[:1]) if options else tmp_path
    with pytest.raises(TidestateError) as caught:
        source_of(root, **options).schema()
    assert caught.value.code == code


@OF_SPARK_4
@pytest.mark.long
@pytest.mark.parametrize(("options", "code"), WRONG)
def test_an_error_of_the_format_reaches_the_user(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], code: str
) -> None:
    register(spark)
    root = run(tmp_path / "root", stream=STREAM[:1]) if options else tmp_path
    with pytest.raises(Exception, match=rf"\[{code}\]"):
        _ = spark.read.format("tidestate").options(**options).load(str(root)).schema  # a client asks for it then


def more(spark: SparkSession, root: Path, **options: str) -> list[dict[str, Any]]:
    """What a query reads that goes on where the last one ended."""
    read: Notes[list[dict[str, Any]]] = Notes(root.with_name(f"{root.name}-read"))
    before = len(read)
    stream = spark.readStream.format("tidestate").options(**options).load(str(root))
    writer = stream.writeStream.foreachBatch(lambda frame, _: read.append(arrow_of(frame).to_pylist()))
    query = writer.option("checkpointLocation", f"{root}-log").start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return [row for rows in list(read)[before:] for row in rows]


def panes(dataset: Any) -> list[dict[str, Any]]:
    return sorted(dataset.to_table().to_pylist(), key=repr)


@pytest.mark.long  # in every run: tests.operators.inspect.test_pane_stream, and the source in this process below
@OF_SPARK_4
def test_a_stream_has_each_pane_once_over_restarts(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    root = run(tmp_path / "root", "accumulating", STREAM[:3])
    read = more(spark, root)
    assert sorted(read, key=repr) == panes(scan_panes(root)) != []
    known = len(Checkpoint.open(root).ids())
    run(root, "accumulating")
    collect(
        Checkpoint.open(root), CheckpointRetention(newest=3, grace="0 seconds")
    )  # the one that was read up to goes
    new = more(spark, root)
    assert [row["checkpoint"] for row in new] == [known + 2, known + 3]
    assert [*read, *new] == scan_panes(root).to_table().to_pylist()


@pytest.mark.long  # in every run: tests.operators.inspect.test_pane_stream
@OF_SPARK_4
def test_a_stream_ends_when_the_root_is_rewound(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    root = run(tmp_path / "root", "accumulating")
    assert more(spark, root)
    newest = Checkpoint.open(root).ids()[-1]
    rewind(Checkpoint.open(root), newest - 2)  # the last batch has no panes that a stream could have read
    run(root, "accumulating")
    with pytest.raises(Exception, match=r"\[stream-rewound\]"):
        more(spark, root)
    again = more(spark, root, rewound="again")
    assert sorted(again, key=repr) == [row for row in panes(scan_panes(root)) if row["checkpoint"] > newest]
    assert more(spark, root, rewound="again") == []


@OF_SPARK_4
def test_a_stream_with_retractions_is_refused_unless_they_are_kept(tmp_path: Path) -> None:
    """What Spark asks of the source, without Spark."""
    root = run(tmp_path)
    reader = source_of(root).streamReader(source_of(root).schema())
    with pytest.raises(TidestateError) as caught:
        reader.initialOffset()
    assert caught.value.code == "retractions"
    source = source_of(root, retractions="keep")
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    shares = reader.partitions(start, reader.latestOffset())
    kinds = [kind for share in shares for batch in reader.read(share) for kind in batch["kind"].to_pylist()]
    assert Counter(kinds) == {"emit": 6, "retract": 2}


@pytest.mark.long
@OF_SPARK_4
def test_retractions_are_taken_on_purpose(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    root = run(tmp_path)
    table = spark.readStream.format("tidestate")
    query = table.load(str(root)).writeStream.format("noop").start()
    with pytest.raises(Exception, match=r"\[retractions\]") as refused:
        query.processAllAvailable()
    assert "UnboundLocalError" not in str(refused.value)
    kept: Notes[list[str]] = Notes(tmp_path / "kept")
    frame = table.option("retractions", "keep").load(str(root))
    query = frame.writeStream.foreachBatch(lambda rows, _: kept.append(arrow_of(rows)["kind"].to_pylist())).start()
    query.processAllAvailable()
    query.stop()
    assert Counter(kind for kinds in kept for kind in kinds) == {"emit": 6, "retract": 2}


@pytest.mark.long
@OF_SPARK_4
@pytest.mark.parametrize("death", [3])
def test_a_job_over_the_panes_of_another_killed_counts_each_once(tmp_path: Path, death: int) -> None:
    killed("tests.children.second_job", tmp_path, death=death)
    events: Counter[tuple[str, int]] = Counter()
    for row in [row for table in batches() for row in table.to_pylist()]:
        events[row["k"], int(row["t"].timestamp()) // 60] += 1
    found = scan_panes(tmp_path / "second").to_table().to_pylist()
    assert {(row["k"], int(row["window_start"].timestamp()) // 60): row["events"] for row in found} == events
    assert len(found) == len(events)
    assert scan_late(tmp_path / "second").count_rows() == 0
    given = scan_panes(tmp_path / "first").count_rows()
    assert sum(row["windows"] for row in found) == given
    assert (FIRST.view.name, SECOND.view.name) == ("seconds", "minutes")


def test_a_stream_of_another_root_is_refused(tmp_path: Path) -> None:
    """A position is of one run: a root that was begun again under the same path has others."""
    root = run(tmp_path / "root")
    stream = PaneStream(str(root))
    start, end = stream.first(), stream.newest()
    assert stream.between(start, end).dataset().count_rows() == 8
    assert stream.newest(end) == end
    newest = NewestPanes(stream)
    assert newest.position() == end
    with mock.patch.object(Checkpoint, "load", side_effect=AssertionError):
        assert newest.position() == end
    (tmp_path / "root").rename(tmp_path / "old")
    run(root)
    with pytest.raises(IncompatibleError, match="stream-root"):
        stream.between(start, end)
    (tmp_path / "root").rename(tmp_path / "other")
    run(root, stream=STREAM[:1])
    with pytest.raises(IncompatibleError, match="stream-root"):
        stream.between(end, stream.newest())
