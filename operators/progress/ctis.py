"""Advance-time settings applied to the rows of several sources: which go on, which are refused, the CTI of each.
Pure.

The rows of each source are processed in the order (origin, offset), by `progress.advance_time`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

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
    AdvanceTime,
    Lifetimes,
    advance,
    effective_settings,
    finish,
    lifetimes,
)
from tidestate.operators.progress.instants import BEGINNING_US
from tidestate.operators.progress.sources import SourceRows
from tidestate.statestore.arrays import Counters, Flags, Times
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.tables import TIME

States = Mapping[str, Advance]
Settings = AdvanceTime | Mapping[str, AdvanceTime] | None
"""As a user gives them: for all sources, or by name."""
StoredSettings = dict[str, AdvanceTime] | None
"""By name of the source; under the empty name for all."""
ENQUEUED = AdvanceTime("drop")
"""Settings of a source that has none: its CTIs are rows."""


@dataclass(frozen=True)
class CtiReading:
    """The rows of a piece: ``events`` go on, ``refused`` do not, for these ``reasons``. ``states`` has the sources
    with rows.
    """

    events: pa.Table
    refused: pa.Table
    reasons: pa.Array
    states: dict[str, Advance]
    counters: Counters


class Ctis(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="ctis"):
    """The watermark of each source is its most recent CTI.

    ``start``, ``end`` and ``shape_column`` are columns of the input, ``order`` those that order its rows. Settings
    are for all sources, or by source; those at the query replace those at the source.
    """

    at_query: StoredSettings
    at_source: StoredSettings
    start: str
    order: tuple[str, ...]
    end: str | None = None
    shape: str = "point"
    shape_column: str | None = None
    filters_rows: ClassVar[bool] = True

    @property
    def waits(self) -> bool:
        """Whether sources wait for each other."""
        return bool(self.imports)

    def settings_of(self, source: str) -> AdvanceTime:
        """The effective settings of a source. Raises `UsageError` if those at the source import."""
        return effective_settings(_chosen(self.at_source, source), _chosen(self.at_query, source)) or ENQUEUED

    @property
    def columns(self) -> list[str]:
        """The input columns that are read."""
        return [name for name in (self.start, self.end, self.shape_column, *self.order) if name]

    @property
    def imports(self) -> list[str]:
        """The sources whose CTIs others import."""
        named = [*(self.at_query or {}).values(), *(self.at_source or {}).values()]
        return sorted({one.import_from for one in named if one.import_from is not None})

    def check(self, names: Iterable[str]) -> None:
        """Raises `UsageError` for settings without effect, or that import from a source that is not declared."""
        declared = set(names)
        still = sorted(name for name in declared or {""} if self.settings_of(name) is ENQUEUED)
        if still and self.shape_column is None:
            raise UsageError(
                "nothing would advance the time of a source: give it settings, or rows of shape cti (shape_column=)",
                code="advance-time",
                sources=still,
            )
        own = {*(self.at_query or {}), *(self.at_source or {})} - {""}
        if strange := sorted((own | set(self.imports)) - declared):
            raise UsageError(
                "settings are for declared sources, and import from them: sources=[...]",
                code="advance-time",
                not_declared=strange,
            )

    def apply(self, events: pa.Table, parts: SourceRows, states: States, began: States) -> CtiReading:
        """Apply the settings to rows in order. ``states``: of the sources so far; ``began``: at the start of the
        batch.
        """
        lives = lifetimes(events, self.start, self.end, self.shape, self.shape_column)
        after: dict[str, Advance] = {}
        reasons = np.zeros(events.num_rows, np.int8)
        kept, adjusted = np.zeros(events.num_rows, bool), np.zeros(events.num_rows, bool)
        starts = lives.starts.copy()
        for name, rows in _each(parts):
            advanced = self._advance(name, lives, rows, states, began)
            after[name] = advanced.state
            kept[rows], adjusted[rows], reasons[rows] = advanced.kept, advanced.adjusted, advanced.reasons
            starts[rows] = advanced.starts
        ends = kept & (lives.shapes == EDGE_END)
        refused = events.filter(pa.array(reasons > 0))
        why = pa.array(np.array(ADVANCE_REASONS)[reasons[reasons > 0]].tolist(), pa.string())
        counted = {
            "cti_adjusted": adjusted & ~ends,
            "edge_ends": ends,
            "control_rows": (lives.shapes == CTI) & (reasons == 0),
        }
        counters = {name: many for name, mask in counted.items() if (many := int(np.count_nonzero(mask)))}
        return CtiReading(self._going(events, kept & ~ends, starts), refused, why, after, counters)

    def _advance(
        self, name: str, lives: Lifetimes, rows: npt.NDArray[np.int64], states: States, began: States
    ) -> Advanced:
        settings = self.settings_of(name)
        of_source = Lifetimes(*(getattr(lives, column)[rows] for column in _COLUMNS))
        return advance(settings, states.get(name, Advance()), of_source, _imported(settings, name, began))

    def _going(self, events: pa.Table, kept: Flags, starts: Times) -> pa.Table:
        """The kept events with their adjusted starts."""
        place = events.schema.get_field_index(self.start)
        going = events.filter(pa.array(kept))
        return going.set_column(place, events.schema.field(place), pa.array(starts[kept]).cast(TIME))

    def after(self, began: States, claimed: Iterable[States], names: Iterable[str]) -> dict[str, Advance]:
        """All states after a batch or tick: ``claimed`` by its pieces, in order, then imported."""
        after = dict.fromkeys(names, Advance()) | dict(began)
        for states in claimed:
            after |= states
        return {name: self._import(name, state, began) for name, state in after.items()}

    def _import(self, name: str, state: Advance, began: States) -> Advance:
        imported = _imported(self.settings_of(name), name, began)
        if imported <= state.cti_us:
            return state
        return msgspec.structs.replace(state, cti_us=imported, ctis=state.ctis + 1)

    def finished(self, states: States) -> dict[str, Advance]:
        """The states at the end of the input: with a final CTI, if the settings have one."""
        return {name: finish(self.settings_of(name), state) for name, state in states.items()}


_COLUMNS = ("shapes", "starts", "ends", "no_start", "no_end")


def settings_by_source(given: Settings) -> StoredSettings:
    """Settings as they are stored."""
    return {"": given} if isinstance(given, AdvanceTime) else given if given is None else dict(sorted(given.items()))


def _chosen(settings: StoredSettings, source: str) -> AdvanceTime | None:
    return (settings or {}).get(source, (settings or {}).get(""))


def _imported(settings: AdvanceTime, name: str, began: States) -> int:
    """The CTI of the imported stream at the start of the batch. A source never imports from itself."""
    source = settings.import_from
    return BEGINNING_US if source is None or source == name or source not in began else began[source].cti_us


def _each(parts: SourceRows) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
    """Each source that has rows, with their indices in order."""
    order = np.argsort(parts.codes, kind="stable")
    ends = np.cumsum(np.bincount(parts.codes, minlength=len(parts.names))).tolist()
    for name, first, last in zip(parts.names, [0, *ends], ends, strict=False):
        if first < last:
            yield name, order[first:last]
