"""What the user writes to pass several streams on as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidestate.operators.describe.given_sides import describe_sides, given_delays, given_sides, texts
from tidestate.operators.describe.renames import SAME_NAMES, Renames
from tidestate.operators.describe.runnable import Sided, checked_name
from tidestate.operators.describe.sides import Sides
from tidestate.operators.progress.watermarks import Watermarks
from tidestate.statestore.durations import Span


@dataclass(frozen=True)
class Union(Sided):
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
            "sides": describe_sides(self.sides),
            "watermark_delay": texts(self.delays_us),
            "watermark": self.watermarks.describe() if self.watermarks else None,
        }


def union(
    *,
    event_time: str | Sequence[str],
    sides: Sequence[str],
    watermark_delay: Span | Sequence[Span] = "0 seconds",
    name: str = "union",
) -> Union:
    """Streams with the same columns as one: each row is passed on at once, late ones too, with its ``side``.

    The watermark is the smallest of the sides: one that has said nothing holds it back.
    """
    streams = given_sides(sides, event_time, (), alike=True)
    return Union(streams, given_delays(streams, watermark_delay), checked_name(name))
