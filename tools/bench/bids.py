"""Generated bids, batch by batch: event time with jitter, key, price; as tables or as Parquet files.

A batch is a function of its number, so that both sides, and a second process, have the same input.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

Numbers = npt.NDArray[np.int64]
Keys = Literal["uniform", "hot", "moving"]

SCHEMA = "event_time timestamp, key long, price long, gap long"
ARROW_SCHEMA = pa.schema(
    [("event_time", pa.timestamp("us", "UTC")), ("key", pa.int64()), ("price", pa.int64()), ("gap", pa.int64())]
)
START_US = 1_700_000_000_000_000
JITTER_US = 2_000_000
FILES_PER_BATCH = 2
LOADED_US = 1_900_000_000
"""The event time of the loading batches together."""
ACTIVE_US = 40_000_000
"""How long one of the moving keys has events."""
GAPS_US = (900_000_001, 1_800_000_001)
"""The gap of an event by its key, where each event has its own: a microsecond more than Spark's, see `workloads`."""


@dataclass(frozen=True)
class Bids:
    """A stream of ``batches`` batches of ``batch`` bids, ``rate`` of them in a second of event time.

    ``keys``: how many there are; ``draw``: each as likely, half of the events of one key, or ever new keys, so many
    in `LOADED_US`, the event time of the first ``loading`` batches together. The jitter is below ``jitter_us``, and
    ``closing_us`` is from the last batch to the bid that closes windows. Another ``seed`` gives other bids.
    """

    keys: int
    batch: int
    batches: int
    rate: int
    seed: int = 0
    draw: Keys = "uniform"
    loading: int = 0
    jitter_us: int = JITTER_US
    closing_us: int = 3_600_000_000

    @property
    def span_us(self) -> int:
        """The event time of a batch after the loading ones."""
        return self.batch * 1_000_000 // self.rate

    def begin_us(self, number: int) -> int:
        """The first event time of a batch, without jitter."""
        loaded = min(number, self.loading)
        early = LOADED_US * loaded // self.loading if self.loading else 0
        return START_US + early + (number - loaded) * self.span_us

    def part(self, number: int, part: int) -> pa.Table:
        """One of the `FILES_PER_BATCH` parts of a batch."""
        chance = np.random.default_rng([self.keys, self.seed, number, part])
        rows = self.batch // FILES_PER_BATCH
        begin = self.begin_us(number)
        ordered = begin + np.sort(chance.integers(0, self.begin_us(number + 1) - begin, rows))
        times = ordered - chance.integers(0, self.jitter_us, rows)
        return _table(times, self._keys(chance, ordered), chance.integers(1, 10_000, rows))

    def table(self, number: int) -> pa.Table:
        """A whole batch; that after the last one closes the windows."""
        if number == self.batches:
            return self.last()
        return pa.concat_tables([self.part(number, part) for part in range(FILES_PER_BATCH)])

    def last(self) -> pa.Table:
        """A bid ``closing_us`` after the last batch."""
        last = np.array([self.begin_us(self.batches) + self.closing_us])
        return _table(last, np.array([0]), np.array([1]))

    def rows(self, names: Iterable[str]) -> int:
        """How many rows a batch has in these streams together."""
        return self.batch * len(list(names))

    def write_streams(self, folder: Path, names: Iterable[str]) -> None:
        """A folder of files for each stream, with bids of its own."""
        for seed, name in enumerate(names):
            replace(self, seed=seed).write(folder / name)

    def write(self, folder: Path) -> None:
        """Write the files of all batches, and of a last one that closes the windows."""
        folder.mkdir(parents=True)
        for number in range(self.batches + 1):
            for part in range(FILES_PER_BATCH):
                path = folder / f"bids-{number:05d}-{part}.parquet"
                table = self.part(number, part) if number < self.batches else self.last()
                pq.write_table(table, path, compression="NONE")
                stamp = 1_000_000_000 + number * FILES_PER_BATCH + part
                os.utime(path, (stamp, stamp))

    def _keys(self, chance: np.random.Generator, times: Numbers) -> Numbers:
        if self.draw == "moving":
            newest = (times - START_US) * self.keys // LOADED_US
            back = chance.integers(0, max(1, self.keys * ACTIVE_US // LOADED_US), len(times))
            moved: Numbers = np.abs(newest - back)
            return moved
        keys = chance.integers(0, self.keys, len(times))
        if self.draw == "hot":
            keys[chance.integers(0, 2, len(times)) == 0] = 0
        return keys


def _table(times: Numbers, keys: Numbers, prices: Numbers) -> pa.Table:
    gaps = np.array(GAPS_US)[keys % len(GAPS_US)]
    return pa.table([pa.array(times, ARROW_SCHEMA.types[0]), keys, prices, gaps], schema=ARROW_SCHEMA)
