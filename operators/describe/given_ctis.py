"""CTIs of one stream, as a user names them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tidestate.operators.progress.cti_settings import Ctis, Settings, settings_by_source
from tidestate.operators.progress.watermarks import Watermarks, given_sources, sources
from tidestate.statestore.durations import Span
from tidestate.statestore.errors import UsageError


def watermarks_of_ctis(
    start: str | None,
    order: Iterable[str | None],
    settings: tuple[Settings, Settings],
    columns: tuple[str | None, str, str | None],
    by: str | None,
    known: tuple[Sequence[str], Span | None, Mapping[str, Span] | None],
) -> Watermarks:
    """The watermarks of one stream with CTIs. ``start``: the event time; ``order``: origin and offset; ``settings``:
    of the query and at the source; ``columns``: end, shape and shape column; ``known``: the sources, with timeouts.
    Raises `UsageError` without an event time or an offset, and for settings that contradict each other.
    """
    origin, offset = order
    if start is None or offset is None:
        raise UsageError(
            "CTIs follow event times in the order of offsets: stream(event_time=…, offset=…)",
            code="advance-time",
            event_time=start,
            offset=offset,
        )
    names, idle_timeout, own_timeouts = known
    end, shape, shape_column = columns
    named = tuple(name for name in (origin, offset) if name)
    at_query, at_source = map(settings_by_source, settings)
    ctis = Ctis(at_query, at_source, start, named, end, shape, shape_column)
    chosen = given_sources(by or origin, sources(*names, idle_timeout=idle_timeout, own_timeouts=own_timeouts))
    ctis.check(names)
    return Watermarks(ctis, chosen, by or origin)
