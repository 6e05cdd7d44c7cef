"""Watermarks of the streams that an operator reads, as its description stores them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from tidestate.operators.describe.altered import Altered
from tidestate.operators.describe.overlap_join import OverlapJoin
from tidestate.operators.describe.runnable import Runnable, Sided
from tidestate.operators.describe.sides import AT, SIDE
from tidestate.operators.describe.windowed import Merge, Windowed
from tidestate.operators.progress.buffered import BufferProgress
from tidestate.operators.progress.by_side import BySide, SideGenerator
from tidestate.operators.progress.cti_settings import AdvanceTime, StoredSettings, settings_by_source
from tidestate.operators.progress.ctis import Ctis
from tidestate.operators.progress.generators import claimant, given_watermarks, max_event_time
from tidestate.operators.progress.given_origins import GivenOrigins
from tidestate.operators.progress.progress import Generator
from tidestate.operators.progress.watermarks import (
    Claimant,
    SideColumns,
    Sources,
    Watermarks,
    given_sources,
    side_sources,
    sources,
)
from tidestate.operators.streams.nodes import (
    Bounded,
    ByCtis,
    CtiSettings,
    StreamView,
    WatermarkSettings,
    WatermarkSource,
)
from tidestate.operators.streams.settings import Lifetime
from tidestate.operators.streams.sides import event_columns
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
    # The values of the stream's origin column are the origins that are given.
    by = settings.by or view.origin if isinstance(generator, GivenOrigins) else settings.by
    return replace(description, watermarks=given_watermarks(generator, by, _declared(settings)))


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
    settings_of_both = settings_by_source(at_query), settings_by_source(at_source)
    ctis = Ctis(*settings_of_both, description.event_time, order, lifetime.end, lifetime.shape, lifetime.shape_column)
    by = settings.by or description.origin
    declared = given_sources(by, _declared(settings))
    ctis.check(settings.sources)
    return Watermarks(ctis, declared, by)


def with_watermarks(description: _Joined, views: Mapping[str, StreamView], over: WatermarkSettings | None) -> _Joined:
    """``description`` of several sides, with the watermarks that its streams have, or that it has ``over`` all of
    them. Raises `UsageError` where these do not go together.

    There are five forms, the first that fits, so that a job is stored as it was before there were the later ones:

    - One over all sides (`_over_sides`): each side is a source, or the values of a shared column are.
    - None, where no stream has settings: `delays_us` of the description is the watermark.
    - `Ctis`, where each stream has CTIs and is a single source; a join by lifetimes takes no later form.
    - `MaxEventTime` with a side as a source, where all sides read streams of the same delay, with idle timeouts and
      no other settings.
    - `BySide`, for all else: any watermark for each stream.

    In each form whose sources are sides, one that reads an operator follows its watermark.
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
    inputs = _inputs(views)
    if all(view.by_ctis and _is_one_source(view) for view in inputs.values()):
        return replace(description, watermarks=_by_ctis(description, views))
    if isinstance(description, OverlapJoin):
        raise UsageError(
            "a join by lifetimes needs CTIs of each stream, as a single source: set .watermark(watermark.ctis(…)) "
            "without by= on the streams",
            code="advance-time",
            operator=description.name,
        )
    delays = {span_us(view.watermark_delay) for view in views.values()}
    timeouts = all(view.watermark is None or view.watermark.is_timeout for view in inputs.values())
    by_ctis = any(view.by_ctis for view in inputs.values())
    if timeouts and len(delays) == 1 and len(inputs) == len(views) and not by_ctis:
        generator = max_event_time(AT, _delay(views))
        return replace(description, watermarks=Watermarks(generator, _with_timeouts(views), SIDE))
    # The generators have the delays.
    return replace(description, watermarks=_by_side(description, views), delays_us=(0,) * len(views))


def _inputs(views: Mapping[str, StreamView]) -> dict[str, StreamView]:
    """The sides that read streams."""
    return {side: view for side, view in views.items() if view.is_input}


def _followed(views: Mapping[str, StreamView]) -> tuple[str, ...]:
    """The sides that read operators."""
    return tuple(side for side, view in views.items() if not view.is_input)


def _is_one_source(view: StreamView) -> bool:
    settings = view.watermark or WatermarkSettings()
    by_name = isinstance(settings.generator, ByCtis) and isinstance(settings.generator.settings, Mapping)
    return not (settings.by or settings.sources or settings.own_timeouts or by_name)


def _over_all(description: Sided, views: Mapping[str, StreamView], over: WatermarkSettings) -> Watermarks:
    if not isinstance(over.generator, ByCtis):
        return _over_sides(views, resolved(over.generator or Bounded(_delay(views)), AT), over)
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
    return _one_line_of_ctis(description, stored_settings(over.generator.settings), None, lifetimes.pop(), over)


