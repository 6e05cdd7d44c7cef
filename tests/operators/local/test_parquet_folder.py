"""A folder of Parquet files as standalone input: which files, how they are recorded, and who may go on.

That Spark goes on from these records: tests/spark/test_goes_on_standalone.py.
"""

from __future__ import annotations

import json
import os
import signal
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidestate as ts
from tests.children.runs_again import GIVEN
from tests.helpers.forked import Forked
from tests.helpers.lost_messages import lose
from tests.helpers.moves import fork, rewind
from tests.helpers.process import LONG
from tests.helpers.runs_again import REPLAYING, state_of
from tests.helpers.spark_inputs import SCHEMA, at, job, sample, two_streams, write, write_int96
from tests.helpers.spark_runs import output
from tidestate.operators.local.history_files import schema_of
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest, SparkPosition
from tidestate.recovery.log.spark_log import SparkLog, file_url, load_files
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.spark.agreement import compare
from tidestate.recovery.spark.spark_checkpoint import files_read, write_spark_checkpoint
from tidestate.statestore.errors import IncompatibleError, UsageError
from tidestate.statestore.spec.tables import TIME

TABLES = sample(6, 20)


def head_of(root: Path) -> Manifest:
    head = Checkpoint.open(root).head()
    assert head is not None
    return head.manifest


def position_of(root: Path) -> SparkPosition:
    position = load_files(Checkpoint.open(root).objects, head_of(root).spark)
    assert position is not None
    return position


def take(folder: Path, root: Path, *, drain: bool = False, **settings: Any) -> pa.Table:
    files = ts.ParquetFolder(folder, **{"files_per_batch": 1, "schema": SCHEMA, **settings})
    return job().standalone(checkpoint=root, partitions=2).run(files, drain=drain)


def check_exact(root: Path, alone: Path) -> None:
    job().standalone(checkpoint=alone, partitions=2).run(TABLES, drain=True)
    for kind in ("panes", "late"):
        assert output(root, kind) == output(alone, kind)


def spark_log(root: Path) -> SparkLog:
    """Spark's checkpoint as the next start on Spark would write it."""
    checkpoint, head = Checkpoint.open(root), head_of(root)
    write_spark_checkpoint(checkpoint.objects, head, read=files_read(checkpoint, head))
    return SparkLog(checkpoint.objects)


def test_the_files_are_those_that_spark_lists(tmp_path: Path) -> None:
    for number, name in enumerate(("c", "a", "b")):
        write(tmp_path, number, TABLES[number])
        (tmp_path / f"{number:04d}.parquet").rename(tmp_path / name)  # any name, in the order of the times
    same_time = tmp_path / "0.parquet"
    pq.write_table(TABLES[3], same_time)
    os.utime(same_time, (1_000_000_001, 1_000_000_001))
    for hidden in ("_a", ".b", "c._COPYING_"):
        (tmp_path / hidden).write_text("no Parquet")
    # Spark lists all of these, and reads the rows of the last alone.
    for number, name in enumerate(("_metadata", "_metadata_2.parquet", "_common_metadata", "_metadata=1")):
        pq.write_table(TABLES[4].slice(0, 1), tmp_path / name)
        os.utime(tmp_path / name, (1_000_000_005 + number,) * 2)
    (tmp_path / "empty").touch()
    (tmp_path / "below").mkdir()
    write(tmp_path / "below", 0, TABLES[4])
    os.utime(tmp_path / "empty", (1_000_000_009, 1_000_000_009))
    pairs = list(ts.ParquetFolder(tmp_path).seek(None))
    ((offsets, rows),) = pairs
    times = {"c": 0, "0.parquet": 1, "a": 1, "b": 2, "_metadata": 5}
    times |= {"_metadata_2.parquet": 6, "_common_metadata": 7, "_metadata=1": 8, "empty": 9}
    assert offsets.ends == ('{"logOffset":0}',)
    assert list(offsets.files[0]) == [
        f"{file_url(tmp_path / name)} {1_000_000_000 + time}000" for name, time in times.items()
    ]
    assert rows["id"].to_pylist() == [*range(20), *range(60, 80), *range(20, 40), *range(40, 60), 80]


def test_batches_have_so_many_files_of_each_folder(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / "a", number, TABLES[number])
    write(tmp_path / "b", 7, TABLES[3])
    folders = ts.ParquetFolder({"b": tmp_path / "b", "a": tmp_path / "a"}, files_per_batch=2)
    assert folders.sources == 2
    first, second = folders.numbered(["a", "b"]).seek(None)
    assert (first[0].ends, second[0].ends) == (('{"logOffset":0}',) * 2, ('{"logOffset":1}', '{"logOffset":0}'))
    assert [len(first[0].files[0]), len(first[0].files[1])] == [2, 1]
    assert [first[1]["a"].num_rows, first[1]["b"].num_rows, second[1]["a"].num_rows, second[1]["b"].num_rows] == [
        40,
        20,
        20,
        0,
    ]
    # In the order of the mapping where nobody says another one.
    assert next(folders.seek(None))[0].files[0] == first[0].files[1]


