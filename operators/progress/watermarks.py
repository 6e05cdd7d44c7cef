"""Watermarks: which instants may be one; and the settings: what claims it, the sources that are declared and when
each of them is idle, the column that names a row's source, and what columns of a side are called where several
streams are one. Pure.

A watermark after the year 9999 is a mistaken unit (nanoseconds for microseconds, say), and would close every window
forever. So a watermark that comes as data must lie in the years 1 to 9999; times before 1970 are valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.statestore.arrays import Flags, Times
from tidestate.statestore.durations import Span, span_us, text_of
from tidestate.statestore.errors import UsageError

BEGINNING_US, END_US = -(2**63), 2**63 - 1
LIMIT_US = 2**61
"""Event times lie within 73,000 years of 1970, so that a time plus a span never overflows int64."""
OFFSET_LIMIT = 2**57
"""Offsets are smaller than this."""
FIRST_US, LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The first and the last microsecond of the years 1 to 9999."""
_WHOLE_LIMIT = 2.0**63


def is_watermark(instants: Times) -> Flags:
    """Whether each is a valid watermark: within the years 1 to 9999, or one of the two ends of time."""
    within: Flags = (instants >= FIRST_US) & (instants <= LAST_US)
    within |= (instants == BEGINNING_US) | (instants == END_US)
    return within


def usable(instant_us: int) -> bool:
    """`is_watermark` of a single instant."""
    return FIRST_US <= instant_us <= LAST_US or instant_us in (BEGINNING_US, END_US)


def moved(instants: Times, by_us: int) -> Times:
    """Each instant plus ``by_us`` (a span of `tidestate.statestore.durations`, so within 2^62; may be negative).

    The ends of time stay as they are, and no other instant becomes one.
    """
    least, most = BEGINNING_US + 1, END_US - 1
    room = np.minimum(instants, most - by_us) if by_us >= 0 else np.maximum(instants, least - by_us)
    shifted = np.maximum(np.minimum(room + by_us, most), least)
    kept: Times = np.where((instants == BEGINNING_US) | (instants == END_US), instants, shifted)
    return kept


def moved_one(instant_us: int, by_us: int) -> int:
    """`moved` of a single instant."""
    if instant_us in (BEGINNING_US, END_US):
        return instant_us
    return max(BEGINNING_US + 1, min(END_US - 1, instant_us + by_us))


def instants(column: Any, name: str) -> tuple[Times, Flags]:
    """A column as microseconds, and which rows have none (null, NaN, not whole, not 64 bits). Both of shape
    ``(rows,)``.

    ``column`` is an Arrow or numpy array of timestamps, integers or floats (microseconds). A row that has none is
    `BEGINNING_US`. Raises `UsageError` for another type.
    """
    array = column if isinstance(column, pa.ChunkedArray | pa.Array) else pa.array(column)
    if pa.types.is_floating(array.type):
        return _from_floats(array)
    if pa.types.is_timestamp(array.type):
        # Rounded down: a watermark a little too low is only slow, a little too high is wrong.
        whole = pc.floor_temporal(array, unit="microsecond") if array.type.unit == "ns" else array
        array = whole.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64())
    elif pa.types.is_uint64(array.type):
        array = pc.if_else(pc.greater(array, END_US), None, array).cast(pa.int64())
    elif pa.types.is_integer(array.type) or pa.types.is_null(array.type):
        array = array.cast(pa.int64())
    else:
        raise UsageError(
            "the column must hold timestamps, or integers of microseconds",
            code="progress-column",
            column=name,
            found=array.type,
        )
    missing: Flags = np.zeros(len(array), bool)
    if array.null_count:
        missing = np.asarray(array.is_null())
        array = pc.fill_null(array, BEGINNING_US)
    return np.asarray(array).astype(np.int64, copy=False), missing


def _from_floats(array: Any) -> tuple[Times, Flags]:
    values = np.asarray(pc.fill_null(array, float("nan"))).astype(np.float64, copy=False)
    finite = np.isfinite(values)
    missing = ~finite | (np.floor(np.where(finite, values, 0.5)) != values) | (np.abs(values) >= _WHOLE_LIMIT)
    return np.where(missing, BEGINNING_US, np.where(missing, 0, values).astype(np.int64)), missing


