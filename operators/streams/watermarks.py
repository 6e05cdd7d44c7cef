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
from tidestate.operators.progress.cti_settings import AdvanceTime, advance_time, settings_by_source
from tidestate.operators.progress.ctis import Ctis
from tidestate.operators.progress.declared_sources import Sources, given_sources, side_sources, sources
from tidestate.operators.progress.generators import Generator, given_watermarks, max_event_time
from tidestate.operators.progress.watermarks import Watermarks
from tidestate.operators.streams.nodes import (
    Bounded,
    ByCtis,
    CtiSettings,
    StreamView,
    WatermarkSettings,
    WatermarkSource,
)
from tidestate.operators.streams.settings import Lifetime
from tidestate.operators.streams.sides import ctis_of_sides
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
                code="watermark-sides",
                operator=description.name,
                sides=with_settings,
            )
        return replace(description, watermarks=_over_all(description, views, over))
    if any(view.by_ctis for view in views.values()):
        return replace(description, watermarks=_by_ctis_of_sides(description, views))
    if with_settings:
        return replace(description, watermarks=_with_timeouts(description, views))
    return description


def _over_all(description: Sided, views: Mapping[str, StreamView], over: WatermarkSettings) -> Watermarks:
    generator = over.generator
    if not isinstance(generator, ByCtis):
        delay = next(iter(views.values())).watermark_delay
        return _of_generator(description, resolved(generator or Bounded(delay), AT), over)
    if not isinstance(description, Merge) or over.by is None:
        raise UsageError(
            "CTIs belong to each stream: set .watermark(watermark.ctis(…)) on the streams; only a merge can have "
            "CTIs over all sides, with by= the shared column of sources",
            code="watermark-sides",
            operator=description.name,
        )
    lifetimes = {view.lifetime for view in views.values()}
    if len(lifetimes) > 1:
        raise UsageError(
            "with CTIs over all sides, all streams need the same lifetime settings", code="watermark-sides"
        )
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


def _with_timeouts(description: Sided, views: Mapping[str, StreamView]) -> Watermarks:
    """Sides that are idle after a while; a side without CTIs can have nothing else yet."""
    settings_of = {side: view.watermark for side, view in views.items() if view.watermark is not None}
    plain = all(settings.is_timeout for settings in settings_of.values())
    inputs = all(view.is_input for view in views.values())
    delays = {span_us(view.watermark_delay) for view in views.values()}
    if not plain or not inputs or len(delays) > 1:
        raise UsageError(
            "sides may have different watermark delays and CTI settings, and idle timeouts if the delays are "
            "equal and no side reads an operator: for anything else give one watermark over all sides, watermark=",
            code="watermark-sides",
            operator=description.name,
            sides=list(settings_of),
        )
    delay = next(iter(views.values())).watermark_delay
    return _of_generator(description, max_event_time(AT, delay), _timeouts(views))


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
    for side, view in inputs.items():
        settings = view.watermark
        if not view.by_ctis or (settings and (settings.by or settings.sources or settings.own_timeouts)):
            raise UsageError(
                "if one side uses CTIs, each stream must use them, as a single source: watermark.ctis(…) without by=",
                code="watermark-sides",
                operator=description.name,
                side=side,
            )
    at_query = {side: _side_settings(side, view, views) for side, view in inputs.items()}
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


def _side_settings(side: str, view: StreamView, views: Mapping[str, StreamView]) -> AdvanceTime | None:
    """The settings of a side for the query, which may import the CTIs of another one."""
    settings = _settings_of(view)
    if settings is None:
        return None
    if not isinstance(settings, CtiSettings):
        raise UsageError(
            "a stream that is a side is a single source: give it one cti_settings(…)",
            code="watermark-sides",
            side=side,
        )
    names = {other.name: name for name, other in views.items() if other.name is not None}
    nodes = {other.node: name for name, other in views.items()}
    imported = settings.import_from
    if imported is not None and not isinstance(imported, str):
        imported = nodes.get(imported.view.node, names.get(imported.view.name))
        if imported is None:
            raise UsageError(
                "CTIs can be imported only from another side of this operator", code="advance-time", side=side
            )
    return _stored(settings, names.get(imported, imported) if isinstance(imported, str) else None)


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