def test_columns_are_those_that_spark_would_read(tmp_path: Path) -> None:
    write_int96(tmp_path, 0, TABLES[0])
    assert ts.ParquetFolder(tmp_path).schema == schema_of(SCHEMA)
    rows = pa.table({"t": [at(1)], "v": pa.array([7], pa.int32())})
    write(tmp_path, 1, rows)
    ((_, both),) = ts.ParquetFolder(tmp_path).seek(None)
    assert both.slice(0, 20).equals(TABLES[0])
    assert both.slice(20).to_pylist() == [{"t": at(1), "k": None, "v": 7, "id": None}]
    with pytest.raises(UsageError, match="No such file"):
        _ = ts.ParquetFolder(tmp_path / "none").schema
    (tmp_path / "nothing").mkdir()
    with pytest.raises(UsageError, match="has no file yet"):
        _ = ts.ParquetFolder(tmp_path / "nothing").schema
    assert ts.ParquetFolder(tmp_path / "nothing", schema=SCHEMA).schema == schema_of(SCHEMA)
    assert list(ts.ParquetFolder(tmp_path / "nothing", schema=SCHEMA).seek(None)) == []


def read_back(folder: Path, columns: dict[str, Any], schema: Any, **settings: Any) -> list[dict[str, Any]]:
    """The rows of a file with these columns under another schema."""
    pq.write_table(pa.table(columns), folder / "a.parquet", **settings)
    ((_, rows),) = ts.ParquetFolder(folder, schema=schema).seek(None)
    assert isinstance(rows, pa.Table)
    assert rows.schema == (schema if isinstance(schema, pa.Schema) else schema_of(schema))
    rows.validate(full=True)
    return rows.to_pylist()


STRUCT = pa.struct([("x", pa.int64()), ("y", pa.string())])


@pytest.mark.parametrize(
    ("written", "kind", "values"),
    [
        (pa.array([{"Y": "q", "X": 1, "z": 0}, None]), STRUCT, [{"x": 1, "y": "q"}, None]),
        (pa.array([{"x": 1}]), pa.struct([("X", pa.int64())]), [{"X": 1}]),
        (pa.array([{"X": 1}, {"X": None}]), STRUCT, [{"x": 1, "y": None}, {"x": None, "y": None}]),
        (pa.array([[{"X": 1}, None], None, []]), pa.list_(STRUCT), [[{"x": 1, "y": None}, None], None, []]),
        (
            pa.array([[("a", {"X": 1}), ("b", None)], None], pa.map_(pa.string(), pa.struct([("X", pa.int32())]))),
            pa.map_(pa.string(), STRUCT),
            [[("a", {"x": 1, "y": None}), ("b", None)], None],
        ),
        (pa.array([[[1], None], None]), pa.large_list(pa.list_(pa.int64())), [[[1], None], None]),
        (pa.array([[1, 2], None], pa.list_(pa.int64(), 2)), pa.list_(pa.int64()), [[1, 2], None]),
        (pa.array([[1, 2], None], pa.large_list(pa.int64())), pa.list_(pa.int64()), [[1, 2], None]),
        (
            pa.array([{"A": [{"B": {"C": 1}}]}]),
            pa.struct([("a", pa.list_(pa.struct([("b", pa.struct([("c", pa.int64()), ("d", pa.date32())]))])))]),
            [{"a": [{"b": {"c": 1, "d": None}}]}],
        ),
        (pa.array([{"T": at(1)}], pa.struct([("T", pa.timestamp("ms", "UTC"))])), pa.struct([("t", TIME)]), None),
    ],
)
def test_names_are_matched_in_any_case_at_any_depth(tmp_path: Path, written: Any, kind: Any, values: Any) -> None:
    schema = pa.schema([("t", TIME), ("v", kind)])
    times = pa.array([at(1)] * len(written), TIME)
    got = read_back(tmp_path, {"V": written, "T": times}, schema)
    assert got == [{"t": at(1), "v": one} for one in values or [{"t": at(1)}]]


