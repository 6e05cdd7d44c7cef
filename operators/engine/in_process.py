"""The engine without Spark: one task in this process runs all state partitions, one after another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import pyarrow as pa

from tidestate.operators.engine.delivery import Delivery, read_delivery
from tidestate.operators.engine.level import run_level
from tidestate.operators.engine.partition import OperatorResult
from tidestate.operators.engine.pieces import Piece
from tidestate.operators.engine.round import GraphRound, Intakes, Outgoing, progress_after
from tidestate.operators.plan.graph import one_batch
from tidestate.operators.progress.rounds import Progress
from tidestate.recovery.log.checkpoint import Checkpoint

Batches: TypeAlias = Iterable[pa.Table | Mapping[str, pa.Table]]
"""One batch in pieces: each a table of the only stream, or tables by stream."""


class InProcess:
    """An `Engine`. With ``generate=False`` events do not move the watermark."""

    parallel = 1
    tasks = 1

    def __init__(self, *, generate: bool = True) -> None:
        self._generate = generate

    def take(self, round_: GraphRound, batch: Batches) -> list[OperatorResult]:
        """As in `Engine`. Only the partials of earlier pieces are in memory."""
        intakes, outgoing = Intakes(round_), list[Outgoing]()
        for number, piece in enumerate(batch):
            outgoing += intakes.streams(one_batch(round_.graph, piece), number)
        return self.run(round_, outgoing, None if self._generate else round_.progress)

    def run(
        self, round_: GraphRound, pieces: Iterable[Outgoing], after: Mapping[str, Progress] | None = None
    ) -> list[OperatorResult]:
        """As in `Engine`; with pieces too ``after`` is the progress, if it is given."""
        waiting: dict[int, list[Piece]] = {}
        _sort(waiting, pieces)
        after = after if after is not None else progress_after(round_, waiting, 1)
        results = []
        for level in range(1, round_.graph.levels + 1):
            of_level, downstream = run_level(round_, level, 0, waiting, after)
            results += of_level
            _sort(waiting, downstream)
        return results

    def read(self, checkpoint: Checkpoint, delivery: Delivery) -> pa.Table:
        """As in `Engine`."""
        return read_delivery(checkpoint, delivery)


def _sort(waiting: dict[int, list[Piece]], pieces: Iterable[Outgoing]) -> None:
    for operator, _, piece in pieces:
        waiting.setdefault(operator, []).append(piece)
