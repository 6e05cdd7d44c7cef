"""The event time of a pane, for operators that read panes as events: the end of its window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from tidestate.operators.aggregates.aggregate import Aggregate, BoundAggregate
from tidestate.statestore.arrays import Values
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.tables import TIME, Column


class EndOfWindow(Aggregate, frozen=True, tag="end_of_window"):
    """The last instant of the window: its end minus a microsecond."""

    function: Literal["end_of_window"] = "end_of_window"

    def bind(self, name: str, schema: pa.Schema, event_time: str) -> BoundAggregate:
        return BoundEndOfWindow(name, self, pa.null())


@dataclass(frozen=True)
class BoundEndOfWindow(BoundAggregate):
    """No state: the result is computed from the window's end."""

    @property
    def state(self) -> tuple[Column, ...]:
        return ()

    @property
    def result_type(self) -> pa.DataType:
        return TIME

    def lift(self, events: pa.Table) -> list[Values]:
        return []

    def finish(self, partials: pa.Table) -> Values:
        ends = partials["window_end"]
        if not pa.types.is_timestamp(ends.type):
            raise UsageError('count windows have no end in time: use "earliest" or "latest"', code="pane-timestamp")
        return pa.array(ends.cast(pa.int64()).to_numpy() - 1).cast(TIME)
