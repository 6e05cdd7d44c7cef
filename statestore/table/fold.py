"""Folding layers of changes into rows. Pure and vectorised: no loop over rows or groups.

The law: for a key, the newest put or delete hides every older layer; merges at or above it combine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.statestore.arrays import Numbers, Values, padded
from tidestate.statestore.errors import LimitError
from tidestate.statestore.spec.arrowtypes import is_position, positions
from tidestate.statestore.spec.changes import DELETE, MERGE, PUT, Layer
from tidestate.statestore.spec.combiners import append, combine_group
from tidestate.statestore.spec.lists import whole
from tidestate.statestore.spec.tables import HASHED, Column, TableSpec
from tidestate.statestore.spec.units import decimals_of, whole_units
from tidestate.statestore.table.addresses import Addresses, addresses_of
from tidestate.statestore.table.sorting import SORTED_ROWS, firsts, lasts, order, ranks, sorting, taken

MANY_ROWS = 1 << 14
SAMPLED, DISTINCT = 16, 0.7
"""Of so many rows one is in a sample; Arrow groups them faster if less than this share of it is distinct keys."""
EARLY_ROWS = 1 << 16
"""So many rows are a sample of the number of keys."""
SPARSE = 2
"""From so many addresses a group on, groups are numbered."""


def combine(spec: TableSpec, rows: pa.Table) -> pa.Table:
    """One row per key: the rows of a key combined in their order, each value column or group by its combiner.

    Whole numbers to be summed as decimals may be int64 in ``rows``.
    Raises `LimitError` when a sum leaves its type.
    """
    if rows.num_rows <= 1:
        return rows if rows.schema.equals(spec.schema) else rows.cast(spec.schema)
    addresses = _addresses(spec, rows)
    if addresses is not None and (table := _by_address(spec, rows, addresses)) is not None:
        return table
    if _few_keys(spec, rows):
        return _grouped(spec, rows)
    owner, count = ranks(rows.select(spec.key_names))
    if count == rows.num_rows and _keeps_single_rows(spec) and rows.schema.equals(spec.schema):
        return rows.take(pa.array(firsts(owner, count)))
    keys = rows.select(spec.key_names).take(pa.array(firsts(owner, count)))
    values = combine_values(spec, rows, owner, count)
    return pa.table([*keys.columns, *values.columns], names=spec.schema.names).cast(spec.schema)


def _keeps_single_rows(spec: TableSpec) -> bool:
    """Whether a row that is alone with its key combines to itself to the bit: floats may not, nor lists."""
    exact = (column.combiner in HASHED and not pa.types.is_floating(column.arrow) for column in spec.values)
    return not spec.groups and all(exact)


def _few_keys(spec: TableSpec, rows: pa.Table) -> bool:
    """Whether Arrow groups the rows faster than we number their keys, by a sample; and to the same result."""
    if rows.num_rows < MANY_ROWS or spec.groups or not all(column.combiner in HASHED for column in spec.values):
        return False
    keys = rows.select(spec.key_names)
    if not all(
        (is_position(one.type) or pa.types.is_string(one.type)) and not one.null_count for one in keys.columns
    ):
        return False
    sample = keys.take(pa.array(np.arange(0, rows.num_rows, SAMPLED)))
    distinct = sample.group_by(spec.key_names, use_threads=False).aggregate([]).num_rows
    return bool(distinct < DISTINCT * sample.num_rows)


def _grouped(spec: TableSpec, rows: pa.Table) -> pa.Table:
    """`combine` by Arrow's hash table."""
    keys = [rows[name] for name in spec.key_names]
    values = [_widened(column, rows[column.name]) for column in spec.values]
    numbers = [str(number) for number in range(len(keys) + len(values))]  # names of columns may be anything
    how = [(name, str(column.combiner)) for name, column in zip(numbers[len(keys) :], spec.values, strict=True)]
    # Without threads sums fold in row order: repeatable.
    grouped = pa.table([*keys, *values], names=numbers).group_by(numbers[: len(keys)], use_threads=False)
    found = grouped.aggregate(how).columns
    narrow = [_narrowed(spec, column, one) for column, one in zip(spec.values, found[len(keys) :], strict=True)]
    combined = pa.table([*found[: len(keys)], *narrow], names=[*spec.key_names, *(c.name for c in spec.values)])
    return combined.cast(spec.schema).take(pa.array(order(combined.select(spec.key_names))))


def combine_if_fewer(spec: TableSpec, rows: pa.Table, limit: int) -> pa.Table | None:
    """`combine`, unless that leaves more than ``limit`` rows: then None, and often after a fraction of the time.

    By a sample, where keys have no addresses: it may be wrong then.
    """
    addresses, many = _addresses(spec, rows), 2 * EARLY_ROWS
    if addresses is not None:
        if len(addresses.groups) > limit:
            return None
        if (table := _by_address(spec, rows, addresses)) is not None:
            return table
    elif rows.num_rows > many and expected_groups(EARLY_ROWS, _early_groups(spec, rows), rows.num_rows) > limit:
        return None
    return combine(spec, rows)


