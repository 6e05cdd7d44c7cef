"""What a store lets in: a change set checked against its tables before anything is touched. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.statestore.arrays import Flags, Values
from tidestate.statestore.errors import LimitError, NotFoundError, UsageError
from tidestate.statestore.spec.changes import DELETE, MERGE, PUT, Applied, ChangeSet, Layer, TableChanges
from tidestate.statestore.spec.limits import CHANGE_BYTES, COLUMNS, KEY_BYTES, ROW_BYTES, TABLES
from tidestate.statestore.spec.lists import list_values
from tidestate.statestore.spec.store import StateStore
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.table.layers import clustered
from tidestate.statestore.table.sorting import ranks

_T = TypeVar("_T")


def specs_by_name(specs: Sequence[TableSpec]) -> dict[str, TableSpec]:
    """Specs by table name. Raises `UsageError` when a name repeats, `LimitError` for too many tables or columns."""
    named = {spec.name: spec for spec in specs}
    if len(named) != len(specs):
        raise UsageError("the tables of one operator must have different names", code="table-names")
    _limit("tables of one operator", len(specs), TABLES)
    for spec in specs:
        _limit("columns of a table", len(spec.key) + len(spec.values), COLUMNS, table=spec.name)
    return named


def check_sequence(now: Applied, then: Applied) -> None:
    """Raise `UsageError` unless ``then`` comes after ``now``."""
    if then.sequence <= now.sequence:
        raise UsageError(
            "change sets must come in order: the number must be higher than that of the last one",
            code="sequence",
            applied=now.sequence,
            offered=then.sequence,
        )


def validate_changes(specs: Mapping[str, TableSpec], changes: ChangeSet) -> dict[str, list[Layer]]:
    """The layers of each table, oldest first, rows clustered by the leading key column.

    Raises `NotFoundError` for an unknown table, `UsageError` for rows that break the table's rules, `LimitError`
    past a documented limit; nothing has happened then.
    """
    return {name: _layers(find_table(specs, name), part) for name, part in changes.items()}


def loadable(
    specs: Mapping[str, TableSpec], store: StateStore, rows: Mapping[str, object], expired: Mapping[str, int] | None
) -> dict[str, int]:
    """The bounds of tables once a snapshot with these is in the store: the later of two. Raises `UsageError` or
    `NotFoundError` when it may not be loaded.
    """
    if store.applied != Applied():
        raise UsageError(
            "a snapshot can be loaded only into an empty store", code="load", applied=store.applied.sequence
        )
    for name in rows:
        find_table(specs, name)
    bounds = dict(store.expired)
    for name, bound in (expired or {}).items():
        expiring(specs, name, bound)
        bounds[name] = max(bound, bounds.get(name, bound))
    return bounds


def in_order(spec: TableSpec, batches: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The batches of a snapshot, as they are. Raises `UsageError` where keys do not grow."""
    last: pa.Table | None = None
    for batch in batches:
        rows = spec.conform(batch)
        if rows.num_rows:
            seam = rows if last is None else pa.concat_tables([last, rows.select(spec.key_names)])
            if not bool(pc.all(growing(seam.select(spec.key_names)), min_count=0).as_py()):
                raise UsageError("a snapshot must be in key order, each key once", code="load-order", table=spec.name)
            last = rows.select(spec.key_names).slice(rows.num_rows - 1)
        yield rows


def growing(keys: pa.Table) -> pa.ChunkedArray | pa.Array:
    """For each row but the first, whether its key is larger than the one before."""
    larger: pa.ChunkedArray | pa.Scalar = pa.scalar(False)
    for name in reversed(keys.column_names):
        column = keys[name]
        before, here = column.slice(0, len(column) - 1), column.slice(1)
        larger = pc.or_(pc.greater(here, before), pc.and_(pc.equal(here, before), larger))
    return cast(pa.ChunkedArray, larger)  # a key has columns


def find_table(tables: Mapping[str, _T], table: str) -> _T:
    """The entry of ``table``. Raises `NotFoundError` if there is none."""
    try:
        return tables[table]
    except KeyError:
        raise NotFoundError("unknown state table", code="no-table", table=table) from None


def expiring(specs: Mapping[str, TableSpec], table: str, bound: int) -> TableSpec:
    """The spec of a table whose rows can expire at ``bound``. Raises `UsageError` or `NotFoundError`."""
    spec = find_table(specs, table)
    if not isinstance(bound, int) or not -(2**63) <= bound < 2**63:
        raise UsageError(
            "an expiry bound must be a 64-bit integer, in the unit of the expiry column",
            code="expire-bound",
            table=table,
            bound=bound,
        )
    if spec.expiry is None:
        raise UsageError(
            "this table has no expiry column, so nothing in it can expire", code="table-expiry", table=table
        )
    return spec


