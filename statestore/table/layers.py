"""Reading a table that lies in layers, oldest first: ranges, aligned look-ups, many ranges at once, expiry. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.statestore.arrays import Numbers
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.arrowtypes import is_close, is_position, positions
from tidestate.statestore.spec.changes import PUT, KeyBound, Layer, Lookup, Ranges
from tidestate.statestore.spec.keyrange import EVERYTHING, Cut, KeyRange, after_expiry, bisect, key_before
from tidestate.statestore.spec.lists import places_within
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.table.addresses import LARGEST
from tidestate.statestore.table.fold import fold, parts
from tidestate.statestore.table.sorting import firsts, lasts, order, ranks, search, shared_ranks, sorting, taken

SCAN_ROWS = 1 << 16
"""Rows of a batch of a scan."""


def leads_by_position(schema: pa.Schema) -> bool:
    """Whether the first column is one by which rows are kept clustered."""
    return len(schema) > 0 and is_position(schema.field(0).type)


def clustered(rows: pa.Table) -> pa.Table:
    """``rows`` sorted, stable, by the leading column alone where that is a number or a time; cheaper than fully."""
    if not leads_by_position(rows.schema) or rows.num_rows < 2:
        return rows
    values = positions(rows.column(0))
    if bool(np.all(values[1:] >= values[:-1])):
        return rows
    return rows.take(pa.array(sorting(values)))


def sorted_by_key(spec: TableSpec, rows: pa.Table) -> pa.Table:
    """``rows`` sorted by the whole key, stable: the canonical order of scans and snapshots."""
    if rows.num_rows < 2 or not spec.key:
        return rows
    return taken(rows, order(rows.select(spec.key_names)))


def distinct_keys(keys: pa.Table) -> pa.Table:
    """``keys``, each once, in their order. No column has nulls."""
    once = distinct_rows(keys, keys.column_names)
    return taken(once, order(once))


def distinct_rows(rows: pa.Table, names: list[str]) -> pa.Table:
    """Of the ``rows`` that are equal in the columns ``names`` the first, in no particular order."""
    numbers, count = ranks(rows.select(names))
    return rows if count == rows.num_rows else rows.take(pa.array(firsts(numbers, count)))


def cut(layer: Layer, keys: KeyRange) -> Layer:
    """The rows of ``layer`` within ``keys``. Its rows are clustered, or ordered by the whole key."""
    rows = layer.rows
    if keys.whole or not rows.num_rows:
        return layer
    width = rows.num_columns if layer.ordered else int(leads_by_position(rows.schema))
    first = 0 if keys.lower is None else bisect(rows, _coarse(keys.lower, width), width)
    last = rows.num_rows if keys.upper is None else bisect(rows, _coarse(keys.upper, width, upper=True), width)
    rows = rows.slice(first, max(0, last - first))
    if keys.lower is not None and len(keys.lower.values) > width:
        rows = rows.filter(pc.invert(key_before(rows, keys.lower)))
    if keys.upper is not None and len(keys.upper.values) > width:
        rows = rows.filter(key_before(rows, keys.upper))
    return Layer(layer.op, rows, layer.ordered)


def _coarse(bound: Cut, width: int, *, upper: bool = False) -> Cut:
    """``bound`` as far as rows sorted by ``width`` columns can tell, letting too much through."""
    return bound if len(bound.values) <= width else Cut(bound.values[:width], after=upper)


def rows_between(layers: Sequence[Layer], keys: KeyRange) -> list[Layer]:
    """The layers cut to ``keys``, without empty ones."""
    return [selected for layer in layers if (selected := cut(layer, keys)).rows.num_rows]


def live(spec: TableSpec, layers: Sequence[Layer], expired: int | None) -> list[Layer]:
    """The layers without rows whose key says that they have expired."""
    if expired is None or not spec.expires_by_key:
        return list(layers)
    if (start := after_expiry(spec, expired)) is not None:
        return rows_between(layers, KeyRange(start))
    kept = (Layer(layer.op, unexpired(spec, layer.rows, expired), layer.ordered) for layer in layers)
    return [layer for layer in kept if layer.rows.num_rows]


def unexpired(spec: TableSpec, rows: pa.Table, expired: int | None) -> pa.Table:
    """Folded rows, without those that have expired. A row with a null in its expiry column never does."""
    if expired is None or spec.expiry is None or not rows.num_rows:
        return rows
    keep = living(rows[spec.expiry], expired)
    return rows if keep.all() else rows.filter(pa.array(keep))


def living(expiry: pa.ChunkedArray, expired: int) -> npt.NDArray[np.bool_]:
    """Which rows have not expired; one with a null never does."""
    keep = np.ones(len(expiry), bool)
    if expiry.null_count:
        keep[np.asarray(expiry.is_valid())] = positions(pc.drop_null(expiry)) > expired
    else:
        keep = positions(expiry) > expired
    return keep


def folded(spec: TableSpec, layers: Sequence[Layer], expired: int | None) -> pa.Table:
    """The live rows that ``layers`` amount to, in no particular order."""
    rows = fold(spec, live(spec, layers, expired), expired)
    return rows if spec.expires_by_key else unexpired(spec, rows, expired)


def scan(
    spec: TableSpec, layers: Sequence[Layer], keys: KeyRange, expired: int | None, *, reverse: bool
) -> Iterator[pa.Table]:
    """Live rows within ``keys`` in key order, in batches."""
    rows = folded(spec, rows_between(layers, keys), expired)
    yield from batches(rows if is_settled(layers) else sorted_by_key(spec, rows), reverse=reverse)


def is_settled(layers: Sequence[Layer]) -> bool:
    """Whether folding changes nothing, not even the order."""
    return len(layers) == 1 and layers[0].ordered and layers[0].op == PUT


FEW_SHARE = 16
"""Few enough keys among many rows to ask of each row whether it has one, rather than number them all: a 16th."""
NUMBERED_ROWS = 4000
"""Up to so many rows, to number their keys costs less than a join of Arrow's."""
OVERLAY_SHARE = 64
"""Few enough rows over a large ordered layer to be put into their places one by one: a 64th of it."""


