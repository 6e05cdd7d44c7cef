"""The text by which a manifest names a type: always the same, and read again."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.arrowtypes import parse_type, type_text

GOLDEN = {
    "null": pa.null(),
    "bool": pa.bool_(),
    **{f"{sign}int{n}": pa.type_for_alias(f"{sign}int{n}") for sign in ("", "u") for n in (8, 16, 32, 64)},
    "halffloat": pa.float16(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "large_string": pa.large_string(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "fixed_size_binary[16]": pa.binary(16),
    "date32[day]": pa.date32(),
    "date64[ms]": pa.date64(),
    "time32[s]": pa.time32("s"),
    "time32[ms]": pa.time32("ms"),
    "time64[us]": pa.time64("us"),
    "time64[ns]": pa.time64("ns"),
    "duration[us]": pa.duration("us"),
    "timestamp[s]": pa.timestamp("s"),
    "timestamp[us, tz=UTC]": pa.timestamp("us", "UTC"),
    "timestamp[ns, tz=Europe/Berlin]": pa.timestamp("ns", "Europe/Berlin"),
    "timestamp[ms, tz=+02:00]": pa.timestamp("ms", "+02:00"),
    "decimal128(10, 2)": pa.decimal128(10, 2),
    "decimal128(5, -2)": pa.decimal128(5, -2),
    "decimal256(70, 3)": pa.decimal256(70, 3),
    "list<item: int64>": pa.list_(pa.int64()),
    "list<element: int64 not null>": pa.list_(pa.field("element", pa.int64(), nullable=False)),
    "list<element: int8>": pa.list_(pa.field("element", pa.int8())),
    "large_list<item: string>": pa.large_list(pa.string()),
    "fixed_size_list<item: float>[3]": pa.list_(pa.float32(), 3),
    "map<string, int64>": pa.map_(pa.string(), pa.int64()),
    "map<string, list<item: int8>>": pa.map_(pa.string(), pa.list_(pa.int8())),
    "struct<a: int8, b: string not null>": pa.struct([("a", pa.int8()), pa.field("b", pa.string(), nullable=False)]),
    "list<item: struct<at: timestamp[us, tz=UTC], x: decimal128(4, 1)>>": pa.list_(
        pa.struct([("at", pa.timestamp("us", "UTC")), ("x", pa.decimal128(4, 1))])
    ),
}
UNHELD = {
    "dictionary<values=string, indices=int32, ordered=0>": pa.dictionary(pa.int32(), pa.string()),
    "dictionary<values=timestamp[us, tz=UTC], indices=int8, ordered=1>": pa.dictionary(
        pa.int8(), pa.timestamp("us", "UTC"), ordered=True
    ),
    "map<string ('k'), int8 ('v')>": pa.map_(pa.field("k", pa.string(), nullable=False), pa.field("v", pa.int8())),
    "map<string, int8, keys_sorted>": pa.map_(pa.string(), pa.int8(), keys_sorted=True),
    "struct<>": pa.struct([]),
    "string_view": pa.string_view(),
}
"""No table can hold them; an input may."""


@pytest.mark.parametrize("text", GOLDEN)
def test_a_type_has_one_text(text: str) -> None:
    assert type_text(GOLDEN[text]) == text
    assert parse_type(text) == GOLDEN[text]


@pytest.mark.parametrize("text", UNHELD)
def test_types_that_no_table_can_hold(text: str) -> None:
    assert type_text(UNHELD[text]) == text
    with pytest.raises(UsageError):
        parse_type(text)


def test_it_is_what_arrow_26_prints() -> None:
    if int(pa.__version__.split(".")[0]) == 26:
        assert [str(kind) for kind in (*GOLDEN.values(), *UNHELD.values())] == [*GOLDEN, *UNHELD]
