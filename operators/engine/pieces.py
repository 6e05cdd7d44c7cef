"""A piece of input for one task, which runs some state partitions of one operator. Pure.

Every task gets every piece, even one without rows for it: the header describes the whole piece, so that all tasks
compute the same watermark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec
import pyarrow as pa

from tidestate.operators.plan.classify import Classified
from tidestate.operators.plan.partitioned_rows import PartitionedRows
from tidestate.operators.progress.progress import Claims, Progress
from tidestate.statestore.arrays import total

PartitionSpan = tuple[int, int]
"""State partitions from the first to before the last."""


def spans(partitions: int, tasks: int) -> tuple[PartitionSpan, ...]:
    """The state partitions of each task: as many as of any other, or one more."""
    tasks = max(1, min(partitions, tasks))
    return tuple((task * partitions // tasks, (task + 1) * partitions // tasks) for task in range(tasks))


class Header(msgspec.Struct, frozen=True):
    """The facts of one piece of input. Every task gets it; the counters go to only one of them.

    ``after``: the progress of this operator and those downstream at the end of the round, from an operator upstream.
    ``spent_us``: see `phases`; as counters, in only one piece.
    """

    max_event_us: int | None
    counters: dict[str, int] = {}
    claims: Claims = Claims()
    after: dict[str, Progress] | None = None
    spent_us: dict[str, int] = {}


@dataclass(frozen=True)
class Piece:
    """Piece ``number`` of the input, for one task; ``partials`` is None without rows for it. ``rejected`` and the
    counters are in only one of them.
    """

    number: int
    header: Header
    partials: PartitionedRows | None
    rejected: pa.Table | None


@dataclass(frozen=True)
class Arrivals:
    """All pieces that arrived at a task: partials by state partition, in order; ledger rows to write; facts of the
    whole input. Partitions without partials have no entry.
    """

    partials: dict[int, pa.Table]
    rejected: pa.Table | None
    max_event_us: int | None
    inputs: int
    counters: dict[str, int]
    spent_us: dict[str, int] = field(default_factory=dict)


def with_times(piece: Piece, spent_us: dict[str, int]) -> Piece:
    """A piece that brings the time that it and others took."""
    return replace(piece, header=msgspec.structs.replace(piece.header, spent_us=spent_us))


def pieces(
    classified: Classified,
    number: int,
    of_tasks: Sequence[PartitionSpan],
    *,
    after: dict[str, Progress] | None = None,
) -> list[Piece]:
    """A classified piece for each task; ledger rows go to one of them.

    With ``after`` it is from another operator: then the watermark is known, and its rows claim none.
    """
    made = []
    owner_of_ledger = number % len(of_tasks)
    claims = classified.claims if after is None else classified.claims.of_panes
    for task, span in enumerate(of_tasks):
        owner = task == owner_of_ledger
        partials = classified.partials.between(*span)
        header = Header(
            classified.max_event_us if after is None else None,
            classified.counters if owner else {},
            claims,
            after,
        )
        made.append(
            Piece(number, header, partials if partials.counts else None, classified.rejected if owner else None)
        )
    return made


def arriving_rows(arrived: Sequence[Piece]) -> Arrivals:
    """Everything that arrived at a task, by number of the piece."""
    arrived = sorted(arrived, key=lambda piece: piece.number)
    headers = [piece.header for piece in arrived]
    maxima = [header.max_event_us for header in headers if header.max_event_us is not None]
    rejected = [piece.rejected for piece in arrived if piece.rejected is not None]
    partials: dict[int, list[pa.Table]] = {}
    for piece in arrived:
        for partition, rows in piece.partials.parts() if piece.partials is not None else ():
            partials.setdefault(partition, []).append(rows)
    return Arrivals(
        partials={partition: pa.concat_tables(partials[partition]) for partition in sorted(partials)},
        rejected=pa.concat_tables(rejected) if rejected else None,
        max_event_us=max(maxima, default=None),
        inputs=len(headers),
        counters=total([header.counters for header in headers]),
        spent_us=total([header.spent_us for header in headers]),
    )
