"""Sorting by whole keys, and numbering them. Pure.

Sorting: as much of a key as 64 bits hold is sorted as one number, then only what that leaves tied: four times as fast
as comparing key by key, where keys differ early. Numbering: with a small number for each distinct key, rows are
grouped and matched by looking them up in an array, several times as fast as hashing whole keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.statestore.arrays import Flags, Numbers, ends_of, flags_at
from tidestate.statestore.spec.arrowtypes import is_position, positions
from tidestate.statestore.table.addresses import LARGEST, ROOM, SAMPLE, on_grid

BITS = 64
FEW_ROWS = 2000
"""Below this, sorting key by key costs less than packing."""
SORTED_ROWS = 256
"""Up to so many rows, to sort them costs less than to find how far their values lie apart."""
FEW_CODES = 200
"""Below this, NumPy's stable sort costs less than packing."""
CODE_BYTES = 4

RankCodes = npt.NDArray[np.uint64]


def order(keys: pa.Table) -> Numbers:
    """Places of the rows in ascending order of all columns, equal ones as they were. No column has nulls."""
    if keys.num_rows < FEW_ROWS or not keys.num_columns:
        return _by_key(keys)
    codes, exact = _packed(keys)
    places = sorting(codes)
    if exact:
        return places
    codes = codes[places]
    same = codes[1:] == codes[:-1]
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    if 2 * len(tied) > len(places):
        return _by_key(keys)
    groups = np.append(0, np.cumsum(~same))[tied]
    among = keys.take(pa.array(places[tied])).add_column(0, "__tie", pa.array(groups))
    places[tied] = places[tied][_by_key(among)]
    return places


def ranks(keys: pa.Table) -> tuple[Numbers, int]:
    """For each row a number from 0, the same for equal keys; and how many numbers there are, none left out.

    They rise with the key where its columns are whole numbers and times. A null equals a null.
    """
    codes, span = np.zeros(keys.num_rows, np.int64), 1
    if not keys.num_rows:
        return codes, 0
    if keys.num_rows <= SORTED_ROWS and all(is_position(one.type) and not one.null_count for one in keys.columns):
        return _ranks_of_few([positions(column) for column in keys.columns], keys.num_rows)
    for column in keys.columns:
        digits, size = _numbers(column)
        if span * size > LARGEST:
            codes, span = closed_up(codes, span)
        if span * size > LARGEST:
            digits, size = closed_up(digits, size)
        codes = codes * size + digits if span > 1 else digits
        span *= size
    return closed_up(codes, span)


def _ranks_of_few(columns: Sequence[Numbers], rows: int) -> tuple[Numbers, int]:
    """`ranks` of few rows of whole numbers: sorted at once, and numbered where one differs from that before it."""
    by_key = np.lexsort(columns[::-1]) if columns else np.arange(rows)
    begins = np.zeros(rows, bool)
    for values in columns:
        ordered = values[by_key]
        begins[1:] |= ordered[1:] != ordered[:-1]
    ranked = np.cumsum(begins)
    numbers = np.empty(rows, np.int64)
    numbers[by_key] = ranked
    return numbers, int(ranked[-1]) + 1


def shared_ranks(tables: Sequence[pa.Table]) -> tuple[list[Numbers], int]:
    """`ranks` of tables of the same columns, each by itself: equal keys have the same number in all."""
    columns = zip(*(table.columns for table in tables), strict=True)
    together = [
        pa.chunked_array([chunk for part in parts for chunk in part.chunks], parts[0].type) for parts in columns
    ]
    numbers, count = ranks(pa.table(together, names=tables[0].column_names))
    return np.split(numbers, np.cumsum([table.num_rows for table in tables])[:-1]), count


def closed_up(codes: Numbers, span: int) -> tuple[Numbers, int]:
    """Codes from 0 to below ``span`` as numbers in the same order with none left out, and how many those are."""
    numbers: Numbers
    if span > ROOM * len(codes):
        by_code = sorting(codes)
        ordered = codes[by_code]
        numbers = np.empty(len(codes), np.int64)
        numbers[by_code] = np.cumsum(np.append(False, ordered[1:] != ordered[:-1]))
        return numbers, int(numbers[by_code[-1]]) + 1 if len(codes) else 0
    distinct = np.flatnonzero(flags_at(span, codes))
    if len(distinct) == span:
        return codes, span
    numbers = np.empty(span, np.int64)
    numbers[distinct] = np.arange(len(distinct))
    return numbers[codes], len(distinct)


