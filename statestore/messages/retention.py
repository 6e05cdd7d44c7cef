"""Up to where a message store forgets: bounds by time, count and bytes. Pure; reads what it needs and no more."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.statestore.messages.sizes import row_bytes
from tidestate.statestore.messages.tables import MESSAGE_TIME, MessageTables
from tidestate.statestore.spec.arrowtypes import positions
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.table.fold import combine

BEGINNING = -(2**63)
NEWEST, BOUND = "newest", "bound"


@dataclass(frozen=True)
class Marks:
    """The newest time stored, and the position up to which messages are forgotten; None before the first."""

    newest: int | None = None
    bound: int | None = None

    def changed_to(self, tables: MessageTables, other: Marks) -> TableChanges:
        """Changes that take the stored marks from here to ``other``."""
        pairs = [(NEWEST, self.newest, other.newest), (BOUND, self.bound, other.bound)]
        rows = [{"mark": name, "at": then} for name, now, then in pairs if then != now]
        return TableChanges(merge=pa.Table.from_pylist(rows, schema=tables.marks.schema) if rows else None)


def read_marks(tables: MessageTables, view: StateView) -> Marks:
    """The marks in the state."""
    found = view[tables.marks.name].lookup(pa.table({"mark": [NEWEST, BOUND]}))
    return Marks(*found.rows["at"].to_pylist())


def position_column(
    values: npt.NDArray[np.int64], kind: pa.DataType, known: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """Positions as a column of ``kind``; null where not ``known``."""
    whole = pa.array(values, mask=None if known is None else ~known)
    return whole.cast(pa.int32()).cast(kind) if pa.types.is_date32(kind) else whole.cast(kind)


def tally(tables: MessageTables, rows: pa.Table, sign: int = 1) -> pa.Table:
    """What ``rows`` add to the table of sizes, or take away from it (``sign`` −1). One row per slot, in order."""
    slot = tables.retention.slot
    places = positions(rows[tables.position]) // slot * slot
    newest = positions(rows[MESSAGE_TIME])
    columns = [
        position_column(places, tables.sizes.key[0].arrow),
        pa.array(np.full(rows.num_rows, sign, np.int64)),
        pa.array(sign * row_bytes(rows)),
        # A message taken away still counts as the newest of its slot: a maximum cannot be taken back.
        pa.array(newest) if sign > 0 else pa.nulls(rows.num_rows, pa.int64()),
    ]
    return combine(tables.sizes, pa.table(columns, schema=tables.sizes.schema)).sort_by("slot")


def slot_bound(tables: MessageTables, bound: int) -> int:
    """Slots at or below this hold nothing after ``bound``."""
    return max(BEGINNING, bound - tables.retention.slot + 1)


def retention_bound(tables: MessageTables, view: StateView, added: pa.Table, newest: int | None) -> int | None:
    """The position up to which retention forgets, once ``added`` (see `tally`) is in. None: nothing."""
    bounds = [_time_bound(tables, view, added, newest), _size_bound(tables, view, added)]
    known = [bound for bound in bounds if bound is not None]
    return max(BEGINNING, *known) if known else None


def _time_bound(tables: MessageTables, view: StateView, added: pa.Table, newest: int | None) -> int | None:
    if tables.retention.time is None or newest is None:
        return None
    oldest = newest - tables.retention.time
    if tables.layout.by_time:
        # Whole slots where slots are counted: what is counted then does not depend on how the input was split.
        return (oldest // tables.retention.slot * tables.retention.slot if tables.counts_sizes else oldest) - 1
    return _before_young(tables, view, added, oldest)


def _before_young(tables: MessageTables, view: StateView, added: pa.Table, oldest: int) -> int | None:
    """By offset: the last slot before the first that holds a message at least as young as ``oldest``.

    The scan stops there, and what lies before it is forgotten now: no scan passes it again.
    """
    slots = added.select(["slot", "newest"])
    for part in view[tables.sizes.name].scan():
        slots = pa.concat_tables([slots, part.select(["slot", "newest"])])
        if pc.any(pc.greater_equal(part["newest"], oldest)).as_py():
            break
    place, young = positions(slots["slot"]), np.asarray(pc.greater_equal(slots["newest"], oldest))
    before = place[place < place[young].min()] if young.any() else place[:0]
    return int(before.max()) + tables.retention.slot - 1 if len(before) else None


def _size_bound(tables: MessageTables, view: StateView, added: pa.Table) -> int | None:
    """The position before the slot at which, from the newest on, a limit by size is reached."""
    if not tables.retention.by_size:
        return None
    before = np.zeros(2, np.int64)
    upper = None
    for part in view[tables.sizes.name].scan(reverse=True):
        lower = int(positions(part["slot"])[-1])
        slots = _newest_first(tables, pa.concat_tables([part, _from(added, lower, upper)]))
        if (bound := _full_at(tables, slots, before)) is not None:
            return bound
        before = before + np.array([slots[name].to_numpy().sum() for name in ("count", "bytes")])
        upper = lower
    return _full_at(tables, _newest_first(tables, _from(added, BEGINNING, upper)), before)


def _from(added: pa.Table, lower: int, upper: int | None) -> pa.Table:
    """Slots of ``added`` from ``lower`` to before ``upper``."""
    place = positions(added["slot"])
    return added.filter(pa.array((place >= lower) & ((place < upper) if upper is not None else True)))


def _newest_first(tables: MessageTables, rows: pa.Table) -> pa.Table:
    return combine(tables.sizes, rows).sort_by([("slot", "descending")])


def _full_at(tables: MessageTables, slots: pa.Table, before: npt.NDArray[np.int64]) -> int | None:
    """The position before the slot at which a limit is reached, after ``before`` messages and bytes."""
    full = np.zeros(slots.num_rows, bool)
    limits = (tables.retention.count, tables.retention.bytes)
    for name, limit, start in zip(("count", "bytes"), limits, before.tolist(), strict=True):
        if limit is not None:
            full |= start + np.cumsum(slots[name].to_numpy()) >= limit
    reached = np.flatnonzero(full)
    return int(positions(slots["slot"])[reached[0]]) - 1 if len(reached) else None
