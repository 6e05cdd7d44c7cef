"""Watermarks of recipes by today's methods: `watermark` and `advance_time`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from tests.golden.descriptions.today_values import Settings, spaces
from tests.golden.descriptions.values import arguments, value
from tests.golden.descriptions.views import View
from tests.helpers import old_grammar as ops
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.progress.watermarks import BufferProgress
from tidestate.statestore.errors import UsageError

NONE = "0 seconds"


def marked(description: Any, view: View) -> Runnable:
    """What reads one stream, with the watermark of the stream."""
    if view.watermark is None and view.cti_settings is None:
        return description  # type: ignore[no-any-return]
    settings = _settings(view)
    still = replace(description, watermark_delay_us=0)
    if not settings.of_ctis:
        generator = settings.generator or ops.max_event_time(view.event_time or "", view.delay)
        return still.watermark(generator, **settings.options)  # type: ignore[no-any-return]
    end, shape, column = view.lifetime
    return still.advance_time(  # type: ignore[no-any-return]
        settings.generator, at_source=view.cti_settings, shape=shape, end=end, shape_column=column, **settings.options
    )


def marked_sides(description: Any, read: Sequence[View], sides: Sequence[str], over: Any) -> Runnable:
    """What reads several, with a watermark ``over`` all of them, or with those of the streams."""
    own = [view for view in read if view.watermark is not None or view.cti_settings is not None]
    if over is not None and own:
        raise UsageError("a watermark over all sides, or one of each", code="watermark-sides")
    if over is not None:
        return _over_all(description, read, value(over, spaces(time="time")))
    if any(view.has_ctis for view in read):
        return _ctis_of_sides(description, read, sides)
    return _idle_sides(description, read, sides) if own else description


def _settings(view: View) -> Settings:
    """The settings of a stream's own watermark."""
    if view.watermark is None:
        return Settings(of_ctis=True)
    args, options = arguments(view.watermark, spaces(time=view.event_time))
    claim = args[0] if args else None
    if isinstance(claim, Settings):
        return Settings(claim.generator, claim.of_ctis, {**claim.options, **options})
    return Settings(claim, view.cti_settings is not None, options)


def _over_all(description: Any, read: Sequence[View], over: Any) -> Runnable:
    settings = over if isinstance(over, Settings) else Settings(over)
    if settings.of_ctis:
        return _still(description).advance_time(settings.generator, **settings.options)  # type: ignore[no-any-return]
    generator = settings.generator or ops.max_event_time("time", _delay(read))
    options = dict(settings.options)
    if "by" not in options and not isinstance(generator, BufferProgress) and "sources" in options:
        raise UsageError("sources are of a column: by=", code="watermark-sides")
    return _still(description).watermark(generator, **options)  # type: ignore[no-any-return]


def _idle_sides(description: Any, read: Sequence[View], sides: Sequence[str]) -> Runnable:
    if any(view.operator for view in read):
        raise UsageError("an operator is never idle", code="watermark-sides")
    timeouts = _timeouts(read, sides, {"idle_timeout"})
    return _still(description).watermark(ops.max_event_time("time", _delay(read)), **timeouts)  # type: ignore[no-any-return]


def _ctis_of_sides(description: Any, read: Sequence[View], sides: Sequence[str]) -> Runnable:
    side_of = {view.name: side for view, side in zip(read, sides, strict=True)}
    each = {side: _settings(view) for view, side in zip(read, sides, strict=True) if view.has_ctis}
    chosen = {side: settings.generator for side, settings in each.items() if settings.generator is not None}
    at_query = {side: _of_side(settings, side_of) for side, settings in chosen.items()}
    at_source = {side_of[view.name]: view.cti_settings for view in read if view.cti_settings is not None}
    shapes = {} if isinstance(description, ops.OverlapJoin) else _shapes(read)
    return _still(description).advance_time(  # type: ignore[no-any-return]
        at_query or None, at_source=at_source or None, **shapes, **_timeouts(read, sides, {"idle_timeout"})
    )


def _of_side(settings: Any, side_of: dict[str, str]) -> Any:
    """Settings that import from the side that reads the stream they name."""
    source = settings.import_from
    return settings if source is None else replace(settings, import_from=side_of[source])


def _shapes(read: Sequence[View]) -> dict[str, Any]:
    ends, shapes, columns = zip(*(view.lifetime for view in read), strict=True)
    return {"shape": shapes, "end": ends, "shape_column": columns}


def _timeouts(read: Sequence[View], sides: Sequence[str], allowed: set[str]) -> dict[str, Any]:
    """One timeout where all sides have the same and no others; else those of each."""
    options = {side: _settings(view).options for view, side in zip(read, sides, strict=True) if view.watermark}
    if any(set(settings) - allowed for settings in options.values()):
        raise UsageError("in front of sides a stream has an idle timeout alone", code="watermark-sides")
    spans = {side: settings["idle_timeout"] for side, settings in options.items() if "idle_timeout" in settings}
    if not spans:
        return {}
    if len(spans) == len(read) and len(set(spans.values())) == 1:
        return {"idle_timeout": next(iter(spans.values()))}
    return {"own_timeouts": spans}


def _delay(read: Sequence[View]) -> str:
    delays = {view.delay for view in read}
    if len(delays) > 1:
        raise UsageError("one generator serves all sides: give them one delay", code="watermark-sides")
    return delays.pop()


def _still(description: Any) -> Any:
    """Without the delays, which a generator replaces."""
    if not hasattr(description, "delays_us"):
        return description
    return replace(description, delays_us=(0,) * len(description.sides.names))
