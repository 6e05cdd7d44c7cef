"""Which files a source has read: a digest for the manifest, and the set that each new batch is checked against.

A file is its path and time as Spark writes them: ``<path> <milliseconds>``. The digest is a sum of hashes, so it does
not depend on order or on how Spark has folded its log, and a batch can be added without the files before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias
from urllib.parse import unquote

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from tidestate.recovery.log.manifest import Manifest, ReadFiles, SparkPosition
from tidestate.statestore.errors import IncompatibleError

Entries: TypeAlias = dict[int, tuple[str, ...]]
"""Files that a source has read, each with its time, by the number of the entry in the source's log."""
NOTHING = ReadFiles(0, "0" * 16)
_PATTERN = {ord(character): f"\\{character}" for character in "{}[]*?\\"}
"""The characters by which Spark takes a path for a pattern, a planned file's too; and each escaped."""
RECENT = 1 << 15
"""How many hashes of new files are kept in a set before they are merged into the sorted array."""


def with_files(read: ReadFiles, files: Iterable[str]) -> ReadFiles:
    """``read`` with these files added."""
    count, total = read.files, int(read.digest, 16)
    for file in files:
        count += 1
        total += xxhash.xxh3_64_intdigest(file.encode())
    return ReadFiles(count, f"{total % 2**64:016x}")


def read_of(entries: Entries) -> ReadFiles:
    """The summary of all files of a source's log."""
    return with_files(NOTHING, (file for files in entries.values() for file in files))


def followed(head: SparkPosition | None, batch: SparkPosition) -> SparkPosition:
    """``batch``, which follows ``head``, with ``read`` as of its end."""
    before = {} if head is None else head.read
    read = {source: with_files(before.get(source, NOTHING), files) for source, files in batch.files.items()}
    return msgspec.structs.replace(batch, read={**before, **read})


class KnownFiles:
    """Paths that one source has read, as hashes of 8 bytes. A new path may be taken for a known one, with a chance of
    one in 2^64 for each known path; never the other way round.
    """

    def __init__(self, files: Iterable[str]) -> None:
        self._sorted: npt.NDArray[np.uint64] = np.unique(np.fromiter(map(_hash, files), np.uint64))
        self._recent: set[int] = set()

    def __contains__(self, file: str) -> bool:
        number = _hash(file)
        if number in self._recent:
            return True
        at = int(np.searchsorted(self._sorted, np.uint64(number)))
        return at < len(self._sorted) and int(self._sorted[at]) == number

    def add(self, files: Iterable[str]) -> None:
        """Add files that were read."""
        self._recent.update(map(_hash, files))
        if len(self._recent) > RECENT:
            recent = np.fromiter(self._recent, np.uint64, len(self._recent))
            self._sorted, self._recent = np.union1d(self._sorted, recent), set()


class FilesRead:
    """The files that file sources have read; none may be read twice. ``all_read`` gives those at a checkpoint, which
    is slow.
    """

    def __init__(self, read: Mapping[int, Entries], all_read: Callable[[Manifest], Mapping[int, Entries]]) -> None:
        self._all_read = all_read
        self._known = {
            str(source): KnownFiles(file for files in entries.values() for file in files)
            for source, entries in read.items()
        }

    def check(self, head: Manifest, batch: SparkPosition) -> None:
        """Raise `IncompatibleError` if a batch that follows ``head`` contains a file that an earlier one has read,
        even if its time has changed.
        """
        for source, files in batch.files.items():
            again = [file for file in files if file in self._known.get(source, ())]
            if again and (again := self._confirmed(head, source, again)):
                raise IncompatibleError(
                    "an earlier batch has already read this file (was it changed?), so its events would count "
                    "twice: nothing was processed; remove it from the input, and write new data under a new name",
                    code="spark-file-again",
                    batch=batch.batch_id,
                    source=int(source),
                    files=[path_of(one) for one in again[:10]],
                )

    def _confirmed(self, head: Manifest, source: str, again: list[str]) -> list[str]:
        """Without files that only share a hash with another. Slow, but rare."""
        entries = self._all_read(head).get(int(source), {})
        paths = {path_of(file) for files in entries.values() for file in files}
        return [file for file in again if path_of(file) in paths]

    def add(self, batch: SparkPosition) -> None:
        """Add the files of a batch."""
        for source, files in batch.files.items():
            self._known.setdefault(source, KnownFiles(())).add(files)


def path_of(file: str) -> str:
    """The path of a file without its time."""
    return file.rpartition(" ")[0]


def _hash(file: str) -> int:
    return xxhash.xxh3_64_intdigest(path_of(file).encode())


def read_as_patterns(files: Mapping[str, Sequence[str]]) -> list[str]:
    """The paths among ``files``, each with its time, by source, that Spark takes for patterns where a source has
    several files: it reads the others of these twice. One alone is read as it is.
    """
    paths = [unquote(path_of(file)) for of_source in files.values() if len(of_source) > 1 for file in of_source]
    return [path for path in paths if literal_path(path) != path]


def literal_path(path: str) -> str:
    """A path as Spark's readers take it, if its characters stand for themselves."""
    return path.translate(_PATTERN)