def _over_sides(
    views: Mapping[str, StreamView], generator: Generator | BufferProgress | GivenOrigins, settings: WatermarkSettings
) -> Watermarks:
    """One generator for the rows of all sides. Unless ``by`` says otherwise, or buffers do, each side is a source,
    and holds the watermark from the start.
    """
    if settings.by is not None or isinstance(generator, BufferProgress):
        return given_watermarks(generator, settings.by, _declared(settings))
    followed = _followed(views)
    declared = side_sources([*views], followed, settings.idle_timeout, settings.own_timeouts)
    if not followed:
        return given_watermarks(generator, SIDE, declared)
    if isinstance(generator, GivenOrigins):
        raise UsageError(
            "origins are given to streams, and some of these are outputs of operators: use another watermark, or "
            "set watermark.buffers() on the streams that those operators read",
            code="given-origins",
            sides=followed,
        )
    # What the generator reads of the rows of operators says nothing of their watermarks.
    side = SideGenerator(claimant(generator))
    return Watermarks(BySide(dict.fromkeys(_inputs(views), side), followed), declared, SIDE)


def _with_timeouts(views: Mapping[str, StreamView]) -> Sources:
    """The sides as sources: with one idle timeout where all have the same, otherwise each with its own.

    An operator is never idle: its watermark comes from what it reads.
    """
    timeouts = {
        side: view.watermark.idle_timeout
        for side, view in _inputs(views).items()
        if view.watermark is not None and view.watermark.idle_timeout is not None
    }
    if len(timeouts) == len(views) and len(set(map(span_us, timeouts.values()))) == 1:
        return sources(*views, idle_timeout=next(iter(timeouts.values())))
    return sources(*views, own_timeouts=timeouts)


def _by_ctis(description: Sided, views: Mapping[str, StreamView]) -> Watermarks:
    """The CTIs of all streams."""
    _check_offsets(description, views)
    inputs, sides = _inputs(views), description.sides
    at_query = {side: settings[""] for side in inputs if (settings := _side_settings(side, views)) is not None}
    at_source = {side: advance for side, view in inputs.items() if (advance := _of_source(view)) is not None}
    orders = {side: description.order_of(side) for side in views}
    ctis = Ctis(
        settings_by_source(at_query or None),
        settings_by_source(at_source or None),
        AT,
        tuple(dict.fromkeys(name for order in orders.values() for name in order)),
        sides={side: event_columns(sides, side, orders[side], view.lifetime) for side, view in views.items()},
        followed=_followed(views),
    )
    if isinstance(description, OverlapJoin):
        # The join knows until when rows live, and takes the ends of edges, too.
        ctis = replace(ctis, sides=description.events, keeps_ends=True)
    ctis.check(sides.names)
    return Watermarks(ctis, _with_timeouts(views), SIDE)


def _check_offsets(description: Sided, views: Mapping[str, StreamView]) -> None:
    """Check that rows of streams with CTIs have an order. Raises `UsageError`."""
    if lacking := [side for side, view in _inputs(views).items() if view.by_ctis and not description.order_of(side)]:
        raise UsageError(
            "CTIs follow event times in the order of offsets: give each side its own offset, stream(offset=…)",
            code="advance-time",
            sides=lacking,
        )


def _by_side(description: Sided, views: Mapping[str, StreamView]) -> Watermarks:
    """The watermark of each stream, as it is set there; sides that read operators follow these."""
    _check_offsets(description, views)
    generators: dict[str, SideGenerator] = {}
    names: list[str] = []
    timeouts: dict[str, Span] = {}
    at_query = {side: _side_settings(side, views) for side, view in views.items() if view.by_ctis}
    for side, view in views.items():
        settings = view.watermark or WatermarkSettings()
        by, declared = _sources_of_side(settings)
        # Declared sources of a side hold the watermark from the start; otherwise the side does, under its own name.
        names += [f"{side}/{source}" for source in declared.names] if by and declared.names else [side]
        timeouts |= {f"{side}/{source}": span for source, span in (settings.own_timeouts or {}).items()}
        if settings.idle_timeout is not None:
            timeouts[side] = settings.idle_timeout
        if view.is_input:
            _check_own_columns(description, side, view, settings)
            columns = description.sides.names_on(side)
            column = None if by is None else columns.in_stream(by)
            ctis = _ctis_of_side(description, side, view, at_query[side]) if view.by_ctis else None
            generators[side] = SideGenerator(ctis or _generator_of_side(view, columns), column)
    _check_ctis(generators, names, at_query)
    return Watermarks(BySide(generators, _followed(views)), sources(*names, own_timeouts=timeouts), SIDE)


def _sources_of_side(settings: WatermarkSettings) -> tuple[str | None, Sources]:
    """The column whose values are the sources of a stream, and those that are declared."""
    declared = _declared(settings)
    if not isinstance(settings.generator, BufferProgress):
        return settings.by, given_sources(settings.by, declared)
    # The origins of buffers are their sources, which each side has for itself.
    marks = settings.generator.watermarks(settings.by, declared)
    return marks.by, marks.sources


