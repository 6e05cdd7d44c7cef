"""Advance-time settings as a user gives them, of all sources of an operator. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal

import msgspec

from tidestate.statestore.arguments import called, checked
from tidestate.statestore.durations import Span, span_us, text_of
from tidestate.statestore.errors import UsageError

LatePolicy = Literal["drop", "adjust"]


@called("how CTIs are made", 'generate_ctis("10 seconds")')
class Generation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A CTI after every ``every`` events, or after every ``span_us`` of start times, with the time of the last
    event's start minus ``delay_us``; with ``final``, one at the end of time when the input ends.
    """

    every: int | None = None
    span_us: int | None = None
    delay_us: int = 0
    final: bool = False


class AdvanceTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How application time advances: CTIs generated, imported from the stream of that name, or both."""

    policy: LatePolicy
    generation: Generation | None = None
    import_from: str | None = None


@checked
def generation(every: int | Span, delay: Span = "0 seconds", *, final: bool = False) -> Generation:
    """A CTI every N events, or every span of time. A negative ``delay`` puts the CTI after the event's own time:
    "-1 microsecond" makes each event final at once. Raises `UsageError` for a count or span that is not positive.
    """
    if isinstance(every, int):
        if every < 1 or isinstance(every, bool):
            raise UsageError(
                "the number of events between two CTIs must be 1 or more", code="advance-time", every=every
            )
        return Generation(every=every, delay_us=span_us(delay), final=final)
    span = span_us(every)
    if span <= 0:
        raise UsageError("the span between two CTIs must be above 0", code="advance-time", every=text_of(span))
    return Generation(span_us=span, delay_us=span_us(delay), final=final)


@checked
def advance_time(
    policy: LatePolicy, generation: Generation | None = None, import_from: str | None = None
) -> AdvanceTime:
    """Settings of a query. Raises `UsageError` for a policy that is neither "drop" nor "adjust", and without both a
    generation and a stream to import from.
    """
    if policy not in ("drop", "adjust"):
        raise UsageError('policy= must be "drop" or "adjust"', code="advance-time", policy=policy)
    if generation is None and not import_from:
        raise UsageError(
            "no CTIs are set: give generate=, import_from=, or both",
            code="advance-time",
            import_from=import_from,
        )
    return AdvanceTime(policy, generation, import_from)


def effective_settings(at_source: AdvanceTime | None, at_query: AdvanceTime | None) -> AdvanceTime | None:
    """The settings of the query; without them, those of the source.

    Raises `UsageError` if the source imports: only a query knows other streams.
    """
    if at_source is not None and (at_source.import_from is not None or at_source.generation is None):
        raise UsageError(
            "a source can only generate CTIs; set import_from= on the query",
            code="advance-time",
            import_from=at_source.import_from,
        )
    return at_query or at_source


Settings = AdvanceTime | Mapping[str, AdvanceTime] | None
"""As a user gives them: for all sources, or by name."""
StoredSettings = dict[str, AdvanceTime] | None
"""By name of the source; under the empty name for all."""
ENQUEUED = AdvanceTime("drop")
"""Settings of a source that has none: its CTIs are rows."""


class EventColumns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the rows of a source have their order, the end of their lifetime, and their shape."""

    order: tuple[str, ...]
    end: str | None = None
    shape: str = "point"
    shape_column: str | None = None

    @property
    def names(self) -> list[str]:
        """The columns that are named."""
        return [name for name in (*self.order, self.end, self.shape_column) if name]


class Ctis(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="ctis"):
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
    filters_rows: ClassVar[bool] = True

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

    def check(self, names: Iterable[str]) -> None:
        """Raises `UsageError` for settings without effect, or that import from a source that is not declared, or in
        a circle.
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
        if strange := sorted((own | set(self.imports)) - declared):
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


def settings_by_source(given: Settings) -> StoredSettings:
    """Settings as they are stored."""
    return {"": given} if isinstance(given, AdvanceTime) else given if given is None else dict(sorted(given.items()))


def _chosen(settings: StoredSettings, source: str) -> AdvanceTime | None:
    return (settings or {}).get(source, (settings or {}).get(""))
