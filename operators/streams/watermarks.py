"""Watermarks of the streams that an operator reads, as its description stores them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from tidestate.operators.describe.altered import Altered
from tidestate.operators.describe.merge import Merge
from tidestate.operators.describe.overlap_join import OverlapJoin
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.sides import AT
from tidestate.operators.describe.windowed import Windowed
from tidestate.operators.progress.cti_settings import AdvanceTime, advance_time
from tidestate.operators.progress.generators import max_event_time
from tidestate.operators.progress.watermarks import BufferProgress, Generator
from tidestate.operators.streams.nodes import (
    Bounded,
    ByCtis,
    CtiSettings,
    StreamView,
    WatermarkSettings,
    WatermarkSource,
)
from tidestate.operators.streams.settings import Lifetime
from tidestate.statestore.durations import Span, span_us
from tidestate.statestore.errors import UsageError

_Described = TypeVar("_Described", bound=Runnable)


def with_watermark(description: _Described, view: StreamView) -> _Described:
    """``description``, with the watermark that the one stream it reads has. Raises `UsageError` where it cannot."""
    if view.by_ctis:
        return _with_ctis(description, view)
    if view.watermark is None:
        return description
    settings = view.watermark
    generator = resolved(settings.generator or Bounded(view.watermark_delay), view.time)
    return description.watermark(generator, **_sources(settings))


def _with_ctis(description: _Described, view: StreamView) -> _Described:
    if not isinstance(description, Windowed | Altered):
        raise UsageError(
            "deduplication does not follow CTIs: put it behind a time shift, a union or a join that does",
            code="advance-time",
            operator=description.name,
        )
    settings = view.watermark or WatermarkSettings()
    advanced = description.advance_time(
        stored_settings(_settings_of(view)),
        at_source=_of_source(view),
        **_lifetime(view.lifetime),
        **_sources(settings),
    )
    return cast(_Described, advanced)


def with_watermarks(
    description: _Described, views: Mapping[str, StreamView], over: WatermarkSettings | None
) -> _Described:
    """``description`` of several sides, with the watermarks that its streams have, or that it has ``over`` all of
    them. Raises `UsageError` where these do not go together.
    """
    with_settings = [side for side, view in views.items() if view.watermark is not None or view.at_source is not None]
    if over is not None:
        if with_settings:
            raise UsageError(
                "a watermark over all sides stands alone: leave those of the streams out, or this one",
                code="watermark-sides",
                operator=description.name,
                sides=with_settings,
            )
        return cast(_Described, _with_one(description, views, over))
    if any(view.by_ctis for view in views.values()):
        return cast(_Described, _with_ctis_of_sides(description, views))
    return cast(_Described, _with_timeouts(description, views)) if with_settings else description


def _with_one(description: Any, views: Mapping[str, StreamView], over: WatermarkSettings) -> Any:
    generator = over.generator
    if not isinstance(generator, ByCtis):
        delay = next(iter(views.values())).watermark_delay
        return description.watermark(resolved(generator or Bounded(delay), AT), **_sources(over))
    if not isinstance(description, Merge) or over.by is None:
        raise UsageError(
            "CTIs are those of each stream: say .watermark(watermark.ctis(…)) of the streams; only a merge has one "
            "line of CTIs, with by= the shared column of sources",
            code="watermark-sides",
            operator=description.name,
        )
    lifetimes = {view.lifetime for view in views.values()}
    if len(lifetimes) > 1:
        raise UsageError("one line of CTIs has one lifetime: all streams name the same", code="watermark-sides")
    return description.advance_time(
        stored_settings(generator.settings), **_lifetime(lifetimes.pop()), **_sources(over)
    )


def _with_timeouts(description: Any, views: Mapping[str, StreamView]) -> Any:
    """Sides that are idle after a while; a side without CTIs can have nothing else yet."""
    settings_of = {side: view.watermark for side, view in views.items() if view.watermark is not None}
    plain = all(settings.is_timeout for settings in settings_of.values())
    inputs = all(view.is_input for view in views.values())
    delays = {span_us(view.watermark_delay) for view in views.values()}
    if not plain or not inputs or len(delays) > 1:
        raise UsageError(
            "sides may differ in watermark delay and CTI settings alone, and have idle timeouts where the delays are "
            "equal and none reads an operator: give one watermark over all sides, watermark=",
            code="watermark-sides",
            operator=description.name,
            sides=list(settings_of),
        )
    delay = next(iter(views.values())).watermark_delay
    return description.watermark(max_event_time(AT, delay), **_timeouts(views))


def _timeouts(views: Mapping[str, StreamView]) -> dict[str, Any]:
    """One idle timeout where all inputs have the same, otherwise each its own."""
    # An operator is never idle: its watermark comes from what it reads.
    timeouts: dict[str, Span | None] = {
        side: None if view.watermark is None else view.watermark.idle_timeout
        for side, view in views.items()
        if view.is_input
    }
    chosen = {side: timeout for side, timeout in timeouts.items() if timeout is not None}
    if len(chosen) == len(timeouts) and len({span_us(timeout) for timeout in chosen.values()}) == 1:
        return {"idle_timeout": next(iter(chosen.values()))}
    return {"own_timeouts": chosen} if chosen else {}


def _with_ctis_of_sides(description: Any, views: Mapping[str, StreamView]) -> Any:
    inputs = {side: view for side, view in views.items() if view.is_input}
    for side, view in inputs.items():
        settings = view.watermark
        if not view.by_ctis or (settings and (settings.by or settings.sources or settings.own_timeouts)):
            raise UsageError(
                "where one side goes by CTIs, each stream does, as one source: watermark.ctis(…) without by=",
                code="watermark-sides",
                operator=description.name,
                side=side,
            )
    at_query = {side: _side_settings(side, view, views) for side, view in inputs.items()}
    at_source = {side: _of_source(view) for side, view in inputs.items()}
    options: dict[str, Any] = {"at_source": _present(at_source), **_timeouts(views)}
    if not isinstance(description, OverlapJoin):
        lifetimes = [view.lifetime for view in views.values()]
        options["shape"] = [lifetime.shape for lifetime in lifetimes]
        options["end"] = [lifetime.end for lifetime in lifetimes]
        options["shape_column"] = [lifetime.shape_column for lifetime in lifetimes]
    return description.advance_time(_present(at_query), **options)


def _present(settings: Mapping[str, AdvanceTime | None]) -> dict[str, AdvanceTime] | None:
    return {side: advance for side, advance in settings.items() if advance is not None} or None


def _side_settings(side: str, view: StreamView, views: Mapping[str, StreamView]) -> AdvanceTime | None:
    """The settings of a side for the query, which may import the CTIs of another one."""
    settings = _settings_of(view)
    if settings is None:
        return None
    if not isinstance(settings, CtiSettings):
        raise UsageError(
            "a stream that is a side is one source: give it one cti_settings(…)", code="watermark-sides", side=side
        )
    names = {other.name: name for name, other in views.items() if other.name is not None}
    nodes = {other.node: name for name, other in views.items()}
    imported = settings.import_from
    if imported is not None and not isinstance(imported, str):
        imported = nodes.get(imported.view.node, names.get(imported.view.name))
        if imported is None:
            raise UsageError("CTIs are imported from another side", code="advance-time", side=side)
    return _stored(settings, names.get(imported, imported) if isinstance(imported, str) else None)


def _settings_of(view: StreamView) -> Any:
    generator = view.watermark.generator if view.watermark is not None else None
    if generator is None:
        return None
    if not isinstance(generator, ByCtis):
        raise UsageError(
            "a stream with cti_settings= goes by CTIs: take the other generator off",
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
            "the watermark follows an event time: name it, stream(event_time=…)", code="watermark", found=generator
        )
    return max_event_time(time, generator.delay, hold_future=generator.hold_future, quiet=generator.quiet)


def _sources(settings: WatermarkSettings) -> dict[str, Any]:
    return {
        "by": settings.by,
        "sources": settings.sources,
        "idle_timeout": settings.idle_timeout,
        "own_timeouts": settings.own_timeouts,
    }


def _lifetime(lifetime: Lifetime) -> dict[str, Any]:
    return {"shape": lifetime.shape, "end": lifetime.end, "shape_column": lifetime.shape_column}
