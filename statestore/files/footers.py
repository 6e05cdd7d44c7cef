"""Footers of folded files, each read and checked once per process: a file never changes under its name.

Every task opens its store. Without this each opening would read the footer of every file again, on remote
storage by a request each.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from cachetools import LRUCache

from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.spec.keyrange import Key
from tidestate.statestore.spec.tables import TableSpec

CACHE_BYTES = 32 << 20
"""Memory for footers that nobody may be using, per process."""

PARSED = 8
"""A parsed footer takes this many times its bytes in the file: measured, 240 blocks of five columns."""


@dataclass(frozen=True)
class Footer:
    """What a folded file says at its end: where its blocks are, the last key of each (also as rows), their sizes;
    and the table as it was when the file was written.
    """

    written: TableSpec
    metadata: pq.FileMetaData
    index: pa.Table
    ends: list[Key]
    sizes: list[int]


FooterName = tuple[str, TableSpec, FileRef]
"""A root, and what the footer was checked against: the table and the manifest's words on the file."""

_Kept = tuple[tuple[int, ...] | None, Footer]


def _size(kept: _Kept) -> int:
    return int(PARSED * kept[1].metadata.serialized_size)


_kept: LRUCache[FooterName, _Kept] = LRUCache(CACHE_BYTES, getsizeof=_size)
_lock = threading.Lock()
# A fork waits for the lock: the child would find the cache half changed, and locked forever.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def find(name: FooterName, version: tuple[int, ...] | None) -> Footer | None:
    """The footer, if it was kept for this file in this ``version``, see `Objects.local_version`."""
    with _lock:
        known, footer = _kept.get(name, (None, None))
    return footer if known == version else None


def keep_footer(name: FooterName, version: tuple[int, ...] | None, footer: Footer) -> None:
    """Keep a footer that was checked."""
    with _lock, suppress(ValueError):  # larger than the whole cache
        _kept[name] = (version, footer)


def forget(name: FooterName) -> None:
    """Read it again next time: the file proved damaged."""
    with _lock:
        _kept.pop(name, None)


def clear_footers() -> None:
    """Forget all footers, as in a new process."""
    with _lock:
        _kept.clear()
