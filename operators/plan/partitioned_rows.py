"""Rows by state partition. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import pyarrow as pa

from tidestate.statestore.spec.keyhash import partition_of


@dataclass(frozen=True)
class PartitionedRows:
    """Rows in the order of their state partitions. ``counts``: the number of rows of each partition that has some,
    ascending by partition.
    """

    rows: pa.Table
    counts: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, rows: pa.Table, keys: list[str], partitions: int) -> PartitionedRows:
        """``rows``, by the hash of their ``keys``; in their order within each partition."""
        if not rows.num_rows:
            return cls(rows, ())
        if partitions == 1 or not keys:
            return cls(rows, ((0, rows.num_rows),))
        owners = partition_of(rows.select(keys), partitions)
        order = np.argsort(owners.astype(np.uint16 if partitions <= 1 << 16 else np.int64), kind="stable")
        found, counts = np.unique(owners, return_counts=True)
        return cls(rows.take(pa.array(order)), tuple(zip(found.tolist(), counts.tolist(), strict=True)))

    def __getitem__(self, partition: int) -> pa.Table:
        """The rows of one partition."""
        return self.between(partition, partition + 1).rows

    def between(self, first: int, last: int) -> PartitionedRows:
        """The rows of the partitions from ``first`` up to, but not including, ``last``."""
        counts = tuple(one for one in self.counts if first <= one[0] < last)
        if len(counts) == len(self.counts):
            return self
        before = sum(count for partition, count in self.counts if partition < first)
        return PartitionedRows(self.rows.slice(before, sum(count for _, count in counts)), counts)

    def parts(self) -> Iterator[tuple[int, pa.Table]]:
        """Each partition that has rows, with them."""
        ends = accumulate(count for _, count in self.counts)
        for (partition, count), end in zip(self.counts, ends, strict=True):
            yield partition, self.rows.slice(end - count, count)