def overlays(layers: Sequence[Layer]) -> bool:
    """Whether all but the oldest layer are few rows, and that one holds ordered rows."""
    if len(layers) < 2 or not layers[0].ordered or layers[0].op != PUT:
        return False
    few = sum(layer.rows.num_rows for layer in layers[1:])
    return bool(few * OVERLAY_SHARE <= layers[0].rows.num_rows)


def overlay(spec: TableSpec, layers: Sequence[Layer]) -> pa.Table:
    """The rows of `overlays` in key order: only the keys of the few are folded, the many are not sorted again."""
    base, names = layers[0].rows, spec.key_names
    keys = pa.concat_tables([layer.rows.select(names) for layer in layers[1:]])
    places, found = search(base.select(names), keys.group_by(names, use_threads=False).aggregate([]))
    hits = places[found]
    below = Layer(PUT, base.take(pa.array(hits)))
    few = sorted_by_key(spec, fold(spec, [below, *layers[1:]]))
    kept = np.delete(np.arange(base.num_rows), hits)
    # A new row comes before the one at its place, which is a later key or has just been replaced.
    at, _ = search(base.select(names), few.select(names))
    merged = sorting(np.concatenate([2 * kept + 1, 2 * at]))
    numbers = np.concatenate([kept, base.num_rows + np.arange(few.num_rows)])
    return pa.concat_tables([base, few]).take(pa.array(numbers[merged]))


def batches(rows: pa.Table, *, reverse: bool) -> Iterator[pa.Table]:
    """Sorted rows in batches of a scan."""
    starts = range(0, rows.num_rows, SCAN_ROWS)
    for start in reversed(starts) if reverse else starts:
        batch = rows.slice(start, SCAN_ROWS)
        yield batch.take(pa.array(np.arange(batch.num_rows)[::-1])) if reverse else batch


def unfolded(spec: TableSpec, layers: Sequence[Layer], keys: KeyRange, expired: int | None) -> pa.Table:
    """Rows within ``keys`` in parts that combine to the live rows, in the order in which they combine."""
    selected = rows_between(layers, keys)
    return parts(spec, live(spec, selected, expired)) if spec.expires_by_key else folded(spec, selected, expired)


