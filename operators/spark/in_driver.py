"""Small rounds in the driver itself: a Spark job would take longer than their work.

What tasks would do is done by the same functions, one state partition after another, over the same pieces of input:
either may process any batch. If anything goes wrong the tasks do it, with their errors: nothing has been published.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from tidestate.operators.engine.in_process import InProcess
from tidestate.operators.engine.partition import OperatorResult
from tidestate.operators.engine.round import GraphRound, Outgoing
from tidestate.operators.progress.rounds import Progress
from tidestate.operators.spark.scan.batch import DirectBatch
from tidestate.operators.spark.scan.footer import NeedsJvmError
from tidestate.operators.spark.scan.reader import read_ranges
from tidestate.operators.spark.tasks import classified

log = logging.getLogger("tidestate")


@dataclass(frozen=True)
class Limits:
    """A round up to this size is small: its input in files and in memory, and the state partitions that it may open.
    A driver that has little memory to spare holds a small batch, and small state within the store's budget.
    """

    files: int = 16
    file_bytes: int = 1 << 20
    read_bytes: int = 32 << 20
    partitions: int = 64
    state_bytes: int = 16 << 20


LIMITS = Limits()


class _TooLargeError(Exception):
    """The files of a small batch have more in them than their size promises."""


class InDriver:
    """Runs small rounds over Parquet stores. Other stores have caches, in the processes of the tasks."""

    def __init__(self) -> None:
        self._engine = InProcess()

    def take(self, round_: GraphRound, direct: DirectBatch) -> list[OperatorResult] | None:
        """As in `Engine`; None if tasks must take the batch. Raises `NeedsJvmError` if Spark must read it."""
        if not _small_input(direct) or not _small_state(round_, None):
            return None
        here = replace(round_, tasks=1)
        return _tried(lambda: self._engine.run(here, _pieces(here, direct)))

    def tick(self, round_: GraphRound, after: Mapping[str, Progress]) -> list[OperatorResult] | None:
        """The round without input that ends with this progress; None if tasks must run it."""
        if not _small_state(round_, after):
            return None
        return _tried(lambda: self._engine.run(replace(round_, tasks=1), [], after))


def _tried(run: Callable[[], list[OperatorResult]]) -> list[OperatorResult] | None:
    try:
        return run()
    except NeedsJvmError:
        raise
    except _TooLargeError:
        return None
    except Exception as error:
        log.warning("a small batch failed in the driver, so tasks process it: %s", error)
        return None


def _small_input(direct: DirectBatch) -> bool:
    ranges = [one for task in direct.tasks for one in task]
    return len(ranges) <= LIMITS.files and sum(one.end - one.start for one in ranges) <= LIMITS.file_bytes


def _small_state(round_: GraphRound, after: Mapping[str, Progress] | None) -> bool:
    """Whether all state partitions that the round may open are small; ``after``: its progress, if it has no input."""
    if round_.first.store.name != "parquet":
        return False
    if after is not None and round_.graph.levels == 1:
        opened = [
            one.base[number]
            for name, one in round_.rounds.items()
            for number in one.base
            if one.due(number, after[name])
        ]
    elif round_.partitions <= LIMITS.partitions:
        opened = [state for one in round_.rounds.values() for state in one.base.values()]
    else:
        return False
    few = len(opened) <= LIMITS.partitions * len(round_.rounds)
    return few and sum(file.bytes for state in opened for file in state.files) <= LIMITS.state_bytes


def _pieces(round_: GraphRound, direct: DirectBatch) -> Iterator[Outgoing]:
    """The pieces that tasks would make of their ranges."""
    seen = 0

    def read(number: int) -> Iterator[pa.RecordBatch]:
        nonlocal seen
        for batch in read_ranges(direct.scan, direct.tasks[number], direct.row_group_bytes):
            seen += batch.nbytes
            if seen > LIMITS.read_bytes:
                raise _TooLargeError
            yield batch

    for number in range(len(direct.tasks)):
        yield from classified(round_, number, read(number), "read")
