"""One round of a job, operator by operator: classify the input, run each state partition, pass panes downstream.

The same functions run in Spark's tasks, one level per stage, and in a plain loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import pyarrow as pa

from tidestate.operators.engine.partition import PartitionResult, Round, run_partition
from tidestate.operators.engine.pieces import Piece, arriving_rows, pieces
from tidestate.operators.plan.classify import Intake, classify
from tidestate.operators.plan.graph import Graph, downstream_rows
from tidestate.operators.progress.rounds import Claims, Progress, Rounds

FEEDS = 1 << 40
"""The distance between the piece numbers of two feeds of an operator: pieces are numbered within a feed."""

Outgoing = tuple[int, int, Piece]
"""The number of an operator, one of its state partitions, and a piece for it."""


@dataclass(frozen=True)
class GraphRound:
    """All operators in one round; ``rounds`` by name, in the order of the graph."""

    graph: Graph
    rounds: dict[str, Round]

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
        if self.first.reprocessing:
            return self.progress
        return self.graph.after(self.progress, claims, self.now_us)

    def finished(self) -> dict[str, Progress]:
        """The progress of all operators at the end of time."""
        return self.graph.finished(self.progress)


class Intakes:
    """Classifies the pieces of one task, one after another."""

    def __init__(self, round_: GraphRound) -> None:
        self._round = round_
        self._so_far: dict[str, Intake] = {name: one.intake for name, one in round_.rounds.items()}

    def streams(self, batch: Mapping[str, pa.Table], number: int) -> Iterator[Outgoing]:
        """Classify a piece of the streams for all operators that read them."""
        for name, rows in batch.items():
            for operator, node, place, feed in self._round.graph.readers(name):
                reader = node.plan.name
                intake = self._so_far[reader]
                classified = classify(node.plan, node.rows(feed, rows), intake, self._round.partitions)
                # For the next piece of the same sources, if their order matters.
                so_far = intake.so_far or self._round.rounds[reader].progress
                so_far = msgspec.structs.replace(so_far, advances=so_far.advances | classified.claims.advances)
                self._so_far[reader] = replace(intake, so_far=so_far)
                yield from _addressed(operator, pieces(classified, place * FEEDS + number))


def ledger_pieces(round_: GraphRound, rows: Mapping[str, pa.Table]) -> Iterator[Outgoing]:
    """Pieces of late events to reprocess, which are ``rows`` by operator."""
    for number, node in enumerate(round_.graph.nodes):
        if node.plan.name in rows:
            intake = round_.rounds[node.plan.name].intake
            classified = classify(node.plan, rows[node.plan.name], intake, round_.partitions)
            yield from _addressed(number, pieces(classified, 0))


def run_level(
    round_: GraphRound,
    level: int,
    partition: int,
    arrived: Mapping[int, Sequence[Piece]],
    after: Mapping[str, Progress],
) -> tuple[list[PartitionResult], list[Outgoing]]:
    """Run a state partition of all operators of a level: their answers, and the pieces for operators downstream.

    ``after``: the progress of operators at the end of the round, as far as it is known.
    """
    results: list[PartitionResult] = []
    outgoing: list[Outgoing] = []
    for number, node in round_.graph.at(level):
        operator, here = round_.rounds[node.plan.name], arrived.get(number, ())
        claims = [piece.header.claims for piece in here]
        progress = Rounds(node.plan.watermarks).with_positions(after[node.plan.name], claims)
        arrivals = arriving_rows(node.plan, operator.origins, here)
        result, panes = run_partition(operator, partition, arrivals, progress)
        results.append(result)
        outgoing += _to_readers(round_, node.plan.name, partition, panes, after)
    return results, outgoing


def _to_readers(
    round_: GraphRound, name: str, partition: int, panes: pa.Table, after: Mapping[str, Progress]
) -> Iterator[Outgoing]:
    """The panes of an operator's state partition as pieces for its readers."""
    readers = round_.graph.readers(name)
    if not readers:
        return
    seen = downstream_rows(round_.graph.plans[name], panes)
    for operator, node, place, feed in readers:
        intake = round_.rounds[node.plan.name].intake
        classified = classify(node.plan, node.rows(feed, seen), intake, round_.partitions)
        downstream = {one.plan.name: after[one.plan.name] for one in round_.graph.nodes if one.level >= node.level}
        yield from _addressed(operator, pieces(classified, place * FEEDS + partition, after=downstream))


def progress_after(round_: GraphRound, arrived: Mapping[int, Iterable[Piece]], level: int) -> dict[str, Progress]:
    """The progress of operators after the round, from the pieces that arrived at a partition of this level."""
    if level == 1:
        names = [node.plan.name for node in round_.graph.nodes]
        return round_.after({names[n]: [p.header.claims for p in all_] for n, all_ in arrived.items()})
    upstream = [piece.header.after for all_ in arrived.values() for piece in all_ if piece.header.after is not None]
    return {name: progress for known in upstream for name, progress in known.items()}


def _addressed(operator: int, made: Sequence[Piece]) -> Iterator[Outgoing]:
    return ((operator, partition, piece) for partition, piece in enumerate(made))
