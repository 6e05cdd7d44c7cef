"""Spark's own checkpoint of the query: what Spark has planned, which files it has read, and what of that is in a
manifest.

Spark never syncs these files, so after a power cut any of them may be gone, empty, cut or full of zeros. They are
read strictly: bytes that Spark would not have written raise `CorruptionError`. For a file source the list of files is
part of a batch's identity: without it Spark may plan the same batch with other rows.

A batch is compared with that of our manifest, and the files that a source has read with those of each new batch.
A file is its path and time as Spark writes them: ``<path> <milliseconds>``. The digest of many is a sum of hashes:
it does not depend on order or on how Spark has folded its log, and a batch can be added without the files before it.
"""

from __future__ import annotations

import json
import math
import os
import re
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias
from urllib.parse import quote, unquote, urlsplit

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from tidestate.recovery.log.manifest import (
    SPARK_BATCHES,
    SPARK_ENTRIES,
    Manifest,
    ReadFiles,
    SparkPosition,
    misleads_spark,
    spark_number,
)
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import CorruptionError, IncompatibleError, NotFoundError, UnavailableError
from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.files.segments import damaged, read_verified
from tidestate.statestore.storage.objects import Objects, put_all

SPARK_FOLDER = "spark"
"""The folder of a root that is Spark's own checkpoint of the query."""
UNREADABLE = (ValueError, KeyError, TypeError, RecursionError)
"""What is raised where JSON is not of the expected form."""
NOTHING_READ = "-"
"""What Spark writes for a source that it has not read yet."""
_VERSION = re.compile(r"v[0-9]{1,9}")
_COMPACT = ".compact"
_HADOOP_SUMS = b"crc\x00"


class _Entry(msgspec.Struct):
    """A file in the log of a file source."""

    path: str
    timestamp: Annotated[int, msgspec.Meta(ge=-SPARK_BATCHES - 1, le=SPARK_BATCHES)]
    batch: Annotated[int, msgspec.Meta(ge=0, le=SPARK_ENTRIES)] = msgspec.field(name="batchId")


class _LogOffset(msgspec.Struct, forbid_unknown_fields=True):
    """The offset of a file source: the number of an entry in its log, -1 before the first."""

    offset: Annotated[int, msgspec.Meta(ge=-1, le=SPARK_ENTRIES)] = msgspec.field(name="logOffset")


_ENTRY, _LOG_OFFSET = msgspec.json.Decoder(_Entry), msgspec.json.Decoder(_LogOffset)


def read_file(objects: Objects, path: str) -> bytes:
    """All bytes of a file. Raises `CorruptionError` if they do not match Hadoop's checksums."""
    data = objects.read(path)
    if objects.atomic_create == "link":  # Hadoop writes them for local files alone
        folder, _, name = path.rpartition("/")
        with suppress(NotFoundError):
            if not _fits(data, objects.read(f"{folder}/.{name}.crc")):
                raise unusable(path, "it does not match its checksums")
    return data


def _fits(data: bytes, sums: bytes) -> bool:
    """Whether bytes match Hadoop's checksums: a header, the bytes per sum, CRC-32 of each. As in Hadoop, a damaged
    header is ignored and damaged sums are an error.
    """
    if not sums.startswith(_HADOOP_SUMS) or len(sums) < 8:
        return True
    size = int.from_bytes(sums[4:8], "big")
    if size <= 0:
        return False
    expected = [zlib.crc32(data[at : at + size]).to_bytes(4, "big") for at in range(0, len(data), size)]
    return sums[8 : 8 + 4 * len(expected)] == b"".join(expected)


def garbled(path: str, data: bytes) -> CorruptionError:
    """The error for a file whose bytes are not what Spark writes."""
    if not data:
        return unusable(path, "it is empty")
    return unusable(path, "it is truncated or garbled" if data.strip(b"\x00") else "it is full of zeros")


def lost(path: str) -> CorruptionError:
    """The error for a file that is missing."""
    return unusable(path, "it is gone")


