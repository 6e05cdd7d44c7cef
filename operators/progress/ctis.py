"""Advance-time settings applied to the rows of several sources: which go on, which are refused, the CTI of each.
Pure.

The rows of each source are processed in the order (origin, offset), by `progress.advance_time`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidestate.operators.progress.advance_time import (
    ADVANCE_REASONS,
    CTI,
    EDGE_END,
    Advance,
    Advanced,
    Lifetimes,
    advance,
    finish,
    lifetimes,
)
from tidestate.operators.progress.cti_settings import AdvanceTime, Ctis
from tidestate.operators.progress.instants import BEGINNING_US
from tidestate.operators.progress.sources import SourceRows
from tidestate.statestore.arrays import Counters, Flags, Times
from tidestate.statestore.spec.tables import TIME

States = Mapping[str, Advance]


@dataclass(frozen=True)
class CtiReading:
    """The rows of a piece: ``events`` go on, ``refused`` do not, for these ``reasons``, nor do ``ends`` of edges.
    ``states`` has the sources with rows.
    """

    events: pa.Table
    refused: pa.Table
    reasons: pa.Array
    ends: pa.Table
    states: dict[str, Advance]
    counters: Counters


@dataclass(frozen=True)
class CtiRounds:
    """How rounds advance the CTIs of all sources, with these settings."""

    settings: Ctis

    def apply(self, events: pa.Table, parts: SourceRows, states: States, began: States) -> CtiReading:
        """Apply the settings to rows in order. ``states``: of the sources so far; ``began``: at the start of the
        batch.
        """
        lives = self._lifetimes(events, parts)
        after: dict[str, Advance] = {}
        reasons = np.zeros(events.num_rows, np.int8)
        kept, adjusted = np.zeros(events.num_rows, bool), np.zeros(events.num_rows, bool)
        starts = lives.starts.copy()
        for name, rows in _each(parts):
            if name in self.settings.followed:
                kept[rows] = True
                continue
            advanced = self._advance(name, lives, rows, states, began)
            after[name] = advanced.state
            kept[rows], adjusted[rows], reasons[rows] = advanced.kept, advanced.adjusted, advanced.reasons
            starts[rows] = advanced.starts
        ends = kept & (lives.shapes == EDGE_END)
        if self.settings.keeps_ends:
            starts[ends] = lives.ends[ends]
        refused = events.filter(pa.array(reasons > 0))
        why = pa.array(np.array(ADVANCE_REASONS)[reasons[reasons > 0]].tolist(), pa.string())
        counted = {
            "cti_adjusted": adjusted & ~ends,
            "edge_ends": ends,
            "control_rows": (lives.shapes == CTI) & (reasons == 0),
        }
        counters = {name: many for name, mask in counted.items() if (many := int(np.count_nonzero(mask)))}
        going = kept if self.settings.keeps_ends else kept & ~ends
        taken = events.filter(pa.array(kept & ~going))
        return CtiReading(self._going(events, going, starts, lives.no_start), refused, why, taken, after, counters)

    def _lifetimes(self, events: pa.Table, parts: SourceRows) -> Lifetimes:
        """The lifetimes of all rows, by the columns of their source."""
        if not self.settings.sides:
            one = self.settings
            return lifetimes(events, one.start, one.end, one.shape, one.shape_column)
        kinds = (np.int8, np.int64, np.int64, bool, bool)
        whole = Lifetimes(*(np.zeros(events.num_rows, kind) for kind in kinds))
        for name, rows in _each(parts):
            own = self.settings.columns_of(name)
            some = lifetimes(events.take(pa.array(rows)), self.settings.start, own.end, own.shape, own.shape_column)
            for column in _COLUMNS:
                getattr(whole, column)[rows] = getattr(some, column)
        return whole

    def _advance(
        self, name: str, lives: Lifetimes, rows: npt.NDArray[np.int64], states: States, began: States
    ) -> Advanced:
        settings = self.settings.settings_of(name)
        of_source = Lifetimes(*(getattr(lives, column)[rows] for column in _COLUMNS))
        return advance(settings, states.get(name, Advance()), of_source, _imported(settings, name, began))

    def _going(self, events: pa.Table, kept: Flags, starts: Times, no_start: Flags) -> pa.Table:
        """The kept events with their adjusted starts."""
        place = events.schema.get_field_index(self.settings.start)
        going = events.filter(pa.array(kept))
        return going.set_column(
            place, events.schema.field(place), pa.array(starts[kept], mask=no_start[kept]).cast(TIME)
        )

    def after(
        self, began: States, claimed: Iterable[States], names: Iterable[str], upstream: Mapping[str, int]
    ) -> dict[str, Advance]:
        """All states after a batch or tick: ``claimed`` by its pieces, in order, or the watermarks ``upstream`` of
        operators; then imported from each other.
        """
        after = dict.fromkeys(names, Advance()) | dict(began)
        for states in claimed:
            after |= states
        for name in self.settings.followed:
            newest = max(after[name].cti_us, upstream.get(name, BEGINNING_US))
            after[name] = msgspec.structs.replace(after[name], cti_us=newest)
        for name in self.settings.in_import_order(after):
            if name in after:
                after[name] = self._import(name, after[name], after)
        return after

    def _import(self, name: str, state: Advance, states: States) -> Advance:
        imported = _imported(self.settings.settings_of(name), name, states)
        if imported <= state.cti_us:
            return state
        return msgspec.structs.replace(state, cti_us=imported, ctis=state.ctis + 1)

    def finished(self, states: States) -> dict[str, Advance]:
        """The states at the end of the input: with a final CTI, if the settings have one."""
        return {name: finish(self.settings.settings_of(name), state) for name, state in states.items()}


_COLUMNS = ("shapes", "starts", "ends", "no_start", "no_end")


def _imported(settings: AdvanceTime, name: str, states: States) -> int:
    """The CTI of the imported stream. A source never imports from itself."""
    source = settings.import_from
    return BEGINNING_US if source is None or source == name or source not in states else states[source].cti_us


def _each(parts: SourceRows) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
    """Each source that has rows, with their indices in order."""
    order = np.argsort(parts.codes, kind="stable")
    ends = np.cumsum(np.bincount(parts.codes, minlength=len(parts.names))).tolist()
    for name, first, last in zip(parts.names, [0, *ends], ends, strict=False):
        if first < last:
            yield name, order[first:last]
