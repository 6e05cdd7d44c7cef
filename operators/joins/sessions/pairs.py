"""Rows of two sides in the same groups: all with all, or alone. Pure and vectorised."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.sides import LEFT, RIGHT
from tidestate.operators.joins.batch import kept_value
from tidestate.operators.joins.sessions.names import END, START
from tidestate.operators.joins.sessions.tables import SessionJoinTables
from tidestate.operators.plan.transition import KINDS, constant
from tidestate.operators.windows.general.names import NO_KEY
from tidestate.statestore.arrays import Numbers
from tidestate.statestore.spec.lists import places_within
from tidestate.statestore.spec.tables import TIME


@dataclass(frozen=True)
class SessionRows:
    """Some ``rows`` of a side, by their ``places``, and the number of the window of each (``of``).

    ``match``: the same number for rows, of either side, that pair up.
    """

    rows: pa.Table
    places: Numbers
    of: Numbers
    match: Numbers

    def within(self, other: SessionRows) -> SessionRows:
        """Those that pair up with rows of the other side."""
        return self._where(np.isin(self.match, other.match))

    def without(self, other: SessionRows) -> SessionRows:
        """Those that have none to pair up with."""
        return self._where(~np.isin(self.match, other.match))

    def _where(self, where: npt.NDArray[np.bool_]) -> SessionRows:
        return SessionRows(self.rows, self.places[where], self.of[where], self.match[where])


@dataclass(frozen=True)
class PaneRows:
    """Rows of panes: pairs, or rows without a partner."""

    rows: pa.Table
    paired: bool


def session_pairs(
    plan: SessionJoinTables, windows: pa.Table, left: SessionRows, right: SessionRows, kind: str
) -> PaneRows:
    """Every left row with every right row that it matches, by left row."""
    by_match = np.argsort(right.match, kind="stable")
    there = right.match[by_match]
    first = np.searchsorted(there, left.match, "left")
    counts = np.searchsorted(there, left.match, "right") - first
    lefts = np.repeat(np.arange(len(left.of)), counts)
    rights = by_match[np.repeat(first, counts) + places_within(counts)]
    sides = {
        LEFT: left.rows.take(pa.array(left.places[lefts])),
        RIGHT: right.rows.take(pa.array(right.places[rights])),
    }
    return PaneRows(_panes(plan, windows, left.of[lefts], sides, kind), True)


def unmatched_rows(
    plan: SessionJoinTables, windows: pa.Table, own: SessionRows, other: SessionRows | None, side: str, kind: str
) -> PaneRows:
    """Rows of a side that match none of the other one, where the join keeps them; ``other`` None: all of them."""
    if not plan.keeps(side):
        return PaneRows(plan.pane_schema.empty_table(), False)
    lonely = own if other is None else own.without(other)
    rows = {side: own.rows.take(pa.array(lonely.places))}
    return PaneRows(_panes(plan, windows, lonely.of, rows, kind), False)


def _panes(
    plan: SessionJoinTables, windows: pa.Table, of: Numbers, sides: dict[str, pa.Table], kind: str
) -> pa.Table:
    """Rows of the panes; a side that is not there is null."""
    keyed = windows.take(pa.array(of))
    payload = [
        kept_value(plan.given, side, sides[side], field) if side in sides else pa.nulls(len(of), field.type)
        for side in plan.joined.sides.names
        for field in plan.payload(side)
    ]
    last = pc.subtract(keyed[END], 1).cast(TIME)
    bounds = [keyed[START].cast(TIME), keyed[END].cast(TIME), last]
    first = next(iter(sides.values()))
    keys = [keyed[name] for name in plan.group_keys if name != NO_KEY]
    equal = [first[column.name] for column in plan.equal]
    columns = [*keys, *equal, *bounds, *payload, constant(len(of), kind, KINDS)]
    return pa.table(columns, schema=plan.pane_schema)
