"""The replay of a standalone run by itself: input that the checkpoint contains is read again, for lost messages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa

from tidestate.operators.describe.runs import JobHook
from tidestate.operators.engine.driver import Driver
from tidestate.operators.engine.job import Position, Runner
from tidestate.operators.engine.recorded_steps import batch_count
from tidestate.operators.engine.replay_start import lacking_text, rebuilt, replay_start, warn_of_lacking
from tidestate.operators.engine.side_run import SideRun
from tidestate.operators.engine.tasks import Batches, InProcess
from tidestate.operators.plan.graph import Graph
from tidestate.recovery.log.manifest import InputPosition, Manifest, SparkPosition

log = logging.getLogger("tidestate")

PIECE_BYTES = 64 << 20
"""So many bytes of rows that are read again are put back at once: each time is a checkpoint, which reads all stored
messages.
"""


class InputReplay:
    """Puts back what operators lack by its identities, from batches that were taken before. ``start``: the checkpoint
    after which it begins, None for the beginning of the input.
    """

    def __init__(self, driver: Driver[Batches, pa.Table]) -> None:
        self._driver = driver
        self.left_to_identities = False
        self.start: Manifest | None = replay_start(driver.job.checkpoint, driver.head, driver.job.graph)
        self.first = batch_count(self.start)
        """The number of the first batch that it reads."""
        self._pieces: list[Mapping[str, pa.Table]] = []
        self._batches = self._bytes = 0
        log.info("replay: the input is read again from %s", f"batch {self.first}" if self.first else "its beginning")

    @property
    def over(self) -> bool:
        """Whether nothing is missing any more."""
        return not rebuilt(self._driver.job.graph, self._driver.head)

    def take(self, number: int, streams: Mapping[str, pa.Table], spark: SparkPosition | None = None) -> Iterator[Any]:
        """A batch by its number, or one after the others; ``spark`` is its position where it has Spark's. Yields the
        panes of a checkpoint that it makes.
        """
        if number < self.first or self.over:
            return
        self._pieces.append(streams)
        self._batches += 1
        self._bytes += sum(rows.nbytes for rows in streams.values())
        if self._bytes >= PIECE_BYTES:
            yield self._put_back()

    def finish(self) -> Iterator[Any]:
        """Put back the rest, and count again what is missing. Yields the panes of the checkpoint."""
        if not self.over:
            yield self._put_back()
        warn_of_lacking(self._driver.job.graph, self._driver.head)

    def close(self) -> None:
        """It has written nothing that is to be removed."""

    def _put_back(self) -> Any:
        driver, pieces = self._driver, self._pieces or [{}]
        self._pieces, self._bytes = [], 0
        manifest = driver.rebuild(pieces)
        log.info(
            "replay: %d batches read again; %s",
            self._batches,
            lacking_text(driver.job.graph, manifest) or "all messages are back",
        )
        return driver.rows(manifest)


class InputRunAgain:
    """As `InputReplay`, by recorded batches that are run again. ``mark`` gives the hash of a batch, as manifests have
    it.
    """

    def __init__(
        self,
        driver: Driver[Batches, pa.Table],
        graph: Graph,
        hook: JobHook,
        mark: Callable[[Mapping[str, pa.Table]], str],
        runner: Runner,
    ) -> None:
        self._driver, self._mark = driver, mark
        self._run = SideRun(driver, graph, InProcess(), runner, hook)
        self.start, self.first = self._run.start, self._run.first

    @property
    def over(self) -> bool:
        """Whether it needs no more batches."""
        return self._run.next_batch is None

    def take(self, number: int, streams: Mapping[str, pa.Table], spark: SparkPosition | None = None) -> Iterator[Any]:
        """As `InputReplay.take`; nothing is put back before the end."""
        step = self._run.next_batch
        if step is not None and number == step.batch and spark is not None:
            # Its lists are those of the main root.
            plain = msgspec.structs.replace(spark, files={}, files_ref=None, read_ref=None)
            self._run.take([streams], Position(spark=plain))
        elif step is not None and number == step.batch:
            position = step.manifest.input if step.manifest is not None else None
            if position is not None and position.last and position.last != self._mark(streams):
                self._run.fail(f"batch {number} of the source differs from the one that checkpoint {step.until} took")
            else:
                self._run.take([streams], Position(input=position or InputPosition(number + 1, "")))
        yield from ()

    @property
    def left_to_identities(self) -> bool:
        """Whether it could not run to its end, and `InputReplay` is to put back what it can."""
        return self._run.left_to_identities

    def finish(self) -> Iterator[Any]:
        """Put back what is missing, if the side run came to the state of the job. Yields no panes."""
        manifest = self._run.finish()
        yield from () if manifest is None else (self._driver.rows(manifest),)

    def close(self) -> None:
        """Remove what it has written."""
        self._run.close()


def reached(position: Any, goal: Any) -> bool:
    """Whether a position is ``goal`` or behind it, where that can be said: numbers are compared, in lists and
    mappings each with each.
    """
    if position == goal:
        return True
    numbers = all(isinstance(side, int | float) for side in (position, goal))
    if isinstance(position, Mapping) and isinstance(goal, Mapping):
        return all(name in position and reached(position[name], bound) for name, bound in goal.items())
    if isinstance(position, list | tuple) and isinstance(goal, list | tuple):
        return len(position) == len(goal) and all(map(reached, position, goal))
    return numbers and position >= goal
