"""Fields of structs, elements of lists and maps, casts by name, and hashes. Pure and vectorised."""

from __future__ import annotations

import zlib
from functools import partial
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from tidestate.operators.expressions.arrays import (
    arrow_column,
    by_distinct,
    elements_at,
    equal_values,
    flags_of,
    nulls_of,
    whole_numbers_of,
)
from tidestate.operators.expressions.casts import can_cast, try_cast
from tidestate.operators.expressions.coercion import brought_to, function_type, is_comparable_type
from tidestate.operators.expressions.operands import Binders, BoundCall, Operand, apply_kernel, constant_operand
from tidestate.statestore.arrays import Flags
from tidestate.statestore.missing_columns import missing_columns
from tidestate.statestore.spec.arrowtypes import item_type, parse_type

_LONG, _INT, _BOOL = pa.int64(), pa.int32(), pa.bool_()
_PLACES = range(-(2**31), 2**31)
_SEED = 42
"""Of Spark's ``xxhash64``."""
_PRIMES = [
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
]


def plain_column(column: pa.Array) -> pa.Array:
    """A column as functions see it: of its `function_type`."""
    kind = function_type(column.type)
    if column.type == kind:
        return column
    if pa.types.is_dictionary(column.type):
        return plain_column(cast(pa.DictionaryArray, column).dictionary_decode())
    if pa.types.is_timestamp(column.type) or pa.types.is_duration(column.type):
        return _in_microseconds(column, kind, column.type.unit)
    return column.cast(kind)


