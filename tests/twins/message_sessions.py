"""Sessions by messages, as a loop over the stream in the order of offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

import tidestate as ts
from tidestate import Aggregation, agg

SENT_SCHEMA = pa.schema([("part", pa.string()), ("at", pa.int64()), ("k", pa.string()), ("v", pa.int64())])


class Sent(NamedTuple):
    """A message: its offset, its key and a value."""

    at: int | None
    k: str | None
    v: int
    part: str | None = "p"


def arrow(messages: Sequence[Sent]) -> pa.Table:
    columns = {name: [getattr(message, name) for message in messages] for name in SENT_SCHEMA.names}
    return pa.table([pa.array(columns[field.name], field.type) for field in SENT_SCHEMA], schema=SENT_SCHEMA)


def job(without: int, *, origin: str | None = None, key: bool = True) -> Aggregation:
    stream = ts.stream(offset="at", origin=origin).group_by(*(["k"] if key else []))
    windows = stream.window(ts.message_sessions(without))
    return windows.aggregate(n=agg.count(), total=agg.sum("v"), offsets=agg.list("at")).named("job")


@dataclass
class Twin:
    """Messages in the order of their offsets, one after another. ``open``: the sessions that may still grow."""

    without: int
    key: bool = True
    last: int = -1
    messages: int = 0
    open: dict[Any, list[tuple[int, Sent]]] = field(default_factory=dict)
    refused: list[tuple[Any, str]] = field(default_factory=list)

    def take(self, batch: Sequence[Sent]) -> list[tuple[Any, ...]]:
        panes = []
        for message in sorted(batch, key=lambda message: -1 if message.at is None else message.at):
            if message.at is None:
                self.refused.append((None, "bad_offset"))
                continue
            if message.at <= self.last:
                self.refused.append((message.at, "passed_offset"))
                continue
            self.last, number, self.messages = message.at, self.messages, self.messages + 1
            if self.key and message.k is None:
                self.refused.append((message.at, "null_key"))
                continue
            key = message.k if self.key else None
            so_far = self.open.get(key, [])
            if so_far and number - so_far[-1][0] - 1 > self.without:
                panes.append(self.closed(key))
            self.open.setdefault(key, []).append((number, message))
        over = [key for key, so_far in self.open.items() if self.messages - so_far[-1][0] - 1 > self.without]
        return [*panes, *(self.closed(key) for key in over)]

    def end(self) -> list[tuple[Any, ...]]:
        return [self.closed(key) for key in list(self.open)]

    def closed(self, key: Any) -> tuple[Any, ...]:
        return self.as_row(key, self.open.pop(key))

    def as_row(self, key: Any, session: list[tuple[int, Sent]]) -> tuple[Any, ...]:
        numbers, values = [number for number, _ in session], [message.v for _, message in session]
        named = (key,) if self.key else ()
        bounds = numbers[0], numbers[-1] + self.without + 2
        return (*bounds, *named, len(values), sum(values), [message.at for _, message in session])

    def windows(self) -> list[tuple[Any, ...]]:
        """Bounds and key of the sessions that may grow."""
        return [self.as_row(key, session)[:3] for key, session in self.open.items()]


def panes_of(table: pa.Table, *, key: bool = True) -> list[tuple[Any, ...]]:
    """Panes without what kind each is: all of them are the one of their session."""
    rows = [tuple(row.values()) for row in table.to_pylist()]
    assert all(row[-4:] == (0, "on_time", "emit", True) for row in rows)
    return sorted(row[:-4] for row in rows)
