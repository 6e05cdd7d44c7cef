"""Advance-time settings at work on tables of several sources: what goes on, what is refused, how far each has come.

Pure. Rows are taken in the order (origin, offset), each source by itself; `progress.advance_time` decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

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
ENQUEUED = AdvanceTime("drop")
"""Of a source without settings: CTIs are rows of its own."""


@dataclass(frozen=True)
class Acted:
    """What the source made of its rows: ``events`` to go on with, ``refused`` ones with the reason of each.

    ``states``: of the sources that had rows.
    """

    events: pa.Table
    refused: pa.Table
    reasons: pa.Array
    states: dict[str, Advance]
    counters: Counters


@dataclass(frozen=True)
class Ctis:
    """Each source's watermark is its most recent CTI.

    ``start``, ``end`` and ``shape_column`` are columns of the input, ``order`` those by which its rows count.
    Settings are for all sources, or by their names; those at the query replace those at the source.
    """

    at_query: Settings
    at_source: Settings
    start: str
    order: tuple[str, ...]
    end: str | None = None
    shape: str = "point"
    shape_column: str | None = None
    acts_first: ClassVar[bool] = True

    @property
    def waits(self) -> bool:
        """Whether sources wait for each other."""
        return bool(self.imports)

    def settings_of(self, source: str) -> AdvanceTime:
        """Those in force for a source. Raises `UsageError` where a source wants to import."""
        return effective_settings(_chosen(self.at_source, source), _chosen(self.at_query, source)) or ENQUEUED

    @property
    def columns(self) -> list[str]:
        """The input columns that are read."""
        return [name for name in (self.start, self.end, self.shape_column, *self.order) if name]

    @property
    def imports(self) -> list[str]:
        """The sources whose CTIs others import."""
        each = [one for one in (self.at_query, self.at_source) if one is not None]
        named = [one for some in each for one in ([some] if isinstance(some, AdvanceTime) else some.values())]
        return sorted({one.import_from for one in named if one.import_from is not None})

    def check(self, names: Iterable[str]) -> None:
        """Raises `UsageError` for settings that cannot be in force, or import from no declared source."""
        known = set(names)
        still = sorted(name for name in known or {""} if self.settings_of(name) is ENQUEUED)
        if still and self.shape_column is None:
            raise UsageError(
                "nothing would move the time of a source: give it settings, or rows of shape cti (shape_column=)",
                code="advance-time",
                sources=still,
            )
        own = [one for one in (self.at_query, self.at_source) if isinstance(one, Mapping)]
        if strange := sorted(({name for one in own for name in one} | set(self.imports)) - known):
            raise UsageError(
                "settings are of declared sources, and import from them: sources=[...]",
                code="advance-time",
                not_declared=strange,
            )

    def act(self, events: pa.Table, parts: SourceRows, states: States, began: States) -> Acted:
        """Take rows in order. ``states``: of the sources so far; ``began``: at the start of the batch."""
        lives = lifetimes(events, self.start, self.end, self.shape, self.shape_column)
        after: dict[str, Advance] = {}
        reasons = np.zeros(events.num_rows, np.int8)
        kept, adjusted = np.zeros(events.num_rows, bool), np.zeros(events.num_rows, bool)
        starts = lives.starts.copy()
        for name, rows in _each(parts):
            found = self._advance(name, lives, rows, states, began)
            after[name] = found.state
            kept[rows], adjusted[rows], reasons[rows] = found.kept, found.adjusted, found.reasons
            starts[rows] = found.starts
        ends = kept & (lives.shapes == EDGE_END)
        refused = events.filter(pa.array(reasons > 0))
        why = pa.array(np.array(ADVANCE_REASONS)[reasons[reasons > 0]].tolist(), pa.string())
        counted = {
            "cti_adjusted": adjusted & ~ends,
            "edge_ends": ends,
            "control_rows": (lives.shapes == CTI) & (reasons == 0),
        }
        counters = {name: many for name, mask in counted.items() if (many := int(np.count_nonzero(mask)))}
        return Acted(self._going(events, kept & ~ends, starts), refused, why, after, counters)

    def _advance(
        self, name: str, lives: Lifetimes, rows: npt.NDArray[np.int64], states: States, began: States
    ) -> Advanced:
        settings = self.settings_of(name)
        own = Lifetimes(*(getattr(lives, column)[rows] for column in _COLUMNS))
        return advance(settings, states.get(name, Advance()), own, _imported(settings, name, began))

    def _going(self, events: pa.Table, kept: Flags, starts: Times) -> pa.Table:
        """Events that go on, with the starts they have now."""
        place = events.schema.get_field_index(self.start)
        going = events.filter(pa.array(kept))
        return going.set_column(place, events.schema.field(place), pa.array(starts[kept]).cast(TIME))

    def after(self, began: States, claimed: Iterable[States], names: Iterable[str]) -> dict[str, Advance]:
        """All states after a batch or tick: what its pieces came to, the later ones last, and what is imported."""
        found = dict.fromkeys(names, Advance()) | dict(began)
        for states in claimed:
            found |= states
        return {name: self._import(name, state, began) for name, state in found.items()}

    def _import(self, name: str, state: Advance, began: States) -> Advance:
        imported = _imported(self.settings_of(name), name, began)
        if imported <= state.cti_us:
            return state
        return msgspec.structs.replace(state, cti_us=imported, ctis=state.ctis + 1)

    def finished(self, states: States) -> dict[str, Advance]:
        """With the final CTI of those that give one."""
        return {name: finish(self.settings_of(name), state) for name, state in states.items()}

    def describe(self) -> dict[str, Any]:
        """For the manifest."""
        return {
            "kind": "advance_time",
            "at_query": _described(self.at_query),
            "at_source": _described(self.at_source),
            "start": self.start,
            "end": self.end,
            "shape": self.shape,
            "shape_column": self.shape_column,
        }


_COLUMNS = ("shapes", "starts", "ends", "no_start", "no_end")


def _chosen(settings: Settings, source: str) -> AdvanceTime | None:
    return settings.get(source) if isinstance(settings, Mapping) else settings


def _described(settings: Settings) -> dict[str, Any] | None:
    if isinstance(settings, Mapping):
        return {name: one.describe() for name, one in sorted(settings.items())}
    return settings.describe() if settings is not None else None


def _imported(settings: AdvanceTime, name: str, began: States) -> int:
    """The CTI of the stream imported from, at the start of the batch; nothing imports from itself."""
    source = settings.import_from
    return BEGINNING_US if source is None or source == name or source not in began else began[source].cti_us


def _each(parts: SourceRows) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
    """Of each source with rows which those are, in order."""
    order = np.argsort(parts.codes, kind="stable")
    ends = np.cumsum(np.bincount(parts.codes, minlength=len(parts.names))).tolist()
    for name, first, last in zip(parts.names, [0, *ends], ends, strict=False):
        if first < last:
            yield name, order[first:last]
