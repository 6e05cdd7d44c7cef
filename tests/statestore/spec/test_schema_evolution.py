"""State read through a newer form of its table: against a naive twin, in all stores, whatever has been folded."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.helpers.process import in_turn
from tidestate.statestore.files.partition_log import PartitionLog
from tidestate.statestore.files.refs import PartitionState
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.keyhash import key_hash
from tidestate.statestore.spec.keyrange import Cut, KeyRange
from tidestate.statestore.spec.schema_evolution import declared_table, differences, readable, succeeding, widens
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB, StoreConfig
from tidestate.statestore.spec.tables import Column, Group, TableSpec
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.stores.opening import open_store

KEY = (Column("end", "int64", "window_end"), Column("k", "string", "key"))
FIRST = TableSpec(
    "t",
    KEY,
    (Column("n", "int64", "count", "sum"), Column("low", "int32", "min", "min"), Column("note", "string")),
    "end",
)
SECOND = succeeding(
    FIRST,
    TableSpec(
        "t",
        KEY,
        (
            Column("lowest", "int64", "min", "min"),
            Column("seen", "list<item: int64>", "", "append"),
            Column("n", "int64", "count", "sum"),
        ),
        "end",
    ),
    {"end": "end", "k": "k", "lowest": "low", "n": "n"},
    "10",
)
THIRD = succeeding(
    SECOND,
    TableSpec(
        "t",
        (KEY[0], Column("key", "string", "key")),
        (
            Column("note", "string"),
            Column("low", "double", "", "sum"),
            Column("smallest", "decimal128(20, 1)", "min", "min"),
            Column("by", "int64"),
            Column("best", "string"),
        ),
        "end",
        (Group(("by", "best"), "arg_min", by="by"),),
    ),
    {"end": "end", "key": "k", "smallest": "lowest"},
    "20",
)
STORES = {
    "parquet": Parquet(max_levels=3),
    "memory": Memory(max_levels=3),
    "rocksdb": RocksDB(max_levels=3),
}
KINDS = ("int32", "int64")
Row = dict[str, Any]


class Twin:
    """Values by key and identity; a row of nulls is one nobody has merged into."""

    def __init__(self) -> None:
        self.rows: dict[tuple[Any, ...], Row] = {}

    def apply(self, spec: TableSpec, op: str, rows: list[Row]) -> None:
        grouped = {spec_name for group in spec.groups for spec_name in group.columns}
        for row in rows:
            key = tuple(row[column.name] for column in spec.key)
            if op == "delete":
                self.rows.pop(key, None)
                continue
            old = {} if op == "put" else self.rows.get(key, {})
            new = dict(old) if op == "merge" else {}
            for column in spec.values:
                if column.name not in grouped:
                    new[column.lasting] = _combined(column.combiner, old.get(column.lasting), row[column.name])
            if grouped:
                by, best = (column.lasting for column in spec.values if column.name in grouped)
                if row["by"] is not None and (old.get(by) is None or row["by"] < old[by]):
                    new[by], new[best] = row["by"], row["best"]
                else:
                    new[by], new[best] = old.get(by), old.get(best)
            self.rows[key] = new

    def seen(self, spec: TableSpec) -> list[Row]:
        names = [column.name for column in spec.key]
        found = []
        for key in sorted(self.rows):
            values = {column.name: self.rows[key].get(column.lasting) for column in spec.values}
            found.append(dict(zip(names, key, strict=True)) | values)
        return found


def _combined(combiner: str, old: Any, new: Any) -> Any:
    if combiner == "replace":
        return new
    known = [value for value in (old, new) if value is not None]
    if not known:
        return None
    if combiner == "append":
        return [item for one in known for item in one]
    return {"sum": sum, "min": min}[combiner](known)


def _value(column: Column, chance: random.Random) -> Any:
    if chance.random() < 0.2:
        return None
    kind = column.arrow
    if pa.types.is_string(kind):
        return chance.choice("xyz")
    if pa.types.is_list(kind):
        return [chance.randrange(9)]
    return chance.randrange(-50, 50)


def _rows(spec: TableSpec, chance: random.Random) -> list[Row]:
    keys = chance.sample([(end, k) for end in range(1, 6) for k in "ab"], 3)
    names = [column.name for column in spec.key]
    rows = [
        dict(zip(names, key, strict=True)) | {column.name: _value(column, chance) for column in spec.values}
        for key in keys
    ]
    for row in rows:
        if row.get("by") is None and "best" in row:
            row["best"] = None  # events without a place in the order are none
    return rows


@pytest.mark.slow
@pytest.mark.parametrize(("store", "seed"), in_turn(STORES, range(3)))
def test_rows_of_all_forms_are_read_through_the_newest(tmp_path: Path, store: str, seed: int) -> None:
    chance, objects, twin, base = random.Random(seed), Objects(tmp_path / "root"), Twin(), PartitionState()
    config = STORES[store]
    if store == "rocksdb":
        config = RocksDB(cache_dir=str(tmp_path / "cache"), max_levels=3)
    for sequence in range(1, 31):
        spec = FIRST if sequence <= 10 else SECOND if sequence <= 20 else THIRD
        op = chance.choice(("merge", "merge", "merge", "put", "delete"))
        rows = _rows(spec, chance)
        names = spec.schema if op != "delete" else spec.key_schema
        change = {op: pa.Table.from_pylist([{n: r[n] for n in names.names} for r in rows], names)}
        log = PartitionLog(objects, (spec,), config, "op", 0, 1, f"s{sequence}")
        base = log.append(base, {"t": TableChanges(**change)}, sequence)
        twin.apply(spec, op, rows)
        assert _read(objects, config, str(tmp_path), spec, base) == twin.seen(spec), (sequence, op)


def _read(objects: Objects, config: StoreConfig, name: str, spec: TableSpec, base: PartitionState) -> list[Row]:
    with open_store(config, objects, name, (spec,), base) as store:
        rows = pa.concat_tables([spec.schema.empty_table(), *store["t"].scan()])
    return rows.sort_by([(column.name, "ascending") for column in spec.key]).to_pylist()


@pytest.mark.parametrize("store", STORES)
def test_keys_of_a_wider_type_are_found_in_older_files(tmp_path: Path, store: str) -> None:
    """Folded files and segments, by a look-up and by a range that reaches beyond the older type."""
    narrow, wide = (TableSpec("t", (Column("k", kind),), (Column("n", "int64", "", "sum"),)) for kind in KINDS)
    objects, base = Objects(tmp_path / "root"), PartitionState()
    config = RocksDB(cache_dir=str(tmp_path / "cache"), max_levels=3) if store == "rocksdb" else STORES[store]
    for sequence in range(1, 13):
        spec, keys = (narrow, [-5, 7, sequence]) if sequence <= 8 else (wide, [-5, 7, sequence << 32])
        merged = TableChanges(merge=pa.table([sorted(keys), [1] * 3], schema=spec.schema))
        base = PartitionLog(objects, (spec,), config, "op", 0, 1, f"s{sequence}").append(
            base, {"t": merged}, sequence
        )
    counted = (
        {-5: 12, 7: 13} | dict.fromkeys([*range(1, 7), 8], 1) | dict.fromkeys([n << 32 for n in range(9, 13)], 1)
    )
    with open_store(config, objects, str(tmp_path), (wide,), base) as opened:
        rows = pa.concat_tables(opened["t"].scan())
        assert dict(zip(rows["k"].to_pylist(), rows["n"].to_pylist(), strict=True)) == counted
        beyond = pa.concat_tables(opened["t"].scan(KeyRange(Cut((8,)), Cut((10 << 32,)))))
        assert beyond["k"].to_pylist() == [8, 9 << 32]
        looked_up = opened["t"].lookup(pa.table([[7, 12 << 32]], schema=wide.key_schema)).rows
        assert looked_up["n"].to_pylist() == [13, 1]


KEPT_HASH = [(pa.int16(), pa.int32()), (pa.uint32(), pa.int64()), (pa.decimal128(9, 2), pa.decimal128(12, 2))]
OTHER_HASH = [(pa.int32(), pa.decimal128(12, 2)), (pa.decimal128(9, 2), pa.decimal128(12, 4))]


@pytest.mark.parametrize(
    ("old", "new", "kept"), [*((*p, True) for p in KEPT_HASH), *((*p, False) for p in OTHER_HASH)]
)
def test_a_key_goes_on_where_its_hash_does(old: pa.DataType, new: pa.DataType, kept: bool) -> None:
    forms = [TableSpec("t", (Column("k", str(kind)),), FIRST.values[:1]) for kind in (old, new)]
    assert readable(*forms) is kept
    if kept:
        values = pa.array([-5, 0, 7], pa.int64()) if pa.types.is_signed_integer(old) else pa.array([0, 5, 7])
        column = values.cast(pa.decimal128(19, 0)).cast(old) if pa.types.is_decimal(old) else values.cast(old)
        hashes = [key_hash(pa.table({"k": column.cast(kind)})).tolist() for kind in (old, new)]
        assert hashes[0] == hashes[1]


def test_identities() -> None:
    assert [column.identity for column in SECOND.values] == ["low", "__10.seen", ""]
    assert [column.identity for column in THIRD.key] == ["", "k"]
    assert [column.lasting for column in THIRD.values] == ["__20.note", "__20.low", "low", "__20.by", "__20.best"]
    assert declared_table(THIRD).values[2] == Column("smallest", "decimal128(20, 1)", "min", "min")
    assert readable(FIRST, SECOND)
    assert readable(FIRST, THIRD)


def test_what_cannot_be_read_is_named() -> None:
    other_key = TableSpec("t", (KEY[0], Column("k", "int64")), FIRST.values, "end")
    assert differences(FIRST, other_key) == ["key end int64, k string -> end int64, k int64"]
    narrower = TableSpec("t", KEY, (Column("n", "int64", "", "max"), Column("low", "int16", "", "min")), "end")
    assert differences(FIRST, narrower) == ["n has another combiner", "low int32 -> int16"]
    assert differences(FIRST, TableSpec("t", KEY, FIRST.values)) == ["expires by end -> None"]
    assert differences(FIRST, TableSpec("u", KEY, FIRST.values, "end")) == ["table u was t"]
    regrouped = TableSpec("t", THIRD.key, THIRD.values, "end", (Group(("by", "best"), "arg_max", by="by"),))
    assert differences(THIRD, regrouped) == ["by has another combiner", "best has another combiner"]


WIDER = [
    (pa.int8(), pa.int64()),
    (pa.uint32(), pa.int64()),
    (pa.int32(), pa.float64()),
    (pa.float32(), pa.float64()),
    (pa.int64(), pa.decimal128(19, 0)),
    (pa.decimal128(10, 2), pa.decimal128(18, 4)),
    (pa.decimal128(38, 2), pa.decimal256(76, 2)),
    (pa.string(), pa.large_string()),
    (pa.list_(pa.int32()), pa.list_(pa.int64())),
    (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int16())])),
    (pa.map_(pa.int32(), pa.int64()), pa.map_(pa.int64(), pa.int64())),
]
OTHER = [
    (pa.int64(), pa.float64()),
    (pa.uint64(), pa.int64()),
    (pa.int8(), pa.uint64()),
    (pa.int64(), pa.decimal128(18, 0)),
    (pa.decimal128(38, 2), pa.decimal128(38, 4)),
    (pa.decimal128(10, 2), pa.float64()),
    (pa.bool_(), pa.int8()),
    (pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC")),
    (pa.struct([("a", pa.int8())]), pa.struct([("b", pa.int8())])),
    (pa.int32(), pa.string()),
]


@pytest.mark.parametrize(("old", "new"), WIDER, ids=str)
def test_a_type_that_holds_all_values_of_another_is_wider(old: pa.DataType, new: pa.DataType) -> None:
    assert widens(old, new)
    assert widens(old, old)
    assert not widens(new, old)


def test_instants_are_the_same_in_every_zone() -> None:
    berlin, utc = (pa.timestamp("us", zone) for zone in ("Europe/Berlin", "UTC"))
    assert widens(berlin, utc)
    assert widens(pa.list_(utc), pa.list_(berlin))
    assert not widens(pa.timestamp("us"), utc)
    assert not widens(utc, pa.timestamp("us"))


@pytest.mark.parametrize(("old", "new"), OTHER, ids=str)
def test_any_other_is_not(old: pa.DataType, new: pa.DataType) -> None:
    assert not widens(old, new)