def _in_microseconds(column: pa.Array, kind: pa.DataType, unit: str) -> pa.Array:
    """Of nanoseconds the microsecond that they lie in; null where coarser units are too far away."""
    numbers, nulls = whole_numbers_of(column), nulls_of(column)
    if unit == "ns":
        return arrow_column(numbers // 1_000, nulls, kind)
    factor = {"s": 1_000_000, "ms": 1_000, "us": 1}[unit]
    far: Flags = (numbers > (2**63 - 1) // factor) | (numbers < -(2**63) // factor)
    return arrow_column(np.where(far, 0, numbers) * factor, nulls | far, kind)


def _bind_field(call: BoundCall) -> Operand:
    name, kind = call.constant_text(1), call.types[0]
    if not pa.types.is_struct(kind):
        call.refuse("a struct and the name of a field of it")
    if kind.names.count(name) != 1:
        raise missing_columns("this struct has no such field", [name], kind.names, code="expression-name")
    return apply_kernel(function_type(kind.field(name).type), partial(_field, name=name), call.operands[0])


def _field(column: pa.Array, name: str) -> pa.Array:
    return plain_column(pc.struct_field(column, name))


def _list_item(call: BoundCall, kind: pa.DataType) -> pa.DataType:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        call.refuse("a list")
    return function_type(item_type(kind))


def _bind_element_at(call: BoundCall) -> Operand:
    """Of a list by its place from 1, or from -1 back; of a map by its key. Null where there is none."""
    kind = call.types[0]
    if pa.types.is_map(kind):
        key, key_type = call.operands[1].constant, kind.key_type
        if key is None or not (key.is_valid and can_cast(key.type, key_type) and is_comparable_type(key_type)):
            call.refuse("a map, and a literal of the type of its keys")
        map_key = try_cast(pa.array([key.as_py()], key.type), key_type)[0]
        return apply_kernel(function_type(kind.item_type), partial(_of_map, key=map_key), call.operands[0])
    position = call.constant_whole(1, _PLACES)
    item = _list_item(call, kind)
    if not position:
        call.refuse("a place from 1 on, or from -1 back")
    return apply_kernel(item, partial(_element, position=position), call.operands[0])


def _of_map(column: pa.Array, key: pa.Scalar) -> pa.Array:
    return plain_column(pc.map_lookup(column, key, "last"))


def _plain_list(column: pa.Array) -> pa.ListArray:
    """A list of any kind as one with offsets, whose values are those of its rows alone."""
    item = item_type(column.type)
    return cast(pa.ListArray, column if pa.types.is_list(column.type) else column.cast(pa.list_(item)))


def _element(column: pa.Array, position: int) -> pa.Array:
    lists = _plain_list(column)
    indices, is_missing = elements_at(lists, position)
    return plain_column(lists.values.take(pa.array(indices, mask=is_missing | nulls_of(column))))


def _bind_size(call: BoundCall) -> Operand:
    kind = call.types[0]
    if not pa.types.is_map(kind):
        _list_item(call, kind)
    return apply_kernel(_INT, _size, call.operands[0])


def _size(column: pa.Array) -> pa.Array:
    if pa.types.is_map(column.type):
        ends = np.asarray(cast(pa.MapArray, column).offsets)
        return arrow_column(np.diff(ends).astype(np.int32), nulls_of(column), _INT)
    return pc.list_value_length(column).cast(_INT)


def _bind_contains(call: BoundCall) -> Operand:
    item = _list_item(call, call.types[0])
    value = call.operands[1]
    if value.constant is None or not value.constant.is_valid or not is_comparable_type(item):
        call.refuse("a list of plain values, and a literal")
    if not can_cast(value.type, item):
        call.refuse("a literal of the type that is in the list")
    sought_value = brought_to(call, value, item).constant or value.constant
    return apply_kernel(_BOOL, partial(_contains, value=sought_value), call.operands[0])


def _contains(column: pa.Array, value: pa.Scalar) -> pa.Array:
    """Unknown, not false, where a null is in the list and the value is not."""
    lists = _plain_list(column)
    ends = np.asarray(lists.offsets).astype(np.int64)
    flags = equal_values(plain_column(lists.values), value)
    hits, has_null = (_any_of(rows, ends) for rows in (flags_of(flags), nulls_of(flags)))
    return arrow_column(hits, nulls_of(column) | (has_null & ~hits), _BOOL)


def _any_of(flags: Flags, ends: npt.NDArray[np.int64]) -> Flags:
    """For each stretch between two of ``ends`` whether a flag in it is set."""
    total = np.concatenate([[0], np.cumsum(flags)])
    any_set: Flags = total[ends[1:]] > total[ends[:-1]]
    return any_set


def _bind_cast(call: BoundCall) -> Operand:
    kind = parse_type(call.node.type or "")
    (operand,) = call.operands
    if not can_cast(operand.type, kind):
        call.refuse(f"a value that can become {kind}")
    return apply_kernel(kind, partial(try_cast, kind=kind), operand) if operand.type != kind else _closed(operand)


def _closed(operand: Operand) -> Operand:
    """A literal that was cast keeps its type, whatever it meets."""
    return operand if operand.constant is None else constant_operand(operand.constant)


def _bind_xxhash64(call: BoundCall) -> Operand:
    kind = call.types[0]
    hashable = pa.types.is_integer(kind) and not pa.types.is_unsigned_integer(kind)
    if not (hashable or pa.types.is_temporal(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind)):
        call.refuse("text, bytes, a signed whole number, a date or a time")
    return apply_kernel(_LONG, _xxhash64, call.operands[0])


def _xxhash64(column: pa.Array) -> pa.Array:
    """As Spark's function of one column: of UTF-8, of 4 bytes of shorter numbers, else of 8; of null the seed."""
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        hashes = by_distinct(column.cast(pa.binary()), _hash_of_bytes, _LONG)
    elif column.type.bit_width < 64:
        hashes = by_distinct(column.cast(_INT), _hash_of_int, _LONG)
    else:
        hashes = arrow_column(_hashes_of_longs(whole_numbers_of(column)), nulls_of(column), _LONG)
    return hashes.fill_null(_SEED)


def _hash_of_bytes(value: bytes) -> int:
    return _signed(xxhash.xxh64_intdigest(value, _SEED))


def _hash_of_int(value: int) -> int:
    return _signed(xxhash.xxh64_intdigest(value.to_bytes(4, "little", signed=True), _SEED))


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def _hashes_of_longs(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """XXH64 of eight bytes each, by its definition, of all rows at once."""
    with np.errstate(over="ignore"):
        mixed_bits = _turned(values.view(np.uint64) * _PRIMES[1], 31) * _PRIMES[0]
        hashes = (np.uint64(_SEED) + _PRIMES[4] + np.uint64(8)) ^ mixed_bits
        hashes = _turned(hashes, 27) * _PRIMES[0] + _PRIMES[3]
        for shift, prime in ((33, _PRIMES[1]), (29, _PRIMES[2])):
            hashes = (hashes ^ (hashes >> np.uint64(shift))) * prime
        hashes ^= hashes >> np.uint64(32)
    result: npt.NDArray[np.int64] = hashes.view(np.int64)
    return result


def _turned(values: npt.NDArray[np.uint64], bits: int) -> npt.NDArray[np.uint64]:
    rotated_values: npt.NDArray[np.uint64] = (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))
    return rotated_values


def _bind_crc32(call: BoundCall) -> Operand:
    if not (pa.types.is_string(call.types[0]) or pa.types.is_binary(call.types[0])):
        call.refuse("text or bytes")
    return apply_kernel(_LONG, _crc32, call.operands[0])


def _crc32(column: pa.Array) -> pa.Array:
    return by_distinct(column.cast(pa.binary()), zlib.crc32, _LONG)


NESTED_BINDERS: Binders = {
    "field": _bind_field,
    "element_at": _bind_element_at,
    "size": _bind_size,
    "array_contains": _bind_contains,
    "cast": _bind_cast,
    "xxhash64": _bind_xxhash64,
    "crc32": _bind_crc32,
}
