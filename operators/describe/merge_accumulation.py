"""An accumulation of your own over two streams: a lift for each side, into one state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.aggregates.aggregate import Aggregate
from tidestate.operators.aggregates.custom import Lift, MergeFunction, ResultFunction, accumulate
from tidestate.operators.describe.sides import LEFT, RIGHT, SIDE
from tidestate.statestore.arguments import checked
from tidestate.statestore.errors import UsageError


@checked
def merge_accumulate(
    *,
    name: str,
    left: Sequence[str],
    right: Sequence[str],
    state: Mapping[str, pa.DataType],
    lift_left: Lift,
    lift_right: Lift,
    merge: MergeFunction,
    result: ResultFunction,
    result_type: pa.DataType,
    version: int = 1,
) -> Aggregate:
    """As `accumulate`, for two merged streams: each side has a lift of its own.

    ``left`` and ``right`` name the columns that ``lift_left`` and ``lift_right`` get, as the merged stream names them
    (``left_price``). Both return the ``state`` columns, one row per row.
    """
    if isinstance(left, str) or isinstance(right, str) or not left or not right:
        raise UsageError("each lift reads a list of columns", code="aggregate-option", name=name)
    fields = tuple((column, kind) for column, kind in state.items())
    lift = _BySide(name, fields, ((LEFT, tuple(left), lift_left), (RIGHT, tuple(right), lift_right)))
    return accumulate(
        name=name,
        columns=list(dict.fromkeys([SIDE, *left, *right])),
        state=state,
        lift=lift,
        merge=merge,
        result=result,
        result_type=result_type,
        version=version,
    )


@dataclass(frozen=True)
class _BySide:
    """Rows of both sides as state, in their order."""

    name: str
    state: tuple[tuple[str, pa.DataType], ...]
    lifts: tuple[tuple[str, tuple[str, ...], Lift], ...]

    def __call__(self, events: pa.Table) -> pa.Table:
        parts, places = [pa.schema(self.state).empty_table()], []
        for side, columns, lift in self.lifts:
            rows = np.flatnonzero(np.asarray(pc.equal(events[SIDE], side)))
            if len(rows):
                given = events.select(columns).take(pa.array(rows))
                parts.append(self._checked(side, lift(given), len(rows)))
                places.append(rows)
        order = np.argsort(np.concatenate([np.zeros(0, np.int64), *places]), kind="stable")
        return pa.concat_tables(parts).take(pa.array(order))

    def _checked(self, side: str, found: Any, rows: int) -> pa.Table:
        """What a lift returned. Raises `UsageError` where it is no state."""
        wanted, facts = pa.schema(self.state), {"accumulation": self.name, "step": f"lift_{side}"}
        if not isinstance(found, pa.Table) or found.num_rows != rows or set(wanted.names) - set(found.column_names):
            raise UsageError(
                "a lift returns an Arrow table of the state's columns, as many rows as it was given",
                code="own-function",
                expected=f"{rows} rows of {', '.join(wanted.names)}",
                found=repr(type(found)),
                **facts,
            )
        try:
            return found.select(wanted.names).cast(wanted)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
            raise UsageError(
                f"the state has other types than declared ({error})", code="own-function", **facts
            ) from None