def sorting(codes: npt.NDArray[Any]) -> Numbers:
    """Places of ``codes``, whole numbers, in ascending order, equal ones as they were."""
    if bool(np.all(codes[1:] >= codes[:-1])):
        return np.arange(len(codes))
    if len(codes) < FEW_CODES or codes.dtype.itemsize < CODE_BYTES:  # NumPy sorts numbers of 16 bits by radix
        return np.argsort(codes, kind="stable")
    digits, bits = _from_least(codes)
    room = BITS - 1 - (len(codes) - 1).bit_length()
    if bits <= room:
        return _by_digits(digits, room)
    # By the last digits, then by those before them: as the sort is stable, that is by all.
    last = _by_digits(digits & np.uint64((1 << room) - 1), room)
    return last[_by_digits((digits >> np.uint64(room))[last], room)]


def _from_least(codes: npt.NDArray[Any]) -> tuple[RankCodes, int]:
    """How far each code is above the least one, and how many bits that has at most."""
    low, high = int(codes.min()), int(codes.max())
    # Of the full range of 64 bits the difference wraps around, into the right unsigned number.
    return codes.astype(np.uint64) - np.uint64(low % (1 << BITS)), (high - low).bit_length()


def _by_digits(digits: RankCodes, room: int) -> Numbers:
    """Places in ascending order of numbers of at most ``room`` bits.

    Each row's number stands in the bits below its digits, so no two are equal, and any sort is stable. NumPy sorts
    values by vector instructions, which is 20 times as fast as its stable sort of places.
    """
    below = np.uint64(BITS - 1 - room)
    packed = (digits << below).astype(np.int64)
    packed |= np.arange(len(digits))
    packed.sort()
    packed &= (1 << int(below)) - 1
    return packed


def firsts(numbers: Numbers, count: int) -> Numbers:
    """The first row of each of ``count`` numbers, all of which there are."""
    return len(numbers) - 1 - lasts(numbers[::-1], count)


def lasts(numbers: Numbers, count: int) -> Numbers:
    """The last row of each of ``count`` numbers; -1 where there is none."""
    places = np.full(count, -1)
    places[numbers] = np.arange(len(numbers))  # of several the last one stays
    return places


def each_once(rows: pa.Table) -> pa.Table:
    """The first of each of the rows that are equal in all columns."""
    return rows.take(pa.array(firsts(*ranks(rows))))


def among(rows: pa.Table, others: pa.Table, names: Sequence[str]) -> Flags:
    """Which of ``rows`` agree with one of ``others`` in these columns. Shape ``(rows,)``."""
    if not rows.num_rows or not others.num_rows:
        return np.zeros(rows.num_rows, bool)
    (of_rows, of_others), count = shared_ranks([table.select(names) for table in (rows, others)])
    found: Flags = (lasts(of_others, count) >= 0)[of_rows]
    return found


def taken(rows: pa.Table, places: Numbers) -> pa.Table:
    """The rows at ``places``, nulls where that is negative; they themselves where it is all of them as they are."""
    if len(places) == rows.num_rows and np.array_equal(places, np.arange(len(places))):
        return rows
    missing = places < 0
    return rows.take(pa.array(places, mask=missing) if missing.any() else pa.array(places))


def _numbers(column: pa.ChunkedArray) -> tuple[Numbers, int]:
    """A column as numbers from 0, and below which they stay: small where that is cheap to have."""
    if column.null_count or not (is_position(column.type) or pa.types.is_boolean(column.type)):
        return _encoded(column)
    values = positions(column)
    if (laid := on_grid(values, ROOM * len(values))) is not None:
        grid, places = laid
        return places, grid.size
    low, high = int(values.min()), int(values.max())
    size = high - low + 1
    if size > LARGEST or (size > ROOM * len(values) and _repeats(values)):
        return _encoded(column)
    return values - low, size