def test_numbers_without_a_sign_have_the_types_that_spark_gives_them(tmp_path: Path) -> None:
    kinds = {
        f"u{bits}": kind for bits, kind in ((8, pa.uint8()), (16, pa.uint16()), (32, pa.uint32()), (64, pa.uint64()))
    }
    pq.write_table(pa.table({name: pa.array([3], kind) for name, kind in kinds.items()}), tmp_path / "a.parquet")
    ((_, rows),) = ts.ParquetFolder(tmp_path).seek(None)
    assert isinstance(rows, pa.Table)
    assert rows.schema == schema_of("u8 smallint, u16 int, u32 bigint, u64 decimal(20,0)")
    assert rows.to_pylist() == [dict.fromkeys(kinds, 3)]


def test_a_file_without_any_of_the_columns_has_rows_of_nulls(tmp_path: Path) -> None:
    assert read_back(tmp_path, {"z": [1, 2]}, "a string") == [{"a": None}] * 2


def test_a_dot_in_a_name_takes_no_other_column_along(tmp_path: Path) -> None:
    columns = {"a.b": ["no"], "a": ["yes"]}
    assert read_back(tmp_path, columns, "a string") == [{"a": "yes"}]


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        ({"v": [1], "V": [2]}, pa.int64()),
        ({"V": pa.array([{"x": 1, "X": 2}])}, STRUCT),
        ({"v": pa.array([[{"x": 1, "X": 2}]])}, pa.list_(STRUCT)),
    ],
)
def test_names_that_differ_in_case_alone_are_refused(tmp_path: Path, columns: Any, kind: Any) -> None:
    with pytest.raises(UsageError, match="one name but for its case") as refused:
        read_back(tmp_path, columns, pa.schema([("v", kind)]))
    assert refused.value.code == "parquet-folder"
    assert refused.value.context["file"] == str(tmp_path / "a.parquet")
    assert sorted(name[-1].lower() for name in refused.value.context["columns"]) in (["v"] * 2, ["x"] * 2)


@pytest.mark.parametrize(
    ("written", "kind", "value"),
    [
        (pa.array([-5], pa.int32()), "bigint", -5),
        (pa.array([-5], pa.int16()), "int", -5),
        (pa.array([-5], pa.int8()), "smallint", -5),
        (pa.array([0.1], pa.float32()), "double", 0.10000000149011612),
        (pa.array([2**32 - 1], pa.uint32()), "bigint", 2**32 - 1),
        (pa.array([60_000], pa.uint16()), "int", 60_000),
        (pa.array([200], pa.uint8()), "smallint", 200),
        (pa.array([2**64 - 1], pa.uint64()), "decimal(20,0)", Decimal(2**64 - 1)),
        (pa.array([at(1).replace(tzinfo=None)]), "timestamp", at(1)),
        (pa.array([at(1)], pa.timestamp("ms", "Europe/Berlin")), "timestamp", at(1)),
        (pa.array(["x"]).dictionary_encode(), "string", "x"),
        (pa.array(["x"], pa.large_string()), "string", "x"),
        (pa.array([b"x"]), "string", "x"),
        (pa.array([b"xy"], pa.binary(2)), "binary", b"xy"),
        (pa.array([Decimal("1.25")], pa.decimal128(8, 2)), "decimal(8,2)", Decimal("1.25")),
        (pa.array([None], pa.null()), "bigint", None),
    ],
)
def test_types_that_spark_reads_without_a_loss(tmp_path: Path, written: Any, kind: str, value: Any) -> None:
    assert read_back(tmp_path, {"v": written}, f"v {kind}") == [{"v": value}]


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        (pa.array([1]), "timestamp"),
        (pa.array(["1"]), "bigint"),
        (pa.array([1], pa.int32()), "string"),
        (pa.array([1.0]), "bigint"),
        (pa.array([1]), "int"),
        (pa.array([300], pa.int32()), "tinyint"),
        (pa.array([300], pa.int32()), "smallint"),
        (pa.array([at(1).date()]), "timestamp"),
        (pa.array([at(1)], TIME), "date"),
        (pa.array([at(1)], TIME), "timestamp_ntz"),
        (pa.array([at(1)], TIME), "bigint"),
        (pa.array([True]), "int"),
        (pa.array([1], pa.int32()), "boolean"),
        (pa.array([at(1)], pa.timestamp("ns", "UTC")), "timestamp"),
        (pa.array([Decimal("1.25")], pa.decimal128(12, 4)), "decimal(10,2)"),
        (pa.array([Decimal("1.25")], pa.decimal128(8, 2)), "decimal(10,2)"),
        (pa.array([7], pa.int32()), "decimal(10,2)"),
        (pa.array([7], pa.uint64()), "bigint"),
        (pa.array([None], pa.null()), "string"),
        (pa.array([{"x": 1}]), "bigint"),
        (pa.array([1]), pa.list_(pa.int64())),
        (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), pa.list_(pa.int64())),
        (pa.array([{"x": 1}]), pa.struct([("x", pa.string())])),
        (pa.array([[{"x": [1.5]}]]), pa.list_(pa.struct([("x", pa.list_(pa.int64()))]))),
        (pa.array([{"z": 1}]), STRUCT),
    ],
)
def test_a_column_of_another_type_is_refused(tmp_path: Path, written: Any, kind: Any) -> None:
    schema = f"v {kind}" if isinstance(kind, str) else pa.schema([("v", kind)])
    with pytest.raises(UsageError, match="another type than the stream") as refused:
        read_back(tmp_path, {"v": written}, schema)
    context = refused.value.context
    assert refused.value.code == "parquet-folder"
    assert context["file"] == str(tmp_path / "a.parquet")
    assert str(context["column"]).startswith("v")
    assert context["expected"] != context["found"]


