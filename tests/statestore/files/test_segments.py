"""The durable files: whole or refused, self-describing, and readable by anybody."""

from __future__ import annotations

import json
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.lineage import segment_name
from tests.helpers.process import LONG, longer
from tests.helpers.table_model import MAIN, NAMED, KeyRow, as_tuples, moment, table
from tidestate.statestore.errors import CorruptionError, IncompatibleError
from tidestate.statestore.files import segments
from tidestate.statestore.files.filetable import open_sources
from tidestate.statestore.files.refs import FileKind, FileRef, levels_of
from tidestate.statestore.files.segments import read_segment, read_verified, with_op, write_segment
from tidestate.statestore.files.sortedfile import write_sorted
from tidestate.statestore.files.tails import tail_of
from tidestate.statestore.spec.changes import DELETE, MERGE, PUT, Layer
from tidestate.statestore.spec.keyrange import EVERYTHING
from tidestate.statestore.spec.tables import Column, TableSpec
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.table.layers import clustered, sorted_by_key

DELETED: list[KeyRow] = [(5, "gone", 1), (-7, "gone", 1)]
PUTS: list[KeyRow] = [(9, "b", 2, 1, 0.5, date(2024, 2, 29), None), (-3, "é", -1, None, None, None, "note")]
MERGES: list[KeyRow] = [
    (9, "b", 2, 1, None, None, None),
    (2, "", 0, 3, 1.5, None, "x"),
    (9, "b", 2, 5, -1.0, None, "y"),
]
LAYERS = [
    Layer(DELETE, table(MAIN, DELETED, keys_only=True)),
    Layer(PUT, table(MAIN, PUTS)),
    Layer(MERGE, table(MAIN, MERGES)),
]
TIMED = TableSpec("timed", (Column("t", "int64"),), (Column("total", "int64", combiner="sum"),), "t")
KINDS: tuple[FileKind, ...] = ("changelog", "run", "snapshot")


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return Objects(tmp_path)


def write(objects: Objects, kind: FileKind, spec: TableSpec = MAIN) -> FileRef:
    name = segment_name(3, 7, "own-id", "parent-id")
    if kind == "changelog":
        return write_segment(objects, spec, [Layer(layer.op, clustered(layer.rows)) for layer in LAYERS], name)
    (ref,) = write_sorted(objects, spec, kind, name, [snapshot_rows() if kind == "snapshot" else run_rows()])
    return ref


def snapshot_rows() -> pa.Table:
    return sorted_by_key(MAIN, table(MAIN, PUTS))


def run_rows() -> pa.Table:
    parts = [
        Layer(DELETE, table(MAIN, DELETED, keys_only=True)),
        *LAYERS[1:2],
        Layer(MERGE, table(MAIN, MERGES[1:2])),
    ]
    return sorted_by_key(MAIN, pa.concat_tables([with_op(MAIN, layer) for layer in parts]))


def read(objects: Objects, ref: FileRef) -> list[Layer]:
    (source,) = open_sources(objects, MAIN, [ref])
    return source.layers(EVERYTHING)


def by_time(rows: list[KeyRow]) -> list[KeyRow]:
    return sorted(rows, key=lambda row: row[0])


def test_layers_come_back_in_order(objects: Objects) -> None:
    found = read(objects, write(objects, "changelog"))
    assert [layer.op for layer in found] == [DELETE, PUT, MERGE]
    # Sorted by the leading column alone and stable: rows of one key keep their order.
    assert [as_tuples(layer.rows) for layer in found] == [by_time(DELETED), by_time(PUTS), by_time(MERGES)]
    assert found[0].rows.schema.equals(MAIN.key_schema)
    assert found[1].rows.schema.equals(MAIN.schema)


def test_a_run_gives_a_layer_for_each_op(objects: Objects) -> None:
    found = read(objects, write(objects, "run"))
    assert [(layer.op, layer.ordered) for layer in found] == [(DELETE, True), (PUT, True), (MERGE, True)]
    assert [as_tuples(layer.rows) for layer in found] == [by_time(DELETED), by_time(PUTS), MERGES[1:2]]


