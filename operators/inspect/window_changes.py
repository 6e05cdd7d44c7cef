"""Windows that differ between two checkpoints, each in one row with its results before and after.

A window is its bounds and its key: a session that has grown is another one. A window that is not kept any more counts
as removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.inspect.query import Query, query
from tidestate.operators.windows.names import END, START
from tidestate.recovery.inspect.rows import (
    Wanted,
    differing,
    operator_of,
    rows_by_key,
    state_difference,
    table_of,
    typed_values,
)
from tidestate.recovery.inspect.scanned import CHANGE
from tidestate.recovery.inspect.scans import free_name
from tidestate.recovery.inspect.values import other_types
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import UsageError

BEFORE, AFTER = "_before", "_after"


@dataclass(frozen=True)
class CheckpointDifference:
    """What differs between two checkpoints of an operator: windows as ``queries`` have them, in this ``order``; or,
    without queries, ``rows`` of the state table ``table``.
    """

    queries: tuple[Query, ...]
    selection: Wanted
    order: tuple[str, ...] = ()
    table: str = ""
    rows: pa.Table | None = None

    def parts(self) -> Iterator[pa.Table]:
        """The rows by state partition; the first table has none."""
        if self.rows is None:
            before, after = self.queries
            yield from changes_between(before, after, self.selection)
        else:
            yield from (self.rows.slice(0, 0), self.rows)

    def whole(self) -> pa.Table:
        """The rows of all parts in memory, in the order of their keys."""
        if self.rows is not None:
            return self.rows
        return pa.concat_tables(self.parts()).sort_by([(name, "ascending") for name in self.order])


def difference_of(
    checkpoint: Checkpoint,
    before: int,
    after: int,
    selection: Wanted,
    operator: str | None = None,
    table: str | None = None,
) -> CheckpointDifference:
    """The windows of an operator that differ between two checkpoints; of one without windows, and with a ``table``,
    rows of a state table.
    """
    name, state = operator_of(checkpoint.read(after).manifest, operator)
    ids = () if table else (before, after)
    queries = tuple(query(checkpoint, checkpoint=number, operator=name) for number in ids)
    if queries and all(version.has_windows for version in queries):
        return CheckpointDifference(queries, selection, (START, *queries[1].key, END))
    rows = state_difference(checkpoint, (before, after), name, table, selection)
    return CheckpointDifference((), selection, table=table_of(state, table).name, rows=rows)


def changes_between(before: Query, after: Query, selection: Wanted) -> Iterator[pa.Table]:
    """`window_changes` between two checkpoints, by state partition; the first table has no rows. Results that
    functions of yours compute are left out.

    Memory: the windows of a partition at both, or all of them if their number has changed in between. Raises
    `UsageError` for operators without windows, and where the key has changed.
    """
    if before.key != after.key:
        raise UsageError(
            "the key changed between the two checkpoints: compare two from before the change, or two from after it",
            code="read-column",
            before=list(before.key),
            after=list(after.key),
        )
    key = list(after.key)
    yield window_changes(_windows(before, selection, ()), _windows(after, selection, ()), key)
    is_aligned = before.partitions == after.partitions
    numbers = after.window_partitions(_given(after, selection))
    for partitions in [(number,) for number in numbers] if is_aligned else [None]:
        yield window_changes(_windows(before, selection, partitions), _windows(after, selection, partitions), key)


def _windows(version: Query, selection: Wanted, partitions: Sequence[int] | None) -> pa.Table:
    """The windows of these state partitions, None for all."""
    values = [name for name in version.results if name not in version.own_functions]
    form: dict[str, Any] = {"key": _given(version, selection), "values": values}
    parts = version.scan_windows(**form)
    tables = [selection.of(next(parts))]
    if partitions is None:
        tables += map(selection.of, parts)
    for number in partitions or ():
        tables += map(selection.of, version.scan_windows(**form, partition=number))
    return pa.concat_tables(tables)


def _given(version: Query, selection: Wanted) -> dict[str, object] | None:
    """What is known of the key: with all of it one state partition is read."""
    keys = {name: text for name, text in selection.keys.items() if name in version.key}
    return typed_values(keys, version.key) or None


def window_changes(before: pa.Table, after: pa.Table, key: Sequence[str]) -> pa.Table:
    """The windows that differ, by start and key: ``change`` (added, removed or changed), bounds and key, and each
    value before and after, null where the window was not there. Pure.

    A value that only one of the two checkpoints has does not count as a difference.
    """
    identity = [START, END, *key]
    indices = rows_by_key(before, after, identity)
    in_both = np.logical_and(*(indices >= 0))
    names = [name for name in after.column_names if name in before.column_names and name not in identity]
    differs: npt.NDArray[np.bool_] = ~in_both
    differs[in_both] = _differ(before, after, indices[:, in_both], names)
    # Masked, as a window that one of the two lacks has the index -1 there: its row is null.
    was, now = (
        rows.take(pa.array(index[differs], mask=index[differs] < 0))
        for rows, index in zip((before, after), indices, strict=True)
    )
    change = np.select([indices[0, differs] < 0, indices[1, differs] < 0], ["added", "removed"], "changed")
    columns: dict[str, pa.Array | pa.ChunkedArray] = {CHANGE: pa.array(change.tolist(), pa.string())}
    columns |= {name: pc.fill_null(now[name], was[name]) for name in identity}
    for name in dict.fromkeys([*after.column_names, *before.column_names]):
        if name not in identity:
            for rows, ending in ((was, BEFORE), (now, AFTER)):
                kind = (before if name in before.column_names else after).schema.field(name).type
                values = rows[name] if name in rows.column_names else pa.nulls(rows.num_rows, kind)
                columns[free_name(f"{name}{ending}", list(columns))] = values
    return pa.table(columns).sort_by([(name, "ascending") for name in (START, *key, END)])


def _differ(
    before: pa.Table, after: pa.Table, indices: npt.NDArray[np.int64], names: Sequence[str]
) -> npt.NDArray[np.bool_]:
    """Whether the windows at these places have other values."""
    was, now = (
        rows.select(names).take(pa.array(index)) for rows, index in zip((before, after), indices, strict=True)
    )
    try:
        return differing(was.cast(now.schema), now)
    except pa.ArrowException as error:
        raise other_types(error, [list(names)]) from None