def lookup(spec: TableSpec, layers: Sequence[Layer], keys: pa.Table, expired: int | None) -> Lookup:
    """Rows for ``keys`` (which may repeat), aligned with them."""
    wanted = spec.conform_keys(keys)
    asked = wanted.drop_null()
    if not asked.num_rows or not layers:
        return align(spec, wanted, spec.no_rows)
    selected = matching(rows_between(layers, extent(asked)), asked)
    return align(spec, wanted, folded(spec, selected, expired))


def extent(keys: pa.Table) -> KeyRange:
    """The range of leading values of ``keys``, where that is cheap to know."""
    if not leads_by_position(keys.schema) or not keys.num_rows:
        return EVERYTHING
    leading = positions(keys.column(0))
    return KeyRange(Cut((int(leading.min()),)), Cut((int(leading.max()),), after=True))


def matching(layers: Sequence[Layer], keys: pa.Table) -> list[Layer]:
    """The rows of ``layers`` whose leading columns are among ``keys``, without empty layers; some others may stay."""
    names = keys.column_names
    if not names or not layers:
        return list(layers)
    many = sum(layer.rows.num_rows for layer in layers)
    if many > NUMBERED_ROWS and keys.num_rows * FEW_SHARE < many:
        selected = [Layer(layer.op, _semi_join(layer.rows, keys, names), layer.ordered) for layer in layers]
    else:
        (asked, *of_layers), count = shared_ranks([keys, *(layer.rows.select(names) for layer in layers)])
        among = lasts(asked, count) >= 0
        selected = [_kept(layer, among[own]) for layer, own in zip(layers, of_layers, strict=True)]
    return [layer for layer in selected if layer.rows.num_rows]


def _semi_join(rows: pa.Table, keys: pa.Table, names: list[str]) -> pa.Table:
    numbered = rows.select(names).append_column("__row", pa.array(np.arange(rows.num_rows)))
    hits = numbered.join(keys, keys=names, join_type="left semi", use_threads=False)["__row"]
    return rows.take(pa.array(np.sort(hits.to_numpy())))


def _kept(layer: Layer, where: npt.NDArray[np.bool_]) -> Layer:
    # Of whole rows, copying half of them costs more than folding the keys of all.
    if 2 * np.count_nonzero(where) > len(where):
        return layer
    return Layer(layer.op, layer.rows.filter(pa.array(where)), layer.ordered)


def align(spec: TableSpec, wanted: pa.Table, rows: pa.Table) -> Lookup:
    """``rows`` (one per key) brought into the order of ``wanted``, nulls where there is none."""
    (asked, stored), count = shared_ranks([wanted.select(spec.key_names), rows.select(spec.key_names)])
    places = lasts(stored, count)[asked]
    values = taken(rows.drop_columns(spec.key_names), places)
    aligned = pa.table([*wanted.columns, *values.columns], schema=spec.schema)
    return Lookup(pa.array(places >= 0), aligned)


def check_requests(
    spec: TableSpec, prefixes: pa.Table, lower: KeyBound, upper: KeyBound
) -> tuple[pa.Table, KeyBound, KeyBound]:
    """What requests give, as leading key columns and bounds of the next. Raises `UsageError` when they are not."""
    width = prefixes.num_columns
    if width >= len(spec.key) or prefixes.column_names != spec.key_names[:width]:
        raise UsageError(
            "requests must give the leading key columns, and at most all but the last",
            code="ranges-prefix",
            table=spec.name,
            key=spec.key_names,
            found=prefixes.column_names,
        )
    bounds = [_bound(spec, bound, prefixes.num_rows, spec.key[width].arrow) for bound in (lower, upper)]
    return spec.conform_keys(prefixes, width), bounds[0], bounds[1]


def _bound(spec: TableSpec, bound: KeyBound, requests: int, kind: pa.DataType) -> KeyBound:
    if bound is None:
        return None
    if len(bound) != requests or not is_close(bound.type, kind):
        raise UsageError(
            "give one bound for each request, with the type of the next key column",
            code="ranges-bound",
            table=spec.name,
            requests=requests,
            bounds=len(bound),
            expected=str(kind),
            found=str(bound.type),
        )
    return bound.cast(kind)


