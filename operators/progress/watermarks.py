"""The settings of a job's watermark: what claims it, of which sources, and how sources are told apart. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import msgspec
import pyarrow as pa

from tidestate.operators.progress.instants import BEGINNING_US
from tidestate.operators.progress.maxima import Placed
from tidestate.statestore.arrays import Counters
from tidestate.statestore.durations import Span, span_us, text_of
from tidestate.statestore.errors import UsageError

INPUT = "input"
"""The one source of a stream that is not told apart."""
Reports = dict[str, "SourceReport"]


@dataclass(frozen=True)
class Sources:
    """The sources of a job by name, and after how long without data one is idle (None: never)."""

    names: tuple[str, ...]
    idle_timeout_us: int | None = None
    own_timeouts_us: dict[str, int] = field(default_factory=dict)

    def timeout_us(self, name: str) -> int | None:
        """The timeout of one source; of a source ``orders/3`` without its own that of ``orders``."""
        whole = name.rpartition("/")[0]
        return self.own_timeouts_us.get(name, self.own_timeouts_us.get(whole, self.idle_timeout_us))

    def describe(self) -> dict[str, Any]:
        """For the manifest."""
        return {
            "names": list(self.names),
            "idle_timeout": None if self.idle_timeout_us is None else text_of(self.idle_timeout_us),
            "own_timeouts": {name: text_of(span) for name, span in sorted(self.own_timeouts_us.items())},
        }


def sources(*names: str, idle_timeout: Span | None = None, own_timeouts: Mapping[str, Span] | None = None) -> Sources:
    """Declare the sources. A declared source holds W back from the start; another joins at W when it first reports.

    ``own_timeouts`` has timeouts that differ from ``idle_timeout``. Raises `UsageError` for a name that is empty or
    stands twice, and for a timeout that is not above 0.
    """
    if len(set(names)) != len(names) or not all(names):
        raise UsageError("each source has a name of its own", code="progress-source", found=list(names))
    own = {name: _timeout(span) for name, span in (own_timeouts or {}).items()}
    return Sources(names, None if idle_timeout is None else _timeout(idle_timeout), own)


def _timeout(span: Span) -> int:
    found = span_us(span)
    if found <= 0:
        raise UsageError("an idle timeout is longer than nothing", code="progress-source", found=text_of(found))
    return found


ONE = Sources((INPUT,))


class SourceReport(msgspec.Struct, frozen=True):
    """What one source said in one round.

    ``watermark_us`` is exclusive; `BEGINNING_US` says nothing. ``generated``: it follows from this round's rows
    alone, so one below the last is no step back. ``asked``: the source was asked for data. ``status``: the source
    itself says that it is idle, or active again. ``ended``: it will never report again.
    """

    watermark_us: int = BEGINNING_US
    rows: int = 0
    asked: bool = True
    generated: bool = False
    status: Literal["idle", "active"] | None = None
    ended: bool = False


@dataclass(frozen=True)
class SourceReading:
    """What a generator made of a piece of input: rows to go on with, a report per source, what it left out."""

    events: pa.Table
    reports: dict[str, SourceReport]
    counters: Counters = field(default_factory=dict)


class Generator(Protocol):
    """Reads a piece of input. ``by`` is a column that tells apart the parts of a source, such as Kafka partitions:
    each part is then a source of its own, called ``source/value``.
    """

    def read(self, events: pa.Table, now_us: int, *, source: str, by: str | None = None) -> SourceReading:
        """At processing time ``now_us``, which must not go back from one piece to the next."""
        ...

    def describe(self) -> dict[str, Any]:
        """For the manifest."""
        ...


@dataclass(frozen=True)
class BufferProgress:
    """Rows carry the buffer they came in, in these columns; without ``chunk`` a buffer is whole by itself, without
    ``last`` each chunk is the last. All rows of a buffer come in one batch: one that comes again is refused. ``end``
    is true on rows of an origin's last buffer: when everything up to there has come, it holds nothing back any more.

    Each origin is a source. A gap holds its watermark for as long as ``patience``, by default for ever; what comes
    for it later is refused. Raises `UsageError` for a patience that is no span above 0.
    """

    origin: str
    sequence: str
    watermark: str
    chunk: str | None = None
    last: str | None = None
    patience: Span | None = None
    end: str | None = None

    def __post_init__(self) -> None:
        if self.patience is not None and span_us(self.patience) <= 0:
            raise UsageError("a gap is waited for longer than nothing", code="watermark", patience=self.patience)

    acts_first: ClassVar[bool] = True
    """Whether it says which rows are events, before these are judged."""

    @property
    def waits(self) -> bool:
        """Whether time alone may move what it claims."""
        return self.patience is not None

    @property
    def columns(self) -> list[str]:
        """The input columns that are read."""
        return [
            name for name in (self.origin, self.sequence, self.watermark, self.chunk, self.last, self.end) if name
        ]

    @property
    def patience_us(self) -> int | None:
        """In microseconds."""
        return None if self.patience is None else span_us(self.patience)

    def describe(self) -> dict[str, Any]:
        """For the manifest."""
        names = ("origin", "sequence", "watermark", "chunk", "last", "end")
        said = {name: getattr(self, name) for name in names}
        return {"kind": "buffers", **said, "patience": None if self.patience is None else str(self.patience)}

    def check(self, by: str | None, names: Iterable[str]) -> None:
        """Raises `UsageError` where sources are told apart by something else, or are no whole numbers."""
        if by not in (None, self.origin):
            raise UsageError("with buffers each origin is a source", code="watermark", by=by, origin=self.origin)
        if wrong := [name for name in names if not re.fullmatch("0|-?[1-9][0-9]*", name)]:
            raise UsageError("origins of buffers are whole numbers", code="progress-source", found=wrong)


class Claimant(Protocol):
    """What claims watermarks: a `Generator`, `Ctis` or `BufferProgress`. It says these of itself where they hold:

    ``columns`` that it reads; ``by_clock``: it goes on without input; ``waits``: time alone may move what it claims;
    ``acts_first``: it says which rows are events, before these are judged; ``order``: the columns in whose order it
    reads the rows of a source.
    """

    def describe(self) -> dict[str, Any]:
        """For the manifest."""


@dataclass(frozen=True)
class Watermarks:
    """``generator`` claims watermarks; ``by`` the column that tells sources apart, ``sources`` those declared.

    ``positions`` are of each side of a stream of several whose largest value so far is kept. ``in_order``: rows are
    held until W passes them, and count from then on.
    """

    generator: Claimant
    sources: Sources = ONE
    by: str | None = None
    positions: tuple[Placed, ...] = ()
    in_order: bool = False

    @property
    def columns(self) -> list[str]:
        """The input columns that are read."""
        said = [getattr(self.generator, name, None) for name in ("column", "flag")]
        return [name for name in (*getattr(self.generator, "columns", said), self.by) if name]

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
    def acts_first(self) -> bool:
        """Whether the source says which rows are events, before these are judged."""
        return bool(getattr(self.generator, "acts_first", False))

    @property
    def order(self) -> tuple[str, ...]:
        """The columns in whose order each source's rows are read, one after the other; none where any order does."""
        return tuple(getattr(self.generator, "order", ()))

    def describe(self) -> dict[str, Any]:
        """For the manifest."""
        return {"generator": self.generator.describe(), "sources": self.sources.describe(), "by": self.by}


def given_watermarks(generator: Generator | BufferProgress, by: str | None, known: Sources) -> Watermarks:
    """As a user gives them. Raises `UsageError` where they do not go together."""
    if isinstance(generator, BufferProgress):
        generator.check(by, known.names)
        return Watermarks(generator, known, generator.origin)
    if not hasattr(generator, "read") or not hasattr(generator, "describe"):
        raise UsageError(
            "give a generator of watermarks, as max_event_time(...) or fixed(...)",
            code="watermark",
            found=repr(generator),
        )
    return Watermarks(generator, given_sources(by, known), by)


def given_sources(by: str | None, known: Sources) -> Sources:
    """Those that a user declares, or the one source. Raises `UsageError` where no column tells several apart."""
    if by is None and known.names:
        raise UsageError("several sources are told apart by a column: by=", code="watermark", sources=known.names)
    return known if by else Sources((INPUT,), known.idle_timeout_us, known.own_timeouts_us)