def unusable(path: str, why: str) -> CorruptionError:
    """The error for a file that cannot be trusted."""
    return CorruptionError(
        f"a file of spark's checkpoint cannot be used ({why}): rewrite it with tidestate repair ROOT --resync-spark",
        code="spark-log-damaged",
        path=path,
        why=why,
    )


@dataclass(frozen=True)
class Planned:
    """A batch that Spark has planned: its position and its processing time in milliseconds."""

    position: SparkPosition
    timestamp_ms: int


class SparkLog:
    """The log in ``<root>/spark``, or in a folder where it was set aside. Read-only."""

    def __init__(self, objects: Objects, folder: str = SPARK_FOLDER) -> None:
        self.objects = objects
        self.folder = folder

    def has_marker(self) -> bool:
        """Whether the folder is a checkpoint root already."""
        return self.objects.exists("tidestate.json")

    def query_id(self) -> str | None:
        """Spark's query id, None before Spark has a checkpoint."""
        path = f"{self.folder}/metadata"
        try:
            data = read_file(self.objects, path)
        except NotFoundError:
            return None
        try:
            query_id = json.loads(data)["id"]
            if not isinstance(query_id, str):
                raise TypeError("the id is not text")
            query_id.encode()  # half a character passes as JSON
        except UNREADABLE:
            raise garbled(path, data) from None
        return query_id

    def newest(self, log: str) -> int | None:
        """The highest batch id in ``offsets`` or ``commits``."""
        numbers = map(spark_number, self.objects.names(f"{self.folder}/{log}"))
        return max((number for number in numbers if number is not None), default=None)

    def has_torn_plan(self) -> bool:
        """Whether Spark died while it wrote its first plan: no query of Spark 4.1 starts over what that leaves."""
        path = f"{self.folder}/offsets"
        return self.newest("offsets") is None and bool(self.objects.names(path, hidden=True))

    def check_names(self, log: str) -> None:
        """Raise `CorruptionError` if ``offsets`` or ``commits`` has a file that Spark would read but never writes."""
        _check_names(f"{self.folder}/{log}", self.objects.names(f"{self.folder}/{log}"))

    def planned(self, query_id: str, batch_id: int) -> Planned:
        """The batch in Spark's log. Raises `NotFoundError`."""
        timestamp_ms, end = self._offsets(batch_id)
        start: tuple[str, ...] = ()
        if batch_id > 0:
            _, start = self._offsets(batch_id - 1)
        files = {}
        for source, text in enumerate(end):
            last = log_offset(text)
            if last is not None:
                before = log_offset(start[source]) if source < len(start) else None
                files[str(source)] = self._files(source, -1 if before is None else before, last)
        return Planned(SparkPosition(query_id, batch_id, start, end, files), timestamp_ms)

    def offsets(self, batch_id: int) -> tuple[str, ...]:
        """The end offset of each source in this batch. Raises `NotFoundError`, `CorruptionError`, and
        `IncompatibleError` for an unknown version of the log.
        """
        return self._offsets(batch_id)[1]

    def check_commit(self, batch_id: int) -> None:
        """Raise `CorruptionError` if the commit file of a batch is damaged."""
        path = f"{self.folder}/commits/{batch_id}"
        data = read_file(self.objects, path)
        version, _, facts = data.partition(b"\n")
        try:
            if not _VERSION.fullmatch(version.decode()) or not isinstance(json.loads(facts), dict):
                raise garbled(path, data)
        except UNREADABLE:
            raise garbled(path, data) from None

    def entry(self, source: int, number: int) -> tuple[str, ...] | None:
        """Files, each with its time, of one entry of a file source's log; None if it is missing or damaged."""
        try:
            return self._files(source, number - 1, number)
        except (NotFoundError, CorruptionError):
            return None

    def entries(self, source: int, interval: int | None = None) -> Entries:
        """All entries of a file source's log, as Spark reads them at its start if it folds every ``interval`` entries
        (default: however they are folded). Raises `CorruptionError` if one is missing or damaged.
        """
        folder = f"{self.folder}/sources/{source}"
        found: Entries = {}
        names = self.objects.names(folder)
        _check_names(folder, names)
        for number, name in _layout(names, interval):
            path = f"{folder}/{name}"
            files: dict[int, list[str]] = {number: []}
            try:
                for entry in self._entries(path):
                    files.setdefault(entry.batch, []).append(f"{entry.path} {entry.timestamp}")
            except NotFoundError:
                raise lost(path) from None
            if max(files) > number or (not name.endswith(_COMPACT) and len(files) > 1):
                raise unusable(path, "its entries belong to another file")
            found |= {entry: tuple(paths) for entry, paths in files.items()}
        return found

    def sources(self) -> set[int]:
        """Numbers of the sources that have files."""
        return {
            number for name in self.objects.names(f"{self.folder}/sources") if (number := _entry(name)) is not None
        }

    def own_files(self, source: int) -> list[str]:
        """The files of a source, whatever they contain."""
        folder = f"{self.folder}/sources/{source}"
        return [f"{folder}/{name}" for name in self.objects.names(folder)]

    def check_own(self, path: str) -> None:
        """Raise `CorruptionError` if a file that a source wrote cannot be intact: only the source knows its form, but
        most write a version and JSON.
        """
        if spark_number(path.rpartition("/")[2]) is None:
            return  # not a name of Spark's metadata logs
        with suppress(NotFoundError, UnavailableError):  # it may be a folder
            data = read_file(self.objects, path)
            version, _, text = data.removeprefix(b"\x00").partition(b"\n")
            if not data.strip(b"\x00"):
                raise garbled(path, data)
            if version == b"v1":
                try:
                    for line in text.split(b"\n"):
                        json.loads(line)
                except UNREADABLE:
                    raise garbled(path, data) from None

    def is_of_files(self, source: int) -> bool:
        """Whether a source is a file source, by any intact entry of its log."""
        for path in self.own_files(source):
            with suppress(CorruptionError, NotFoundError):
                if self._entries(path):
                    return True
        return False

    def _lines(self, path: str) -> list[str]:
        data = read_file(self.objects, path)
        try:
            lines = data.decode().split("\n")
        except UnicodeDecodeError:
            raise garbled(path, data) from None
        if not _VERSION.fullmatch(lines[0]):
            raise garbled(path, data)
        return lines

    def _offsets(self, batch_id: int) -> tuple[int, tuple[str, ...]]:
        path = f"{self.folder}/offsets/{batch_id}"
        lines = self._lines(path)
        if lines[0] != "v1" and len(lines) > 1:
            raise IncompatibleError(
                "unknown version of spark's offset log: run spark with spark.sql.streaming.offsetLog.formatVersion=1",
                code="spark-log-format",
                path=path,
                found=lines[0],
            )
        try:
            at_ms = json.loads(lines[1])["batchTimestampMs"]
        except (IndexError, *UNREADABLE):
            raise unusable(path, "it is truncated or garbled") from None
        whole = type(at_ms) is int and 0 <= at_ms <= SPARK_BATCHES // 1000
        if not whole or len(lines) < 3 or "" in lines[2:]:
            raise unusable(path, "it is truncated or garbled")
        return at_ms, tuple(lines[2:])

    def _files(self, source: int, after: int, last: int) -> tuple[str, ...]:
        """Paths, with modification times, of a file source's log entries in ``(after, last]``."""
        folder = f"{self.folder}/sources/{source}"
        names = self.objects.names(folder)
        alone = {n for name in names if (n := _entry(name)) is not None and after < n <= last}
        wanted = {str(number): range(number, number + 1) for number in alone}
        first = after + 1
        for compact in sorted(_compacts(names)):
            part = range(first, min(compact, last) + 1)
            if any(number not in alone for number in part):
                wanted[f"{compact}{_COMPACT}"] = part
            first = max(first, compact + 1)
        lacking = next((number for number in range(first, last + 1) if number not in alone), None)
        if lacking is not None:
            raise NotFoundError(
                "spark's log of the file source lacks this entry",
                code="spark-source-log",
                source=source,
                entry=lacking,
            )
        return tuple(
            sorted(
                {
                    f"{one.path} {one.timestamp}"
                    for name, part in wanted.items()
                    for one in self._entries(f"{folder}/{name}")
                    if one.batch in part and (name == str(one.batch) or one.batch not in alone)
                }
            )
        )

    def _entries(self, path: str) -> list[_Entry]:
        lines = self._lines(path)
        try:
            return [_ENTRY.decode(line) for line in lines[1:]]
        except (msgspec.DecodeError, RecursionError):
            raise unusable(path, "it is truncated or garbled") from None


