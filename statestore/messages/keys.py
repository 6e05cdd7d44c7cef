"""Message keys: in which order a message store keeps its messages, chosen by how they will be read. Pure.

Source: the message key matrix of the Samza SQL window operator design (SAMZA-552).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from tidestate.statestore.errors import UsageError

KeyMeasure = Literal["time", "tuple"]
"""Whether a window's size is measured in event time or in messages."""

Use = Literal["aggregate", "join"]
"""What the messages of a window are read for."""

LAYOUTS = ("offset", "eq_offset", "ts_offset", "eq_ts_offset", "ts_eq_offset")
"""Names of the layouts without a session key; with one in front each is ``session_…``."""

UNORDERED = ("ts_id", "eq_ts_id", "ts_eq_id")
"""The same of identities without an order, which have no range of offsets: those with a time."""


@dataclass(frozen=True)
class Layout:
    """The parts of a message key in order: ``session``, ``eq``, ``ts``, ``offset``. The origin always comes last. In
    place of the offset an ``id`` is an identity without an order.
    """

    parts: tuple[str, ...]

    @cached_property
    def name(self) -> str:
        """The parts in their order, as configurations have them: ``ts_eq_offset``."""
        return "_".join(self.parts)

    @property
    def by_time(self) -> bool:
        """Whether messages are ordered and forgotten by time; by offset otherwise."""
        return "ts" in self.parts

    @property
    def ordered(self) -> bool:
        """Whether messages have offsets, and not only ids without an order."""
        return "id" not in self.parts

    @property
    def unordered(self) -> Layout:
        """The same of identities without an order."""
        return Layout(tuple("id" if part == "offset" else part for part in self.parts))

    @property
    def by_session(self) -> bool:
        """Whether the session key is in front."""
        return self.parts[0] == "session"

    @property
    def lead(self) -> tuple[str, ...]:
        """The parts in front of the position (time, or offset where no time is in the key)."""
        return self.parts[: self.parts.index("ts" if self.by_time else "offset")]

    def __str__(self) -> str:
        return "_".join(f"<{part}>" for part in self.parts)


def parse_layout(name: str) -> Layout:
    """The layout of this name. Raises `UsageError` for one that does not exist."""
    plain = name.removeprefix("session_")
    if plain not in (*LAYOUTS, *UNORDERED):
        raise UsageError(
            f"unknown layout of message keys: choose one of {', '.join(LAYOUTS)}, or for an identity without an "
            f"order one of {', '.join(UNORDERED)}; each may have session_ in front",
            code="message-layout",
            layout=name,
        )
    return Layout(tuple(name.split("_")))


def choose_layout(
    measure: KeyMeasure,
    use: Use = "aggregate",
    *,
    equal: bool = False,
    time_range: bool = False,
    large: bool = False,
    session: bool = False,
) -> Layout:
    """The layout for messages that are read like this.

    ``equal``: a join on equal fields; ``time_range``: a join that bounds the time between both sides; ``large``: a
    window holds too many messages to go through them all for one join; ``session``: windows belong to a session
    key. What the matrix marks N/A (``equal`` for an aggregate, ``time_range`` for tuples, …) is not looked at.
    """
    front = ("session",) if session else ()
    return Layout((*front, *_matrix(measure == "time", use == "join" and equal, time_range, large)))


def _matrix(by_time: bool, equal: bool, time_range: bool, large: bool) -> tuple[str, ...]:
    if not equal:
        return ("ts", "offset") if by_time else ("offset",)
    if not by_time:
        return ("eq", "offset") if large else ("offset",)
    return ("ts", "eq", "offset") if time_range and not large else ("eq", "ts", "offset")
