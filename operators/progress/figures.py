"""Progress as numbers, for a query object: plain data. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


class SourceMetrics(msgspec.Struct, frozen=True):
    """One source. ``lag_us`` is processing time minus watermark, ``behind_us`` the fastest source's watermark minus
    this one's; None while there is no watermark. ``origin`` is its id, where the engine gives origins. The other
    fields are totals, as in `TrackedSource`.
    """

    watermark_us: int | None
    lag_us: int | None
    behind_us: int | None
    idle: bool
    quiet_us: int
    rows: int
    advances: int
    backward: int
    refused: int
    origin: int | None = None


class Metrics(msgspec.Struct, frozen=True):
    """A tracker in numbers. ``watermark_us`` and ``lag_us`` are None while there is no watermark, and at the end."""

    watermark_us: int | None
    lag_us: int | None
    drift_us: int
    max_drift_us: int
    advances: int
    backward: int
    refused: int
    clock_backward: int
    idle_sources: int
    ended_sources: int
    sources: dict[str, SourceMetrics]


@dataclass(frozen=True)
class SinkWaits:
    """How a run has waited for sinks. ``since_us``: since when one refuses, None if none does; ``total_us``: how long
    they have refused in this run; ``checkpoints``: how many have output that a sink has yet to accept, at most;
    ``behind``: of each sink its name, what it gets (``panes`` or ``late``), and how many these are.
    """

    since_us: int | None
    total_us: int
    checkpoints: int
    behind: tuple[tuple[str, str, int], ...] = ()


@dataclass(frozen=True)
class Gap:
    """Sequence numbers ``first`` to ``last`` of ``origin`` that are not complete. The origin has waited for them
    since processing time ``since_us``; ``buffers`` later ones have arrived. ``side``: whose origin it is, where each
    side of a join or merge has its own; empty otherwise.
    """

    origin: int
    first: int
    last: int
    buffers: int
    since_us: int
    given_up: bool
    side: str = ""

    @property
    def source(self) -> str:
        """The name of the origin as a source of the watermark."""
        return f"{self.side}/{self.origin}" if self.side else str(self.origin)
