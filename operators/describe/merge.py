"""What the user writes: several streams taken into one state, passed on as one, or paired up by session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from tidestate.operators.aggregates import list_
from tidestate.operators.describe.renames import SAME_NAMES, Renames
from tidestate.operators.describe.runnable import Sided, checked_name
from tidestate.operators.describe.sides import AT, LEFT, RIGHT, SIDE, Sides
from tidestate.operators.describe.windowed import Windowed
from tidestate.operators.describe.windows import Sessions, Windows, by_offset
from tidestate.operators.describe.windows import session as sessions_of
from tidestate.operators.progress.watermarks import Watermarks
from tidestate.statestore.durations import Span, span_us, text_of
from tidestate.statestore.errors import UsageError
from tidestate.statestore.messages.keys import Layout, choose_layout

How = Literal["inner", "left", "right", "full"]


@dataclass(frozen=True, kw_only=True)
class Merged(Windowed, Sided):  # type: ignore[misc]  # each side brings a stream of its own
    """A windowed computation over several streams: all of `Windowed`, over columns of the one stream."""

    streams: Sides
    delays_us: tuple[int, ...]

    @property
    def sides(self) -> Sides:
        """Its inputs."""
        return self.streams

    def window(self, windows: Windows) -> Self:
        """As of `Windowed`; not windows of offsets."""
        if isinstance(windows, Windows) and by_offset(windows):
            raise UsageError("offsets of several streams do not make one line: count messages instead", code="offset")
        return super().window(windows)

    def cogroup(self, **columns: str) -> Self:
        """Per key and window the list of a column of each side, in the order of arrival, nulls left out.

        ``left="price"`` makes a column ``left`` of the values of ``left_price``.
        """
        if not columns or (strange := sorted(set(columns) - set(self.sides.names))):
            raise UsageError(
                "name a column for each side that is to be grouped",
                code="sides",
                sides=self.sides.names,
                found=strange if columns else [],
            )
        lists = {side: list_(self.sides.prefixed(side, column)) for side, column in columns.items()}
        return self.aggregate(**lists)

    def describe(self) -> dict[str, Any]:
        """The configuration as a manifest holds it."""
        return super().describe() | {"sides": described(self.sides), "watermark_delay": _texts(self.delays_us)}


@dataclass(frozen=True)
class Unioned(Sided):
    """Several streams with the same columns, passed on as one."""

    streams: Sides
    delays_us: tuple[int, ...]
    name: str
    watermarks: Watermarks | None = None
    renames: Renames = SAME_NAMES

    @property
    def sides(self) -> Sides:
        """Its inputs."""
        return self.streams

    def describe(self) -> dict[str, Any]:
        """The configuration as a manifest holds it."""
        return {
            "name": self.name,
            "sides": described(self.sides),
            "watermark_delay": _texts(self.delays_us),
            "watermark": self.watermarks.describe() if self.watermarks else None,
        }


@dataclass(frozen=True)
class SessionJoined(Sided):
    """Pairs of rows of two streams with the same key and in the same session."""

    streams: Sides
    on: tuple[str, ...]
    windows: Sessions
    how: How
    allowed_us: int
    delays_us: tuple[int, ...]
    name: str
    session: tuple[str, ...]
    offsets: tuple[str | None, str | None] = (None, None)
    origins: tuple[str | None, str | None] = (None, None)
    watermarks: Watermarks | None = None
    renames: Renames = SAME_NAMES

    @property
    def sides(self) -> Sides:
        """Both."""
        return self.streams

    @property
    def equal(self) -> tuple[str, ...]:
        """Columns by which rows of a session pair up, beside those of the session itself."""
        return tuple(name for name in self.on if name not in self.session)

    @property
    def layout(self) -> Layout:
        """The message key of both sides: the rows of a session are one range."""
        return choose_layout("time", "join", equal=bool(self.equal), time_range=True, session=True)

    def describe(self) -> dict[str, Any]:
        """The configuration as a manifest holds it."""
        return {
            "name": self.name,
            "sides": described(self.sides),
            "on": list(self.on),
            "window": self.windows.describe(),
            "how": self.how,
            "allowed_lateness": text_of(self.allowed_us),
            "watermark_delay": _texts(self.delays_us),
            "session": list(self.session),
            "offset": list(self.offsets),
            "origin": list(self.origins),
            "layout": [str(self.layout)] * len(self.sides.names),
            "watermark": self.watermarks.describe() if self.watermarks else None,
        }


def merge(
    *,
    event_time: str | Sequence[str],
    key: str | Sequence[str] | None = None,
    sides: Sequence[str] = (LEFT, RIGHT),
    shared: str | Sequence[str] = (),
    watermark_delay: Span | Sequence[Span] = "0 seconds",
    offset: str | None = None,
    origin: str | None = None,
    name: str = "merged",
    in_order: bool = False,
) -> Merged:
    """Begin a description of several streams that are taken into one state; go on as after `windowed`.

    ``event_time``: the column of event times, of all sides or of each. Key columns and those that are ``shared``
    have one name and type on all sides; a column of one side is called ``left_price`` after its side, null in rows
    of the others. Each side has a watermark, by its own ``watermark_delay`` where several are given; the smallest
    counts. ``offset`` and ``origin`` are shared columns that give rows their order; ``in_order`` is as in `windowed`.
    """
    keys = _columns(key)
    order = tuple(column for column in (origin, offset) if column)
    streams = _sides(sides, event_time, (*keys, *_columns(shared), *order))
    if origin is not None and offset is None:
        raise UsageError("an origin orders messages by their offset: name that too", code="offset", origin=origin)
    delays = _delays(streams, watermark_delay)
    return Merged(
        AT, keys, 0, checked_name(name), offset, origin, streams=streams, delays_us=delays, in_order=in_order
    )


def union(
    *,
    event_time: str | Sequence[str],
    sides: Sequence[str],
    watermark_delay: Span | Sequence[Span] = "0 seconds",
    name: str = "union",
) -> Unioned:
    """Streams with the same columns as one: each row is passed on at once, late ones too, with its ``side``.

    The watermark is the smallest of the sides: one that has said nothing holds it back.
    """
    streams = _sides(sides, event_time, (), alike=True)
    return Unioned(streams, _delays(streams, watermark_delay), checked_name(name))


def session_join(
    *,
    event_time: str | tuple[str, str],
    on: str | Sequence[str] | None = None,
    gap: Span | None = None,
    gap_column: str | None = None,
    how: How = "inner",
    late: Span = "0 seconds",
    watermark_delay: Span | Sequence[Span] = "0 seconds",
    name: str = "session_joined",
    session: str | Sequence[str] | None = None,
    offset: str | tuple[str | None, str | None] | None = None,
    origin: str | tuple[str | None, str | None] | None = None,
) -> SessionJoined:
    """Join two streams by session: rows with equal ``on`` (none: all rows) that are less than ``gap`` apart, of
    whatever side, are one session, and each left row of it pairs up with each right one.

    Pairs are shown as the watermark passes the session's end, and of an outer join (``how``) the rows of sessions
    that have no other side. A row that comes ``late`` shows what it adds; where the session's bounds change, what
    was shown is taken back first. With ``gap_column``, which both sides have, each row brings its own gap.
    ``session`` names the columns that sessions belong to, where these are not those of ``on``: rows of a session then
    pair up where ``on`` is equal too. A message is known by ``offset`` and ``origin``, of both sides or a pair.
    """
    keys, windows = _columns(on), sessions_of(gap, gap_column=gap_column)
    owner = keys if session is None else _columns(session)
    columns = tuple(dict.fromkeys((*owner, *keys)))
    if any(len(set(each)) < len(each) for each in (keys, owner)):
        raise UsageError("a column is named twice", code="key-columns", on=keys, session=owner)
    if how not in ("inner", "left", "right", "full"):
        raise UsageError("a join is inner, left, right or full", code="join-how", found=repr(how))
    allowed = span_us(late)
    if allowed < 0:
        raise UsageError("lateness cannot be negative", code="lateness", late=late)
    streams = _sides((LEFT, RIGHT), event_time, (*columns, *_columns(gap_column)))
    offsets, origins = (tuple(_each(streams.names, given, "join-pair")) for given in (offset, origin))
    _check_places(streams, offsets, origins)
    delays = _delays(streams, watermark_delay)
    return SessionJoined(streams, keys, windows, how, allowed, delays, checked_name(name), owner, offsets, origins)  # type: ignore[arg-type]


def described(sides: Sides) -> dict[str, Any]:
    """Sides as a manifest holds them."""
    return {"names": list(sides.names), "event_times": list(sides.times), "shared": list(sides.shared)}


def _sides(names: Sequence[str], times: str | Sequence[str], shared: Sequence[str], *, alike: bool = False) -> Sides:
    sound = not isinstance(names, str) and len(names) > 1 and len(set(names)) == len(names)
    if not sound or not all(name.isidentifier() for name in names):
        raise UsageError(
            "sides are two or more, with a name of letters, digits and _ each", code="sides", sides=names
        )
    own = tuple(_each(names, times, "event-time"))
    columns = tuple(dict.fromkeys(shared))
    if len(columns) < len(shared) or {SIDE, AT, *own} & set(columns):
        raise UsageError(
            "key and shared columns differ from one another, from the event times, and from side and time",
            code="key-columns",
            found=list(shared),
        )
    return Sides(tuple(names), own, columns, alike)


def _check_places(sides: Sides, offsets: Sequence[str | None], origins: Sequence[str | None]) -> None:
    """Offset and origin are columns of a side's own, and an origin has offsets."""
    for side, offset, origin in zip(sides.names, offsets, origins, strict=True):
        own = [name for name in (offset, origin) if name]
        if origin and not offset:
            raise UsageError("a message is known by its origin and offset: name both", code="join-offset", side=side)
        if len(set(own)) < len(own):
            raise UsageError("origin and offset are two columns", code="join-offset", side=side, found=own)
        if {*sides.shared, sides.time_of(side)} & set(own):
            raise UsageError(
                "offset and origin are columns of a side, not those it is joined by or its time",
                code="join-on",
                side=side,
                found=own,
            )


def _each(names: Sequence[str], given: Any, code: str) -> list[Any]:
    """One for all, or one for each side."""
    many = [given] * len(names) if isinstance(given, str) or not isinstance(given, Sequence) else list(given)
    if len(many) != len(names):
        raise UsageError("give one for all sides, or one for each", code=code, sides=names, found=given)
    return many


def _delays(sides: Sides, delays: Span | Sequence[Span]) -> tuple[int, ...]:
    spans = tuple(span_us(one) for one in _each(sides.names, delays, "watermark-delay"))
    if min(spans) < 0:
        raise UsageError("a watermark delay cannot be negative", code="watermark-delay", found=delays)
    return spans


def _texts(spans: tuple[int, ...]) -> list[str]:
    return [text_of(us) for us in spans]


def _columns(names: str | Sequence[str] | None) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names or ())