def test_a_snapshot_is_one_layer_sorted_by_key(objects: Objects) -> None:
    (layer,) = read(objects, write(objects, "snapshot"))
    assert (layer.op, layer.ordered) == (PUT, True)
    assert as_tuples(layer.rows) == by_time(PUTS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_says_what_was_written(objects: Objects, kind: FileKind) -> None:
    ref = write(objects, kind)
    merged = {"changelog": MERGES, "run": MERGES[1:2], "snapshot": []}[kind]
    times = [row[0] for row in [*(DELETED if kind != "snapshot" else []), *PUTS, *merged]]
    assert (ref.expiry_min, ref.expiry_max) == (min(times), max(times))
    assert ref.rows == len(times)
    assert ref.bytes == Path(objects.locate(ref.path)).stat().st_size
    assert (ref.table, ref.kind, ref.first, ref.last) == ("main", kind, 3, 7)
    assert (ref.segment, ref.previous) == ("own-id", "parent-id")
    assert ref.path.startswith("data/windows/0/7-")


def test_a_table_without_expiry_has_no_range(objects: Objects) -> None:
    layers = [Layer(PUT, table(NAMED, [("a", True, 1)]))]
    ref = write_segment(objects, NAMED, layers, segment_name(1, 1, "s"))
    assert (ref.expiry_min, ref.expiry_max) == (None, None)
    assert [as_tuples(layer.rows) for layer in read_segment(objects, NAMED, ref)] == [[("a", True, 1)]]


@given(times=st.lists(st.integers(-9, 99), min_size=1, max_size=9), more=st.lists(st.integers(-9, 99), max_size=4))
def test_changes_of_two_stretches_of_time_are_two_files(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], more: list[int]
) -> None:
    objects = Objects(str(tmp_path_factory.mktemp("root")))
    rows = [sorted(times), sorted(set(more))]
    layers = [Layer(op, table(TIMED, [(t, t) for t in some])) for op, some in zip((MERGE, PUT), rows, strict=True)]
    with mock.patch.object(segments, "APART_BYTES", 0):
        refs = segments.write_segments(objects, TIMED, layers, segment_name(1, 1, "s"))
    known = sorted({*times, *more})
    holes = [after - before for before, after in pairwise(known)]
    assert len(refs) == 1 + (len(holes) > 1 and 2 * max(holes) > known[-1] - known[0])
    assert len({ref.path for ref in refs}) == len(refs)
    assert len(levels_of(refs)) == 1
    for before, after in pairwise(refs):
        assert before.expiry_max is not None
        assert after.expiry_min is not None
        assert after.expiry_min - before.expiry_max == max(holes)
    found = [layer for ref in refs for layer in read_segment(objects, TIMED, ref)]
    read_back = [(layer.op, row[0]) for layer in found for row in as_tuples(layer.rows)]
    assert sorted(read_back) == sorted((op, t) for op, some in zip((MERGE, PUT), rows, strict=True) for t in some)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["changelog", "snapshot", *longer("run")])