def test_a_file_of_other_columns_ends_the_run_before_its_batch(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / "in", number, TABLES[number])
    write(tmp_path / "in", 1, TABLES[1].rename_columns(["T", "K", "V", "ID"]))
    write(tmp_path / "in", 3, pa.table({"t": ["2024-01-01 00:00:01"], "k": ["a"]}))
    with pytest.raises(UsageError, match=r"0003\.parquet.*column=t .*timestamp.*String"):
        take(tmp_path / "in", tmp_path / "root")
    assert head_of(tmp_path / "root").totals["events"] == 60
    (tmp_path / "in/0003.parquet").unlink()
    for number in range(3, 6):
        write(tmp_path / "in", number, TABLES[number])
    take(tmp_path / "in", tmp_path / "root", drain=True)
    check_exact(tmp_path / "root", tmp_path / "alone")


def test_times_of_96_bits_beyond_the_range_of_nanoseconds(tmp_path: Path) -> None:
    far = datetime(2900, 1, 1, tzinfo=UTC)
    column = {"t": pa.array([far], TIME), "s": pa.array([{"t": far}], pa.struct([("t", TIME)]))}
    pq.write_table(pa.table(column), tmp_path / "a.parquet")
    files = ts.ParquetFolder(tmp_path)
    assert files.schema == pa.schema([("t", TIME), ("s", pa.struct([("t", TIME)]))])
    near = {"t": pa.array([at(1)], TIME), "s": pa.array([{"t": at(1)}], pa.struct([("t", TIME)]))}
    pq.write_table(pa.table(near), tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    again = ts.ParquetFolder(tmp_path)
    assert again.schema == files.schema
    ((_, rows),) = again.seek(None)
    assert isinstance(rows, pa.Table)
    assert rows.to_pylist() == [{"t": at(1), "s": {"t": at(1)}}]


def test_a_file_that_goes_while_the_run_goes_on(tmp_path: Path) -> None:
    for number in range(2):
        write(tmp_path, number, TABLES[number])
    batches = ts.ParquetFolder(tmp_path, schema=SCHEMA, files_per_batch=1).seek(None)
    next(iter(batches))
    (tmp_path / "0001.parquet").unlink()
    with pytest.raises(UsageError, match="was removed after the run had listed it") as gone:
        next(iter(batches))
    assert gone.value.context["file"] == str(tmp_path / "0001.parquet")


def test_a_value_without_room_in_its_type(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a value of a column does not fit") as refused:
        read_back(tmp_path, {"v": pa.array([2**60], pa.timestamp("ms", "UTC"))}, "v timestamp")
    assert refused.value.context["column"] == "v"
    with pytest.raises(UsageError, match="a value of a column does not fit"):
        read_back(tmp_path, {"v": pa.array([b"\xff"])}, "v string")


def test_a_text_of_columns_that_it_cannot_have(tmp_path: Path) -> None:
    for text in ("t timestamp, v array<bigint>", "v struct<x:bigint>", "t timstamp"):
        with pytest.raises(UsageError, match=r"as a pyarrow\.Schema") as refused:
            ts.ParquetFolder(tmp_path, schema=text)
        assert refused.value.code == "parquet-folder-schema"
        assert refused.value.context["found"]


def test_a_colon_in_a_name_is_refused_as_spark_cannot_read_it(tmp_path: Path) -> None:
    write(tmp_path, 0, TABLES[0])
    (tmp_path / ".a:b").write_text("hidden")
    (tmp_path / "a:b").touch()
    assert len(list(ts.ParquetFolder(tmp_path, schema=SCHEMA).seek(None))) == 1
    (tmp_path / "0000.parquet").rename(tmp_path / "10:00.parquet")
    with pytest.raises(UsageError, match="a colon in its name"):
        list(ts.ParquetFolder(tmp_path, schema=SCHEMA).seek(None))


def test_old_files_are_left_out_as_by_spark(tmp_path: Path) -> None:
    write(tmp_path, 3600, TABLES[0])
    read = (f"file:///elsewhere {(1_000_000_000 + 7200) * 1000}",)
    position = ts.SparkOffsets(('{"logOffset":0}',), {0: read})
    assert list(ts.ParquetFolder(tmp_path, max_file_age="59 minutes").seek(position)) == []
    assert len(list(ts.ParquetFolder(tmp_path, max_file_age="1 hour").seek(position))) == 1
    assert len(list(ts.ParquetFolder(tmp_path, max_file_age="59 minutes").seek(None))) == 1


@pytest.mark.parametrize("name", ["_spark_metadata", "day=1"])
def test_folders_that_spark_reads_in_another_way_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(UsageError, match="parquet-folder"):
        list(ts.ParquetFolder(tmp_path, schema=SCHEMA).seek(None))


def test_what_no_folder_can_be(tmp_path: Path) -> None:
    for path in (f"{tmp_path}/*.parquet", "s3://bucket/folder", f"{tmp_path}/{{a,b}}"):
        with pytest.raises(UsageError, match="parquet-folder"):
            ts.ParquetFolder(path)
    with pytest.raises(UsageError, match="from 1 on"):
        ts.ParquetFolder(tmp_path, files_per_batch=0)
    with pytest.raises(UsageError, match="each stream by its name"):
        ts.ParquetFolder({"a": tmp_path}, schema=SCHEMA)
    with pytest.raises(UsageError, match="each stream by its name"):
        two_streams().standalone(checkpoint=tmp_path / "root").run(
            ts.ParquetFolder({"a": tmp_path}, schema={"a": SCHEMA})
        )
    (tmp_path / "no.parquet").write_text("no Parquet")
    with pytest.raises(UsageError, match="cannot be read as Parquet"):
        take(tmp_path, tmp_path / "root")
    assert [one.kind for one in Checkpoint.open(tmp_path / "root").history()] == ["fence"]


def test_batches_are_recorded_as_those_of_spark(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / "in", number, TABLES[number])
    take(tmp_path / "in", tmp_path / "root")
    for number in range(3, 6):
        write(tmp_path / "in", number, TABLES[number])
    take(tmp_path / "in", tmp_path / "root", drain=True)
    check_exact(tmp_path / "root", tmp_path / "alone")
    batches = [one for one in Checkpoint.open(tmp_path / "root").history() if one.kind == "batch"]
    assert [one.spark.batch_id for one in batches if one.spark] == [0, 1, 2, 3, 4, 5]
    assert len({one.spark.query_id for one in batches if one.spark}) == 1
    assert {one.input for one in batches} == {None}
    position = position_of(tmp_path / "root")
    assert (position.start, position.end) == (('{"logOffset":4}',), ('{"logOffset":5}',))
    # A drained root takes nothing more, and knows what it has read.
    take(tmp_path / "in", tmp_path / "root")
    write(tmp_path / "in", 6, TABLES[0])
    with pytest.raises(UsageError, match="drained"):
        take(tmp_path / "in", tmp_path / "root")


def test_long_lists_of_files_and_files_that_come_again(tmp_path: Path) -> None:
    for number in range(110):
        write(tmp_path / "in", number, TABLES[0].slice(number % 20, 1))
    take(tmp_path / "in", tmp_path / "root", files_per_batch=None)
    stored = head_of(tmp_path / "root").spark
    assert stored is not None
    assert stored.files_ref is not None
    assert stored.read["0"].files == 110
    write(tmp_path / "in", 3, TABLES[1])
    os.utime(tmp_path / "in/0003.parquet", (2_000_000_000, 2_000_000_000))
    take(tmp_path / "in", tmp_path / "root")
    assert head_of(tmp_path / "root").spark == stored  # a changed file is not read again, as by Spark


def test_a_sink_that_fails_after_the_commit_counts_no_file_twice(tmp_path: Path) -> None:
    for number in range(4):
        write(tmp_path / "in", number, TABLES[number])
    failing = {"fails": True}

    def sink(panes: pa.Table, _delivery: ts.DeliveryId) -> None:
        if failing.pop("fails", False):
            raise OSError("the target is gone")

    running = job().standalone(checkpoint=tmp_path / "root", partitions=2, sink=sink)
    folder = ts.ParquetFolder(tmp_path / "in", files_per_batch=1)
    with pytest.raises(OSError, match="the target is gone"):
        running.run(folder)
    running.run(folder)
    assert running.head.totals["events"] == 80
    assert position_of(tmp_path / "root").read["0"].files == 4


def test_other_input_on_a_root_with_the_offsets_of_spark_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "in", 0, TABLES[0])
    running = job().standalone(checkpoint=tmp_path / "root")
    running.run(ts.ParquetFolder(tmp_path / "in"))

    class Numbers:
        schema = TABLES[0].schema

        def seek(self, position: Any) -> list[Any]:
            return [(1, TABLES[0])]

    before = head_of(tmp_path / "root")
    for given in (TABLES, Numbers()):
        for standalone in (running, job().standalone(checkpoint=tmp_path / "root")):
            with pytest.raises(IncompatibleError, match="over a ParquetFolder or another SparkInput"):
                standalone.run(given)
    assert head_of(tmp_path / "root") == before
    job().standalone(checkpoint=tmp_path / "counted").run(TABLES)
    with pytest.raises(IncompatibleError, match="over the input that it had"):
        take(tmp_path / "in", tmp_path / "counted")


def test_a_run_that_began_with_nothing_takes_any_input(tmp_path: Path) -> None:
    class Nothing:
        schema = TABLES[0].schema

        def seek(self, position: Any) -> list[Any]:
            return []

    write(tmp_path / "in", 0, TABLES[0])
    running = job().standalone(checkpoint=tmp_path / "root")
    running.run(Nothing())
    running.run(ts.ParquetFolder(tmp_path / "in"))
    assert running.position() == ['{"logOffset":0}']


class Counted(ts.SparkInput):
    """Rows by their number, with offsets as its own source would write them; ``wrong`` is put in place of offsets."""

    def __init__(self, end: int, wrong: Any = None) -> None:
        self.end, self.wrong = end, wrong
        self.sought: list[Any] = []

    schema = TABLES[0].schema
    sources = 1

    def seek(self, position: ts.SparkOffsets | None) -> Any:
        self.sought.append(position)
        first = 0 if position is None else json.loads(position.ends[0])["offset"]
        for number in range(first, self.end):
            offsets = ts.SparkOffsets((json.dumps({"offset": number + 1}),))
            yield self.wrong if self.wrong is not None else offsets, TABLES[number]


class OneBatch(ts.SparkInput):
    """One batch with given offsets, wherever the run begins."""

    schema = TABLES[0].schema
    sources = 1

    def __init__(self, offsets: ts.SparkOffsets, rows: pa.Table = TABLES[0]) -> None:
        self.offsets, self.rows = offsets, rows

    def seek(self, position: ts.SparkOffsets | None) -> Any:
        return [(self.offsets, self.rows)]


def test_input_of_ones_own_has_the_offsets_of_its_source(tmp_path: Path) -> None:
    job().standalone(checkpoint=tmp_path / "root", partitions=2).run(Counted(3))
    second = Counted(6)
    job().standalone(checkpoint=tmp_path / "root").run(second, drain=True)
    assert second.sought == [ts.SparkOffsets(('{"offset": 3}',))]
    check_exact(tmp_path / "root", tmp_path / "alone")


@pytest.mark.parametrize(
    "wrong",
    [
        3,
        ts.SparkOffsets(("{",)),
        ts.SparkOffsets(("1", "2")),
        ts.SparkOffsets(('{"offset":9}',), {0: ("file:///a 1",)}),
        ts.SparkOffsets(('{"logOffset":0}',)),
        ts.SparkOffsets(("-",)),
    ],
)
def test_offsets_that_spark_could_not_go_on_from_are_refused(tmp_path: Path, wrong: Any) -> None:
    root = tmp_path / "root"
    job().standalone(checkpoint=root).run(Counted(1))
    before = head_of(root).spark
    with pytest.raises(UsageError, match="position"):
        job().standalone(checkpoint=root).run(Counted(2, wrong))
    assert head_of(root).spark == before


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"a":{"0":5}}', '{"a":{"0":3}}'),
        ('{"a":{"0":5,"1":5}}', '{"a":{"0":6,"1":4}}'),
        ('{"a":{"0":5,"1":5}}', '{"a":{"0":6}}'),
        ('{"a":{"0":5}}', '{"b":{"0":6}}'),
        ('{"a":{"0":5}}', '{"a":{"0":5}}'),
        ('{"a":{"0":5}}', '{"a": {"0": 5}}'),
        ('{"a":{"0":5}}', '{"a":{"0":"6"}}'),
        ('{"a":{"0":5}}', '{"a":{"0":7,"0":6}}'),
        ('{"a":{"0":5}}', '{"a":\n{"0":6}}'),
        ('{"a":{"0":5}}', '{"a":{"0":6},"b\x85":{}}'),
        ("[4,5]", "[5]"),
        ("[4,5]", "[4,3]"),
        ("5", "NaN"),
        ("5", "4.5"),
        ("5", "true"),
        ("1.5", "1.25"),
        ('{"a":{"0":5}}', "7"),
        ("-", "Infinity"),
        ("-", '{"a":NaN}'),
        ("-", '"\ud800"'),
    ],
)
def test_offsets_that_go_back_or_are_no_json_are_refused(tmp_path: Path, before: str, after: str) -> None:
    root = tmp_path / "root"
    if before != "-":
        job().standalone(checkpoint=root).run(OneBatch(ts.SparkOffsets((before,))))
    with pytest.raises(UsageError, match="position"):
        job().standalone(checkpoint=root).run(OneBatch(ts.SparkOffsets((after,))))
    head = Checkpoint.open(root).head()
    assert head is not None
    assert (head.manifest.spark.end if head.manifest.spark else ("-",)) == (before,)
    assert head.manifest.totals.get("events", 0) == (0 if before == "-" else 20)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"a":{"0":5}}', '{"a":{"0":5,"1":0},"b":{}}'),
        ('{"a":null,"at":"x"}', '{"a":{"0":5},"at":"w"}'),
        ("[4,[5]]", "[4,[5],0]"),
        ('{"on":true,"n":5}', '{"on":false,"n":5.5}'),
    ],
)
def test_offsets_that_go_on_are_taken(tmp_path: Path, before: str, after: str) -> None:
    for end in (before, after):
        job().standalone(checkpoint=tmp_path / "root").run(OneBatch(ts.SparkOffsets((end,))))
    assert job().standalone(checkpoint=tmp_path / "root").position() == [after]
    assert head_of(tmp_path / "root").totals["events"] == 40


