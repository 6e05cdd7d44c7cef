"""Generated bids: event time with jitter, key, price; as Parquet files, so many rows a batch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = "event_time timestamp, key long, price long"
START_US = 1_700_000_000_000_000
JITTER_US = 2_000_000
FILES_PER_BATCH = 2


@dataclass(frozen=True)
class Bids:
    """A stream of ``batches`` batches of ``batch`` bids, ``rate`` of them in a second of event time.

    Another ``seed`` gives other bids of the same times and keys.
    """

    keys: int
    batch: int
    batches: int
    rate: int
    seed: int = 0

    def write(self, folder: Path) -> None:
        """Write the files, and one last batch of a single bid an hour later that closes every window."""
        folder.mkdir(parents=True)
        chance = np.random.default_rng([self.keys, self.seed])
        span = self.batch * 1_000_000 // self.rate
        for number in range(self.batches):
            rows = self.batch // FILES_PER_BATCH
            for part in range(FILES_PER_BATCH):
                ordered = START_US + number * span + np.sort(chance.integers(0, span, rows))
                times = ordered - chance.integers(0, JITTER_US, rows)
                keys, prices = chance.integers(0, self.keys, rows), chance.integers(1, 10_000, rows)
                self._file(folder, number, part, times, keys, prices)
        last = np.array([START_US + self.batches * span + 3_600_000_000])
        for part in range(FILES_PER_BATCH):
            self._file(folder, self.batches, part, last, np.array([0]), np.array([1]))

    def _file(
        self, folder: Path, number: int, part: int, times: np.ndarray, keys: np.ndarray, prices: np.ndarray
    ) -> None:
        path = folder / f"bids-{number:05d}-{part}.parquet"
        table = pa.table({"event_time": pa.array(times, pa.timestamp("us", "UTC")), "key": keys, "price": prices})
        pq.write_table(table, path, compression="NONE")
        stamp = 1_000_000_000 + number * FILES_PER_BATCH + part
        os.utime(path, (stamp, stamp))
