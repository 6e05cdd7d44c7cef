"""What the user writes to take several streams into one state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from msgspec.structs import replace

from tidestate.operators.aggregates.collection import list_
from tidestate.operators.describe.given_sides import columns_of, given_delays, given_sides
from tidestate.operators.describe.runnable import Sided, checked_name
from tidestate.operators.describe.sides import AT, LEFT, RIGHT, SIDE, Sides
from tidestate.operators.describe.windowed import KnownMessages, Windowed
from tidestate.operators.describe.windows import Windows
from tidestate.operators.progress.cti_settings import Settings
from tidestate.statestore.arguments import checked
from tidestate.statestore.durations import Span
from tidestate.statestore.errors import UsageError, of_type
from tidestate.statestore.messages.tables import Retention


class Merge(Windowed, Sided, frozen=True, kw_only=True, tag="merge"):  # type: ignore[misc]  # a stream for each side
    """A windowed computation over several streams: all of `Windowed`, over columns of the one stream."""

    sides: Sides
    delays_us: tuple[int, ...]

    def window(self, windows: Windows) -> Self:
        """As of `Windowed`; not windows of offsets."""
        if isinstance(windows, Windows) and windows.by_offset:
            raise UsageError("offsets of several streams do not make one line: count messages instead", code="offset")
        return super().window(windows)

    def order_of(self, side: str) -> tuple[str, ...]:
        return tuple(name for name in (self.origin, self.offset) if name)

    @checked
    def advance_time(  # type: ignore[override]
        self,
        settings: Settings = None,
        *,
        at_source: Settings = None,
        shape: str | Sequence[str] = "point",
        end: str | Sequence[str | None] | None = None,
        shape_column: str | Sequence[str | None] | None = None,
        by: str | None = None,
        sources: Sequence[str] = (),
        idle_timeout: Span | None = None,
        own_timeouts: Mapping[str, Span] | None = None,
    ) -> Self:
        """As `Sided.advance_time`: each side is a source. With ``by`` and ``sources`` as `Windowed.advance_time`: the
        sources are those of a shared column, and the other columns are those of the merged stream.
        """
        about: dict[str, Any] = {"shape": shape, "end": end, "shape_column": shape_column}
        about |= {"at_source": at_source, "idle_timeout": idle_timeout, "own_timeouts": own_timeouts}
        if by is None:
            return Sided.advance_time(self, settings, **about)
        return super().advance_time(settings, by=by, sources=sources, **about)

    @checked
    def messages(
        self,
        identity: str | Sequence[str] | None = None,
        *,
        retention: Retention | None = None,
        layout: str | None = None,
        equal: str | Sequence[str] = (),
    ) -> Self:
        """As of `Windowed`. The identity is of shared columns, and each side has offsets of its own."""
        found = super().messages(identity, retention=retention, layout=layout, equal=equal)
        known = of_type(found.known, KnownMessages)
        if lacking := [name for name in known.identity if name not in (*self.sides.shared, SIDE)]:
            raise UsageError(
                "the identity of messages of several streams is of columns that all have: name them in .sharing(…)",
                code="message-identity",
                columns=lacking,
            )
        own = tuple(name for name in known.identity if name != SIDE)
        return replace(found, known=replace(known, identity=(SIDE, *own)))

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


@checked
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
) -> Merge:
    """Begin a description of several streams that share one state; continue as after `windowed`.

    ``event_time``: the column of event times, of all sides or one per side. Key columns and those in ``shared`` have
    one name and type on all sides; other columns get their side's name in front (``left_price``) and are null in rows
    of other sides. Each side has a watermark, with its own ``watermark_delay`` if several are given; the smallest
    counts. ``offset`` and ``origin`` are shared columns that order the rows; ``in_order`` is as in `windowed`.
    """
    keys = columns_of(key)
    order = tuple(column for column in (origin, offset) if column)
    streams = given_sides(sides, event_time, (*keys, *columns_of(shared), *order))
    if origin is not None and offset is None:
        raise UsageError("an origin orders messages by their offset: name that too", code="offset", origin=origin)
    delays = given_delays(streams, watermark_delay)
    return Merge(
        AT, keys, 0, offset, origin, sides=streams, delays_us=delays, in_order=in_order, name=checked_name(name)
    )
