"""The settings of a job's watermark: what claims it, of which sources, and how sources are told apart. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from tidestate.operators.progress.buffers import BufferProgress
from tidestate.operators.progress.maxima import Placed
from tidestate.operators.progress.sources import INPUT, Generator, Sources
from tidestate.statestore.errors import UsageError

ONE = Sources((INPUT,))


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