def test_offsets_stay_where_they_are_without_rows(tmp_path: Path) -> None:
    root = tmp_path / "root"
    job().standalone(checkpoint=root).run(OneBatch(ts.SparkOffsets(("5",))))
    job().standalone(checkpoint=root).run(OneBatch(ts.SparkOffsets(("5",)), TABLES[0].slice(0, 0)))
    assert job().standalone(checkpoint=root).position() == ["5"]


def test_another_number_of_sources_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "in", 0, TABLES[0])
    take(tmp_path / "in", tmp_path / "root")
    two = Counted(2)
    two.sources = 2
    with pytest.raises(IncompatibleError, match="another number of sources"):
        job().standalone(checkpoint=tmp_path / "root").run(two)


def test_state_of_sparks_own_in_front_of_the_job_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "in", 0, TABLES[0])
    take(tmp_path / "in", tmp_path / "root")
    before = head_of(tmp_path / "root")
    assert compare(before.spark, spark_log(tmp_path / "root")).differs == ()
    (tmp_path / "root/spark/state/0").mkdir(parents=True)
    with pytest.raises(IncompatibleError, match="spark-state"):
        take(tmp_path / "in", tmp_path / "root")
    assert head_of(tmp_path / "root") == before


def test_sparks_query_keeps_its_id(tmp_path: Path) -> None:
    """That of a query which has planned its first batch and died, too."""
    write(tmp_path / "in", 0, TABLES[0])
    (tmp_path / "root").mkdir()
    Checkpoint.open_or_create(tmp_path / "root")
    (tmp_path / "root/spark").mkdir()
    (tmp_path / "root/spark/metadata").write_text('{"id":"the query"}')
    take(tmp_path / "in", tmp_path / "root")
    assert position_of(tmp_path / "root").query_id == "the query"