def _check_own_columns(description: Sided, side: str, view: StreamView, settings: WatermarkSettings) -> None:
    """Check that a watermark names no column of a stream that the combined rows have another one for."""
    if not description.sides.same_columns or view.by_ctis:
        return
    generator = settings.generator
    columns: Sequence[str] = ()
    if generator is not None and not isinstance(generator, Bounded):
        columns = claimant(resolved(generator, AT)).columns
    # The column of event times stays what it is, if it has that very name.
    replaced = {SIDE, AT} - ({AT} if view.time == AT else set())
    if clash := sorted(replaced.intersection([*columns, settings.by])):
        raise UsageError(
            "rows that are combined get columns of these names in place of the stream's: rename those",
            code="name-taken",
            side=side,
            names=clash,
        )


def _generator_of_side(view: StreamView, columns: SideColumns) -> Claimant:
    generator = view.watermark.generator if view.watermark is not None else None
    if generator is None or isinstance(generator, Bounded):
        # The event time has one name on all sides.
        return claimant(resolved(generator or Bounded(view.watermark_delay), AT))
    return claimant(resolved(generator, AT)).of_side(columns)


def _ctis_of_side(description: Sided, side: str, view: StreamView, at_query: StoredSettings) -> Ctis:
    order = description.order_of(side)
    lives = event_columns(description.sides, side, order, view.lifetime)
    at_source = settings_by_source(_of_source(view))
    return Ctis(at_query, at_source, AT, order, lives.end, lives.shape, lives.shape_column)


def _check_ctis(generators: Mapping[str, SideGenerator], names: Sequence[str], at_query: Mapping[str, Any]) -> None:
    """Check that CTIs advance each side that has them, and that none imports from a side without, or in a circle."""
    ctis = {side: of_side.generator for side, of_side in generators.items() if isinstance(of_side.generator, Ctis)}
    for side, generator in ctis.items():
        generator.check([name for name in names if name.partition("/")[0] == side], ctis)
    # Each side has its own CTIs, so a circle of imports shows only where they are taken together.
    by_side = {side: settings[""] for side, settings in at_query.items() if settings and "" in settings}
    Ctis(by_side, None, AT, ()).in_import_order(sorted(by_side))


def _delay(views: Mapping[str, StreamView]) -> Span:
    return next(iter(views.values())).watermark_delay


def _side_settings(side: str, views: Mapping[str, StreamView]) -> StoredSettings:
    """The settings of a side for the query, which may import the CTIs of another one; by the sources of the side, if
    it has several.
    """
    settings = _settings_of(views[side])
    if settings is None:
        return None
    if isinstance(settings, CtiSettings):
        return {"": _stored(settings, _imported_side(side, settings, views))}
    imports = {source: _source(of_source) for source, of_source in settings.items()}
    return {
        f"{side}/{source}": _stored(of_source, imports[source] and f"{side}/{imports[source]}")
        for source, of_source in settings.items()
    }


def _imported_side(side: str, settings: CtiSettings, views: Mapping[str, StreamView]) -> str | None:
    """The side whose CTIs a side imports. Raises `UsageError` where it has none."""
    origin = settings.import_from
    if origin is None:
        return None
    by_name = {view.name: name for name, view in views.items() if view.name is not None}
    imported: str | None
    if isinstance(origin, str):
        imported = by_name.get(origin, origin)
    else:
        by_node = {view.node: name for name, view in views.items()}
        imported = by_node.get(origin.view.node, by_name.get(origin.view.name))
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
    return {source: _stored(of_source, _source(of_source)) for source, of_source in settings.items()}


def _source(settings: CtiSettings) -> str | None:
    imported = settings.import_from
    return imported if imported is None or isinstance(imported, str) else imported.view.name


def _stored(settings: CtiSettings, import_from: str | None) -> AdvanceTime:
    if settings.generate is None and not import_from:
        raise UsageError(
            "CTIs are imported from a stream by its name: give it one, stream(name=…)", code="advance-time"
        )
    return AdvanceTime(settings.policy, settings.generate, import_from)


def resolved(generator: WatermarkSource, time: str | None) -> Generator | BufferProgress | GivenOrigins:
    """A generator for a stream whose event time is in the column ``time``."""
    if isinstance(generator, GivenOrigins):
        return generator if generator.column else GivenOrigins(_time_for(generator, time))
    if not isinstance(generator, Bounded):
        return cast(Generator | BufferProgress, generator)
    time = _time_for(generator, time)
    return max_event_time(time, generator.delay, hold_future=generator.hold_future, quiet=generator.quiet)


def _time_for(generator: Bounded | GivenOrigins, time: str | None) -> str:
    """The column of event times. Raises `UsageError` for a stream without one."""
    if time is None:
        raise UsageError(
            "this watermark follows an event time: name the column, stream(event_time=…)",
            code="watermark",
            found=generator,
        )
    return time


def _declared(settings: WatermarkSettings) -> Sources:
    """The sources that the user names, with their timeouts."""
    return sources(*settings.sources, idle_timeout=settings.idle_timeout, own_timeouts=settings.own_timeouts)
