"""An accumulation of your own, of one stream or of several: a lift for each side, into one state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.aggregates.aggregate import Aggregate
from tidestate.operators.aggregates.custom import (
    Accumulate,
    Functions,
    Lift,
    MergeFunction,
    ResultFunction,
    checked_state,
    declared_type,
    result_type_of,
    without_nulls,
)
from tidestate.operators.aggregates.of_rows import RowCondition, fields_of_rows
from tidestate.operators.describe.sides import SIDE
from tidestate.statestore.arguments import checked
from tidestate.statestore.errors import UsageError

_State = tuple[tuple[str, pa.DataType], ...]


@partial(checked, name="accumulate")
def accumulation(
    *,
    name: str,
    columns: Sequence[str] | Mapping[str, Sequence[str]],
    state: Mapping[str, pa.DataType],
    lift: Lift | Mapping[str, Lift],
    merge: MergeFunction,
    result: ResultFunction,
    result_type: pa.DataType,
    version: int = 1,
    where: RowCondition = None,
) -> Aggregate:
    """An aggregate of your own: three functions of Arrow tables, with a state declared in Arrow types.

    ``lift`` gets the input ``columns`` and returns the ``state`` columns, a row for each event; events with a null in
    one of the columns are left out, as by every aggregate. ``merge`` gets two tables of state with equal row counts,
    the older and the newer part of each window, and returns a row for each pair. It must be associative; it need not
    be commutative. ``result`` gets a table of state, a row for each window, and returns an array of ``result_type``.
    State may have nulls; but a row with only nulls means an empty state, and no function gets it.

    Of merged streams, ``columns`` and ``lift`` may be mappings by side: each lift gets the rows of its side, with
    columns as the merged stream names them (``left_price``). All return the same ``state``.

    ``name`` and ``version`` identify the functions: change the version when they compute something else. Another
    process that reads the state must import the module that calls this, see `register_combiner`.
    """
    keeps = tuple((column, declared_type(kind)) for column, kind in state.items())
    if not keeps or not columns:
        raise UsageError(
            "an accumulation needs at least one column to read and one column of state",
            code="aggregate-option",
            name=name,
        )
    if isinstance(columns, Mapping) and isinstance(lift, Mapping):
        columns, lift = _by_side(name, columns, keeps, lift)
    if isinstance(columns, Mapping) or isinstance(lift, Mapping):
        raise UsageError(
            "give both columns and lift for one stream, or both by side", code="aggregate-option", name=name
        )
    return Accumulate(
        function="accumulate",
        name=name,
        version=version,
        reads=tuple(columns),
        keeps=keeps,
        result_type=result_type_of(result_type),
        functions=Functions(lift=lift, merge=merge, result=result),
        **fields_of_rows(None, where),
    )


def _by_side(
    name: str, columns: Mapping[str, Sequence[str]], state: _State, lifts: Mapping[str, Lift]
) -> tuple[list[str], _BySide]:
    """The columns and the lift of all sides together. Raises `UsageError` for a side that has one of both alone, and
    for columns that are no list.
    """
    if any(isinstance(names, str) or not names for names in columns.values()) or columns.keys() != lifts.keys():
        raise UsageError(
            "each side needs a lift and a list of the columns that it reads",
            code="aggregate-option",
            name=name,
            sides=[*lifts],
        )
    by_side = tuple((side, tuple(columns[side]), lift) for side, lift in lifts.items())
    names = dict.fromkeys([SIDE, *(column for _, names, _ in by_side for column in names)])
    return list(names), _BySide(name, state, by_side)


@dataclass(frozen=True)
class _BySide:
    """Rows of both sides as state, in their order."""

    name: str
    state: _State
    lifts: tuple[tuple[str, tuple[str, ...], Lift], ...]

    takes_nulls: ClassVar[bool] = True
    """A row has the columns of its own side alone."""

    def __call__(self, events: pa.Table) -> pa.Table:
        parts, places = [pa.schema(self.state).empty_table()], np.full(events.num_rows, -1, np.int64)
        lifted = 0
        for side, columns, lift in self.lifts:
            of_side = pc.equal(events[SIDE], side)
            rows, valid = without_nulls(events.select([SIDE, *columns]).filter(of_side))
            if rows.num_rows:
                result, facts = lift(rows.select(columns)), {"accumulation": self.name, "step": f"lift_{side}"}
                parts.append(checked_state(result, rows.num_rows, self.state, **facts))
                places[np.flatnonzero(np.asarray(of_side))[valid]] = lifted + np.arange(rows.num_rows)
                lifted += rows.num_rows
        # Back into the order of the events; rows of no lift, or with nulls, have no state.
        return pa.concat_tables(parts).take(pa.array(places, mask=places < 0))