MOMENTS = [f"{moment}:{number}" for number in (2, 4) for moment in ("before-manifest", "after-manifest")]


@pytest.mark.parametrize("death", MOMENTS if LONG else MOMENTS[-2:])
def test_killed_around_the_manifest(tmp_path: Path, death: str) -> None:
    for number, table in enumerate(TABLES):
        write(tmp_path / "in", number, table)
    child = Forked("tests.children.parquet_folder", tmp_path / "in", tmp_path / "root", death)
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    assert head_of(tmp_path / "root").id == int(death[-1]) - death.startswith("before")
    take(tmp_path / "in", tmp_path / "root", drain=True)
    check_exact(tmp_path / "root", tmp_path / "alone")
    position = position_of(tmp_path / "root")
    assert compare(position, spark_log(tmp_path / "root")).differs == ()


def test_after_a_rewind_its_files_are_read_again(tmp_path: Path) -> None:
    for number in range(6):
        write(tmp_path / "in", number, TABLES[number])
        if number == 3:
            take(tmp_path / "in", tmp_path / "root")
    root = tmp_path / "root"
    plan = rewind(Checkpoint.open(root), 3)
    assert plan is not None
    take(tmp_path / "in", root, drain=True)
    position = position_of(root)
    assert (position.batch_id, position.read["0"].files) == (5, 6)
    assert head_of(root).totals["events"] == 120
    # What the move wrote for Spark stays, and the next start on Spark finds it behind.
    assert SparkLog(Checkpoint.open(root).objects).query_id() == position.query_id


