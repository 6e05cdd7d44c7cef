"""A block: rows for one operator and one task. Blocks are all that tasks send to each other. Pure.

Every task gets a block of each piece of input, even without rows for it: the header describes the whole piece, so
that all tasks compute the same watermark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import pyarrow as pa

from tidestate.operators.engine.micro_batch import PartitionSpan
from tidestate.operators.plan.classify import Classified, PartitionedRows
from tidestate.operators.progress.progress import Claims, Progress
from tidestate.statestore.arrays import total


class BlockHeader(msgspec.Struct, frozen=True):
    """The facts of a piece of input. Every task gets it; counters and times go to only one of them."""

    claims: Claims = Claims()
    max_event_us: int | None = None
    after: dict[str, Progress] | None = None
    """From an operator upstream: the progress of its reader, and those downstream of that, at the end."""
    counters: dict[str, int] = {}
    spent_us: dict[str, int] = {}
    """How long the phases of its making took, see `phases`."""


@dataclass(frozen=True)
class Block:
    """Part of piece ``number`` of an operator's input, for one task. ``operator``: its number in the graph."""

    operator: int
    task: int
    number: int
    header: BlockHeader
    rows: PartitionedRows | None
    """Rows of `Plan.exchanged`, by state partition; None if there are none for the task."""
    rejected: pa.Table | None
    """Rows of the late ledger, in one of the blocks of a piece."""

    def with_times(self, spent_us: dict[str, int]) -> Block:
        """The block that brings the time that it and others took."""
        return replace(self, header=msgspec.structs.replace(self.header, spent_us=spent_us))


def blocks_of(
    classified: Classified,
    operator: int,
    number: int,
    of_tasks: Sequence[PartitionSpan],
    after: dict[str, Progress] | None = None,
) -> Iterator[Block]:
    """A classified piece as a block for each task; ledger rows and counters go to one of them.

    With ``after`` it is from another operator: then the watermark is known, and its rows claim none.
    """
    owner = number % len(of_tasks)
    claims = classified.claims if after is None else classified.claims.of_panes
    header = BlockHeader(claims, classified.max_event_us if after is None else None, after)
    for task, span in enumerate(of_tasks):
        rows = classified.partials.between(*span)
        owns = task == owner
        yield Block(
            operator,
            task,
            number,
            msgspec.structs.replace(header, counters=classified.counters) if owns else header,
            rows if rows.counts else None,
            classified.rejected if owns else None,
        )


@dataclass(frozen=True)
class ArrivedRows:
    """What arrived for an operator at a task, with the facts of the whole input: rows by state partition, in the
    order of the input, and none of partitions that get nothing.
    """

    by_partition: dict[int, pa.Table]
    rejected: pa.Table | None
    max_event_us: int | None
    pieces: int
    counters: dict[str, int]
    spent_us: dict[str, int] = field(default_factory=dict)


def arrived_rows(blocks: Iterable[Block]) -> ArrivedRows:
    """The blocks of an operator, in any order, as one."""
    ordered = sorted(blocks, key=lambda block: block.number)
    headers = [block.header for block in ordered]
    maxima = [header.max_event_us for header in headers if header.max_event_us is not None]
    rejected = [block.rejected for block in ordered if block.rejected is not None]
    parts: dict[int, list[pa.Table]] = {}
    for block in ordered:
        for partition, rows in block.rows.parts() if block.rows is not None else ():
            parts.setdefault(partition, []).append(rows)
    return ArrivedRows(
        by_partition={partition: pa.concat_tables(parts[partition]) for partition in sorted(parts)},
        rejected=pa.concat_tables(rejected) if rejected else None,
        max_event_us=max(maxima, default=None),
        pieces=len(headers),
        counters=total([header.counters for header in headers]),
        spent_us=total([header.spent_us for header in headers]),
    )
