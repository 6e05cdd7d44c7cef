"""One round of a job, with all its operators, and the classification of its input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec
import pyarrow as pa

from tidestate.operators.engine.partition import Round
from tidestate.operators.engine.phases import Stopwatch
from tidestate.operators.engine.pieces import PartitionSpan, Piece, pieces, spans, with_times
from tidestate.operators.plan.classify import classify
from tidestate.operators.plan.graph import Graph
from tidestate.operators.progress.instants import END_US
from tidestate.operators.progress.progress import Claims, Progress
from tidestate.statestore.files.refs import PartitionState

FEEDS = 1 << 40
"""The distance between the piece numbers of two feeds of an operator: pieces are numbered within a feed."""

QUIET_KEPT_US = 60_000_000
"""How far the clock may be ahead of the newest checkpoint while a quiet source moves the watermark."""
Outgoing = tuple[int, int, Piece]
"""The number of an operator, a task, and a piece for it."""
TaskStates = dict[str, dict[int, PartitionState]]
"""State partitions by operator and number."""


@dataclass(frozen=True)
class GraphRound:
    """All operators in one round; ``rounds`` by name, in the order of the graph. At each level so many ``tasks`` run
    the state partitions.
    """

    graph: Graph
    rounds: dict[str, Round]
    tasks: int = 1

    @cached_property
    def spans(self) -> tuple[PartitionSpan, ...]:
        """The state partitions of each task."""
        return spans(self.partitions, self.tasks)

    def divided(self, tasks: int) -> GraphRound:
        """The round in so many tasks, at most one for each state partition."""
        return replace(self, tasks=min(tasks, self.partitions))

    def states(self, task: int) -> TaskStates:
        """The state partitions of a task."""
        numbers = range(*self.spans[task])
        return {name: {number: one.base[number] for number in numbers} for name, one in self.rounds.items()}

    def with_states(self, states: TaskStates) -> GraphRound:
        """The round with these state partitions only."""
        rounds = {name: replace(one, base=states.get(name, {})) for name, one in self.rounds.items()}
        return replace(self, rounds=rounds)

    def idle(self, after: Mapping[str, Progress]) -> bool:
        """Whether a round without input that ends with this progress has nothing to do."""
        ends = {name: one.observed(after[name], ()) for name, one in self.rounds.items()}
        return not any(one.due(one.context(ends[name])) for name, one in self.rounds.items())

    def keeps(self, after: Mapping[str, Progress], kept_us: int | None) -> bool:
        """Whether a round without input that ends with this progress is worth a checkpoint, if the last one was made
        at processing time ``kept_us``.

        A watermark that goes on with the clock needs none before something is due; one that does so only while its
        source is quiet needs one every `QUIET_KEPT_US`, if a window waits, as a restart would set it back.
        """
        moved = [name for name, ends in after.items() if ends.watermark_us != self.progress[name].watermark_us]
        if not moved:
            return False
        if not self.idle(after):
            return True
        settings = {name: self.rounds[name].plan.watermarks for name in moved if self.graph.reads_streams(name)}
        if any(not one.by_clock and one.quiet_us is None for one in settings.values()):
            return True
        waits = any(one.base[number].due_mark != END_US for one in self.rounds.values() for number in one.base)
        lost = kept_us is None or self.now_us - kept_us >= QUIET_KEPT_US
        return waits and lost and not all(one.by_clock for one in settings.values())

    @property
    def first(self) -> Round:
        """The round of the first operator, for what is equal in all."""
        return next(iter(self.rounds.values()))

    @property
    def partitions(self) -> int:
        """The number of state partitions of each operator."""
        return self.first.partitions

    @property
    def now_us(self) -> int:
        """The processing time of the round."""
        return self.first.now_us

    @property
    def sequence(self) -> int:
        """The id of the checkpoint that the round makes."""
        return self.first.sequence

    @property
    def progress(self) -> dict[str, Progress]:
        """The progress of all operators before the round."""
        return {name: round_.progress for name, round_ in self.rounds.items()}

    def after(self, claims: Mapping[str, Sequence[Claims]]) -> dict[str, Progress]:
        """The progress of all operators after the claims of the streams' pieces; unchanged when reprocessing."""
        if self.first.plan.reprocessing:
            return self.progress
        return self.graph.after(self.progress, claims, self.now_us)

    def finished(self) -> dict[str, Progress]:
        """The progress of all operators at the end of time. Raises `UsageError` (``rebuilding``) while rows of an
        outer join are missing.
        """
        return self.graph.finished(self.progress)


class Intakes:
    """Classifies the pieces of one task, one after another."""

    def __init__(self, round_: GraphRound) -> None:
        self._round = round_
        self.watch = Stopwatch()
        self._so_far = {name: one.progress.generator for name, one in round_.rounds.items()}

    def streams(self, batch: Mapping[str, pa.Table], number: int) -> list[Outgoing]:
        """Classify a piece of the streams for all operators that read them. The first one of the result brings the
        times of the `watch`.
        """
        with self.watch.timed("classify"):
            found = list(self._streams(batch, number))
        if found:
            operator, task, piece = found[0]
            found[0] = operator, task, with_times(piece, self.watch.take())
        return found

    def _streams(self, batch: Mapping[str, pa.Table], number: int) -> Iterator[Outgoing]:
        for name, rows in batch.items():
            for operator, node, place, feed in self._round.graph.readers(name):
                reader = node.plan.name
                start, so_far, seen = self._round.rounds[reader].start, self._so_far[reader], node.rows(feed, rows)
                classified = classify(node.plan, seen, start, self._round.partitions, self.watch.timed, so_far)
                # For the next piece of the same sources, if their order matters.
                advances = so_far.advances | classified.claims.advances
                self._so_far[reader] = msgspec.structs.replace(so_far, advances=advances)
                yield from addressed(operator, pieces(classified, place * FEEDS + number, self._round.spans))


def ledger_pieces(round_: GraphRound, rows: Mapping[str, pa.Table]) -> Iterator[Outgoing]:
    """Pieces of late events to reprocess, which are ``rows`` by operator."""
    for number, node in enumerate(round_.graph.nodes):
        if node.plan.name in rows:
            start = round_.rounds[node.plan.name].start
            classified = classify(node.plan, rows[node.plan.name], start, round_.partitions)
            yield from addressed(number, pieces(classified, 0, round_.spans))


def progress_after(round_: GraphRound, arrived: Mapping[int, Iterable[Piece]], level: int) -> dict[str, Progress]:
    """The progress of operators after the round, from the pieces that arrived at a task of this level."""
    if level == 1:
        names = [node.plan.name for node in round_.graph.nodes]
        return round_.after({names[n]: [p.header.claims for p in all_] for n, all_ in arrived.items()})
    upstream = [piece.header.after for all_ in arrived.values() for piece in all_ if piece.header.after is not None]
    return {name: progress for known in upstream for name, progress in known.items()}


def addressed(operator: int, made: Sequence[Piece]) -> Iterator[Outgoing]:
    """The pieces of all tasks, for an operator."""
    return ((operator, task, piece) for task, piece in enumerate(made))