def _repeats(values: Numbers) -> bool:
    """Whether a value stands in many rows, by a sample: then a dictionary costs little, as of starts of windows."""
    sample = np.sort(values[:: len(values) // SAMPLE + 1])
    return bool(2 * np.count_nonzero(sample[1:] != sample[:-1]) < len(sample))


def _encoded(column: pa.ChunkedArray) -> tuple[Numbers, int]:
    """By Arrow's dictionary, sorted where its values are numbers."""
    encoded = cast(pa.DictionaryArray, column.dictionary_encode("encode").combine_chunks())
    numbers, distinct = encoded.indices.to_numpy(), encoded.dictionary
    if not distinct.null_count and is_position(distinct.type):
        return lasts(sorting(positions(distinct)), len(distinct))[numbers], len(distinct)
    return numbers.astype(np.int64), len(distinct)


def search(rows: pa.Table, keys: pa.Table) -> tuple[Numbers, Flags]:
    """For each of ``keys`` the number of ``rows`` (sorted, same columns) before it, and whether it is among them."""
    rows = rows.combine_chunks()
    low, high = np.zeros(keys.num_rows, np.int64), np.full(keys.num_rows, rows.num_rows)
    while bool(np.any(low < high)):
        middle = (low + high) // 2
        less, _ = _compared(rows, middle, keys)
        low, high = np.where(less & (low < high), middle + 1, low), np.where(less, high, np.minimum(high, middle))
    _, same = _compared(rows, low, keys)
    return low, same & (low < rows.num_rows)


def _compared(rows: pa.Table, places: Numbers, keys: pa.Table) -> tuple[Flags, Flags]:
    """Whether rows at ``places`` come before ``keys``, and whether they are the same. Past the end is anything."""
    less, same = np.zeros(len(places), bool), np.full(len(places), rows.num_rows > 0)
    here = rows.take(pa.array(np.minimum(places, rows.num_rows - 1))) if rows.num_rows else keys
    for name in keys.column_names:
        less |= same & pc.less(here[name], keys[name]).to_numpy()
        same &= pc.equal(here[name], keys[name]).to_numpy()
    return less, same


def _by_key(keys: pa.Table) -> Numbers:
    if not keys.num_columns:
        return np.arange(keys.num_rows)
    by = [(name, "ascending") for name in keys.column_names]
    places: Numbers = pc.sort_indices(keys, sort_keys=by).to_numpy().astype(np.int64)
    return places


def _packed(keys: pa.Table) -> tuple[RankCodes, bool]:
    """Per row the leading bits of its key, in the order of the keys; and whether that is all of the key."""
    codes, room = np.zeros(keys.num_rows, np.uint64), BITS
    for column in keys.columns:
        digits, bits, exact = _digits(column, room)
        codes = (codes << np.uint64(bits) if bits < BITS else np.uint64(0)) | digits
        room -= bits
        if not exact:
            return codes, False
    return codes, True


def _digits(column: pa.ChunkedArray, room: int) -> tuple[RankCodes, int, bool]:
    """A column as numbers of at most ``room`` bits, how many bits those have, and whether they tell all values."""
    kind = column.type
    if is_position(kind) or pa.types.is_boolean(kind):
        digits, bits = _from_least(positions(column))
        cut = max(0, bits - room)
        return digits >> np.uint64(cut), bits - cut, not cut
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _letters(column.cast(pa.large_binary()).combine_chunks(), room // 8)
    return np.zeros(len(column), np.uint64), 0, False


def _letters(strings: pa.Array, width: int) -> tuple[RankCodes, int, bool]:
    """The first ``width`` bytes after what all strings begin with."""
    least, most = (end.as_py() for end in pc.min_max(strings).values())
    differ = (place for place, (low, high) in enumerate(zip(least, most, strict=False)) if low != high)
    shared = next(differ, min(len(least), len(most)))
    data, ends = strings.buffers()[2], ends_of(strings)
    letters = np.frombuffer(memoryview(data), np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    codes = np.zeros(len(strings), np.uint64)
    for place in range(shared, shared + width):
        at = ends[:-1] + place
        here = letters[np.minimum(at, len(letters) - 1)] * (at < ends[1:])
        codes = codes << np.uint64(8) | here
    return codes, 8 * width, False
