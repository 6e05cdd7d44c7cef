"""A hash of the values of a table: the same for equal values, however Arrow holds them. Pure and vectorised.

It names a batch for as long as a checkpoint lives, so nothing that a version of Arrow may choose counts: neither
chunks, offsets and what lies under nulls, nor dictionaries, large or view layouts, names of list items, units and
zones of times, widths of decimals. What counts are names and logical types of columns, which values are null, and the
values; NaN is one value and so is zero. The golden hashes in
``tests/statestore/spec/test_valuehash.py`` must never change.

Of each column several streams are hashed one by one, so that chunks need not be joined: which rows are known, how
long they are, their bytes; and of what is nested the same again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
import xxhash

from tidestate.statestore.arrays import ends_of
from tidestate.statestore.spec.arrowtypes import item_type
from tidestate.statestore.spec.lists import list_values, struct_fields

HashedPart = tuple[str, Any]
"""The path of a stream within its column, and the next bytes of it."""

REST = "rest"
"""The stream of what is left of times beyond microseconds."""
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def hash_tables(tables: Mapping[str, pa.Table]) -> str:
    """Of named tables, as ``xxh3:<16 hexadecimal digits>``. The order of rows counts, that of columns does not."""
    hasher = xxhash.xxh3_64()
    for name in sorted(tables):
        hasher.update(_text("table", name, str(tables[name].num_rows)))
        for column in sorted(tables[name].column_names):
            values = tables[name][column]
            hasher.update(_text("column", column, logical(values.type)))
            for path, digest in _digests(values.chunks):
                hasher.update(_text(path))
                hasher.update(digest)
    return f"xxh3:{hasher.hexdigest()}"


def _digests(chunks: Iterable[pa.Array]) -> Iterator[tuple[str, bytes]]:
    """The streams of a column, each as a whole. One without bytes does not count, nor do rests that are all zero."""
    hashes: dict[str, Any] = {}
    count: set[str] = set()
    for chunk in chunks:
        for path, data in _streams("", chunk):
            hashes.setdefault(path, xxhash.xxh3_64()).update(data)
            if np.any(data) if path.endswith(REST) else len(data):
                count.add(path)
    return ((path, hashes[path].digest()) for path in sorted(count))


def logical(kind: pa.DataType) -> str:
    """What a type means, in words of our own."""
    if isinstance(kind, pa.BaseExtensionType):
        return logical(kind.storage_type)
    if pt.is_dictionary(kind) or pt.is_run_end_encoded(kind):
        return logical(kind.value_type)
    if pt.is_map(kind):
        return f"map({logical(kind.key_type)},{logical(kind.item_type)})"
    if pt.is_struct(kind):
        return f"struct({','.join(f'{len(field.name)}:{field.name}:{logical(field.type)}' for field in kind)})"
    if _is_list(kind):
        return f"list({logical(item_type(kind))})"
    if pt.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pt.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "instant"
    if pt.is_integer(kind):
        return f"{'int' if pt.is_signed_integer(kind) else 'uint'}{kind.bit_width}"
    if pt.is_floating(kind):
        return f"float{kind.bit_width}"
    for name, tests in _KINDS.items():
        if any(is_one(kind) for is_one in tests):
            return name
    return str(kind)  # bool, null, and what has no better name


def _streams(path: str, values: pa.Array) -> Iterator[HashedPart]:
    """What there is to hash of an array, in order."""
    values = _plain(values)
    yield f"{path}known", _known_rows(values)
    if pt.is_struct(values.type):
        # Flattened, a row that is null has no values either.
        for number, part in enumerate(struct_fields(values)):
            yield from _streams(f"{path}{number}.", part)
    elif not pt.is_null(values.type):
        yield from _known(path, values.drop_null() if values.null_count else values)


def _known_rows(values: pa.Array) -> npt.NDArray[np.uint8]:
    """1 for each row that is not null, else 0."""
    if pt.is_primitive(values.type) and not values.null_count:  # at a tenth of the cost
        return np.ones(len(values), np.uint8)
    return np.asarray(values.is_valid()).view(np.uint8)


def _plain(values: pa.Array) -> pa.Array:
    """The same values in a layout without detours."""
    kind = values.type
    if isinstance(values, pa.ExtensionArray):
        return _plain(values.storage)
    if isinstance(values, pa.DictionaryArray):
        return _plain(values.dictionary_decode())
    if pt.is_run_end_encoded(kind):
        return _plain(pc.run_end_decode(values))
    if pt.is_map(kind):
        return values.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
    if pt.is_string_view(kind) or pt.is_binary_view(kind):
        return values.cast(pa.large_string() if pt.is_string_view(kind) else pa.large_binary())
    if pt.is_list_view(kind) or pt.is_large_list_view(kind):
        # Arrow 26 casts them wrongly where there are nulls. They are rare enough for a detour through Python.
        return pa.array(values.to_pylist(), pa.large_list(kind.value_type))
    return values


def _known(path: str, values: pa.Array) -> Iterator[HashedPart]:
    """Values without nulls and, but for lists, nothing nested."""
    kind = values.type
    if _is_list(kind):
        yield f"{path}length", pc.list_value_length(values).to_numpy(zero_copy_only=False).astype("<i8")
        yield from _streams(f"{path}item.", list_values(values))
    elif any(is_one(kind) for name in ("string", "binary") for is_one in _KINDS[name]):
        yield from _bytes(path, values)
    elif pt.is_decimal(kind):
        width = 128 if kind.precision <= 38 else 256
        if kind.bit_width != width:
            values = values.cast((pa.decimal128 if width == 128 else pa.decimal256)(kind.precision, kind.scale))
        yield f"{path}value", _buffer(values, width // 8)
    elif pt.is_boolean(kind):
        yield f"{path}value", np.asarray(values).view(np.uint8)
    elif pt.is_floating(kind):
        floats = values.to_numpy(zero_copy_only=False)
        floats = floats + floats.dtype.type(0)  # minus zero becomes zero, so there is one
        floats[np.isnan(floats)] = np.nan
        yield f"{path}value", floats
    elif pt.is_integer(kind):
        yield f"{path}value", values.to_numpy()
    elif pt.is_timestamp(kind) or pt.is_duration(kind) or pt.is_time(kind):
        yield from _times(path, _numbers(values), _PER_SECOND[kind.unit])
    elif pt.is_date(kind):
        days = _numbers(values)
        yield f"{path}value", days // 86_400_000 if pt.is_date64(kind) else days
    else:
        yield f"{path}value", _text(*map(repr, values.to_pylist()))


def _times(path: str, times: npt.NDArray[np.int64], per_second: int) -> Iterator[HashedPart]:
    """Microseconds, and the rest of each. Those that 64 bits do not hold wrap around, in all units the same way."""
    if per_second == 10**9:
        micros, remainder = np.divmod(times, 1000)
        yield f"{path}value", micros
        yield f"{path}{REST}", remainder
    else:
        yield f"{path}value", times * (10**6 // per_second)


def _bytes(path: str, values: pa.Array) -> Iterator[HashedPart]:
    """Text and binary: how long each is, and all bytes side by side."""
    kind = values.type
    if pt.is_fixed_size_binary(kind):
        yield f"{path}length", np.full(len(values), kind.byte_width, "<i8")
        yield f"{path}value", _buffer(values, kind.byte_width)
        return
    data, offsets = values.buffers()[2], ends_of(values)
    if len(offsets):
        yield f"{path}length", np.diff(offsets).astype("<i8")
        if data is not None:
            yield f"{path}value", memoryview(data)[int(offsets[0]) : int(offsets[-1])]


def _buffer(values: pa.Array, width: int) -> memoryview:
    """The values of an array in which each has so many bytes."""
    data = values.buffers()[1]
    return memoryview(data if data is not None else b"")[
        values.offset * width : (values.offset + len(values)) * width
    ]


def _numbers(values: pa.Array) -> npt.NDArray[np.int64]:
    """What stands for times, as Arrow has it."""
    plain = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
    numbers: npt.NDArray[np.int64] = plain.to_numpy().astype(np.int64, copy=False)
    return numbers


def _is_list(kind: pa.DataType) -> bool:
    return any(is_one(kind) for is_one in _LISTS)


def _text(*parts: str) -> bytes:
    """Parts that cannot run into each other."""
    return b"".join(b"%d:%s" % (len(data), data) for data in (part.encode() for part in parts))


_LISTS = (pt.is_list, pt.is_large_list, pt.is_fixed_size_list, pt.is_list_view, pt.is_large_list_view)
_KINDS = {
    "string": (pt.is_string, pt.is_large_string, pt.is_string_view),
    "binary": (pt.is_binary, pt.is_large_binary, pt.is_binary_view, pt.is_fixed_size_binary),
    "date": (pt.is_date,),
    "time": (pt.is_time,),
    "duration": (pt.is_duration,),
}
