"""The engine without Spark: all state partitions in this process, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import pyarrow as pa

from tidestate.operators.engine.delivery import read_panes
from tidestate.operators.engine.job_view import JobView
from tidestate.operators.engine.partition import PartitionResult
from tidestate.operators.engine.pieces import Piece
from tidestate.operators.engine.round import GraphRound, Intakes, Outgoing, known_after, run_level
from tidestate.operators.plan.graph import one_batch
from tidestate.operators.progress.rounds import Progress
from tidestate.recovery.log.outputs import Output

Batches: TypeAlias = Iterable[pa.Table | Mapping[str, pa.Table]]
"""What is taken as one batch, piece by piece: rows of the one stream, or of some of several by name."""


class InProcess:
    """``generate``: events move the watermark; without, it stays where it is."""

    parallel = 1

    def __init__(self, *, generate: bool = True) -> None:
        self._generate = generate

    def take(self, round_: GraphRound, batch: Batches) -> list[PartitionResult]:
        """See `Engine`. Only what the pieces come to is held."""
        intakes, going = Intakes(round_), list[Outgoing]()
        for number, piece in enumerate(batch):
            going += intakes.streams(one_batch(round_.graph, piece), number)
        return self.run(round_, going, None if self._generate else round_.progress)

    def run(
        self, round_: GraphRound, pieces: Iterable[Outgoing], after: Mapping[str, Progress] | None = None
    ) -> list[PartitionResult]:
        """See `Engine`; ``after`` also with pieces, where it does not follow from them."""
        waiting: dict[int, dict[int, list[Piece]]] = {number: {} for number in range(round_.partitions)}
        _sort(waiting, pieces)
        after = after if after is not None else known_after(round_, waiting[0], 1)
        results = []
        for level in range(1, round_.graph.levels + 1):
            going: list[Outgoing] = []
            for partition in range(round_.partitions):
                found, more = run_level(round_, level, partition, waiting[partition], after)
                results += found
                going += more
            _sort(waiting, going)
        return results

    def panes(self, job: JobView, output: Output) -> pa.Table:
        """See `Engine`."""
        return read_panes(job.checkpoint, output, job.plan)


def _sort(waiting: dict[int, dict[int, list[Piece]]], pieces: Iterable[Outgoing]) -> None:
    for operator, partition, piece in pieces:
        waiting[partition].setdefault(operator, []).append(piece)
