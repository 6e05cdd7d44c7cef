"""A bundle: small segments that a checkpoint adds to the tables of one state partition, in one file.

A small batch changes several tables by some kilobytes each. As files of their own each would cost a sync of the disk,
or a request, and a name in the folder. In a bundle, where they lie one after the other, each is what it would be
alone, byte by byte: an Arrow file, which names its table and describes itself. The table of contents is the manifest:
a `FileRef` with `FileRef.bundle_bytes` says where a part begins, how long it is and what its own checksum is. So of a
bundle only the parts that a checkpoint refers to count, each is checked by itself, and damage to one leaves the
others whole. Folded files are never in one: other readers of Parquet open them by their names.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.storage.objects import Objects

MOST_PART_BYTES = 256 << 10
"""What is larger gets a file of its own: whoever wants one table of a bucket fetches the whole bundle."""
MOST_BUNDLE_BYTES = 1 << 20
"""A bundle takes no more: as long as one of its parts is referred to, all of it is kept."""
ALIGNED = 64
"""Parts begin at a multiple of so many bytes: columns of a mapped file are read where they lie."""


class Bundle:
    """Keeps small files in memory until `write` puts them into one file; larger ones go to ``objects`` at once."""

    def __init__(self, objects: Objects, path: str) -> None:
        self._objects, self._path = objects, path
        self._small_files: dict[str, bytes | pa.Buffer] = {}
        self._starts: dict[str, int] = {}
        self._size = 0

    def put(self, path: str, data: bytes | pa.Buffer) -> None:
        """As `Objects.put`. A small file is durable only after `write`."""
        size = memoryview(data).nbytes
        if size > MOST_PART_BYTES or self._size + size > MOST_BUNDLE_BYTES:
            self._objects.put(path, data)
        else:
            self._small_files[path], self._starts[path] = data, self._size
            self._size += size + -size % ALIGNED

    def write(self) -> None:
        """Make what is kept durable; a single file under its own name. Raises `UnavailableError`."""
        if len(self._small_files) > 1:
            pieces = (piece for data in self._small_files.values() for piece in (data, bytes(-len(data) % ALIGNED)))
            self._objects.put(self._path, b"".join(pieces))
            return
        self._starts.clear()
        for path, data in self._small_files.items():
            self._objects.put(path, data)

    def located(self, files: Sequence[FileRef]) -> list[FileRef]:
        """``files`` with those that `write` has put into the bundle as parts of it."""
        return [
            ref
            if (start := self._starts.get(ref.path)) is None
            else msgspec.structs.replace(ref, path=self._path, start=start, bundle_bytes=self._size)
            for ref in files
        ]