def _early_groups(spec: TableSpec, rows: pa.Table) -> int:
    """How many keys the first rows have."""
    return ranks(rows.slice(0, EARLY_ROWS).select(spec.key_names))[1]


def expected_groups(sample_rows: int, sample_groups: int, rows: int) -> float:
    """The number of groups in ``rows`` rows if ``sample_rows`` of them have ``sample_groups`` groups of similar size.

    Solves groups·(1 − e^(−sample/groups)) = sample_groups by bisection; a skewed stream has fewer groups.
    """
    low, high = float(sample_groups), float(sample_groups) * 2**20
    for _ in range(60):
        middle = (low + high) / 2
        if -middle * math.expm1(-sample_rows / middle) < sample_groups:
            low = middle
        else:
            high = middle
    return -low * math.expm1(-rows / low)


def _addresses(spec: TableSpec, rows: pa.Table) -> Addresses | None:
    """Those of the keys, where rows may be added up by them."""
    if rows.num_rows <= SORTED_ROWS or spec.groups or not all(column.combiner in HASHED for column in spec.values):
        return None
    keys = rows.select(spec.key_names)
    return addresses_of(keys.columns) if spec.key and keys.schema.equals(spec.key_schema) else None


def _by_address(spec: TableSpec, rows: pa.Table, addresses: Addresses) -> pa.Table | None:
    """`combine` by the addresses of keys, whose order is that of the keys; None where rows cannot be added up so."""
    columns: list[Values] = [*addresses.keys(spec.key_schema).columns]
    results: dict[tuple[object, ...], Values] = {}
    owner, count, chosen = addresses.of_rows, addresses.count, addresses.groups
    if SPARSE * len(chosen) < count:
        # Arrays with a place for each address would be mostly memory that nobody reads.
        numbers = np.empty(count, np.int64)
        numbers[chosen] = np.arange(len(chosen))
        owner, count, chosen = numbers[owner], len(chosen), chosen[:0]
    for column in spec.values:
        # Aggregates may have columns in common, as what they count: those are added up once.
        identity = (column.combiner, column.arrow, *_in_memory(rows[column.name]))
        if identity not in results:
            values = _widened(column, rows[column.name])
            if not _is_scattered(column, values):
                return None
            sums = _scattered(column.combiner, values, owner, count, chosen)
            results[identity] = _narrowed(spec, column, sums)
        columns.append(results[identity])
    return pa.table(columns, schema=spec.schema)


def _in_memory(values: pa.ChunkedArray) -> tuple[object, ...]:
    """Which values these are, without a look at them."""
    buffers = [[b if b is None else b.address for b in chunk.buffers()] for chunk in values.chunks]
    return (values.type, *((chunk.offset, len(chunk), *b) for chunk, b in zip(values.chunks, buffers, strict=True)))


def combine_values(spec: TableSpec, rows: pa.Table, owner: Numbers, count: int) -> pa.Table:
    """The value columns of `combine` where each row's key has a number below ``count``: one row per number."""
    columns: dict[str, pa.Array | pa.ChunkedArray] = {}
    for column in spec.values:
        if column.combiner in HASHED:
            columns[column.name] = _narrowed(spec, column, _hashed(column, rows[column.name], owner, count))
    replaced = [c.name for c in spec.values if c.combiner == "replace" and c.name not in spec.grouped]
    if replaced:
        newest = pa.array(lasts(owner, count))
        columns |= {name: rows[name].take(newest) for name in replaced}
    appended = [c.name for c in spec.values if c.combiner == "append"]
    if appended or spec.groups:
        columns |= _adjacent(spec, rows, owner, appended)
    return pa.table([columns[c.name] for c in spec.values], names=[c.name for c in spec.values])


EVERY = np.empty(0, np.int64)


def _hashed(column: Column, values: pa.ChunkedArray, owner: Numbers, count: int) -> pa.Array | pa.ChunkedArray:
    """One column, combined by number: by Arrow where numpy has not the type, or another idea of NaN."""
    values = _widened(column, values)
    if _is_scattered(column, values):
        return _scattered(column.combiner, values, owner, count)
    # Without threads sums fold in row order: repeatable.
    by_owner = pa.table({"owner": owner, "values": values}).group_by("owner", use_threads=False)
    found = by_owner.aggregate([("values", column.combiner)])
    return found.column(1).take(pa.array(lasts(found.column(0).to_numpy(), count)))


_SUMMED = (pa.int64(), pa.uint64(), pa.float64())
_FOLDS = {"sum": (np.add, 0), "min": (np.minimum, 2**63 - 1), "max": (np.maximum, -(2**63))}


