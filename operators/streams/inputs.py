"""Where a user begins: a stream, or several as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tidestate.operators.describe.runnable import checked_name
from tidestate.operators.describe.stages import Decode
from tidestate.operators.progress.cti_settings import Generation, LatePolicy
from tidestate.operators.streams.calls import recorded
from tidestate.operators.streams.nodes import (
    CtiSettings,
    StreamInput,
    StreamView,
    WatermarkSettings,
    WatermarkSource,
)
from tidestate.operators.streams.settings import Lifetime
from tidestate.operators.streams.sided import united
from tidestate.operators.streams.stream import (
    MergedStreams,
    Merging,
    OperatorStream,
    Stream,
    prepared,
    watermark_over,
)
from tidestate.statestore.arguments import called, checked
from tidestate.statestore.durations import Span, span_us
from tidestate.statestore.errors import UsageError

called("CTI settings", 'cti_settings("drop", generate=generate_ctis(100))')(CtiSettings)
SIDES_TAKEN = ("name", "watermark", "in_order")
"""Options of `union` and methods of `MergedStreams`, so no names of sides."""


@recorded
@checked
def stream(
    name: str | None = None,
    *,
    event_time: str | None = None,
    watermark_delay: Span = "0 seconds",
    offset: str | None = None,
    origin: str | None = None,
    processing_time: bool = False,
    future_tolerance: Span | None = None,
    lifetime: Lifetime | None = None,
    decode: Decode | None = None,
    retractions: bool = False,
    cti_settings: CtiSettings | Callable[[Any, str], CtiSettings] | None = None,
    configuration: Any = None,
) -> Stream:
    """An input of a job: rows with the time of their events in the column ``event_time``.

    A job of several streams names each; a single one may go without. The watermark stays ``watermark_delay`` behind
    the largest event time. ``offset`` and ``origin`` are columns that order the rows: where order matters, messages
    of a batch count by (origin, offset). With ``processing_time`` every event has the time at which its batch is
    processed, which is also the watermark. Without any of these rows name their windows themselves, in
    ``window_start`` and ``window_end``.

    An event more than ``future_tolerance`` (60 seconds) ahead of the watermark and its delay is counted as future.
    ``lifetime`` has the columns of the ends and shapes of events. ``decode`` says that the rows have their columns in
    the values of one, as Kafka gives them: ``json("value", schema)``. With ``retractions`` the rows are panes of
    another job, or come as these do: one whose column ``kind`` says ``retract`` takes an equal row before it back.
    Without, ``kind`` is a column like any other. ``cti_settings`` are those of the source, which alone
    make CTIs its watermark; a function of them gets ``configuration`` and the shape of events. Raises
    `UsageError` for settings that do not go together.
    """
    if span_us(watermark_delay) < 0:
        raise UsageError("a watermark delay must not be negative", code="watermark-delay", found=watermark_delay)
    if processing_time and (event_time is not None or span_us(watermark_delay)):
        raise UsageError(
            "processing time has no event time and no delay: remove event_time= and watermark_delay=",
            code="processing-time",
        )
    if origin is not None and offset is None:
        raise UsageError(
            "an origin needs an offset, by which its messages are ordered: add offset=", code="offset", origin=origin
        )
    lives = lifetime or Lifetime()
    if name is not None and "__" in checked_name(name):
        raise UsageError(
            "the name of a stream must not contain two underscores in a row", code="stream-name", found=name
        )
    view = StreamView(
        StreamInput(name, future_tolerance),
        event_time,
        watermark_delay=watermark_delay,
        offset=offset,
        origin=origin,
        processing_time=processing_time,
        lifetime=lives,
        stages=() if decode is None else (decode,),
        at_source=_of_author(cti_settings, configuration, lives.shape),
        retractions=retractions,
    )
    return Stream(view)


def _of_author(author: Any, configuration: Any, shape: str) -> CtiSettings | None:
    settings = author(configuration, shape) if callable(author) else author
    if settings is not None and not isinstance(settings, CtiSettings):
        raise UsageError(
            "CTI settings must be cti_settings(…), or a function that returns it",
            code="advance-time",
            found=repr(settings)[:100],
        )
    return settings


@checked
def cti_settings(
    policy: LatePolicy, *, generate: Generation | None = None, import_from: Stream | str | None = None
) -> CtiSettings:
    """How application time advances: CTIs that are made from the events (``generate``: `generate_ctis`), taken over
    from another stream (``import_from``), or both. Events behind a CTI are dropped or adjusted (``policy``).
    """
    if policy not in ("drop", "adjust"):
        raise UsageError('policy= must be "drop" or "adjust"', code="advance-time", policy=policy)
    if generate is None and not import_from:
        raise UsageError("no CTIs are set: give generate=, import_from=, or both", code="advance-time")
    return CtiSettings(policy, generate, import_from)


@partial(recorded, name="merge")
def merge_streams(*streams: Stream, **named: Stream) -> MergedStreams:
    """Several streams in one state: group them by columns that all have, and aggregate the columns of each side,
    which have its name in front (``left_price``). Sides are called as the streams, or as the keywords say.
    """
    sides = _sides(streams, named)
    return MergedStreams(tuple(sides.values()), Merging(tuple(sides)))


@partial(recorded, name="union")
@partial(checked, name="union")
def union_streams(
    *streams: Stream,
    name: str | None = None,
    watermark: WatermarkSource | WatermarkSettings | None = None,
    in_order: bool | None = None,
    **named: Stream,
) -> OperatorStream:
    """Streams with the same columns as one: each row is passed on, late or not, with its ``side`` and its ``time``.
    Sides are called as the streams, or as the keywords say. The watermark is the smallest of the sides, so a side
    without rows holds it.

    Rows pass at once, or with ``in_order`` when the watermark passes their time, in the order of times: the default
    where the watermark of a side is one of CTIs, as a query releases its result only up to these.
    """
    sides = {side: prepared(stream) for side, stream in _sides(streams, named).items()}
    views = {side: stream.view for side, stream in sides.items()}
    made = united(views, watermark_over(watermark), in_order, "union" if name is None else checked_name(name))
    return OperatorStream.of(made, tuple(sides.values()))


def _sides(streams: tuple[Stream, ...], named: Mapping[str, Stream]) -> dict[str, Stream]:
    """The streams by side. Raises `UsageError` for a side without a name, and two of one name."""
    if wrong := [value for value in (*streams, *named.values()) if not isinstance(value, Stream)]:
        raise UsageError(
            "give streams, as stream(…) returns them, as separate arguments: union(a, b)",
            code="argument",
            found=repr(wrong[0])[:100],
        )
    pairs = [*((stream.view.name, stream) for stream in streams), *named.items()]
    names = [name for name, _ in pairs]
    if None in names:
        raise UsageError(
            "sides are named after their streams: give each stream a name, or give the sides as keywords",
            code="stream-name",
        )
    if len(set(names)) < len(names) or set(names) & set(SIDES_TAKEN):
        raise UsageError(
            'sides must have different names, other than "name" and "watermark": give the sides as keywords',
            code="sides",
            sides=names,
        )
    return {str(name): stream for name, stream in pairs}
