"""The settings of a job's watermark: the generator, the sources, and the column that names a row's source. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, runtime_checkable

import msgspec
import pyarrow as pa

from tidestate.operators.progress.instants import BEGINNING_US
from tidestate.operators.progress.maxima import SidePositions
from tidestate.statestore.arrays import Counters
from tidestate.statestore.durations import Span, span_us, text_of
from tidestate.statestore.errors import UsageError

if TYPE_CHECKING:
    Patience = Span
else:
    Patience = str  # as it is stored, whatever is given
INPUT = "input"
"""The source of a stream that has only one."""
Reports = dict[str, "SourceReport"]


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
        raise UsageError("each source needs a different name", code="progress-source", found=list(names))
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


class SourceReport(msgspec.Struct, frozen=True):
    """The report of one source in one round.

    ``watermark_us`` is exclusive; `BEGINNING_US` is none. ``generated``: it follows from this round's rows alone, so
    a lower one than before is no step back. ``asked``: the source was polled. ``status``: the source itself reports
    that it is idle, or active again. ``ended``: this is its last report.
    """

    watermark_us: int = BEGINNING_US
    rows: int = 0
    asked: bool = True
    generated: bool = False
    status: Literal["idle", "active"] | None = None
    ended: bool = False


@dataclass(frozen=True)
class SourceReading:
    """A piece of input as a generator read it: the rows that go on, a report per source, counters of the others."""

    events: pa.Table
    reports: dict[str, SourceReport]
    counters: Counters = field(default_factory=dict)


class Generator(Protocol):
    """Reads a piece of input. ``by`` is a column that names the parts of a source, such as Kafka partitions: each
    part is then a source of its own, named ``source/value``.
    """

    def read(self, events: pa.Table, now_us: int, *, source: str, by: str | None = None) -> SourceReading:
        """Read ``events`` at processing time ``now_us``, which must not go back from one piece to the next."""
        ...


class BufferProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="buffers"):
    """Progress by buffers: the columns that name the buffer, and the chunk of it, in which each row arrived.

    Without ``chunk`` a buffer is one chunk; without ``last`` every chunk is the last one. All rows of a chunk arrive
    in one batch, unless ``whole`` names a column with the number of its rows, or a flag on its last row: then it is
    waited for until they are there. Rows of a repeated buffer are rejected. A row in which ``empty`` is true is no
    event: it announces a chunk without rows. ``end`` is true on the rows of an origin's last buffer: once
    everything up to it has arrived, the origin no longer holds W.

    Each origin is a source. A gap holds its watermark for ``patience`` (default: forever); rows that arrive for the
    gap later are rejected. Raises `UsageError` for a patience that is not positive.
    """

    origin: str
    sequence: str
    watermark: str
    chunk: str | None = None
    last: str | None = None
    patience: Patience | None = None
    end: str | None = None
    whole: str | msgspec.UnsetType = msgspec.UNSET
    empty: str | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if self.patience is None:
            return
        if span_us(self.patience) <= 0:
            raise UsageError("patience= must be above 0", code="watermark", patience=self.patience)
        msgspec.structs.force_setattr(self, "patience", text_of(span_us(self.patience)))

    filters_rows: ClassVar[bool] = True
    """Whether it removes rows that are no events, before the others are classified."""

    @property
    def waits(self) -> bool:
        """Whether its watermark can move without input."""
        return self.patience is not None

    @property
    def columns(self) -> list[str]:
        """The input columns it reads."""
        of_buffer = (self.origin, self.sequence, self.watermark, self.chunk, self.last)
        return [name for name in (*of_buffer, self.end, self.whole, self.empty) if isinstance(name, str)]

    @property
    def patience_us(self) -> int | None:
        """`patience` in microseconds."""
        return None if self.patience is None else span_us(self.patience)

    def check(self, by: str | None, names: Iterable[str]) -> None:
        """Raises `UsageError` if ``by`` is another column, or a source is not a whole number."""
        if by not in (None, self.origin):
            raise UsageError(
                "with buffers each origin is a source: remove by=", code="watermark", by=by, origin=self.origin
            )
        if wrong := [name for name in names if not re.fullmatch("0|-?[1-9][0-9]*", name)]:
            raise UsageError("the origins of buffers must be integers", code="progress-source", found=wrong)


@runtime_checkable
class Claimant(Protocol):
    """What claims watermarks: a `Generator`, `Ctis` or `BufferProgress`, with these optional attributes:

    ``columns`` that it reads; ``by_clock``: it goes on without input; ``waits``: time alone may move its watermark;
    ``quiet_us``: how long a source has no rows before its watermark goes on with the clock;
    ``filters_rows``: it removes rows that are no events, before the others are classified; ``order``: the columns
    that order the rows of a source.
    """


class Watermarks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``generator`` claims watermarks; ``by`` is the column that names a row's source; ``sources`` are the declared
    ones.
    """

    generator: Claimant
    sources: Sources = ONE
    by: str | None = None

    @property
    def positions(self) -> tuple[SidePositions, ...]:
        """The sides whose largest position is tracked."""
        return ()

    @property
    def in_order(self) -> bool:
        """Whether rows are held until W passes them, and count from then on."""
        return False

    @property
    def columns(self) -> list[str]:
        """The input columns that are read."""
        named = [getattr(self.generator, name, None) for name in ("column", "flag")]
        return [name for name in (*getattr(self.generator, "columns", named), self.by) if name]

    @property
    def by_clock(self) -> bool:
        """Whether the watermark goes on without input."""
        return bool(getattr(self.generator, "by_clock", False))

    @property
    def clocked(self) -> bool:
        """Whether time alone may move it: it follows the clock, or sources fall idle, or wait for each other."""
        timed = self.sources.idle_timeout_us is not None or bool(self.sources.own_timeouts_us)
        return self.by_clock or timed or bool(getattr(self.generator, "waits", False))

    @property
    def quiet_us(self) -> int | None:
        """How long a source has no rows before its watermark goes on with the clock; None: it never does."""
        quiet = getattr(self.generator, "quiet_us", None)
        return quiet if isinstance(quiet, int) else None

    @property
    def delay_us(self) -> int:
        """How far the watermark stays behind the newest event; 0 of a generator without a delay."""
        delay = getattr(self.generator, "delay_us", 0)
        return max(delay, 0) if isinstance(delay, int) else 0

    @property
    def filters_rows(self) -> bool:
        """Whether the generator removes rows that are no events, before the others are classified."""
        return bool(getattr(self.generator, "filters_rows", False))

    @property
    def order(self) -> tuple[str, ...]:
        """The columns that order the rows of each source; empty if the order does not matter."""
        return tuple(getattr(self.generator, "order", ()))

    @property
    def orders(self) -> dict[str, tuple[str, ...]]:
        """The columns that order the rows of each side, where each has its own."""
        sides = getattr(self.generator, "sides", {}).items()
        return {side: columns.order for side, columns in sides if columns.order}

    @property
    def followed(self) -> tuple[str, ...]:
        """The sides that read operators, among others that read streams with CTIs."""
        return tuple(getattr(self.generator, "followed", ()))


class PlacedWatermarks(Watermarks, frozen=True):
    """Watermarks of a join whose sides are placed by positions of their own."""

    positions: tuple[SidePositions, ...] = ()
    in_order: bool = False


def given_watermarks(generator: Generator | BufferProgress, by: str | None, known: Sources) -> Watermarks:
    """The settings that a user gives. Raises `UsageError` if they contradict each other."""
    if isinstance(generator, BufferProgress):
        generator.check(by, known.names)
        return Watermarks(generator, known, generator.origin)
    if not hasattr(generator, "read"):
        raise UsageError(
            "this is not a watermark generator: give one such as watermark.bounded(…) or watermark.fixed(…)",
            code="watermark",
            found=repr(generator),
        )
    return Watermarks(generator, given_sources(by, known), by)


def given_sources(by: str | None, known: Sources) -> Sources:
    """The declared sources, or the single one. Raises `UsageError` for several without a column ``by``."""
    if by is None and known.names:
        raise UsageError(
            "several sources are declared: name the column that holds the source of each row, by=",
            code="watermark",
            sources=known.names,
        )
    return known if by else Sources((INPUT,), known.idle_timeout_us, known.own_timeouts_us)