def test_a_move_that_died_before_it_wrote_sparks_checkpoint_is_finished(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / "in", number, TABLES[number])
    root = tmp_path / "root"
    take(tmp_path / "in", root)
    rewind(Checkpoint.open(root), 2)
    reset = head_of(root)
    assert reset.spark is not None
    for path in (root / "spark").rglob("*"):
        if path.name == "metadata":
            path.unlink()
    take(tmp_path / "in", root)
    assert SparkLog(Checkpoint.open(root).objects).query_id() == reset.spark.query_id
    assert head_of(root).totals["events"] == 60


@pytest.mark.parametrize("moment", ["spark-set-aside", "spark-half-written"])
def test_killed_while_it_finishes_a_move(tmp_path: Path, moment: str) -> None:
    for number in range(4):
        write(tmp_path / "in", number, TABLES[number])
    root = tmp_path / "root"
    take(tmp_path / "in", root)
    rewind(Checkpoint.open(root), 3)
    reset = head_of(root)
    assert reset.spark is not None
    (root / "spark/metadata").unlink()
    child = Forked("tests.children.parquet_folder", tmp_path / "in", root, f"{moment}:{reset.id}")
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    assert SparkLog(Checkpoint.open(root).objects).query_id() is None
    take(tmp_path / "in", root)
    assert SparkLog(Checkpoint.open(root).objects).query_id() == reset.spark.query_id
    assert head_of(root).totals["events"] == 80
    assert position_of(root).read["0"].files == 4