def _is_scattered(column: Column, values: pa.ChunkedArray) -> bool:
    """Whether NumPy combines widened values to what Arrow would."""
    return values.type in _SUMMED if column.combiner == "sum" else _is_whole(values.type)


def _is_whole(kind: pa.DataType) -> bool:
    return is_position(kind) and not pa.types.is_date32(kind)


def _scattered(
    combiner: str, values: pa.ChunkedArray, owner: Numbers, count: int, chosen: Numbers = EVERY
) -> pa.Array:
    """In row order, so that sums are repeatable; null where there are only nulls. ``chosen``: which of the ``count``
    numbers are asked for, by default all.
    """
    missing = None
    if values.null_count:
        owner = owner[np.asarray(values.is_valid())]
        missing = np.ones(count, bool)
        missing[owner] = False
    known = values.drop_null() if values.null_count else values
    numbers = positions(known) if _is_whole(values.type) else known.to_numpy()
    function, start = _FOLDS[combiner]
    folded = np.full(count, start, numbers.dtype)
    with np.errstate(invalid="ignore", over="ignore"):  # ∞ − ∞ is NaN, and what is too large is ∞, without a word
        function.at(folded, owner, numbers)
    if 0 < len(chosen) < count:
        folded, missing = folded[chosen], None if missing is None else missing[chosen]
    return pa.array(folded, mask=missing).cast(values.type)