def _layers(spec: TableSpec, changes: TableChanges) -> list[Layer]:
    if changes.expire is not None:
        expiring({spec.name: spec}, spec.name, changes.expire)
    return [_layer(spec, layer) for layer in changes.layers()]


def _layer(spec: TableSpec, layer: Layer) -> Layer:
    rows = spec.conform_keys(layer.rows) if layer.op == DELETE else spec.conform(layer.rows)
    if layer.op == MERGE and spec.expiry is not None and not spec.expires_by_key:
        raise UsageError(
            "a table that expires by a value column accepts puts but no merges: a merge could bring back what has "
            "expired",
            code="table-expiry-merge",
            table=spec.name,
        )
    size = rows.nbytes
    _limit("bytes of one change to a table", size, CHANGE_BYTES, table=spec.name)
    _check_keys(spec, rows)
    if layer.op == PUT:
        _check_unique(spec, rows)
    if size > KEY_BYTES:  # the least limit of a row: within it together, rows need no closer look
        _check_sizes(spec, rows, with_values=layer.op != DELETE)
    return Layer(layer.op, clustered(rows))


def _check_sizes(spec: TableSpec, rows: pa.Table, *, with_values: bool) -> None:
    """A row is limited as a whole, but for lists that it collects: these value by value, so that they may grow."""
    _limit("bytes in the key of a row", _widest(rows.select(spec.key_names)), KEY_BYTES, table=spec.name)
    if not with_values:
        return
    fixed = [column.name for column in spec.values if column.name not in spec.lengthening]
    _limit("bytes in the values of a row", _widest(rows.select(fixed)), ROW_BYTES, table=spec.name)
    for name in spec.lengthening:
        if rows[name].nbytes > ROW_BYTES:
            values = [list_values(chunk) for chunk in rows[name].chunks]
            longest = max(_widest(pa.table({name: one})) for one in values)
            _limit("bytes in one value of a list", longest, ROW_BYTES, table=spec.name, column=name)


def _check_keys(spec: TableSpec, rows: pa.Table) -> None:
    for name in spec.key_names:
        if rows[name].null_count:
            raise UsageError("a key column must not be null", code="key-null", table=spec.name, column=name)


def _check_unique(spec: TableSpec, rows: pa.Table) -> None:
    _, distinct = ranks(rows.select(spec.key_names))
    if distinct != rows.num_rows and rows.num_rows:
        raise UsageError(
            "a key may occur once in the rows to put: fold the rows first",
            code="put-repeats",
            table=spec.name,
            rows=rows.num_rows,
            keys=distinct,
        )


def too_long(keys: pa.Table) -> Flags:
    """Rows whose key is longer than a table takes; of length 0 if there are none."""
    widths = _widths(keys)
    long = np.zeros(0, bool) if widths is None else np.asarray(pc.fill_null(pc.greater(widths, KEY_BYTES), False))
    return long if long.any() else np.zeros(0, bool)


def _widest(rows: pa.Table) -> int:
    """Bytes of variable width in the widest row."""
    widths = _widths(rows)
    return 0 if widths is None else int(pc.max(widths).as_py() or 0)


def _widths(rows: pa.Table) -> Values | None:
    """Bytes of variable width in each row; None if all rows together fit into the smallest limit."""
    variable = [column for column in rows.columns if _variable(column.type)]
    if sum(column.nbytes for column in variable) <= KEY_BYTES:
        return None
    total, *others = (_lengths(column) for column in variable)
    for more in others:
        total = pc.add(total, more)
    return total


def _variable(kind: pa.DataType) -> bool:
    text = pa.types.is_string(kind) or pa.types.is_binary(kind)
    large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    return bool(text or large or pa.types.is_fixed_size_binary(kind) or pa.types.is_nested(kind))


def _lengths(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    if not pa.types.is_nested(column.type):
        return pc.fill_null(pc.binary_length(column).cast(pa.int64()), 0)
    lengths = np.zeros(len(column), np.int64)
    _weigh(column.combine_chunks(), 0, lengths)
    return pa.array(lengths)


def _weigh(values: pa.Array, first: int, lengths: npt.NDArray[np.int64]) -> None:
    """Bytes of the nested values that may be too many: halves that are together small enough are passed over."""
    if values.nbytes <= ROW_BYTES // 4 or not len(values):
        return
    if len(values) == 1:
        lengths[first] = values.nbytes
        return
    half = len(values) // 2
    _weigh(values.slice(0, half), first, lengths)
    _weigh(values.slice(half), first + half, lengths)


def _limit(what: str, found: int, limit: int, **context: object) -> None:
    if found > limit:
        raise LimitError(f"more {what} than the limit allows", code="limit", found=found, limit=limit, **context)