def test_a_flipped_byte_never_changes_a_row(objects: Objects, kind: FileKind) -> None:
    """Changelogs are checked whole. Of folded files a reader checks what it uses: what it skips may be damaged."""
    ref = write(objects, kind)
    path = Path(objects.locate(ref.path))
    whole = path.read_bytes()
    good = [(layer.op, as_tuples(layer.rows)) for layer in read(objects, ref)]
    unnoticed, codes, chosen = 0, set(), range(0, len(whole), 1 if LONG else 3 if kind == "changelog" else 7)
    for place in chosen:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :])
        try:
            found = read(objects, ref)
        except CorruptionError as error:
            codes.add((error.code, error.context["path"]))
        else:
            assert [(layer.op, as_tuples(layer.rows)) for layer in found] == good
            unnoticed += 1
    assert codes == {("file-damaged", ref.path)}
    assert unnoticed < len(chosen) / 10
    assert kind != "changelog" or unnoticed == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_torn_file_is_caught_even_when_it_was_whole_before(objects: Objects, kind: FileKind) -> None:
    ref = write(objects, kind)
    assert read(objects, ref)
    path = Path(objects.locate(ref.path))
    whole = path.read_bytes()
    for torn in (whole[: len(whole) // 2], whole[:-1], whole + b"\x00", b""):
        path.write_bytes(torn)
        with pytest.raises(CorruptionError) as caught:
            read(objects, ref)
        assert caught.value.code == "file-damaged"
        assert caught.value.context["path"] == ref.path


def test_a_missing_file_is_named(objects: Objects) -> None:
    ref = write(objects, "changelog")
    Path(objects.locate(ref.path)).unlink()
    with pytest.raises(CorruptionError) as caught:
        read_verified(objects, ref)
    assert (caught.value.code, caught.value.context) == ("file-missing", {"path": ref.path})


def test_bytes_that_match_their_checksum_but_are_no_segment(objects: Objects) -> None:
    from tidestate.statestore.checksums import checksum

    for kind in KINDS:
        objects.put(f"junk-{kind}", b"junk")
        ref = FileRef(
            path=f"junk-{kind}", bytes=4, checksum=checksum(b"junk"), rows=1, table="main", kind=kind, tail="4:xxh3:0"
        )
        with pytest.raises(CorruptionError) as caught:
            read(objects, ref)
        assert (caught.value.code, caught.value.context["path"]) == ("file-damaged", ref.path)


def described(metadata: dict[bytes, bytes]) -> dict[str, Any]:
    return {name.decode(): value.decode() for name, value in metadata.items() if not name.startswith(b"ARROW")}


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_describes_itself(objects: Objects, kind: FileKind) -> None:
    ref = write(objects, kind)
    path = objects.locate(ref.path)
    facts = described(
        pa.ipc.open_file(path).schema.metadata if kind == "changelog" else pq.read_metadata(path).metadata
    )
    facts.pop("tidestate.index", None)
    spec = json.loads(facts.pop("table"))
    assert facts.pop("attempt") in ref.path
    assert facts == {
        "tidestate.format": "1",
        "part": "0",
        "kind": kind,
        "operator": "windows",
        "partition": "0",
        "partitions": "1",
        "first": "3",
        "last": "7",
        "segment": "own-id",
        "previous": "parent-id",
        "expiry_min": str(ref.expiry_min),
        "expiry_max": str(ref.expiry_max),
    }
    assert spec["name"] == "main"
    assert spec["expiry"] == "t"
    assert [column["name"] for column in spec["key"]] == MAIN.key_names
    assert {c["name"]: c.get("combiner", "replace") for c in spec["values"]} == {
        "total": "sum",
        "low": "min",
        "high": "max",
        "note": "replace",
    }


def test_plain_pyarrow_reads_a_changelog(objects: Objects) -> None:
    rows = pa.ipc.open_file(objects.locate(write(objects, "changelog").path)).read_all()
    assert rows["__op"].to_pylist() == [2, 2, 1, 1, 0, 0, 0]
    assert rows["t"].to_pylist() == [moment(row[0]) for part in (DELETED, PUTS, MERGES) for row in by_time(part)]
    assert rows["total"].to_pylist() == [None, None, None, 1, 3, 1, 5]
    assert rows["note"].to_pylist() == [None, None, "note", None, "x", None, "y"]


def test_plain_pyarrow_reads_a_snapshot(objects: Objects) -> None:
    rows = pq.ParquetFile(objects.locate(write(objects, "snapshot").path)).read()
    assert rows.column_names == MAIN.schema.names
    assert [tuple(row.values()) for row in rows.to_pylist()] == [(moment(row[0]), *row[1:]) for row in by_time(PUTS)]


def test_duckdb_reads_a_snapshot(objects: Objects) -> None:
    path = objects.locate(write(objects, "snapshot").path)
    found = duckdb.sql(f"select epoch_us(t), k, i, total, low, high, note from read_parquet('{path}')").fetchall()
    assert found == by_time(PUTS)


def test_duckdb_reads_a_key_column_named_like_the_folder(objects: Objects) -> None:
    spec = TableSpec("t", (Column("p", "string"),), (Column("n", "int64"),))
    rows = pa.table({"p": ["x", "y"], "n": pa.array([1, 2], pa.int64())})
    (ref,) = write_sorted(objects, spec, "snapshot", segment_name(1, 1, "s"), [rows])
    path = objects.locate(ref.path)
    assert duckdb.sql(f"select p, n from '{path}'").fetchall() == [("x", 1), ("y", 2)]


def rewritten(objects: Objects, ref: FileRef, kind: FileKind, **says: str) -> FileRef:
    """The same file, whole and rightly referred to, but with other words about itself."""
    from tidestate.statestore.checksums import checksum

    path = objects.locate(ref.path)
    changed = {name.encode(): value.encode() for name, value in says.items()}
    sink = pa.BufferOutputStream()
    if kind == "changelog":
        rows = pa.ipc.open_file(path).read_all()
        schema = rows.schema.with_metadata(rows.schema.metadata | changed)
        with pa.ipc.new_file(sink, schema) as writer:
            writer.write_table(rows.replace_schema_metadata(schema.metadata))
    else:
        file = pq.ParquetFile(path)
        metadata = file.schema_arrow.metadata | changed
        pq.write_table(file.read().replace_schema_metadata(metadata), sink)
    data = sink.getvalue().to_pybytes()
    Path(objects.locate(ref.path)).write_bytes(data)
    facts = {"bytes": len(data), "checksum": checksum(data), "tail": tail_of(data)}
    return msgspec.structs.replace(ref, **facts)


@pytest.mark.parametrize("kind", KINDS)
def test_a_newer_format_is_reported_in_words(objects: Objects, kind: FileKind) -> None:
    ref = rewritten(objects, write(objects, kind), kind, **{"tidestate.format": "2"})
    with pytest.raises(IncompatibleError, match=r"unknown format.*\[file-format\].*expected=1 found=2"):
        read(objects, ref)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "says",
    [
        {"segment": "other"},
        {"previous": "other"},
        {"last": "8"},
        {"table": "null"},
        {"operator": "other"},
        {"partition": "1"},
        {"partition": "x"},
        {"attempt": "other"},
        {"expiry_min": ""},
        {"expiry_max": "10"},
    ],
    ids=str,
)
def test_a_file_of_somewhere_else_is_refused(objects: Objects, kind: FileKind, says: dict[str, str]) -> None:
    ref = rewritten(objects, write(objects, kind), kind, **says)
    with pytest.raises(CorruptionError, match="file-foreign") as caught:
        read(objects, ref)
    assert caught.value.context["path"] == ref.path