def _widened(column: Column, values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Numbers to be summed, in a wider type where their sum might leave their own."""
    kind = column.arrow
    if column.combiner != "sum" or pa.types.is_floating(kind):
        return values
    if pa.types.is_decimal(kind) and (small := _small(values)) is not None:
        return small
    values = values.cast(kind)
    if _largest(values) * len(values) < _CAPACITY[kind.id]:
        return values
    if pa.types.is_decimal256(kind):
        raise LimitError(
            "a sum may exceed the largest numeric type: round its values", code="sum-overflow", column=column.name
        )
    return values.cast(pa.decimal256(76, kind.scale) if pa.types.is_decimal(kind) else pa.decimal128(38, 0))


def _small(values: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Decimals without their point as int64, if neither they nor their sum can leave that; else None."""
    units = whole_units(values) if pa.types.is_decimal(values.type) else whole(values)
    if units is None:
        return None
    return pa.chunked_array([units]) if _largest(units) * len(units) < 2**63 else None


def _largest(values: Values) -> int:
    """The largest magnitude of these numbers."""
    return max(_magnitude(end.as_py()) for end in pc.min_max(values).values())


def _magnitude(value: int | Decimal | None) -> int:
    """Its digits as a whole number, without sign and point."""
    if isinstance(value, Decimal):
        return int("".join(map(str, value.as_tuple().digits)))
    return abs(value or 0)


_CAPACITY = {
    pa.int64().id: 2**63,
    pa.uint64().id: 2**63,
    pa.decimal128(1, 0).id: 10**38,
    pa.decimal256(1, 0).id: 10**76,
}
"""Sums below this cannot leave the type that Arrow sums in; decimals without their point."""


def _narrowed(spec: TableSpec, column: Column, values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """An aggregate in the type of its column."""
    kind = column.arrow
    try:
        if pa.types.is_decimal(kind) and pa.types.is_integer(values.type):
            return decimals_of(whole(values), kind)
        return values.cast(kind)
    except pa.ArrowInvalid as error:
        raise LimitError(
            f"a sum does not fit the type of its column ({str(error).lower()}): declare a wider type",
            code="sum-overflow",
            table=spec.name,
            column=column.name,
        ) from None


def _adjacent(spec: TableSpec, rows: pa.Table, owner: Numbers, appended: list[str]) -> dict[str, Values]:
    """The columns whose combiner needs a key's rows side by side, in their order."""
    order = pa.array(sorting(owner))
    sizes = np.bincount(owner)
    starts = np.cumsum(sizes) - sizes
    columns: dict[str, Values] = {name: append(whole(rows[name].take(order)), starts) for name in appended}
    for group in spec.groups:
        part = rows.select(list(group.columns)).take(order)
        together = combine_group(group.combiner, group.version, group.by, part, starts, group.limit)
        columns |= dict(zip(together.column_names, together.columns, strict=True))
    return columns


def fold(spec: TableSpec, layers: Sequence[Layer], expired: int | None = None) -> pa.Table:
    """The rows that ``layers`` (oldest first) amount to, in no particular order.

    Some or all of those that have ``expired`` may be left out.
    """
    if not layers:
        return spec.no_rows
    if len(layers) == 1 and layers[0].op == PUT:
        return layers[0].rows
    if not any(layer.op == MERGE for layer in layers):
        return _newest(spec, layers, expired)[1]
    return combine(spec, parts(spec, layers))


def parts(spec: TableSpec, layers: Sequence[Layer]) -> pa.Table:
    """Rows that combine to what ``layers`` amount to: a key may repeat, in the order in which its rows combine."""
    if all(layer.op == MERGE for layer in layers) or [layer.op for layer in layers] == [PUT]:
        return pa.concat_tables([spec.no_rows, *(layer.rows for layer in layers)])
    if not any(layer.op == MERGE for layer in layers):
        return _newest(spec, layers)[1]
    if layers[0].op == PUT and all(layer.op == MERGE for layer in layers[1:]):
        return pa.concat_tables([layer.rows for layer in layers])  # nothing is hidden
    return visible(spec, layers).select(spec.schema.names)


def fold_run(spec: TableSpec, layers: Sequence[Layer]) -> list[Layer]:
    """The same layers in at most three, still a *run*: what they hide below themselves stays hidden.

    Needed where older files remain underneath, so deletes and puts must keep hiding them.
    """
    if all(layer.op == MERGE for layer in layers):
        return [Layer(MERGE, fold(spec, layers))]
    if not any(layer.op == MERGE for layer in layers):
        gone, put = _newest(spec, layers)
        result = [Layer(DELETE, gone), Layer(PUT, put)]
    else:
        result = _fold_mixed(spec, layers)
    return [layer for layer in result if layer.rows.num_rows]


def _fold_mixed(spec: TableSpec, layers: Sequence[Layer]) -> list[Layer]:
    rows = visible(spec, layers, keep_deletes=True)
    based = pc.greater_equal(rows["__base"], 0)
    deleted = pc.equal(rows["__op"], DELETE)
    put = combine(spec, rows.filter(pc.and_(based, pc.invert(deleted))).select(spec.schema.names))
    # A key deleted and merged into afterwards is a put of the merged value; it needs no delete of its own.
    gone = rows.filter(deleted).select(spec.key_names)
    if gone.num_rows and put.num_rows:
        gone = gone.join(put.select(spec.key_names), keys=spec.key_names, join_type="left anti")
    merged = combine(spec, rows.filter(pc.invert(based)).select(spec.schema.names))
    return [Layer(DELETE, gone.cast(spec.key_schema)), Layer(PUT, put), Layer(MERGE, merged)]


def _newest(spec: TableSpec, layers: Sequence[Layer], expired: int | None = None) -> tuple[pa.Table, pa.Table]:
    """Where nothing is merged, a key's newest row counts: the keys last deleted, and the rows last put."""
    if len(layers) == 1:
        rows = layers[0].rows
        return (rows, spec.no_rows) if layers[0].op == DELETE else (spec.key_schema.empty_table(), rows)
    newest = lasts(*ranks(pa.concat_tables([layer.rows.select(spec.key_names) for layer in layers])))
    puts = np.repeat([layer.op == PUT for layer in layers], [layer.rows.num_rows for layer in layers])
    places, is_put = np.where(puts, np.cumsum(puts), np.cumsum(~puts))[newest] - 1, puts[newest]
    keys = [spec.key_schema.empty_table(), *(layer.rows for layer in layers if layer.op == DELETE)]
    put = pa.concat_tables([spec.no_rows, *(layer.rows for layer in layers if layer.op == PUT)])
    kept = places[is_put]
    if expired is not None and spec.expiry and not put[spec.expiry].null_count:
        # Many rows may have expired that no delete names: they are not even copied.
        kept = kept[positions(put[spec.expiry])[kept] > expired]
    return taken(pa.concat_tables(keys), places[~is_put]), taken(put, kept)


def visible(spec: TableSpec, layers: Sequence[Layer], *, keep_deletes: bool = False) -> pa.Table:
    """Rows not hidden by a newer put or delete, with ``__op`` and ``__base`` (layer of that put, or -1)."""
    parts = [_numbered(spec, layer, index) for index, layer in enumerate(layers)]
    rows = pa.concat_tables(parts)
    op, at = rows["__op"].to_numpy(), rows["__at"].to_numpy()
    own_base = np.where(op == MERGE, -1, at)
    owner, keys = ranks(rows.select(spec.key_names))
    newest = np.full(keys, -1)
    np.maximum.at(newest, owner, own_base)
    base = newest[owner]
    rows = rows.append_column("__base", pa.array(base))
    keep = at >= base
    if not keep_deletes:
        keep &= op != DELETE
    return rows.filter(pa.array(keep))


def _numbered(spec: TableSpec, layer: Layer, index: int) -> pa.Table:
    rows = spec.conform(padded(layer.rows, spec.schema) if layer.op == DELETE else layer.rows)
    rows = rows.append_column("__op", pa.array(np.full(rows.num_rows, layer.op, np.int8)))
    return rows.append_column("__at", pa.array(np.full(rows.num_rows, index, np.int64)))
