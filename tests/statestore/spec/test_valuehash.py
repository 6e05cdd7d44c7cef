"""The hash by which a batch of the standalone runner is known: of its values, not of how Arrow holds them."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidestate.agg import count
from tidestate.agg import max as max_
from tidestate.operators import tumbling
from tidestate.operators.describe.windowed import windowed
from tidestate.statestore.errors import IncompatibleError
from tidestate.statestore.spec.tables import TIME
from tidestate.statestore.spec.valuehash import hash_tables

NAN = float("nan")
COLUMNS: dict[str, tuple[list[Any], list[pa.DataType]]] = {
    "bool": ([True, None, False, True], [pa.bool_()]),
    "int64": ([1, None, -(2**63), 2**63 - 1], [pa.int64()]),
    "uint8": ([1, None, 255, 0], [pa.uint8()]),
    "double": ([1.5, None, NAN, -0.0], [pa.float64()]),
    "float": ([1.5, None, NAN, -0.0], [pa.float32()]),
    "string": (["", None, "ab", "ü"], [pa.string(), pa.large_string(), pa.string_view()]),
    "binary": ([b"\0\1", None, b"\2\3", b"\xff\xfe"], [pa.binary(), pa.large_binary(), pa.binary(2)]),
    "date": ([date(1969, 12, 31), None, date(2026, 1, 1), date(1, 1, 1)], [pa.date32(), pa.date64()]),
    "time": (
        [time(1), None, time(23, 59, 59), time(0)],
        [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")],
    ),
    "instant": (
        [
            datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
            None,
            datetime(2026, 1, 1, tzinfo=UTC),
            datetime(1970, 1, 1, tzinfo=UTC),
        ],
        [pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in ("UTC", "+00:00", "Europe/Berlin")],
    ),
    "timestamp": (
        [datetime(2026, 1, 1), None, datetime(1970, 1, 1), datetime(1969, 1, 1)],
        [pa.timestamp("ms"), pa.timestamp("ns")],
    ),
    "duration": (
        [timedelta(seconds=1), None, timedelta(days=-1), timedelta(0)],
        [pa.duration("s"), pa.duration("us")],
    ),
    "decimal": (
        [Decimal("1.50"), None, Decimal("-2.00"), Decimal("0.01")],
        [pa.decimal128(9, 2), pa.decimal256(9, 2), pa.decimal32(9, 2)],
    ),
    "list": (
        [["a", None], None, [], ["b", "c"]],
        [pa.list_(pa.string()), pa.large_list(pa.field("element", pa.large_string())), pa.list_view(pa.string())],
    ),
    "fixed list": ([[1, 2], None, [3, None], [5, 6]], [pa.list_(pa.int16()), pa.list_(pa.int16(), 2)]),
    "struct": (
        [{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}, {"a": 2, "b": None}],
        [pa.struct([("a", pa.int32()), ("b", pa.string())])],
    ),
    "deep": (
        [[{"a": [1.0, NAN]}], None, [None], [{"a": None}]],
        [pa.list_(pa.struct([("a", pa.list_(pa.float64()))]))],
    ),
    "map": ([[("a", 1)], None, [], [("b", None), ("c", 3)]], [pa.map_(pa.string(), pa.int64())]),
    "null": ([None, None, None, None], [pa.null()]),
}
GOLDEN = {
    "bool": "xxh3:b64e30ee1cf342b1",
    "int64": "xxh3:06620b6e96e11145",
    "uint8": "xxh3:6210ce7d0b771cdf",
    "double": "xxh3:064240ba78a2bda8",
    "float": "xxh3:2f8a77633c16fd73",
    "string": "xxh3:d80d95e574a6f9ef",
    "binary": "xxh3:5371ee1a14696ab8",
    "date": "xxh3:2571117c9748baf5",
    "time": "xxh3:d330f2afef464ffb",
    "instant": "xxh3:c79299390df89c65",
    "timestamp": "xxh3:edacd6007d89846d",
    "duration": "xxh3:efd8c262bad07665",
    "decimal": "xxh3:89b43954377c25d2",
    "list": "xxh3:292d0f88e385b898",
    "fixed list": "xxh3:a147f99fa7a0b2b9",
    "struct": "xxh3:e0f956da8da37e88",
    "deep": "xxh3:4b7524be75715eb1",
    "map": "xxh3:bb47f82f3fcf5479",
    "null": "xxh3:6dbda4516230b002",
}
"""Made once. Another hash refuses the input of every standalone root."""


def hashed(values: pa.Array | pa.ChunkedArray, name: str = "v") -> str:
    return hash_tables({"input": pa.table({name: values})})


def _under_nulls(values: pa.Array) -> pa.Array:
    """The same with something else where nulls are."""
    filled = pa.concat_arrays([values.take(pa.array([0])), values.drop_null()])
    places = np.cumsum(np.asarray(values.is_valid()))
    other = filled.take(pa.array(places))
    buffers = other.buffers()
    if other.null_count or len(buffers) > 3 or values.type.num_fields or pa.types.is_null(values.type):
        return values
    mask = pa.array(np.asarray(values.is_valid())).buffers()[1]
    return pa.Array.from_buffers(values.type, len(values), [mask, *buffers[1:]])


def _in_parquet(values: pa.Array) -> pa.ChunkedArray:
    sink = io.BytesIO()
    pq.write_table(pa.table({"v": values}), sink, store_schema=False, row_group_size=3)
    return pq.read_table(io.BytesIO(sink.getvalue()))["v"]


FORMS: dict[str, Callable[[pa.Array], pa.Array | pa.ChunkedArray]] = {
    "chunks": lambda values: pa.chunked_array([values[:1], values[1:1], values[1:]]),
    "a slice": lambda values: pa.concat_arrays([values[2:], values, values[:3]])[2 : 2 + len(values)],
    "under nulls": _under_nulls,
    "taken": lambda values: values.take(pa.array(np.arange(len(values)))),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_equal_values_have_one_hash(name: str) -> None:
    values, kinds = COLUMNS[name]
    for kind in kinds:
        made = pa.array(values, kind)
        assert hashed(made) == GOLDEN[name], str(kind)
        for form, change in FORMS.items() if "view" not in str(kind) else ():  # of which Arrow can take none
            assert hashed(change(made)) == GOLDEN[name], f"{kind} {form}"


@pytest.mark.parametrize("name", ["int64", "string", "double", "instant", "bool", "date"])
def test_dictionaries_and_runs_are_what_they_stand_for(name: str) -> None:
    values, kinds = COLUMNS[name]
    made = pa.array(values, kinds[0])
    assert hashed(made.dictionary_encode()) == GOLDEN[name]
    assert hashed(made.dictionary_encode("encode")) == GOLDEN[name]
    assert hashed(pa.RunEndEncodedArray.from_arrays(pa.array([1, 2, 3, 4], pa.int32()), made)) == GOLDEN[name]


@pytest.mark.parametrize("name", ["int64", "string", "list", "struct", "decimal", "double"])
def test_a_file_brings_the_same(name: str) -> None:
    values, kinds = COLUMNS[name]
    assert hashed(_in_parquet(pa.array(values, kinds[0]))) == GOLDEN[name]


def test_one_nan_and_one_zero() -> None:
    other = np.array([1.5, 0, 0, 0.0])
    other.view(np.uint64)[2] = 0x7FF8000000000001
    assert hashed(pa.array(other, mask=np.array([False, True, False, False]))) == GOLDEN["double"]


@pytest.mark.parametrize("name", COLUMNS)
def test_other_values_have_another_hash(name: str) -> None:
    values, kinds = COLUMNS[name]
    changed = [
        values[::-1],
        values[:-1],
        [*values, None],
        [values[0], values[0], *values[2:]],
        [values[0], *values[:-1]],
    ]
    found = [hashed(pa.array(one, kinds[0])) for one in (values, *changed)]
    same = 3 if name != "null" else 1
    assert len(set(found)) >= same
    if name != "null":
        assert GOLDEN[name] not in found[1:]


def test_bounds_of_values_count() -> None:
    lists = pa.list_(pa.int64())
    pairs: list[tuple[pa.Array, pa.Array]] = [
        (pa.array(["ab", "c"]), pa.array(["a", "bc"])),
        (pa.array(["", "a"]), pa.array(["a", ""])),
        (pa.array([None, ""], pa.string()), pa.array(["", None], pa.string())),
        (pa.array([[1], [2, 3]], lists), pa.array([[1, 2], [3]], lists)),
        (pa.array([[], None], lists), pa.array([None, []], lists)),
        (pa.array([None, 0], pa.int64()), pa.array([0, None], pa.int64())),
        (pa.array([0, 1], pa.timestamp("ns")), pa.array([1, 0], pa.timestamp("ns"))),
        (pa.array([1], pa.int32()), pa.array([1], pa.int64())),
        (pa.array([1], pa.timestamp("us")), pa.array([1], pa.timestamp("us", "UTC"))),
        (pa.array([1], pa.timestamp("us")), pa.array([1], pa.timestamp("ms"))),
        (pa.array([Decimal("1.5")], pa.decimal128(5, 1)), pa.array([Decimal("1.5")], pa.decimal128(5, 2))),
    ]
    for one, other in pairs:
        assert hashed(one) != hashed(other), (one, other)


def test_names_count_and_the_order_of_columns_does_not() -> None:
    one, two = pa.array([1, 2]), pa.array(["a", "b"])
    whole = hash_tables({"input": pa.table({"x": one, "y": two})})
    assert whole == hash_tables({"input": pa.table({"y": two, "x": one})})
    others = [
        {"a": pa.table({"x": one, "y": two})},
        {"input": pa.table({"y": one, "x": two})},
        {"input": pa.table({"x": one})},
    ]
    assert whole not in [hash_tables(other) for other in others]
    assert hash_tables({"a": pa.table({"x": one[:0]})}) != hash_tables(
        {"a": pa.table({"x": one[:0]}), "b": pa.table({"x": one[:0]})}
    )
    assert hashed(one, "x") != hashed(one, "y")


def test_a_root_knows_its_input_in_any_layout(tmp_path: Path) -> None:
    job = windowed(event_time="t", key="k", name="job").window(tumbling("1 hour")).aggregate(n=count(), v=max_("v"))
    rows = pa.table({"t": pa.array([1, 2, 3], TIME), "k": ["a", None, "b"], "v": [1, 2, None]})
    job.standalone(checkpoint=str(tmp_path)).run([rows])
    cut = pa.concat_tables([rows.slice(0, 1), rows.slice(1)])
    behind = pa.concat_tables([rows, rows])[3:]
    finer = rows.set_column(0, "t", rows["t"].cast(pa.timestamp("ns", "UTC")))
    for same in (cut, behind, finer, cut.append_column("not_read", [["x", "y", "z"]])):
        assert job.standalone(checkpoint=str(tmp_path)).run([same]).num_rows == 0
    with pytest.raises(IncompatibleError, match="input-differs"):
        job.standalone(checkpoint=str(tmp_path)).run([rows.set_column(2, "v", [[1, 2, 0]])])
