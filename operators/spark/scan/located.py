"""Where the files of a batch are, for the tasks that read them: local paths, or versions of files in remote storage,
with the values of their partition columns.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from tidestate.operators.spark.scan.decide import Branch, Condition, DirectScan, PathColumn, PathValue
from tidestate.operators.spark.scan.files import FileRange, NeedsJvmError
from tidestate.operators.spark.scan.folders import path_values
from tidestate.operators.spark.scan.reader import kept_rows, path_arrays
from tidestate.recovery.log.input_files import path_of
from tidestate.recovery.spark.spark_log import is_data_file, local_file
from tidestate.statestore.errors import TidestateError
from tidestate.statestore.storage.foreign import ForeignFiles, bucket_and_key, foreign_files
from tidestate.statestore.storage.local import is_local
from tidestate.statestore.storage.options import of_roots

REQUESTS = 16
"""The most files in remote storage that are looked at at once."""


class InputFiles:
    """The files of the batches of one query. ``root`` is that of the job, whose options are also those of the files
    in its bucket; ``stamp`` says of a URL when its file was modified, in milliseconds, and its size, as Spark has it.
    """

    def __init__(self, root: str, stamp: Callable[[str], tuple[int, int]]) -> None:
        self._roots, self._stamp = [] if is_local(root) else [root], stamp
        self._buckets: dict[str, str] = {}
        """By the URL of a bucket: the same with its options, once Spark was seen to read the same files there."""

    def of(self, scan: DirectScan, files: Mapping[str, Sequence[str]]) -> list[FileRange] | str:
        """Each file of a batch, whole, that may have rows; or why Spark must read the batch. ``files`` has URLs, each
        with its time, by the number of the source.
        """
        try:
            found = [
                file
                for number, branch in enumerate(scan.branches)
                for file in self._of_branch(number, branch, files.get(str(branch.source), ()))
            ]
        except NeedsJvmError as why:
            return str(why)
        except (OSError, ValueError, TidestateError) as error:
            return f"{type(error).__name__}: {error}"
        return found or "no file of the batch has rows"

    def _of_branch(self, number: int, branch: Branch, files: Sequence[str]) -> Iterator[FileRange]:
        local, remote = list[str](), list[str]()
        for file in files:
            (remote if local_file(path_of(file)) is None else local).append(file)
        for file in local:
            path = str(local_file(path_of(file)))
            values = _values(branch, path, os.path.abspath(branch.folder.removeprefix("file:")))
            if is_data_file(path.rpartition("/")[2]) and _may_have_rows(branch, values):
                size = os.stat(path).st_size
                if size > 0:
                    yield FileRange(number, path, 0, size, size, values=values)
        yield from self._remote(number, branch, remote)

    def _remote(self, number: int, branch: Branch, files: Sequence[str]) -> Iterator[FileRange]:
        wanted = []
        for file in files:
            place = bucket_and_key(path_of(file))
            if place is None:
                raise NeedsJvmError(f"the files are at {path_of(file).partition(':')[0]}:")
            bucket, key = place
            values = _values(branch, f"{bucket}/{key}", _spelled(branch.folder))
            if is_data_file(key.rpartition("/")[2]) and _may_have_rows(branch, values):
                wanted.append((file, bucket, key, values))
        readers = {bucket: self._files(bucket, file, key) for file, bucket, key, _ in reversed(wanted)}
        with ThreadPoolExecutor(REQUESTS) as pool:
            looks = [pool.submit(readers[bucket][1].look, key) for _, bucket, key, _ in wanted]
            for (file, bucket, key, values), look in zip(wanted, looks, strict=True):
                seen = look.result()
                if seen.changed_s != int(file.rpartition(" ")[2]) // 1000:
                    raise NeedsJvmError(f"a file was written after Spark has listed it: {key}")
                if seen.size > 0:
                    yield FileRange(number, key, 0, seen.size, seen.size, readers[bucket][0], seen.version, values)

    def _files(self, bucket: str, file: str, key: str) -> tuple[str, ForeignFiles]:
        """The files of a bucket, whose root takes its options along, if they are those that Spark reads: that
        is compared once, by one of them.
        """
        root = self._buckets.get(bucket) or of_roots(self._roots, bucket)
        files = foreign_files(root)
        if files is None:
            raise NeedsJvmError(f"tasks do not read files of {bucket.partition(':')[0]}://")
        if bucket not in self._buckets:
            seen, (changed_ms, size) = files.look(key), self._stamp(path_of(file))
            if (seen.changed_s, seen.size) != (changed_ms // 1000, size):
                raise NeedsJvmError(f"the storage of {bucket} that Spark reads has another {key}")
            self._buckets[bucket] = root
        return root, files


def _values(branch: Branch, path: str, base: str) -> tuple[PathValue, ...]:
    """The values of the partition columns. Raises `NeedsJvmError` where they are not certain."""
    if not branch.partitions:
        # Where the stream has no such column, Spark may take these names for values all the same.
        if any("=" in part for part in path.split("/")[:-1]):
            raise NeedsJvmError("the files lie in folders with = in the name, which may be partitions")
        return ()
    values = path_values(path, base, branch.partitions)
    if isinstance(values, str):
        raise NeedsJvmError(values)
    return values


def _may_have_rows(branch: Branch, values: Sequence[PathValue]) -> bool:
    """Whether no filter on the partition columns alone leaves out a whole file, as Spark would."""
    arrays = path_arrays(branch, values, 1)
    return all(kept_rows((one,), arrays)[0].as_py() for one in branch.filters if _is_about_folders(one))


def _is_about_folders(condition: Condition) -> bool:
    return all(isinstance(column, PathColumn) for column in condition.columns)


def _spelled(url: str) -> str:
    """The URL of a folder as those of its files are spelled."""
    place = bucket_and_key(url.replace("%", "%25"))
    return "/".join(place) if place is not None else url
