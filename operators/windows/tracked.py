"""The first and last offset of a window's messages, as columns of its state next to those of aggregates. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.aggregates.aggregate import singles
from tidestate.operators.windows.offsets import nested_offsets, offsets_type
from tidestate.statestore.arrays import Numbers, Values
from tidestate.statestore.spec.arrowtypes import type_text
from tidestate.statestore.spec.lists import flat, lengths_of, whole
from tidestate.statestore.spec.tables import Column, Group

TOLD, FIRST, LAST, OF_ORIGIN = "_offset_count", "_offset_first", "_offset_last", "_offset_origins"
"""How many messages of the window the others know of; the offsets, and the origins that they are of."""
RANGES = "ranges"


@dataclass(frozen=True)
class TrackedOffsets:
    """Which columns of the input have them. Without an origin a window has one range, else one for each origin."""

    offset: str
    origin: str | None
    origin_type: pa.DataType

    @property
    def state(self) -> tuple[Column, ...]:
        """The columns of a window's state."""
        told = Column(TOLD, "int64", "", "sum")
        if self.origin is None:
            return (told, Column(FIRST, "int64", "", "min"), Column(LAST, "int64", "", "max"))
        lists = (self.origin_type, pa.int64(), pa.int64())
        names = (OF_ORIGIN, FIRST, LAST)
        return (told, *(Column(name, type_text(pa.list_(kind))) for name, kind in zip(names, lists, strict=True)))

    @property
    def groups(self) -> tuple[Group, ...]:
        """The columns that are combined together."""
        return () if self.origin is None else (Group((OF_ORIGIN, FIRST, LAST), RANGES),)

    @property
    def result_type(self) -> pa.DataType:
        """A list of (origin, start_offset, last_offset); the origin is null where none is named."""
        return offsets_type(self.origin_type)

    def lift(self, events: pa.Table) -> list[Values]:
        """The state of each event alone."""
        told, offsets = pa.array(np.ones(events.num_rows, np.int64)), events[self.offset].cast(pa.int64())
        if self.origin is None:
            return [told, offsets, offsets]
        origins = events[self.origin]
        every = pa.array(np.ones(events.num_rows, bool))
        numbers = singles(offsets, every)
        return [told, singles(origins, every), numbers, numbers]

    def of_window(self, events: int, origins: pa.Array, firsts: pa.Array, lasts: pa.Array) -> dict[str, pa.Array]:
        """The state of a window with so many messages, of these origins, each once, with these offsets: a column of
        one row for each of `state`.
        """
        told = {TOLD: pa.array([events], pa.int64())}
        if self.origin is None:
            return told | {FIRST: firsts, LAST: lasts}
        by_origin = pc.sort_indices(origins)
        lists = {OF_ORIGIN: origins, FIRST: firsts, LAST: lasts}
        return told | {
            name: pa.array([column.take(by_origin).to_pylist()], pa.list_(column.type))
            for name, column in lists.items()
        }

    def finish(self, state: pa.Table, counts: Sequence[int] | Numbers) -> pa.Array:
        """The offsets of windows with so many messages; null where some came before offsets were stored."""
        complete = np.asarray(pc.fill_null(state[TOLD], 0)) == np.asarray(counts)
        if self.origin is None:
            lengths = complete.astype(np.int64)
            firsts, lasts = (state[name].filter(pa.array(complete)) for name in (FIRST, LAST))
            origins = pa.chunked_array([pa.nulls(int(complete.sum()))])
        else:
            told = state.filter(pa.array(complete))
            flattened = (pa.chunked_array([flat(told[name])[0]]) for name in (OF_ORIGIN, FIRST, LAST))
            origins, firsts, lasts = flattened
            lengths = np.zeros(len(complete), np.int64)
            lengths[complete] = lengths_of(whole(told[OF_ORIGIN]))
        ranges = nested_offsets(origins, firsts, lasts, lengths)
        return ranges if complete.all() else pc.if_else(pa.array(complete), ranges, pa.scalar(None, ranges.type))
