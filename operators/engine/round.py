"""One checkpoint of a job, operator after operator: what comes in, what each state partition does, what goes on.

The same functions run in Spark's tasks, a level in each stage, and in a plain loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import pyarrow as pa

from tidestate.operators.engine.partition import PartitionResult, Round, run_partition
from tidestate.operators.engine.pieces import Piece, arriving_rows, pieces
from tidestate.operators.plan.classify import Intake, prepare
from tidestate.operators.plan.graph import Graph, shown
from tidestate.operators.progress.rounds import Claims, Progress, Rounds

FEEDS = 1 << 40
"""Pieces are numbered within each of an operator's feeds, which follow each other at this distance."""

Outgoing = tuple[int, int, Piece]
"""Number of an operator, a state partition of it, and what goes there."""


@dataclass(frozen=True)
class GraphRound:
    """What the driver tells all operators of one checkpoint; ``rounds`` by name."""

    graph: Graph
    rounds: dict[str, Round]

    @property
    def first(self) -> Round:
        """What is the same for all operators is here."""
        return next(iter(self.rounds.values()))

    @property
    def partitions(self) -> int:
        """How many state partitions each operator has."""
        return self.first.partitions

    @property
    def now_us(self) -> int:
        """The processing time."""
        return self.first.now_us

    @property
    def sequence(self) -> int:
        """The id of the checkpoint."""
        return self.first.sequence

    @property
    def progress(self) -> dict[str, Progress]:
        """The progress of all operators before the round."""
        return {name: round_.progress for name, round_ in self.rounds.items()}

    def after(self, claims: Mapping[str, Sequence[Claims]]) -> dict[str, Progress]:
        """The progress of all after what the pieces of the streams claim; as it is, where input is fed back."""
        if self.first.reprocessing:
            return self.progress
        return self.graph.after(self.progress, claims, self.now_us)

    def finished(self) -> dict[str, Progress]:
        """The progress of all at the end of time."""
        return self.graph.finished(self.progress)


class Intakes:
    """How the pieces of one task are taken in, one after the other."""

    def __init__(self, round_: GraphRound) -> None:
        self._round = round_
        self._so_far: dict[str, Intake] = {name: one.intake for name, one in round_.rounds.items()}

    def streams(self, batch: Mapping[str, pa.Table], number: int) -> Iterator[Outgoing]:
        """A piece of the streams for all who read them."""
        for name, rows in batch.items():
            for operator, node, place, feed in self._round.graph.readers(name):
                own = node.plan.name
                intake = self._so_far[own]
                prepared = prepare(node.plan, node.rows(feed, rows), intake, self._round.partitions)
                # For the next piece of the same sources, where their order counts.
                so_far = intake.so_far or self._round.rounds[own].progress
                so_far = msgspec.structs.replace(so_far, advances=so_far.advances | prepared.claims.advances)
                self._so_far[own] = replace(intake, so_far=so_far)
                yield from _addressed(operator, pieces(prepared, place * FEEDS + number))


def fed_back(round_: GraphRound, rows: Mapping[str, pa.Table]) -> Iterator[Outgoing]:
    """What comes back from the ledger, by operator."""
    for number, node in enumerate(round_.graph.nodes):
        own = round_.rounds[node.plan.name]
        if node.plan.name in rows:
            yield from _addressed(
                number, pieces(prepare(node.plan, rows[node.plan.name], own.intake, own.partitions), 0)
            )


def run_level(
    round_: GraphRound,
    level: int,
    partition: int,
    arrived: Mapping[int, Sequence[Piece]],
    after: Mapping[str, Progress],
) -> tuple[list[PartitionResult], list[Outgoing]]:
    """A state partition of all operators of a level: what they come to, and what goes on to others.

    ``after``: the progress of all operators at the end of the round, as far as it is known.
    """
    results: list[PartitionResult] = []
    going: list[Outgoing] = []
    for number, node in round_.graph.at(level):
        own, here = round_.rounds[node.plan.name], arrived.get(number, ())
        progress = Rounds(own.plan.watermarks).with_positions(
            after[node.plan.name], [piece.header.claims for piece in here]
        )
        result, panes = run_partition(own, partition, arriving_rows(own.plan, own.origins, here), progress)
        results.append(result)
        going += _to_readers(round_, node.plan.name, partition, panes, after)
    return results, going


def _to_readers(
    round_: GraphRound, name: str, partition: int, panes: pa.Table, after: Mapping[str, Progress]
) -> Iterator[Outgoing]:
    """What a state partition of an operator shows, for those that read it."""
    readers = round_.graph.readers(name)
    if not readers:
        return
    seen = shown(round_.graph.plans[name], panes)
    for operator, node, place, feed in readers:
        own = round_.rounds[node.plan.name]
        prepared = prepare(node.plan, node.rows(feed, seen), own.intake, own.partitions)
        behind = {one.plan.name: after[one.plan.name] for one in round_.graph.nodes if one.level >= node.level}
        yield from _addressed(operator, pieces(prepared, place * FEEDS + partition, after=behind))


def known_after(round_: GraphRound, arrived: Mapping[int, Iterable[Piece]], level: int) -> dict[str, Progress]:
    """The progress of all operators at the end of the round, as the pieces at a level's partition tell it."""
    if level == 1:
        names = [node.plan.name for node in round_.graph.nodes]
        return round_.after({names[n]: [p.header.claims for p in all_] for n, all_ in arrived.items()})
    told = [piece.header.after for all_ in arrived.values() for piece in all_ if piece.header.after is not None]
    return {name: progress for one in told for name, progress in one.items()}


def _addressed(operator: int, made: Sequence[Piece]) -> Iterator[Outgoing]:
    return ((operator, partition, piece) for partition, piece in enumerate(made))
