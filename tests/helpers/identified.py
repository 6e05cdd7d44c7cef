"""Rows of messages with an identity, in seconds, for tests of what is known of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import strategies as st

SECOND = 1_000_000
TIME = pa.timestamp("us", tz="UTC")
IDENTIFIED = pa.schema(
    {
        "part": pa.string(),
        "at": pa.int64(),
        "t": TIME,
        "until": TIME,
        "k": pa.string(),
        "gap": pa.int64(),
        "v": pa.int64(),
    }
)


class Message(NamedTuple):
    """``v`` is its number, and its offset."""

    v: int
    t: int
    k: str
    life: int | None

    @property
    def until(self) -> int:
        return self.t + 1 if self.life is None else self.t + self.life


def as_rows(messages: list[Message], **more: Any) -> pa.Table:
    """``more`` values of each row."""
    rows = []
    for one in messages:
        until = None if one.life is None else one.until * SECOND
        row = {"part": "pq"[one.v % 2], "at": one.v, "t": one.t * SECOND, "until": until, "k": one.k, "v": one.v}
        rows.append({**row, "gap": (1 + one.v % 4) * SECOND, **more})
    return pa.Table.from_pylist(rows, IDENTIFIED)


@st.composite
def messages(draw: st.DrawFn, least: int = 4, most: int = 24, behind: int = 25) -> list[Message]:
    """In the order in which they arrive: times go on, with some that are ``behind`` by up to so many seconds."""
    base, made = 0, []
    for number in range(draw(st.integers(least, most))):
        base += draw(st.sampled_from([0, 0, 1, 2, 8]))
        t = max(0, base - draw(st.sampled_from([0, 0, 1, 4, behind // 2, behind])))
        made.append(Message(number, t, draw(st.sampled_from("ab")), draw(st.none() | st.integers(1, 30))))
    return made
