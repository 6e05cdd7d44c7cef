"""One RocksDB folder: opening it, batches, multi-gets, scans and ingestion, every fault as one of our errors.

rocksdict raises bare exceptions, its bulk iterators end at a damaged block as if it were the end, and its lock
outlives ``close`` while an iterator lives. Nobody above this module has to know.
"""

from __future__ import annotations

import contextlib
import shutil
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

from rocksdict import (
    BlockBasedOptions,
    DbClosedError,
    IngestExternalFileOptions,
    Options,
    Rdict,
    SstFileWriter,
    WriteBatch,
    WriteOptions,
)

from tidestate.statestore.errors import CorruptionError, TidestateError, UnavailableError, UsageError

_END: Any = object()
_SST_BYTES = 256 << 20
_STAGING = "load"


class Faults:
    """``with faults:`` turns what RocksDB raises into our errors; they name its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: TracebackType | None) -> None:
        # rocksdict's own are bare; anything else, a bug of ours or no memory, is not RocksDB's.
        if error is not None and (type(error) in (Exception, DbClosedError) or isinstance(error, OSError)):
            raise self._named(error) from error

    def damaged(self, what: object) -> CorruptionError:
        """The error for a folder whose files cannot be trusted."""
        return CorruptionError(
            f"the rocksdb cache is damaged ({what}): delete the folder, and it is rebuilt from the checkpoint",
            code="rocksdb-damaged",
            folder=str(self._folder),
        )

    def _named(self, error: BaseException) -> TidestateError:
        text, folder = str(error), str(self._folder)
        if isinstance(error, DbClosedError):
            return UsageError("this store is closed: open it again", code="store-closed", folder=folder)
        if text.startswith("Invalid argument: Keys must be added"):
            return UsageError(
                "a snapshot must be loaded in key order, each key once", code="load-order", folder=folder
            )
        if "lock hold" in text or "While lock file" in text:
            return UnavailableError(
                f"another process or store has this rocksdb folder open ({error}): close it first",
                code="rocksdb-open",
                folder=folder,
            )
        lost = "No such file" in text or "Corruption" in text
        if not lost and (isinstance(error, OSError) or text.startswith("IO error")):
            return UnavailableError(
                f"rocksdb cannot read or write its files ({error}): free disk space or repair the disk, then retry",
                code="rocksdb-io",
                folder=folder,
            )
        return self.damaged(error)


class Database:
    """Byte strings under byte strings, in order. One read-write opener at a time."""

    def __init__(self, folder: Path) -> None:
        self.faults = Faults(folder)
        self._folder = folder
        self._open: weakref.WeakSet[Cursor] = weakref.WeakSet()
        self._no_wal = WriteOptions()
        self._no_wal.disable_wal = True
        with self.faults:
            folder.parent.mkdir(parents=True, exist_ok=True)
            self._db = Rdict(str(folder), options())

    def get(self, key: bytes) -> bytes | None:
        """The value of ``key``, None where there is none."""
        with self.faults:
            value: bytes | None = self._db.get(key)
            return value

    def get_all(self, keys: list[bytes]) -> list[bytes | None]:
        """The value of each key, None where there is none; fastest for sorted keys."""
        with self.faults:
            values: list[bytes | None] = self._db.get(keys) if keys else []
            return values

    def write(self, batch: WriteBatch) -> None:
        """Write all of ``batch`` or nothing, without a log: a crash leaves a prefix of what was written."""
        with self.faults:
            self._db.write(batch, self._no_wal)

    def scan(self, lower: bytes, upper: bytes, *, reverse: bool = False) -> Cursor:
        """The values of the keys in ``[lower, upper)`` as they are now."""
        cursor = Cursor(self._db, self.faults, lower, upper, reverse=reverse)
        self._open.add(cursor)
        return cursor

    def seek_all(self, intervals: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
        """The values of the keys in many small intervals ``[lower, upper)``: one seek for each."""
        found: list[bytes] = []
        with self.faults:
            cursor = self._db.iter()
            for lower, upper in intervals:
                cursor.seek(lower)
                while cursor.valid() and cursor.key() < upper:
                    found.append(cursor.value())
                    cursor.next()
                cursor.status()
        return found

    def first_key(self) -> bytes | None:
        """The smallest key of all."""
        with self.faults:
            cursor = self._db.iter()
            cursor.seek_to_first()
            cursor.status()
            key: bytes | None = cursor.key() if cursor.valid() else None
            return key

    @contextlib.contextmanager
    def ingesting(self) -> Iterator[Staging]:
        """Files written aside, which become part of the database together when the block ends well."""
        staging = self._folder / _STAGING
        shutil.rmtree(staging, ignore_errors=True)
        try:
            files = Staging(staging, self.faults)
            yield files
            self._ingest(files.finished())
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _ingest(self, paths: list[str]) -> None:
        moving = IngestExternalFileOptions()
        moving.set_move_files(True)
        with self.faults:
            if paths:
                self._db.ingest_external_file(paths, moving)

    def flush(self) -> None:
        """Bring what was written to the disk."""
        with self.faults:
            self._db.flush()

    def close(self) -> None:
        """Flush and unlock the folder, even if cursors are open. What cannot be flushed is rebuilt later."""
        for cursor in list(self._open):
            cursor.close()
        with contextlib.suppress(Exception):
            self._db.close()


class Cursor:
    """Values of a range of keys, in chunks. It sees the database as it was when the cursor was made."""

    def __init__(self, db: Rdict, faults: Faults, lower: bytes, upper: bytes, *, reverse: bool) -> None:
        self._faults = faults
        self._last: bytes | None = None
        self._values: Iterator[bytes] | None = iter(())
        with faults:
            first, self._last = _ends(db, lower, upper, reverse=reverse)
            if self._last is not None:
                stream = partial(next, db.values(backwards=reverse, from_key=first), _END)
                # rocksdict's iterator ends without a word at a damaged block. The last value is known beforehand
                # (all rows of a table differ, as they hold their keys), so an early end is noticed.
                self._values = iter(stream, self._last)

    def read(self, limit: int) -> list[bytes]:
        """The next values, ``limit`` or one more at most; none at the end."""
        if self._values is None:
            raise UsageError("this store is closed: scan before you close it", code="store-closed")
        with self._faults:
            values = list(islice(self._values, limit))
        if values and values[-1] is _END:
            raise self._faults.damaged("a scan ended early")
        if len(values) < limit and self._last is not None:
            values.append(self._last)
            self._values, self._last = iter(()), None
        return values

    def close(self) -> None:
        """Give the database free; reading on is an error."""
        self._values = None


def _ends(db: Rdict, lower: bytes, upper: bytes, *, reverse: bool) -> tuple[bytes, bytes | None]:
    """The key at which a scan begins and the value at which it ends, None when there are no rows."""
    probe = db.iter()
    probe.seek_for_prev(upper)
    if probe.valid() and probe.key() == upper:
        probe.prev()
    probe.status()
    if not probe.valid() or probe.key() < lower:
        return lower, None
    if not reverse:
        return lower, probe.value()
    highest = probe.key()
    probe.seek(lower)
    probe.status()
    return highest, probe.value()


class Staging:
    """Sorted files that a database will ingest."""

    def __init__(self, folder: Path, faults: Faults) -> None:
        self._folder, self._faults = folder, faults
        self._paths: list[str] = []
        self._writer: SstFileWriter | None = None
        with faults:
            folder.mkdir()

    def write(self, keys: list[bytes], values: list[bytes]) -> None:
        """More rows; keys grow from call to call."""
        with self._faults:
            if self._writer is None:
                self._paths.append(str(self._folder / f"{len(self._paths)}.sst"))
                self._writer = SstFileWriter(options())
                self._writer.open(self._paths[-1])
            deque(map(self._writer.__setitem__, keys, values), maxlen=0)
            full = self._writer.file_size() > _SST_BYTES
        if full:
            self.finished()

    def finished(self) -> list[str]:
        """The files so far, complete."""
        with self._faults:
            if self._writer is not None:
                self._writer.finish()
                self._writer = None
        return self._paths


def options() -> Options:
    """How a database and its files are set up: raw bytes, and a bloom filter for point reads of missing keys."""
    made = Options(raw_mode=True)
    made.create_if_missing(True)
    made.set_write_buffer_size(64 << 20)
    table = BlockBasedOptions()
    table.set_bloom_filter(10, False)
    made.set_block_based_table_factory(table)
    return made
