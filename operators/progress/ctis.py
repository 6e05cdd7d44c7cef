"""CTIs of several sources: which rows go on, which are refused, the newest CTI of each. Pure.

The rows of each source are processed in the order (origin, offset), by `progress.advance_time`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

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
from tidestate.operators.progress.cti_settings import (
    ENQUEUED,
    AdvanceTime,
    EventColumns,
    StoredSettings,
    effective_settings,
)
from tidestate.operators.progress.progress import (
    Claims,
    GeneratorState,
    InputReading,
    Reports,
    SourceReport,
    WatermarkGenerator,
    merged,
    parts_of,
    rows_per_source,
)
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.statestore.arrays import Flags, Times, counted_flags
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.tables import TIME

States = Mapping[str, Advance]


class Ctis(WatermarkGenerator, msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="ctis"):
    """The watermark of each source is its most recent CTI.

    ``start``, ``end`` and ``shape_column`` are columns of the input, ``order`` those that order its rows; a side of
    several has its own in ``sides``. Settings are for all sources, or by source; those at the query replace those at
    the source. ``keeps_ends``: ends of edges go on too, as rows with the time at which they end. The sides in
    ``followed`` read operators, whose watermarks are their CTIs.
    """

    at_query: StoredSettings
    at_source: StoredSettings
    start: str
    order: tuple[str, ...]
    end: str | None = None
    shape: str = "point"
    shape_column: str | None = None
    sides: dict[str, EventColumns] = {}
    keeps_ends: bool = False
    followed: tuple[str, ...] = ()

    @property
    def filters_rows(self) -> bool:
        """CTIs are no events, and what is behind one is refused or changed."""
        return True

    @property
    def orders(self) -> dict[str, Sequence[str]]:
        """The columns that order the rows of each side, where each has its own."""
        return {side: columns.order for side, columns in self.sides.items() if columns.order}

    @property
    def by_ctis(self) -> bool:
        """Always: the watermark of a source is its newest CTI."""
        return True

    @property
    def has_ctis(self) -> bool:
        """True: it is what this is."""
        return True

    @property
    def has_edges(self) -> bool:
        """Whether rows may be edges, whose ends arrive later."""
        columns = [self.columns_of(side) for side in self.sides] or [self.columns_of("")]
        return any(each.shape_column is not None or each.shape.startswith("edge") for each in columns)

    def imports_of(self, source: str) -> str | None:
        """The source whose CTIs this one takes over; None for no other."""
        return self.settings_of(source).import_from

    def settings_of(self, source: str) -> AdvanceTime:
        """The effective settings of a source. Raises `UsageError` if those at the source import."""
        return effective_settings(_chosen(self.at_source, source), _chosen(self.at_query, source)) or ENQUEUED

    @property
    def columns(self) -> list[str]:
        """The input columns that are read."""
        own = [name for columns in self.sides.values() for name in columns.names]
        named = (self.start, self.end, self.shape_column, *self.order, *own)
        return list(dict.fromkeys(name for name in named if name))

    def columns_of(self, source: str) -> EventColumns:
        """The columns of a source."""
        return self.sides.get(source) or EventColumns(self.order, self.end, self.shape, self.shape_column)

    @property
    def imports(self) -> list[str]:
        """The sources whose CTIs others import."""
        named = [*(self.at_query or {}).values(), *(self.at_source or {}).values()]
        return sorted({one.import_from for one in named if one.import_from is not None})

    def check(self, names: Iterable[str], others: Iterable[str] = ()) -> None:
        """Raises `UsageError` for settings without effect, or that import from a source that is neither declared nor
        one of ``others``, or in a circle.
        """
        declared = set(names)
        own = (declared or {""}) - set(self.followed)
        still = [name for name in own if self._still(name)]
        still = sorted(name for name in still if self.columns_of(name).shape_column is None)
        if still:
            raise UsageError(
                "nothing advances the time of this source: give it CTI settings, or rows of shape cti "
                "(shape_column=)",
                code="advance-time",
                sources=still,
            )
        own = {*(self.at_query or {}), *(self.at_source or {})} - {""}
        if strange := sorted((own | set(self.imports)) - declared - {*others}):
            raise UsageError(
                "CTI settings and import_from= can name only declared sources: add these to sources=[...]",
                code="advance-time",
                not_declared=strange,
            )
        self.in_import_order(sorted(declared))

    def _still(self, name: str) -> bool:
        """Whether the settings of a source alone never advance its time: a source imports nothing from itself."""
        settings = self.settings_of(name)
        return settings.generation is None and settings.import_from in (None, name)

    def in_import_order(self, names: Iterable[str]) -> list[str]:
        """``names`` of sources, each after the one that it imports from. Raises `UsageError` for a circle."""
        ordered: dict[str, None] = {}
        for name in names:
            path: list[str] = []
            source: str | None = name
            while source is not None and source not in ordered:
                if source in path:
                    raise UsageError(
                        "these sources import CTIs from each other: let one of them import none",
                        code="advance-time",
                        sources=path,
                    )
                path.append(source)
                imported = self.settings_of(source).import_from
                source = None if imported == source else imported  # a source never imports from itself
            ordered |= dict.fromkeys(reversed(path))
        return list(ordered)

    def before_checks(
        self, rows: pa.Table, source: str, by: str | None, now_us: int, began: GeneratorState, so_far: GeneratorState
    ) -> InputReading:
        """The rows that CTIs let pass, in order; those behind one are refused or get a later start."""
        ordered = rows.sort_by([(name, "ascending") for name in self.order])
        reading = self._apply(ordered, parts_of(ordered, source, by), so_far.advances, began.advances)
        present = rows_per_source(ordered, source=source, by=by)
        return replace(reading, claims=msgspec.structs.replace(reading.claims, reports=present))

    def combine(
        self, began: GeneratorState, claims: Sequence[Claims], known: Iterable[str], now_us: int, side: str = ""
    ) -> tuple[GeneratorState, Reports]:
        """The newest CTI of each source, its own or imported."""
        upstream = {
            name: END_US if report.ended else report.watermark_us
            for piece in claims
            for name, report in piece.reports.items()
            if name in self.followed and report.generated | report.ended
        }
        advances = self._after(began.advances, [piece.advances for piece in claims], known, upstream)
        newest = {name: SourceReport(state.cti_us, generated=True) for name, state in advances.items()}
        return GeneratorState(advances), merged([newest, *(piece.reports for piece in claims)])

    def _apply(self, events: pa.Table, parts: tuple[list[str], Times], states: States, began: States) -> InputReading:
        """Apply the settings to rows in order. ``states``: of the sources so far; ``began``: at the start of the
        batch.
        """
        lives = self._lifetimes(events, parts)
        after: dict[str, Advance] = {}
        reasons = np.zeros(events.num_rows, np.int8)
        kept, adjusted = np.zeros(events.num_rows, bool), np.zeros(events.num_rows, bool)
        starts = lives.starts.copy()
        for name, rows in _each(parts):
            if name in self.followed:
                kept[rows] = True
                continue
            advanced = self._advance(name, lives, rows, states, began)
            after[name] = advanced.state
            kept[rows], adjusted[rows], reasons[rows] = advanced.kept, advanced.adjusted, advanced.reasons
            starts[rows] = advanced.starts
        ends = kept & (lives.shapes == EDGE_END)
        if self.keeps_ends:
            starts[ends] = lives.ends[ends]
        refused = events.filter(pa.array(reasons > 0))
        why = pa.array(np.array(ADVANCE_REASONS)[reasons[reasons > 0]].tolist(), pa.string())
        control = (lives.shapes == CTI) & (reasons == 0)
        counters = counted_flags(cti_adjusted=adjusted & ~ends, edge_ends=ends, control_rows=control)
        going = kept if self.keeps_ends else kept & ~ends
        taken = events.filter(pa.array(kept & ~going))
        return InputReading(
            self._going(events, going, starts, lives.no_start),
            Claims(advances=after),
            counters,
            (refused, why),
            taken,
        )

    def _lifetimes(self, events: pa.Table, parts: tuple[list[str], Times]) -> Lifetimes:
        """The lifetimes of all rows, by the columns of their source."""
        if not self.sides:
            return lifetimes(events, self.start, self.end, self.shape, self.shape_column)
        kinds = (np.int8, np.int64, np.int64, bool, bool)
        whole = Lifetimes(*(np.zeros(events.num_rows, kind) for kind in kinds))
        for name, rows in _each(parts):
            own = self.columns_of(name)
            some = lifetimes(events.take(pa.array(rows)), self.start, own.end, own.shape, own.shape_column)
            for column in _COLUMNS:
                getattr(whole, column)[rows] = getattr(some, column)
        return whole

    def _advance(
        self, name: str, lives: Lifetimes, rows: npt.NDArray[np.int64], states: States, began: States
    ) -> Advanced:
        settings = self.settings_of(name)
        of_source = Lifetimes(*(getattr(lives, column)[rows] for column in _COLUMNS))
        return advance(settings, states.get(name, Advance()), of_source, _imported(settings, name, began))

    def _going(self, events: pa.Table, kept: Flags, starts: Times, no_start: Flags) -> pa.Table:
        """The kept events with their adjusted starts."""
        place = events.schema.get_field_index(self.start)
        going = events.filter(pa.array(kept))
        return going.set_column(
            place, events.schema.field(place), pa.array(starts[kept], mask=no_start[kept]).cast(TIME)
        )

    def _after(
        self, began: States, claimed: Iterable[States], names: Iterable[str], upstream: Mapping[str, int]
    ) -> dict[str, Advance]:
        """All states after a batch or tick: ``claimed`` by its pieces, in order, or the watermarks ``upstream`` of
        operators; then imported from each other.
        """
        after = dict.fromkeys(names, Advance()) | dict(began)
        for states in claimed:
            after |= states
        for name in self.followed:
            newest = max(after[name].cti_us, upstream.get(name, BEGINNING_US))
            after[name] = msgspec.structs.replace(after[name], cti_us=newest)
        for name in self.in_import_order(after):
            if name in after:
                after[name] = self._import(name, after[name], after)
        return after

    def _import(self, name: str, state: Advance, states: States) -> Advance:
        imported = _imported(self.settings_of(name), name, states)
        if imported <= state.cti_us:
            return state
        return msgspec.structs.replace(state, cti_us=imported, ctis=state.ctis + 1)

    def finish(self, state: GeneratorState) -> GeneratorState:
        """The CTIs at the end of the input: with a final one, if the settings have one."""
        advances = {name: finish(self.settings_of(name), advance) for name, advance in state.advances.items()}
        return GeneratorState(advances)


_COLUMNS = ("shapes", "starts", "ends", "no_start", "no_end")


def _imported(settings: AdvanceTime, name: str, states: States) -> int:
    """The CTI of the imported stream. A source never imports from itself."""
    source = settings.import_from
    return BEGINNING_US if source is None or source == name or source not in states else states[source].cti_us


def _each(parts: tuple[list[str], Times]) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
    """Each source that has rows, with their indices in order."""
    names, owners = parts
    order = np.argsort(owners, kind="stable")
    ends = np.cumsum(np.bincount(owners, minlength=len(names))).tolist()
    for name, first, last in zip(names, [0, *ends], ends, strict=False):
        if first < last:
            yield name, order[first:last]


def _chosen(settings: StoredSettings, source: str) -> AdvanceTime | None:
    return (settings or {}).get(source, (settings or {}).get(""))
