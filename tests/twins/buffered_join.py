"""The naive twin of a join whose sides have numbered buffers: every chunk ever seen, in sets, and the join of
`tests.twins.join` at the watermark that follows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.twins.join import NEVER, SIDES, Asked, Pane, Row, Twin


class Chunk(NamedTuple):
    """Part of a buffer, with its rows. Without rows it is announced as empty. ``final``: it is of the last buffer."""

    side: str
    origin: int
    sequence: int
    number: int
    last: bool
    mark: int
    rows: tuple[Row, ...] = ()
    final: bool = False


@dataclass
class Origin:
    """An origin of a side. ``joined``: the watermark when it came."""

    joined: float = -NEVER
    chunks: dict[int, dict[int, Chunk]] = field(default_factory=dict)
    prefix: int = 0
    since: int | None = None
    given_up: set[int] = field(default_factory=set)
    final: int | None = None
    ended: bool = False

    def whole(self, sequence: int) -> bool:
        """Whether all chunks of a buffer are there."""
        chunks = self.chunks.get(sequence, {})
        last = [chunk.number for chunk in chunks.values() if chunk.last]
        return bool(last) and set(chunks) == set(range(last[0] + 1))

    def holds(self, chunk: Chunk) -> bool:
        """Whether this chunk came before, or belongs to what is over."""
        before = chunk.sequence <= self.prefix or chunk.number in self.chunks.get(chunk.sequence, {})
        return before or self.ended

    @property
    def mark(self) -> float:
        """The largest watermark up to the first gap."""
        numbers = range(1, self.prefix + 1)
        return max([self.joined, *(one.mark for number in numbers for one in self.chunks.get(number, {}).values())])

    def goes_on(self, now: int, patience: int | None) -> None:
        """Extend the prefix; give a gap up that has lasted for too long."""
        if self._extend():
            self.since = None
        pending = [number for number in self.chunks if number > self.prefix]
        if not pending:
            self.since = None
            return
        self.since = now if self.since is None else self.since
        whole = [number for number in pending if self.whole(number)]
        if patience is not None and whole and now - self.since > patience:
            gone = range(self.prefix + 1, min(whole))
            self.given_up |= {*gone}
            for number in gone:
                self.chunks.pop(number, None)
            self.prefix = min(whole) - 1
            self._extend()
            self.since = None

    def _extend(self) -> bool:
        before = self.prefix
        while self.whole(self.prefix + 1):
            self.prefix += 1
        return self.prefix > before


class BufferedTwin(Twin):
    """A join of sides with buffers. ``declared`` origins hold the watermark from the start; a side without any holds
    it itself until its first origin is there.
    """

    def __init__(self, asked: Asked, declared: dict[str, list[int]], patience: int | None = None) -> None:
        super().__init__(asked)
        self.patience = patience
        self.origins = {side: {one: Origin() for one in declared.get(side, [])} for side in SIDES}
        self.refused: Counter[str] = Counter()

    def came(self, chunks: list[Chunk], now: int) -> Counter[Pane]:
        """The panes of a batch."""
        taken: list[Row] = []
        new: list[Chunk] = []
        for chunk in chunks:
            origin = self.origins[chunk.side].get(chunk.origin, Origin())
            if chunk.sequence in origin.given_up and not origin.ended:
                self.refused["gap_given_up"] += len(chunk.rows)
            elif origin.holds(chunk):
                self.refused["duplicate_buffer"] += len(chunk.rows)
            else:
                taken += chunk.rows
                new.append(chunk)
        before = -NEVER if self.watermark is None else self.watermark
        for chunk in new:
            origin = self.origins[chunk.side].setdefault(chunk.origin, Origin(before))
            origin.chunks.setdefault(chunk.sequence, {})[chunk.number] = chunk
            if chunk.final:
                origin.final = chunk.sequence
        self.now = now
        return self.batch(taken, now)

    def ticked(self, now: int) -> Counter[Pane]:
        """The panes of a move of the clock."""
        return self.came([], now)

    def restarted(self) -> None:
        """Nothing waited while the job was stopped."""
        for origins in self.origins.values():
            for origin in origins.values():
                origin.since = None

    def moved(self) -> float | None:
        """The smallest watermark of all origins that have not ended."""
        for origins in self.origins.values():
            for origin in origins.values():
                if not origin.ended:
                    origin.goes_on(self.now, self.patience)
                    origin.ended = origin.final is not None and origin.prefix >= origin.final
        origins_of_all = [one for origins in self.origins.values() for one in origins.values()]
        marks = [one.mark for one in origins_of_all if not one.ended]
        marks += [-NEVER for origins in self.origins.values() if not origins]
        reached = min(marks) if marks else max(one.mark for one in origins_of_all)
        mark = max(reached, -NEVER if self.watermark is None else self.watermark)
        return None if mark == -NEVER else mark
