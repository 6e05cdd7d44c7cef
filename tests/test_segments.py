"""The durable files: whole or refused, self-describing, and readable by anybody."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statestore import segments
from statestore.changes import DELETE, MERGE, PUT, Layer
from statestore.errors import CorruptionError
from statestore.objects import Objects
from statestore.segments import FileKind, FileRef, read_segment, read_verified, write_segment
from statestore.tables import Column, TableSpec
from tests.lineage import segment_name
from tests.table_model import MAIN, NAMED, Row, moment, plain, table

DELETED: list[Row] = [(5, "gone", 1), (-7, "gone", 1)]
PUTS: list[Row] = [(9, "b", 2, 1, 0.5, date(2024, 2, 29), None), (-3, "é", -1, None, None, None, "note")]
MERGES: list[Row] = [(9, "b", 2, 1, None, None, None), (2, "", 0, 3, 1.5, None, "x"), (9, "b", 2, 5, -1.0, None, "y")]
LAYERS = [
    Layer(DELETE, table(MAIN, DELETED, keys_only=True)),
    Layer(PUT, table(MAIN, PUTS)),
    Layer(MERGE, table(MAIN, MERGES)),
]
KINDS: tuple[FileKind, ...] = ("changelog", "run", "snapshot")


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return Objects(tmp_path)


def write(objects: Objects, kind: FileKind, spec: TableSpec = MAIN) -> FileRef:
    layers = [Layer(PUT, table(MAIN, PUTS))] if kind == "snapshot" else LAYERS
    return write_segment(objects, spec, layers, kind, segment_name(3, 7, "own-id", "parent-id"))


def by_time(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row[0])


@pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "read"])
@pytest.mark.parametrize("kind", ["changelog", "run"])
def test_layers_come_back_in_order(objects: Objects, kind: FileKind, mapped: bool) -> None:
    found = read_segment(objects, MAIN, write(objects, kind), mapped=mapped)
    assert [layer.op for layer in found] == [DELETE, PUT, MERGE]
    # Sorted by the leading column alone and stable: rows of one key keep their order.
    assert [plain(layer.rows) for layer in found] == [by_time(DELETED), by_time(PUTS), by_time(MERGES)]
    assert found[0].rows.schema.equals(MAIN.key_schema)
    assert found[1].rows.schema.equals(MAIN.schema)


@pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "read"])
def test_a_snapshot_is_one_layer_sorted_by_key(objects: Objects, mapped: bool) -> None:
    rows = [(1, "b", 1, 1, None, None, None), (1, "a", 2, 2, None, None, None), (1, "a", -1, 3, None, None, None)]
    ref = write_segment(objects, MAIN, [Layer(PUT, table(MAIN, rows))], "snapshot", segment_name(1, 1, "s"))
    (layer,) = read_segment(objects, MAIN, ref, mapped=mapped)
    assert layer.op == PUT
    assert plain(layer.rows) == sorted(rows)


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_says_what_was_written(objects: Objects, kind: FileKind) -> None:
    ref = write(objects, kind)
    times = [row[0] for row in (PUTS if kind == "snapshot" else [*DELETED, *PUTS, *MERGES])]
    assert (ref.expiry_min, ref.expiry_max) == (min(times), max(times))
    assert ref.rows == len(times)
    assert ref.bytes == Path(objects.locate(ref.path)).stat().st_size
    assert (ref.table, ref.kind, ref.first, ref.last) == ("main", kind, 3, 7)
    assert (ref.segment, ref.previous) == ("own-id", "parent-id")
    assert ref.path.startswith("data/windows/0/3-7-")


def test_a_table_without_expiry_has_no_range(objects: Objects) -> None:
    layers = [Layer(PUT, table(NAMED, [("a", True, 1)]))]
    ref = write_segment(objects, NAMED, layers, "changelog", segment_name(1, 1, "s"))
    assert (ref.expiry_min, ref.expiry_max) == (None, None)
    assert [plain(layer.rows) for layer in read_segment(objects, NAMED, ref, mapped=True)] == [[("a", True, 1)]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "read"])
def test_one_flipped_byte_is_caught_anywhere(objects: Objects, kind: FileKind, mapped: bool) -> None:
    ref = write(objects, kind)
    path = Path(objects.locate(ref.path))
    whole = path.read_bytes()
    step = max(1, len(whole) // 60)
    for place in [*range(0, len(whole), step), len(whole) - 1]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :])
        segments._verified.clear()
        with pytest.raises(CorruptionError) as caught:
            read_segment(objects, MAIN, ref, mapped=mapped)
        assert (caught.value.code, caught.value.context["path"]) == ("file-damaged", ref.path)
    path.write_bytes(whole)
    assert read_segment(objects, MAIN, ref, mapped=mapped)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "read"])
def test_a_torn_file_is_caught_even_when_it_was_whole_before(objects: Objects, kind: FileKind, mapped: bool) -> None:
    ref = write(objects, kind)
    assert read_segment(objects, MAIN, ref, mapped=mapped)
    path = Path(objects.locate(ref.path))
    whole = path.read_bytes()
    for torn in (whole[: len(whole) // 2], whole[:-1], whole + b"\x00", b""):
        path.write_bytes(torn)
        with pytest.raises(CorruptionError) as caught:
            read_segment(objects, MAIN, ref, mapped=mapped)
        assert (caught.value.code, caught.value.context["found_bytes"]) == ("file-damaged", len(torn))
        assert caught.value.context["path"] == ref.path


@pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "read"])
def test_a_missing_file_is_named(objects: Objects, mapped: bool) -> None:
    ref = write(objects, "changelog")
    Path(objects.locate(ref.path)).unlink()
    with pytest.raises(CorruptionError) as caught:
        read_verified(objects, ref, mapped=mapped)
    assert (caught.value.code, caught.value.context) == ("file-missing", {"path": ref.path})


def test_bytes_that_match_their_checksum_but_are_no_segment(objects: Objects) -> None:
    from statestore.checksums import checksum

    for kind in KINDS:
        objects.put(f"junk-{kind}", b"junk")
        ref = FileRef(path=f"junk-{kind}", bytes=4, checksum=checksum(b"junk"), rows=1, table="main", kind=kind)
        with pytest.raises(CorruptionError) as caught:
            read_segment(objects, MAIN, ref, mapped=True)
        assert (caught.value.code, caught.value.context["path"]) == ("file-damaged", ref.path)


def described(metadata: dict[bytes, bytes]) -> dict[str, Any]:
    return {name.decode(): value.decode() for name, value in metadata.items() if not name.startswith(b"ARROW")}


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_describes_itself(objects: Objects, kind: FileKind) -> None:
    ref = write(objects, kind)
    path = objects.locate(ref.path)
    schema = pq.read_schema(path) if kind == "snapshot" else pa.ipc.open_file(path).schema
    facts = described(schema.metadata)
    spec = json.loads(facts.pop("table"))
    assert facts.pop("attempt") in ref.path
    assert facts == {
        "tidemark.format": "1",
        "kind": kind,
        "operator": "windows",
        "partition": "0",
        "partitions": "1",
        "first": "3",
        "last": "7",
        "segment": "own-id",
        "previous": "parent-id",
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
    assert rows["op"].to_pylist() == [2, 2, 1, 1, 0, 0, 0]
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
    layers = [Layer(PUT, pa.table({"p": ["x", "y"], "n": pa.array([1, 2], pa.int64())}))]
    path = objects.locate(write_segment(objects, spec, layers, "snapshot", segment_name(1, 1, "s")).path)
    assert duckdb.sql(f"select p, n from '{path}'").fetchall() == [("x", 1), ("y", 2)]