def assign_keys(
    spec: TableSpec,
    rows: pa.Table,
    prefixes: pa.Table,
    lower: KeyBound,
    upper: KeyBound,
) -> Ranges:
    """To each request the ``rows`` (in key order) with its key prefix whose next key column is in its interval."""
    requests, names = prefixes.num_rows, prefixes.column_names
    request_code, row_code = _codes(prefixes, rows.select(names))
    known = np.flatnonzero(row_code >= 0)
    place = known[sorting(row_code[known])]
    values, codes = rows.column(len(names)), int(request_code.max(initial=0)) + 1
    ranks, low, high = _distances(values, lower, upper, requests, LARGEST // codes) or _ranks(
        values, lower, upper, requests
    )
    width = int(max(ranks.max(initial=0), high.max(initial=0), low.max(initial=0))) + 1
    line, origins = row_code[place] * width + ranks[place], request_code * width
    first, last = np.empty(requests, np.int64), np.empty(requests, np.int64)
    # In the order of the line: a search next to the last one finds its memory in the cache.
    by_start = sorting(origins + low)
    first[by_start] = np.searchsorted(line, (origins + low)[by_start], "left")
    last[by_start] = np.searchsorted(line, (origins + high)[by_start], "left")
    counts = np.maximum(0, last - first)
    request_index = np.repeat(np.arange(requests), counts)
    found = place[np.repeat(first, counts) + places_within(counts)]
    return Ranges(pa.array(request_index, pa.int64()), taken(rows, found))


def _codes(requests: pa.Table, rows: pa.Table) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """A number per distinct prefix: of each request, and of each row, −1 where nobody asks for it."""
    if not requests.num_columns:
        return np.zeros(requests.num_rows, np.int64), np.zeros(rows.num_rows, np.int64)
    (asked, stored), count = shared_ranks([requests, rows])
    return asked, np.where((lasts(asked, count) >= 0)[stored], stored, -1)


def _distances(
    values: pa.ChunkedArray, lower: KeyBound, upper: KeyBound, requests: int, room: int
) -> tuple[Numbers, Numbers, Numbers] | None:
    """As `_ranks`, of whole numbers and times by how far they are from the least one: all below ``room``, None where
    they would not be, or where values are no such numbers.
    """
    if not len(values) or not is_position(values.type) or values.null_count:
        return None
    numbers = positions(values)
    least, most = int(numbers.min()), int(numbers.max())
    if most - least + 2 >= room or most == LARGEST:
        return None
    low, high = np.zeros(requests, np.int64), np.full(requests, most - least + 1)
    for bound, distances in ((lower, low), (upper, high)):
        if bound is not None:
            known = np.asarray(bound.is_valid()) if bound.null_count else np.ones(requests, bool)
            moments = positions(pc.drop_null(bound) if bound.null_count else bound)
            distances[known] = np.clip(moments, least, most + 1) - least
    return numbers - least, low, high


def _ranks(
    values: pa.ChunkedArray,
    lower: KeyBound,
    upper: KeyBound,
    requests: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Places on one line for the rows' values and both bounds; a missing bound is an end of the line."""
    if lower is None and upper is None:
        return np.zeros(len(values), np.int64), np.zeros(requests, np.int64), np.ones(requests, np.int64)
    bounds = [pa.nulls(requests, values.type) if bound is None else bound for bound in (lower, upper)]
    chunks = [*values.chunks, *(c for b in bounds for c in (b.chunks if isinstance(b, pa.ChunkedArray) else [b]))]
    everything = pa.chunked_array(chunks, values.type)
    dense = pc.rank(everything, sort_keys="ascending", tiebreaker="dense")
    ranks: npt.NDArray[np.int64] = dense.to_numpy().astype(np.int64)
    end = int(ranks.max(initial=0)) + 1
    count = len(values)
    low = np.where(np.asarray(bounds[0].is_valid()), ranks[count : count + requests], 0)
    high = np.where(np.asarray(bounds[1].is_valid()), ranks[count + requests :], end)
    return ranks[:count], low, high