def test_a_fork_goes_on(tmp_path: Path) -> None:
    for number in range(2):
        write(tmp_path / "in", number, TABLES[number])
    take(tmp_path / "in", tmp_path / "root")
    fork(tmp_path / "root", tmp_path / "fork")
    take(tmp_path / "in", tmp_path / "fork")
    assert position_of(tmp_path / "fork").read["0"] == position_of(tmp_path / "root").read["0"]
    assert head_of(tmp_path / "fork").totals["events"] == 40


def test_what_was_read_is_known_after_old_checkpoints_are_gone(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for number, table in enumerate(TABLES):
        write(tmp_path / "in", number, table)
        take(tmp_path / "in", root, drain=number == len(TABLES) - 1)
        collect(Checkpoint.open(root), ts.CheckpointRetention(newest=1, grace="0 seconds"))
    assert Checkpoint.open(root).present_ids() == [head_of(root).id]
    check_exact(root, tmp_path / "alone")
    assert compare(position_of(root), spark_log(root)).differs == ()


def lost_after(root: Path, folder: Path, batches: int) -> None:
    """A job with messages has taken so many files, and has lost all that it had stored of them."""
    for number, batch in enumerate(GIVEN.batches):
        write(folder, number, batch)
        if number == batches - 1:
            GIVEN.job.standalone(checkpoint=root, partitions=2).run(ts.ParquetFolder(folder, files_per_batch=1))
    assert lose(root)


def test_lost_messages_come_back_from_the_files(tmp_path: Path) -> None:
    root, folder = tmp_path / "root", tmp_path / "in"
    lost_after(root, folder, 3)
    again = GIVEN.job.standalone(checkpoint=root, policy=REPLAYING)
    again.run(ts.ParquetFolder(folder, files_per_batch=1))
    GIVEN.job.standalone(checkpoint=tmp_path / "whole", partitions=2).run(GIVEN.batches)
    assert state_of(root) == state_of(tmp_path / "whole")
    assert head_of(root).operators["windows"].rebuilding is None
    assert position_of(root).read["0"].files == len(GIVEN.batches)


def test_files_that_are_gone_put_nothing_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root, folder = tmp_path / "root", tmp_path / "in"
    lost_after(root, folder, 3)
    (folder / "0001.parquet").unlink()
    again = GIVEN.job.standalone(checkpoint=root, policy=REPLAYING)
    again.run(ts.ParquetFolder(folder, files_per_batch=1))
    assert "the source could not be read again from batch 1" in caplog.text
    assert head_of(root).operators["windows"].rebuilding is not None
    assert position_of(root).read["0"].files == len(GIVEN.batches)
    with pytest.raises(UsageError, match="replay-source"):
        GIVEN.job.standalone(checkpoint=tmp_path / "counted", policy=REPLAYING).run(Counted(1))
