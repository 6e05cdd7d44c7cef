"""Watermarks of the streams that an operator reads, as its description stores them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from tidestate.operators.describe.altered import Altered
from tidestate.operators.describe.merge import Merge
from tidestate.operators.describe.overlap_join import OverlapJoin
from tidestate.operators.describe.runnable import Runnable, Sided
from tidestate.operators.describe.sides import AT, SIDE
from tidestate.operators.describe.windowed import Windowed
from tidestate.operators.progress.buffered import BufferProgress
from tidestate.operators.progress.by_side import BySide, SideGenerator
from tidestate.operators.progress.cti_settings import AdvanceTime, StoredSettings, advance_time, settings_by_source
from tidestate.operators.progress.ctis import Ctis
from tidestate.operators.progress.declared_sources import Sources, given_sources, side_sources, sources
from tidestate.operators.progress.generators import claimant, given_watermarks, max_event_time
from tidestate.operators.progress.side_columns import SideColumns
from tidestate.operators.progress.sources import Generator
from tidestate.operators.progress.watermarks import Claimant, Watermarks
from tidestate.operators.streams.nodes import (
    Bounded,
    ByCtis,
    CtiSettings,
    StreamView,
    WatermarkSettings,
    WatermarkSource,
)
from tidestate.operators.streams.settings import Lifetime
from tidestate.operators.streams.sides import ctis_of_sides, event_columns, lacking_offsets
from tidestate.statestore.durations import Span, span_us
from tidestate.statestore.errors import UsageError

_Described = TypeVar("_Described", bound=Runnable)
_Joined = TypeVar("_Joined", bound=Sided)


def with_watermark(description: _Described, view: StreamView) -> _Described:
    """``description``, with the watermark that the one stream it reads has. Raises `UsageError` where it cannot."""
    if view.by_ctis:
        return _with_ctis(description, view)
    if view.watermark is None:
        return description
    settings = view.watermark
    generator = resolved(settings.generator or Bounded(view.watermark_delay), view.time)
    return replace(description, watermarks=given_watermarks(generator, settings.by, _declared(settings)))


def _with_ctis(description: _Described, view: StreamView) -> _Described:
    if not isinstance(description, Windowed | Altered):
        raise UsageError(
            "deduplication cannot follow CTIs: put it behind a time shift, a union or a join, which can",
            code="advance-time",
            operator=description.name,
        )
    settings = view.watermark or WatermarkSettings()
    marks = _one_line_of_ctis(
        description, stored_settings(_settings_of(view)), _of_source(view), view.lifetime, settings
    )
    return replace(description, watermarks=marks)


def _one_line_of_ctis(
    description: Windowed | Altered,
    at_query: Any,
    at_source: AdvanceTime | None,
    lifetime: Lifetime,
    settings: WatermarkSettings,
) -> Watermarks:
    """CTIs of one stream. Raises `UsageError` without an event time or an offset, and for settings that contradict
    each other.
    """
    if description.event_time is None or description.offset is None:
        raise UsageError(
            "CTIs need event times and an order of offsets: stream(event_time=…, offset=…)",
            code="advance-time",
            event_time=description.event_time,
            offset=description.offset,
        )
    order = tuple(name for name in (description.origin, description.offset) if name)
    stored = settings_by_source(at_query), settings_by_source(at_source)
    ctis = Ctis(*stored, description.event_time, order, lifetime.end, lifetime.shape, lifetime.shape_column)
    by = settings.by or description.origin
    declared = given_sources(by, _declared(settings))
    ctis.check(settings.sources)
    return Watermarks(ctis, declared, by)


def with_watermarks(description: _Joined, views: Mapping[str, StreamView], over: WatermarkSettings | None) -> _Joined:
    """``description`` of several sides, with the watermarks that its streams have, or that it has ``over`` all of
    them. Raises `UsageError` where these do not go together.
    """
    with_settings = [side for side, view in views.items() if view.watermark is not None or view.at_source is not None]
    if over is not None:
        if with_settings:
            raise UsageError(
                "a watermark over all sides excludes those of the streams: remove one or the other",
                code="watermark",
                operator=description.name,
                sides=with_settings,
            )
        return replace(description, watermarks=_over_all(description, views, over))
    if not with_settings:
        return description
    inputs = [view for view in views.values() if view.is_input]
    if all(view.by_ctis and _is_one_source(view) for view in inputs):
        return replace(description, watermarks=_by_ctis_of_sides(description, views))
    if isinstance(description, OverlapJoin):
        raise UsageError(
            "a join by lifetimes needs CTIs of each stream, as a single source: set .watermark(watermark.ctis(…)) "
            "without by= on the streams",
            code="advance-time",
            operator=description.name,
        )
    delays = {span_us(view.watermark_delay) for view in views.values()}
    timeouts = all(view.watermark is None or view.watermark.is_timeout for view in inputs)
    if timeouts and len(delays) == 1 and len(inputs) == len(views) and not any(view.by_ctis for view in inputs):
        watermarks = _of_generator(description, max_event_time(AT, inputs[0].watermark_delay), _timeouts(views))
        return replace(description, watermarks=watermarks)
    # The generators have the delays.
    return replace(description, watermarks=_by_side(description, views), delays_us=(0,) * len(views))


def _is_one_source(view: StreamView) -> bool:
    settings = view.watermark or WatermarkSettings()
    named = isinstance(settings.generator, ByCtis) and isinstance(settings.generator.settings, Mapping)
    return not (settings.by or settings.sources or settings.own_timeouts or named)


def _over_all(description: Sided, views: Mapping[str, StreamView], over: WatermarkSettings) -> Watermarks:
    generator = over.generator
    if not isinstance(generator, ByCtis):
        chosen = resolved(generator or Bounded(_delay(views)), AT)
        by_others = over.by is not None or isinstance(chosen, BufferProgress)
        if by_others or all(view.is_input for view in views.values()):
            return _of_generator(description, chosen, over)
        return _over_streams(description, views, over)
    if not isinstance(description, Merge) or over.by is None:
        raise UsageError(
            "CTIs belong to each stream: set .watermark(watermark.ctis(…)) on the streams; only a merge can have "
            "CTIs over all sides, with by= the shared column of sources",
            code="advance-time",
            operator=description.name,
        )
    lifetimes = {view.lifetime for view in views.values()}
    if len(lifetimes) > 1:
        raise UsageError("with CTIs over all sides, all streams need the same lifetime settings", code="advance-time")
    return _one_line_of_ctis(description, stored_settings(generator.settings), None, lifetimes.pop(), over)


def _of_generator(
    description: Sided, generator: Generator | BufferProgress, settings: WatermarkSettings
) -> Watermarks:
    """As everywhere; unless ``by`` says otherwise, each side is a source, and holds the watermark from the start."""
    if isinstance(description, OverlapJoin):
        raise UsageError(
            "a join by lifetimes needs CTIs: set .watermark(watermark.ctis(…)) on the streams",
            code="advance-time",
        )
    if settings.by is not None or isinstance(generator, BufferProgress):
        return given_watermarks(generator, settings.by, _declared(settings))
    return given_watermarks(generator, SIDE, _declared(settings, description.sides.names))


def _timeouts(views: Mapping[str, StreamView]) -> WatermarkSettings:
    """One idle timeout where all inputs have the same, otherwise each its own."""
    # An operator is never idle: its watermark comes from what it reads.
    timeouts: dict[str, Span | None] = {
        side: None if view.watermark is None else view.watermark.idle_timeout
        for side, view in views.items()
        if view.is_input
    }
    chosen = {side: timeout for side, timeout in timeouts.items() if timeout is not None}
    if len(chosen) == len(timeouts) and len({span_us(timeout) for timeout in chosen.values()}) == 1:
        return WatermarkSettings(idle_timeout=next(iter(chosen.values())))
    return WatermarkSettings(own_timeouts=chosen)


def _by_ctis_of_sides(description: Sided, views: Mapping[str, StreamView]) -> Watermarks:
    inputs = {side: view for side, view in views.items() if view.is_input}
    of_sides = {side: _side_settings(side, view, views) for side, view in inputs.items()}
    at_query = {side: None if settings is None else settings[""] for side, settings in of_sides.items()}
    at_source = {side: _of_source(view) for side, view in inputs.items()}
    sides, timeouts = description.sides, _timeouts(views)
    orders = {side: description.order_of(side) for side in sides.names}
    lifetimes = {side: view.lifetime for side, view in views.items()}
    ctis = ctis_of_sides(sides, orders, _present(at_query), _present(at_source), lifetimes)
    if isinstance(description, OverlapJoin):
        # The join knows until when rows live, and takes the ends of edges, too.
        ctis = replace(ctis, sides=description.events, keeps_ends=True)
    declared = side_sources(sides.names, ctis.followed, timeouts.idle_timeout, timeouts.own_timeouts)
    ctis.check(declared.names)
    return Watermarks(ctis, declared, SIDE)


def _present(settings: Mapping[str, AdvanceTime | None]) -> dict[str, AdvanceTime] | None:
    return {side: advance for side, advance in settings.items() if advance is not None} or None


def _over_streams(description: Sided, views: Mapping[str, StreamView], over: WatermarkSettings) -> Watermarks:
    """One generator over the sides that read streams; the others follow operators."""
    generator = SideGenerator(claimant(resolved(over.generator or Bounded(_delay(views)), AT)))
    inputs = [side for side, view in views.items() if view.is_input]
    followed = tuple(side for side in views if side not in inputs)
    declared = side_sources(description.sides.names, followed, over.idle_timeout, over.own_timeouts)
    return Watermarks(BySide(dict.fromkeys(inputs, generator), followed), declared, SIDE)


def _by_side(description: Sided, views: Mapping[str, StreamView]) -> Watermarks:
    """The watermark of each stream, as it is set there; sides that read operators follow these."""
    generators: dict[str, SideGenerator] = {}
    names: list[str] = []
    timeouts: dict[str, Span] = {}
    at_query = {side: _side_settings(side, view, views) for side, view in views.items() if view.by_ctis}
    for side, view in views.items():
        settings = view.watermark or WatermarkSettings()
        own = given_sources(settings.by, _declared(settings))
        names += [f"{side}/{source}" for source in own.names] if settings.by and own.names else [side]
        timeouts |= {f"{side}/{source}": span for source, span in (settings.own_timeouts or {}).items()}
        if settings.idle_timeout is not None:
            timeouts[side] = settings.idle_timeout
        if view.is_input:
            _check_own_columns(description, side, view, settings)
            columns = description.sides.names_on(side)
            by = None if settings.by is None else columns.in_stream(settings.by)
            ctis = _ctis_of_side(description, side, view, at_query[side]) if view.by_ctis else None
            generators[side] = SideGenerator(ctis or _generator_of_side(view, columns), by)
    _check_ctis(generators, names, at_query)
    followed = tuple(side for side in views if side not in generators)
    return Watermarks(BySide(generators, followed), sources(*names, own_timeouts=timeouts), SIDE)


def _check_own_columns(description: Sided, side: str, view: StreamView, settings: WatermarkSettings) -> None:
    """Check that a watermark names no column of a stream that the combined rows have another one for."""
    if not description.sides.same_columns or view.by_ctis:
        return
    generator = settings.generator
    claims = [] if generator is None or isinstance(generator, Bounded) else claimant(resolved(generator, AT)).columns
    replaced = {SIDE, AT} - ({AT} if view.time == AT else set())
    if taken := sorted(replaced.intersection([*claims, settings.by])):
        raise UsageError(
            "rows that are combined get columns of these names in place of the stream's: rename those",
            code="name-taken",
            side=side,
            names=taken,
        )


def _generator_of_side(view: StreamView, columns: SideColumns) -> Claimant:
    chosen = view.watermark.generator if view.watermark is not None else None
    if chosen is None or isinstance(chosen, Bounded):
        return claimant(resolved(chosen or Bounded(view.watermark_delay), AT))
    return claimant(resolved(chosen, AT)).of_side(columns)


def _ctis_of_side(description: Sided, side: str, view: StreamView, at_query: StoredSettings) -> Ctis:
    order = description.order_of(side)
    if not order:
        raise lacking_offsets([side])
    lives = event_columns(description.sides, side, order, view.lifetime)
    at_source = settings_by_source(_of_source(view))
    return Ctis(at_query, at_source, AT, order, lives.end, lives.shape, lives.shape_column)


def _check_ctis(generators: Mapping[str, SideGenerator], names: Sequence[str], at_query: Mapping[str, Any]) -> None:
    """Check that CTIs advance each side that has them, and that none imports from a side without, or in a circle."""
    ctis = {side: each.generator for side, each in generators.items() if isinstance(each.generator, Ctis)}
    for side, each in ctis.items():
        each.check([name for name in names if name.partition("/")[0] == side], ctis)
    by_side = {side: settings[""] for side, settings in at_query.items() if settings and "" in settings}
    Ctis(by_side, None, AT, ()).in_import_order(sorted(by_side))


def _delay(views: Mapping[str, StreamView]) -> Span:
    return next(iter(views.values())).watermark_delay


def _side_settings(side: str, view: StreamView, views: Mapping[str, StreamView]) -> StoredSettings:
    """The settings of a side for the query, which may import the CTIs of another one; by the sources of the side, if
    it has several.
    """
    settings = _settings_of(view)
    if settings is None:
        return None
    if isinstance(settings, CtiSettings):
        return {"": _stored(settings, _imported_side(side, settings, views))}
    by_source = {source: (each, _source(each)) for source, each in settings.items()}
    return {
        f"{side}/{source}": _stored(each, imported and f"{side}/{imported}")
        for source, (each, imported) in by_source.items()
    }


def _imported_side(side: str, settings: CtiSettings, views: Mapping[str, StreamView]) -> str | None:
    """The side whose CTIs a side imports. Raises `UsageError` where it has none."""
    if settings.import_from is None:
        return None
    if isinstance(settings.import_from, str):
        named = {view.name: name for name, view in views.items() if view.name is not None}
        imported: str | None = named.get(settings.import_from, settings.import_from)
    else:
        nodes = {view.node: name for name, view in views.items()}
        named = {view.name: name for name, view in views.items() if view.name is not None}
        imported_view = settings.import_from.view
        imported = nodes.get(imported_view.node, named.get(imported_view.name))
    source = None if imported is None else views.get(imported)
    if source is None or (source.is_input and not source.by_ctis):
        raise UsageError(
            "CTIs can be imported only from another side of this operator that has CTIs, or reads an operator",
            code="advance-time",
            side=side,
        )
    return imported


def _settings_of(view: StreamView) -> Any:
    generator = view.watermark.generator if view.watermark is not None else None
    if generator is None:
        return None
    if not isinstance(generator, ByCtis):
        raise UsageError(
            "a stream with cti_settings= gets its watermark from CTIs: remove the other generator",
            code="watermark",
            found=generator,
        )
    return generator.settings


def _of_source(view: StreamView) -> AdvanceTime | None:
    return None if view.at_source is None else _stored(view.at_source, None)


def stored_settings(settings: Any) -> Any:
    """CTI settings, or those by source, as descriptions have them."""
    if settings is None:
        return None
    if isinstance(settings, CtiSettings):
        return _stored(settings, _source(settings))
    return {source: _stored(each, _source(each)) for source, each in settings.items()}


def _source(settings: CtiSettings) -> str | None:
    imported = settings.import_from
    return imported if imported is None or isinstance(imported, str) else imported.view.name


def _stored(settings: CtiSettings, import_from: str | None) -> AdvanceTime:
    return advance_time(settings.policy, settings.generate, import_from)  # type: ignore[arg-type]


def resolved(generator: WatermarkSource, time: str | None) -> Generator | BufferProgress:
    """A generator for a stream whose event time is in the column ``time``."""
    if not isinstance(generator, Bounded):
        return cast(Generator | BufferProgress, generator)
    if time is None:
        raise UsageError(
            "this watermark follows an event time: name the column, stream(event_time=…)",
            code="watermark",
            found=generator,
        )
    return max_event_time(time, generator.delay, hold_future=generator.hold_future, quiet=generator.quiet)


def _declared(settings: WatermarkSettings, names: Sequence[str] = ()) -> Sources:
    """The sources that the user names, or those of these ``names``, with their timeouts."""
    return sources(
        *(names or settings.sources), idle_timeout=settings.idle_timeout, own_timeouts=settings.own_timeouts
    )
