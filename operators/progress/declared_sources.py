"""The sources of an input that are declared, and when each of them is idle. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tidestate.statestore.durations import Span, span_us, text_of
from tidestate.statestore.errors import UsageError

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
