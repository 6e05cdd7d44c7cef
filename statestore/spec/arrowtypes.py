"""Arrow types as text, both ways: how a table in a manifest says what its columns are.

The text is ours: what Arrow 26 prints (``list<item: int64>``, ``decimal128(10, 2)``), whatever other versions print.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidestate.statestore.errors import UsageError

_DECIMAL = re.compile(r"decimal(128|256)\((\d+), (-?\d+)\)")
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(?:, tz=(.+))?\]")
_FIXED = re.compile(r"fixed_size_binary\[(\d+)\]")
_FIXED_LIST = re.compile(r"fixed_size_list<(.*)>\[(\d+)\]", re.DOTALL)
_NESTED = re.compile(r"(list|large_list|struct|map)<(.*)>", re.DOTALL)
_PLAIN: dict[pa.DataType, str] = {
    pa.null(): "null",
    pa.bool_(): "bool",
    pa.float16(): "halffloat",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "large_string",
    pa.binary(): "binary",
    pa.large_binary(): "large_binary",
    pa.date32(): "date32[day]",
    pa.date64(): "date64[ms]",
    **{pa.type_for_alias(f"{sign}int{bits}"): f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{pa.time32(unit): f"time32[{unit}]" for unit in ("s", "ms")},
    **{pa.time64(unit): f"time64[{unit}]" for unit in ("us", "ns")},
    **{pa.duration(unit): f"duration[{unit}]" for unit in ("s", "ms", "us", "ns")},
}
_ALIASES = {"date32[day]": "date32", "date64[ms]": "date64"}
_NOT_NULL = " not null"


@lru_cache(maxsize=1024)
def parse_type(text: str) -> pa.DataType:
    """The Arrow type that `type_text` gives ``text`` for. Raises `UsageError` for one no state table can hold."""
    try:
        kind = _parse(text)
        if is_storable(kind) and (not kind.num_fields or type_text(kind) == text):
            return kind
    except (ValueError, KeyError):
        pass
    raise UsageError("a state column cannot have this type", code="column-type", type=text) from None


def type_text(kind: pa.DataType) -> str:
    """How a manifest names an Arrow type. Of a type that no state table can hold, what Arrow prints."""
    if (plain := _PLAIN.get(kind)) is not None:
        return plain
    if pa.types.is_timestamp(kind):
        return f"timestamp[{kind.unit}]" if kind.tz is None else f"timestamp[{kind.unit}, tz={kind.tz}]"
    if pa.types.is_decimal128(kind) or pa.types.is_decimal256(kind):
        return f"decimal{kind.bit_width}({kind.precision}, {kind.scale})"
    if pa.types.is_fixed_size_binary(kind):
        return f"fixed_size_binary[{kind.byte_width}]"
    if pa.types.is_dictionary(kind):
        values, indices = type_text(kind.value_type), type_text(kind.index_type)
        return f"dictionary<values={values}, indices={indices}, ordered={int(kind.ordered)}>"
    return _nested_text(kind)


def type_texts(schema: pa.Schema) -> dict[str, str]:
    """The types of columns as text, by name."""
    return {field.name: type_text(field.type) for field in schema}


def _nested_text(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list<{_field_text(kind.value_field)}>"
    if pa.types.is_large_list(kind):
        return f"large_list<{_field_text(kind.value_field)}>"
    if pa.types.is_fixed_size_list(kind):
        return f"fixed_size_list<{_field_text(kind.value_field)}>[{kind.list_size}]"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(map(_field_text, kind))}>"
    if pa.types.is_map(kind):
        parts = [
            type_text(field.type) + ("" if field.name == usual else f" ('{field.name}')")
            for field, usual in ((kind.key_field, "key"), (kind.item_field, "value"))
        ]
        return f"map<{', '.join([*parts, *(['keys_sorted'] if kind.keys_sorted else [])])}>"
    return str(kind)


def _field_text(field: pa.Field) -> str:
    return f"{field.name}: {type_text(field.type)}{'' if field.nullable else _NOT_NULL}"


def is_ordered(kind: pa.DataType) -> bool:
    """Whether a key column may have this type: equal values are equal bytes, and the order is everybody's."""
    text = pa.types.is_string(kind) or pa.types.is_binary(kind)
    number = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    decimal = pa.types.is_decimal128(kind) and kind.scale >= 0
    time = pa.types.is_timestamp(kind) or kind == pa.time64("us")
    return bool(text or number or decimal or time or pa.types.is_date32(kind))