@dataclass(frozen=True)
class SideColumns:
    """What the columns of a side are called where several streams are one: with the name of the side in front, but
    for those that are ``shared`` (None: all are).
    """

    side: str
    shared: tuple[str, ...] | None

    def in_stream(self, name: str) -> str:
        """What a column of the side is called there."""
        return name if self.shared is None or name in self.shared else f"{self.side}_{name}"

    def on_side(self, name: str) -> str:
        """What a column there is called on the side: the reverse of `in_stream`."""
        return name if self.shared is None or name in self.shared else name.removeprefix(f"{self.side}_")

    def columns(self, names: Iterable[str]) -> dict[str, str]:
        """The columns of the side among ``names`` there, each with what it is called on the side."""
        names_on_side = {name: self.on_side(name) for name in names}
        # A column of another side keeps its name, which the way back then changes.
        return {name: column for name, column in names_on_side.items() if self.in_stream(column) == name}

    def of_side(self, rows: pa.Table) -> pa.Table:
        """The columns of the side, by the names that they have in its own stream."""
        columns = self.columns(rows.column_names)
        return rows.select([*columns]).rename_columns([*columns.values()])


INPUT = "input"
"""The source of a stream that has only one."""


class Sources(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The sources of a job by name. One is idle after its timeout without data (None: never)."""

    names: tuple[str, ...]
    idle_timeout_us: int | None = None
    own_timeouts_us: dict[str, int] = {}

    def timeout_us(self, name: str) -> int | None:
        """The timeout of a source; ``orders/3`` has that of ``orders`` unless it has its own."""
        whole = name.rpartition("/")[0]
        return self.own_timeouts_us.get(name, self.own_timeouts_us.get(whole, self.idle_timeout_us))


def sources(*names: str, idle_timeout: Span | None = None, own_timeouts: Mapping[str, Span] | None = None) -> Sources:
    """Declare the sources. A declared source holds W from the start; any other joins at W with its first report.

    ``own_timeouts`` has timeouts that differ from ``idle_timeout``. Raises `UsageError` for a name that is empty or
    occurs twice, and for a timeout that is not positive.
    """
    if len(set(names)) != len(names) or not all(names):
        raise UsageError("each source needs a name of its own", code="progress-source", found=list(names))
    by_name = {name: _timeout(span) for name, span in (own_timeouts or {}).items()}
    return Sources(names, None if idle_timeout is None else _timeout(idle_timeout), by_name)


def side_sources(
    names: Sequence[str],
    followed: Sequence[str],
    idle_timeout: Span | None = None,
    own_timeouts: Mapping[str, Span] | None = None,
) -> Sources:
    """Declare the sides. Those ``followed`` read operators, and are never idle."""
    if not followed or idle_timeout is None:
        return sources(*names, idle_timeout=idle_timeout, own_timeouts=own_timeouts)
    own = {side: idle_timeout for side in names if side not in followed}
    return sources(*names, own_timeouts={**own, **(own_timeouts or {})})


def _timeout(span: Span) -> int:
    timeout_us = span_us(span)
    if timeout_us <= 0:
        raise UsageError("an idle timeout must be above 0", code="progress-source", found=text_of(timeout_us))
    return timeout_us


ONE = Sources((INPUT,))
"""A stream that has only one."""


def given_sources(by: str | None, known: Sources) -> Sources:
    """The declared sources, or the single one. Raises `UsageError` for several, or timeouts of their own, without a
    column ``by``.
    """
    if by is None and known.names:
        raise UsageError(
            "several sources are declared: name the column that holds the source of each row, by=",
            code="watermark",
            sources=known.names,
        )
    if by is None and known.own_timeouts_us:
        raise UsageError(
            "own_timeouts= are of several sources: name the column that holds the source of each row, by=, or give "
            "the one source an idle_timeout=",
            code="watermark",
            own_timeouts=list(known.own_timeouts_us),
        )
    return known if by else Sources((INPUT,), known.idle_timeout_us)


class Claimant:
    """What claims watermarks from rows, as a description has it. It reads them either before they are judged, and may
    then refuse, drop or change them, or afterwards, and then only those that are accepted.
    """

    __slots__ = ()

    @property
    def written(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        """The call that makes it: the function, its arguments, and its options (None: not set)."""
        return type(self).__qualname__, (), {}

    @property
    def columns(self) -> Sequence[str]:
        """The input columns that it reads."""
        return ()

    @property
    def filters_rows(self) -> bool:
        """Whether it reads rows before they are judged."""
        return False

    @property
    def order(self) -> Sequence[str]:
        """The columns that order the rows of a source; empty if the order does not matter."""
        return ()

    @property
    def orders(self) -> Mapping[str, Sequence[str]]:
        """The columns that order the rows of each side, where each has its own."""
        return {}

    def order_of(self, side: str) -> Sequence[str]:
        """The columns that order the rows of a side."""
        return self.orders.get(side, ()) if self.orders else self.order

    @property
    def of_sides(self) -> Mapping[str, Claimant]:
        """What claims the watermark of each side that has its own; empty if the rows of all sides have one."""
        return {}

    def by_of(self, side: str) -> str | None:
        """The column that names the sources of a side; None if the side is one."""
        return None

    @property
    def followed(self) -> Sequence[str]:
        """The sides that read operators, whose watermarks are theirs."""
        return ()

    def imports_of(self, source: str) -> str | None:
        """The source whose CTIs this one takes over; None for no other."""
        return None

    @property
    def by_clock(self) -> bool:
        """Whether the watermark goes on with the clock, whatever the rows contain."""
        return False

    @property
    def waits(self) -> bool:
        """Whether time alone may move the watermark otherwise."""
        return False

    @property
    def least_quiet_us(self) -> int | None:
        """How long some source must have no rows before its watermark goes on with the clock; None: it never does."""
        return None

    def quiet_after(self, source: str) -> int | None:
        """How long this source must have no rows before its watermark goes on with the clock; None: it never does."""
        return self.least_quiet_us

    @property
    def delay_us(self) -> int:
        """How far the watermark stays behind the newest event; 0 without a delay."""
        return 0

    @property
    def by_ctis(self) -> bool:
        """Whether the watermark of every source is its newest CTI."""
        return False

    @property
    def has_ctis(self) -> bool:
        """Whether the watermark of a source is one of CTIs."""
        return any(generator.has_ctis for generator in self.of_sides.values())

    @property
    def has_edges(self) -> bool:
        """Whether rows may be edges, whose ends arrive later."""
        return False

    @property
    def in_parts(self) -> Sequence[str]:
        """Sources that stand for their parts until the first of these has rows."""
        return ()

    def watermarks(self, by: str | None, declared: Sources) -> Watermarks:
        """The settings with this generator. Raises `UsageError` if they contradict each other."""
        return Watermarks(self, given_sources(by, declared), by)

    def of_side(self, columns: SideColumns) -> Claimant:
        """The same for one of several sides. Raises `UsageError` where it needs a stream of its own."""
        return self

    def of_operator(self, name: str, side: str | None = None) -> Claimant:
        """The same as part of this operator, or for the rows of one of its sides: its errors name these."""
        return self

    def explains(self, event_us: int, watermark_us: int) -> bool:
        """Whether an event of this time moved the watermark to this one."""
        return False


class Watermarks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``generator`` claims watermarks; ``by`` is the column that names a row's source; ``sources`` are the declared
    ones.
    """

    generator: Claimant
    sources: Sources = ONE
    by: str | None = None

    @property
    def columns(self) -> list[str]:
        """The input columns that are read."""
        return [name for name in (*self.generator.columns, self.by) if name]

    @property
    def by_clock(self) -> bool:
        """Whether the watermark goes on without input."""
        return self.generator.by_clock

    @property
    def idles(self) -> bool:
        """Whether sources fall idle, which goes by the clock of each start."""
        return self.sources.idle_timeout_us is not None or bool(self.sources.own_timeouts_us)

    @property
    def clocked(self) -> bool:
        """Whether time alone may move it: it follows the clock, or sources fall idle, or wait for each other."""
        return self.by_clock or self.idles or self.generator.waits

    @property
    def quiet_us(self) -> int | None:
        """How long a source has no rows before its watermark goes on with the clock; None: it never does."""
        return self.generator.least_quiet_us

    @property
    def delay_us(self) -> int:
        """How far the watermark stays behind the newest event; 0 of a generator without a delay."""
        return max(self.generator.delay_us, 0)

    @property
    def filters_rows(self) -> bool:
        """Whether the generator removes rows that are no events, before the others are classified."""
        return self.generator.filters_rows

    @property
    def order(self) -> tuple[str, ...]:
        """The columns that order the rows of each source; empty if the order does not matter."""
        return tuple(self.generator.order)

    @property
    def followed(self) -> tuple[str, ...]:
        """The sides that read operators, among others that read streams."""
        return tuple(self.generator.followed)