def _layout(names: list[str], interval: int | None) -> Iterator[tuple[int, str]]:
    """The files of a source's log that Spark reads at its start, each with its last entry; some may be missing."""
    compacts = sorted(_compacts(names))
    last = max([*compacts, *(number for name in names if (number := _entry(name)) is not None)], default=-1)
    if interval is None:
        first = compacts[-1] if compacts else 0
        yield from ((n, f"{n}{_COMPACT}" if compacts and n == first else str(n)) for n in range(first, last + 1))
        return
    every = folded_every(compacts, interval)
    first = max(0, (last + 1) // every * every - 1)
    yield from ((n, f"{n}{_COMPACT}" if (n + 1) % every == 0 else str(n)) for n in range(first, last + 1))


def folded_every(compacts: list[int], default: int) -> int:
    """The interval at which Spark will fold a log that has these ``.compact`` files, oldest first."""
    if len(compacts) > 1:
        return compacts[-1] - compacts[-2]
    if not compacts:
        return default
    entries = compacts[0] + 1
    if default >= entries // 2:
        return entries
    small = [one for one in range(1, math.isqrt(entries) + 1) if entries % one == 0]
    return min(one for divisor in small for one in (divisor, entries // divisor) if one >= default)


def _entry(name: str) -> int | None:
    """The number of a source, or of an entry in its list of files."""
    return spark_number(name, SPARK_ENTRIES)


def _compacts(names: list[str]) -> list[int]:
    stems = (name.removesuffix(_COMPACT) for name in names if name.endswith(_COMPACT))
    return [number for stem in stems if (number := _entry(stem)) is not None]


def _check_names(folder: str, names: list[str]) -> None:
    for name in names:
        if misleads_spark(name, _COMPACT):
            raise unusable(f"{folder}/{name}", "spark never writes such a name, and cannot read it")


def log_offset(text: str) -> int | None:
    """The offset of a file source, None for any other source."""
    try:
        return _LOG_OFFSET.decode(text).offset
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


def is_data_file(name: str) -> bool:
    """Whether Spark reads the rows of a file of this name: it lists ``_metadata…`` and ``_common_metadata…``, records
    them as read, and reads nothing of them, as ``isDataPath`` of its ``PartitioningAwareFileIndex`` says.
    """
    return not name.startswith(".") and (not name.startswith("_") or "=" in name)


LEGAL = "_-!.~'()*,;:$&+=@/"
"""Characters that Java does not escape in the path of a URL, in addition to letters and digits."""


def file_url(path: str | os.PathLike[str]) -> str:
    """The URL of a local file as Java makes it: letters beyond ASCII are not escaped."""
    characters = os.path.abspath(os.path.expanduser(path))
    return "file://" + "".join(char if _is_kept(char) else quote(char, safe=LEGAL) for char in characters)


def local_file(url: str) -> Path | None:
    """The local file of a URL; None for any other URL."""
    parts = urlsplit(url.replace("?", "%3F").replace("#", "%23"))
    return Path(unquote(parts.path)) if parts.scheme == "file" and parts.netloc == "" else None


def _is_kept(char: str) -> bool:
    """Whether a character is beyond ASCII, and neither a space nor a control character."""
    return ord(char) > 0x9F and not char.isspace()


INLINE_FILES = 100
"""Longer lists of files are written to a separate file, so that a manifest stays small."""


def with_lists(
    position: SparkPosition, checkpoint_id: int, read: Mapping[int, Entries] | None = None
) -> tuple[SparkPosition, dict[str, bytes]]:
    """``position`` for a manifest, with references to its long list of files and to ``read``, all files read up to
    it; and the contents of the files that are referred to, by path.
    """
    files: dict[str, bytes] = {}
    if sum(map(len, position.files.values())) > INLINE_FILES:
        ref = _list(files, f"{checkpoint_id}-{uuid.uuid4().hex}.files.json", position.files, len(position.files))
        position = msgspec.structs.replace(position, files={}, files_ref=ref)
    if read:
        rows = sum(map(len, read.values()))
        ref = _list(files, f"{checkpoint_id}-{uuid.uuid4().hex}.read.json", read, rows)
        position = msgspec.structs.replace(position, read_ref=ref)
    return position, files


def _list(files: dict[str, bytes], name: str, values: Mapping[Any, Any], rows: int) -> FileRef:
    data, path = msgspec.json.encode(values), f"data/spark/{name}"
    files[path] = data
    return FileRef(path=path, bytes=len(data), checksum=checksum(data), rows=rows)


def store_lists(
    objects: Objects, position: SparkPosition, checkpoint_id: int, read: Mapping[int, Entries] | None = None
) -> SparkPosition:
    """`with_lists`, with the files written."""
    position, files = with_lists(position, checkpoint_id, read)
    put_all(objects, files)
    return position


def load_files(objects: Objects, position: SparkPosition | None) -> SparkPosition | None:
    """``position`` with its list of files, wherever it lies."""
    if position is None or position.files_ref is None:
        return position
    data = read_verified(objects, position.files_ref).to_pybytes()
    try:
        files = msgspec.json.decode(data, type=dict[str, tuple[str, ...]])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(position.files_ref, str(error)) from None
    return msgspec.structs.replace(position, files=files, files_ref=None)


def check_same(ours: SparkPosition, planned: SparkPosition) -> None:
    """Raise `IncompatibleError` unless Spark's batch is the one that was committed under its id."""
    for part in ("query_id", "batch_id", "start", "end", "files"):
        expected, found = getattr(ours, part), getattr(planned, part)
        if expected != found:
            raise IncompatibleError(
                f"spark planned a committed batch again with a different {part.replace('_', ' ')}: nothing was "
                "processed; start again, and spark's checkpoint is rewritten from ours",
                code="spark-batch-differs",
                batch=ours.batch_id,
                part=part,
                expected=_short(expected),
                found=_short(found),
            )


def check_follows(head: SparkPosition | None, planned: SparkPosition) -> None:
    """Raise `IncompatibleError` unless Spark's batch begins exactly where our newest checkpoint ends."""
    expected_id, expected_start = (0, ()) if head is None else (head.batch_id + 1, head.end)
    same_query = head is None or head.query_id == planned.query_id
    if planned.batch_id != expected_id or planned.start != expected_start or not same_query:
        raise IncompatibleError(
            "spark's batch does not follow the newest checkpoint: nothing was processed; restore the spark "
            "folder and the manifests from copies made at the same time",
            code="spark-batch-gap",
            expected_batch=expected_id,
            found_batch=planned.batch_id,
            expected_start=_short(expected_start),
            found_start=_short(planned.start),
        )


def check_sources(head: SparkPosition | None, sources: int | None) -> None:
    """Raise `IncompatibleError` unless a query of so many ``sources`` can go on from our newest batch; None is not
    known. Spark's log has a line for each source and no names, so Spark goes on with as many as there were.
    """
    if head is not None and sources is not None and len(head.end) != sources:
        raise IncompatibleError(
            "the job reads another number of sources than spark's checkpoint has offsets of, and spark cannot add or "
            "remove one: give it the DataFrames that it had before, or start with a new folder, which can be "
            "bootstrapped from the history of all sources",
            code="configuration-changed",
            sources_before=len(head.end),
            sources_now=sources,
        )


def _short(value: object, limit: int = 200) -> str:
    text = str(value)
    return text if len(text) <= limit else text[:limit] + "…"


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
