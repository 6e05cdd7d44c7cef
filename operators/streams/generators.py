"""Where a watermark comes from, as a user names it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tidestate.operators.progress.buffered import BufferProgress
from tidestate.operators.progress.cti_settings import Generation
from tidestate.operators.progress.generators import IngestionTime, MaxEventTime, Punctuation, max_event_time
from tidestate.operators.progress.given_origins import GivenOrigins
from tidestate.operators.streams.nodes import Bounded, ByCtis, CtiSettings, WatermarkSettings, WatermarkSource
from tidestate.statestore.arguments import checked
from tidestate.statestore.durations import Span, span_us, text_of
from tidestate.statestore.errors import UsageError


@checked
def bounded(
    delay: Span = "0 seconds",
    column: str | None = None,
    *,
    hold_future: Span | None = None,
    quiet: Span | None = None,
) -> Bounded | MaxEventTime:
    """The largest event time less ``delay``; or the largest value of another ``column`` of times, such as one in
    which each row says how far its source has come. Raises `UsageError` for
    a negative span.

    With ``hold_future``, events further ahead of processing time than that are ignored. With ``quiet``, the watermark
    of a source that was polled without result for that long goes on with the clock until the source has rows again.
    """
    found = max_event_time(column or "", delay, hold_future=hold_future, quiet=quiet)
    return Bounded(delay, hold_future, quiet) if column is None else found


@checked
def ingestion_time(column: str = "ingestion_time") -> IngestionTime:
    """Each event gets the processing time at which it was received as ``column`` (timestamp[us, UTC]), and so does
    the watermark.
    """
    return IngestionTime(column)


@checked
def punctuated(column: str, *, flag: str, equals: str | int | bool | None = None) -> Punctuation:
    """Control rows in the stream: where ``flag`` is true (or has the value ``equals``), ``column`` is a watermark.
    Such rows are no events.
    """
    return Punctuation(column, flag, equals)


@partial(checked, name="buffers")
def by_buffers(
    *,
    origin: str | None = None,
    sequence: str | None = None,
    watermark: str | None = None,
    chunk: str | None = None,
    last: str | None = None,
    patience: Span | None = None,
    end: str | None = None,
    whole: str | None = None,
    empty: str | None = None,
) -> BufferProgress | GivenOrigins:
    """Progress by buffers, which origins number: ``sequence`` is the column of the buffer's number, ``watermark``
    that of its watermark. A gap holds the watermark of its origin for ``patience`` (default: forever).

    Without ``chunk`` a buffer is one chunk; without ``last`` every chunk is the last one. ``whole`` names a column
    with the number of a chunk's rows, or a flag on its last row, where they arrive in several batches. A row in which
    ``empty`` is true announces a chunk without rows; ``end`` is true on the rows of an origin's last buffer. Of a
    stream that is joined, merged or united, origins are those of its side alone.

    Without ``origin`` and ``sequence`` the engine gives both. Each source of the stream gets an origin id, from 1:
    each value of ``by=`` or of the stream's ``origin=``, else the stream itself. What a batch brings of a source is
    its next buffer, whose watermark is the largest of its event times, or of the column ``watermark``. The other
    arguments are then refused. After NebulaStream, "OriginId".
    """
    optional = {"whole": whole, "empty": empty}
    # Absent, and not None, where they are not given: so they are not stored.
    more: dict[str, Any] = {name: column for name, column in optional.items() if column is not None}
    if origin is not None and sequence is not None and watermark is not None:
        return BufferProgress(origin, sequence, watermark, chunk, last, patience, end, **more)  # type: ignore[arg-type]
    brought = {"origin": origin, "sequence": sequence, "chunk": chunk, "last": last, "patience": patience, "end": end}
    if set_names := [f"{name}=" for name, value in {**brought, **more}.items() if value is not None]:
        raise UsageError(
            "these say how the rows number their buffers: name origin=, sequence= and watermark= with them, or none "
            "of them, and the job numbers what it reads",
            code="buffers-columns",
            found=set_names,
        )
    return GivenOrigins(watermark or "")


def ctis(settings: CtiSettings | Mapping[str, CtiSettings] | None = None) -> ByCtis:
    """The watermark of each source is its newest CTI. ``settings`` of the query, for all sources or by name, replace
    those of the source; without either, CTIs are rows of that shape.
    """
    several = settings.values() if isinstance(settings, Mapping) else (settings,)
    if any(not isinstance(each, CtiSettings | None) for each in several):
        raise UsageError(
            "CTI settings must be cti_settings(…), or a mapping of these by source",
            code="advance-time",
            found=repr(settings)[:100],
        )
    return ByCtis(settings)


@checked
def over(
    generator: WatermarkSource | None = None,
    *,
    by: str | None = None,
    sources: Sequence[str] = (),
    idle_timeout: Span | None = None,
    own_timeouts: Mapping[str, Span] | None = None,
) -> WatermarkSettings:
    """One watermark over the columns of all sides of a join, union or merge (``side``, ``time``, ``left_partition``),
    as `Stream.watermark`. Each side is a source, unless ``by`` names others.
    """
    return WatermarkSettings(generator, by, tuple(sources), idle_timeout, own_timeouts)


@checked
def generate_ctis(every: int | Span, *, delay: Span = "0 seconds", final: bool = False) -> Generation:
    """A CTI every N events, or every span of time, at the start time of the last event less ``delay``; with
    ``final``, one at the end of time when the input ends. A negative ``delay`` puts it after the event's own time:
    "-1 microsecond" makes each event final at once.
    Raises `UsageError` for a count or span that is not positive.
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
