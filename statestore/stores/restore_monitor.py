"""What restoring the store of a state partition has read, how fast, and how much is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
import pyarrow as pa

from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.spec.store import Restored

RestoreCallback = Callable[[Restored, Restored], None]
"""Called with what is done and what there is in all (without seconds)."""


def no_restore_progress(_done: Restored, _all: Restored) -> None:
    """Report no progress of a restore."""


def restored_size(refs: Iterable[FileRef]) -> Restored:
    """Files as what there is to read."""
    found = list(refs)
    return Restored(len(found), sum(ref.bytes for ref in found), sum(ref.rows for ref in found))


class RestoreMonitor:
    """Watches over a partition being restored; ``tell`` is called every ``every_s`` seconds at most, and at the end.

    A table is read in the order of its key, from all its files side by side: while that lasts, bytes are counted by
    rows. Where rows hide each other there are fewer than in the files, so it may get on faster than it seemed.
    """

    def __init__(
        self,
        tell: RestoreCallback = no_restore_progress,
        *,
        every_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tell, self._every_s, self._clock = tell, every_s, clock
        self._all = self._done = Restored()
        self._begun = self._reported = clock()
        self._seconds = 0.0

    @property
    def restored(self) -> Restored:
        """What has been read so far."""
        return msgspec.structs.replace(self._done, seconds=self._seconds if self._done.files else 0.0)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add the time spent inside this block to the restore duration."""
        self._begun = self._reported = self._clock()
        try:
            yield
        finally:
            self._seconds += self._clock() - self._begun
            if self._all.files:
                self._tell(self.restored, self._all)

    def expect(self, refs: Sequence[FileRef]) -> None:
        """Start a restore of these files; discard what earlier attempts had read."""
        self._all, self._done = restored_size(refs), Restored()

    def took(self, refs: Sequence[FileRef]) -> None:
        """Count these files as read."""
        self._done = self._done.plus(restored_size(refs))
        self._say(self._done)

    def reading(self, refs: Sequence[FileRef], batches: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """``batches``, the rows of one table that ``refs`` hold, as they are."""
        whole, rows = restored_size(refs), 0
        for batch in batches:
            yield batch
            rows += batch.num_rows
            share = min(1.0, rows / whole.rows) if whole.rows else 1.0
            part = Restored(0, int(whole.bytes * share), int(whole.rows * share))
            self._say(self._done.plus(part))
        self.took(refs)

    def _say(self, done: Restored) -> None:
        now = self._clock()
        if now - self._reported >= self._every_s:
            self._reported = now
            self._tell(msgspec.structs.replace(done, seconds=self._seconds + now - self._begun), self._all)


def progress_text(done: Restored, whole: Restored) -> str:
    """How far it is, for a log: ``3 of 12 files, 31 of 310 MB, 1,200 of 9,000 rows, 52.1 MB/s, 5 s left``."""
    left = (whole.bytes - done.bytes) / done.rate if done.rate else 0.0
    return (
        f"{done.files:,} of {whole.files:,} files, {done.bytes / 1e6:,.1f} of {whole.bytes / 1e6:,.1f} MB, "
        f"{done.rows:,} of {whole.rows:,} rows, {done.rate / 1e6:,.1f} MB/s, {left:,.0f} s left"
    )
