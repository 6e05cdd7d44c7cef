"""Random rows of a stream with the columns of `tests/golden/descriptions/columns.py`, as JSON has them.

Few keys, rows that are late or far ahead, nulls, ties, messages that come again, control rows, punctuation, chunks of
buffers of which some come later than those behind them. Rare things are rare, so that most jobs have panes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

Row = dict[str, Any]
START_US = 20_000 * 86_400_000_000
"""Processing time begins here."""
UNITS_US = (1_000_000, 10_000_000, 60_000_000, 600_000_000, 3_600_000_000)
PARTS = ("a", "b", "c")


class Clock:
    """Processing time; events of a job are some units around it."""

    def __init__(self, chance: Random) -> None:
        self.unit_us, self.now_us, self._chance = chance.choice(UNITS_US), START_US, chance

    def advance(self) -> None:
        """By nothing, or some units."""
        self.now_us += self.unit_us * self._chance.choice((0, 1, 3, 8, 30))


@dataclass
class Origin:
    """A part of a stream: how far its offsets and buffers are."""

    number: int
    offset: int = 0
    buffer: int = 1
    chunk: int = 0
    progress_us: int = START_US


@dataclass
class StreamRows:
    """Draws the batches of a stream, of up to ``most`` rows."""

    chance: Random
    clock: Clock
    most: int
    earlier: list[Row] = field(default_factory=list)
    """Some that may come again."""
    delayed: list[Row] = field(default_factory=list)
    """Some that come with the next batch."""

    def __post_init__(self) -> None:
        self.origins = [Origin(number) for number in range(self.chance.choice((1, 1, 2, 3)))]

    def batch(self) -> list[Row]:
        """The rows of a batch, in their order or in none."""
        chance = self.chance
        rows, self.delayed = self.delayed, []
        for _ in range(chance.randint(0, self.most)):
            row = self._row(chance.choice(self.origins))
            (self.delayed if chance.random() < 0.05 else rows).append(row)
            if self.earlier and chance.random() < 0.08:
                rows.append(chance.choice(self.earlier))
            self.earlier.append(row)
        if chance.random() < 0.3:
            chance.shuffle(rows)
        return rows

    def _row(self, origin: Origin) -> Row:
        chance, unit = self.chance, self.clock.unit_us
        origin.offset += 1
        at = self._event_time()
        start = at // 600_000_000 * 600_000_000
        row = {
            "at": at,
            "seen": at + unit * chance.randint(-2, 2),
            "until": at + unit * chance.choice((-1, 0, 1, 2, 5, 20)),
            "user": chance.choice("uvw"),
            "country": chance.choice(("x", "y")),
            "item": chance.randrange(3),
            "amount": chance.randrange(-2, 4),
            "weight": float(chance.randrange(-4, 9)),
            "url": chance.choice("pqr"),
            "number": origin.offset,
            "part": PARTS[origin.number],
            "partition": origin.number,
            "id": f"i{chance.randrange(40)}",
            "gap": unit * chance.choice((1, 2, 5)),
            "shape": chance.choice(("point", "point", "interval", "edge_start", "edge_end")),
            "flag": chance.random() < 0.2,
            "mark": chance.choice(("end", "m", "n", "n")),
            **self._of_buffer(origin, at),
            "window_start": start,
            "window_end": start + chance.choice((1, 2)) * 600_000_000,
        }
        return self._spoilt(row)

    def _event_time(self) -> int:
        """Most within some units, some late by many, few far ahead; whole units, so that there are ties."""
        chance, unit = self.chance, self.clock.unit_us
        before = chance.choice((0, 0, 1, 1, 2, 3, 5))
        if chance.random() < 0.1:
            before = chance.choice((20, 60, 200))
        elif chance.random() < 0.03:
            before = -chance.choice((1, 10, 100))
        return self.clock.now_us - before * unit

    def _of_buffer(self, origin: Origin, at: int) -> Row:
        """The row's chunk: a buffer ends with its last one, and the next begins."""
        chance = self.chance
        last = chance.random() < 0.4
        origin.progress_us = max(origin.progress_us, at - self.clock.unit_us)
        row = {
            "buffer": origin.buffer,
            "chunk": origin.chunk,
            "last_chunk": last,
            "final": chance.random() < 0.01,
            "empty": chance.random() < 0.05,
            "rows": origin.chunk + 1,
            "progress": origin.progress_us,
        }
        origin.buffer, origin.chunk = (origin.buffer + 1, 0) if last else (origin.buffer, origin.chunk + 1)
        return row

    def _spoilt(self, row: Row) -> Row:
        """With a null, as a control row, or with what nobody expects, now and then."""
        chance = self.chance
        if chance.random() < 0.1:
            row["shape"] = chance.choice(("cti", "cti", "cti", "odd"))
        if chance.random() < 0.06:
            row[chance.choice(sorted(row))] = None
        if chance.random() < 0.02:
            row["weight"] = "nan"  # JSON has no such number
        if chance.random() < 0.02:
            row["gap"] = chance.choice((0, -1))
        return row