def is_comparable(kind: pa.DataType) -> bool:
    """Whether values of this type have a smallest and a largest."""
    decimal = pa.types.is_decimal128(kind) or pa.types.is_decimal256(kind)
    return bool(is_ordered(kind) or decimal or pa.types.is_float32(kind) or pa.types.is_float64(kind))


def is_close(kind: pa.DataType, target: pa.DataType) -> bool:
    """Whether a cast between the two keeps the meaning: numbers to numbers, text to text, times to times."""
    return bool(kind.equals(target) or pa.types.is_null(kind) or _family(kind) == _family(target))


_FAMILIES = {
    "whole": (pa.types.is_integer,),
    "number": (pa.types.is_floating, pa.types.is_decimal),
    "text": (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    "bytes": (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view),
    "time": (pa.types.is_timestamp,),
    "date": (pa.types.is_date,),
    "list": (pa.types.is_list, pa.types.is_large_list),
    "struct": (pa.types.is_struct,),
    "map": (pa.types.is_map,),
}


def _family(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        return _family(kind.value_type)
    return next((name for name, tests in _FAMILIES.items() if any(test(kind) for test in tests)), type_text(kind))


_TIMES, _DATES, _INTEGERS = pa.timestamp("us").id, pa.date32().id, pa.int64().id
_WHOLE = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32())
_POSITIONS = frozenset([_TIMES, _DATES, *(kind.id for kind in _WHOLE)])


def is_position(kind: pa.DataType) -> bool:
    """Whether values of this type are whole numbers of 64 bits on a line: what an expiry column needs."""
    return kind.id in _POSITIONS


def positions(column: pa.ChunkedArray | pa.Array) -> npt.NDArray[np.int64]:
    """A column of integers, times or dates as int64, in its own unit."""
    kind = column.type.id
    if kind in (_TIMES, _INTEGERS) and not column.null_count:
        # As a cast does it, of which a step over few rows makes hundreds: at a tenth of its cost.
        numbers = column.to_numpy() if isinstance(column, pa.ChunkedArray) else column.to_numpy(zero_copy_only=False)
        return numbers.view(np.int64)
    if kind == _DATES:
        column = column.cast(pa.int32())
    values: npt.NDArray[np.int64] = column.cast(pa.int64()).to_numpy()
    return values


def is_storable(kind: pa.DataType) -> bool:
    """Whether every store and file can hold values of this type."""
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind) or pa.types.is_interval(kind):
        return False
    if pa.types.is_struct(kind) and not kind.num_fields:
        return False
    return all(is_storable(kind.field(index).type) for index in range(kind.num_fields))


def _parse(text: str) -> pa.DataType:
    if match := _DECIMAL.fullmatch(text):
        make = pa.decimal128 if match[1] == "128" else pa.decimal256
        return make(int(match[2]), int(match[3]))
    if match := _TIMESTAMP.fullmatch(text):
        return pa.timestamp(match[1], tz=match[2])
    if match := _FIXED.fullmatch(text):
        return pa.binary(int(match[1]))
    if match := _FIXED_LIST.fullmatch(text):
        return pa.list_(_field(match[1]), int(match[2]))
    if match := _NESTED.fullmatch(text):
        return _nested(match[1], match[2])
    return pa.type_for_alias(_ALIASES.get(text, text))


def _nested(kind: str, inner: str) -> pa.DataType:
    if kind == "struct":
        return pa.struct([_field(part) for part in _split(inner)])
    if kind == "map":
        key, value = _split(inner)
        nullable = not value.endswith(_NOT_NULL)
        return pa.map_(_parse(key), pa.field("value", _parse(value.removesuffix(_NOT_NULL)), nullable))
    return pa.large_list(_field(inner)) if kind == "large_list" else pa.list_(_field(inner))


def _field(text: str) -> pa.Field:
    name, _, kind = text.partition(": ")
    nullable = not kind.endswith(_NOT_NULL)
    return pa.field(name, _parse(kind.removesuffix(_NOT_NULL)), nullable)


def _split(text: str) -> list[str]:
    """The parts between the commas that stand in no bracket."""
    parts, depth, start = [], 0, 0
    for index, letter in enumerate(text):
        depth += (letter in "<([") - (letter in ">)]")
        if letter == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 2
    return [*parts, text[start:]] if text else []


def item_type(kind: pa.DataType) -> pa.DataType:
    """What a list of this type holds."""
    return cast(pa.ListType, kind).value_type  # of any kind of list
