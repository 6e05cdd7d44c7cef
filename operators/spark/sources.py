"""The sources of a streaming DataFrame in Spark's order, and files as a source of files records them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tidestate.operators.spark.compat import dataset_of, elements_of, entries_of, java_class, scala_sequence
from tidestate.recovery.spark.file_names import local_file
from tidestate.statestore.errors import ConflictError, UsageError

DROPPING = {"Filter", "GlobalLimit", "LocalLimit", "Offset", "Tail", "Sample", "Join", "Aggregate", "Distinct"}
DROPPING |= {"Deduplicate", "Except", "Intersect", "Generate"}
"""Steps of a plan that drop or add rows of the files."""


@dataclass(frozen=True)
class StreamSource:
    """A source of a stream: its name in Spark, and its place in the plan."""

    name: str
    leaf: Any
    session: SparkSession

    @property
    def of_files(self) -> bool:
        """Whether it is Spark's source of files, which records each file."""
        return self.name.startswith("FileSource[")

    def check_age(self, read: Mapping[str, int]) -> None:
        """Raise `UsageError` if a file that was not ``read`` is so old that Spark would never read it.

        Spark ignores files that are older than the newest one it has read by more than ``maxFileAge``.
        """
        options = entries_of(self.leaf.dataSource().options())
        chosen = {name.lower(): value for name, value in options.items()}
        age = str(chosen.get("maxfileage", "7d"))
        times = java_class(self.session, "org.apache.spark.network.util.JavaUtils")
        oldest = max(read.values()) - times.timeStringAsMs(age)
        named = {"pathGlobFilter": chosen["pathglobfilter"]} if "pathglobfilter" in chosen else {}
        there = self.session.read.format("binaryFile").options(recursiveFileLookup="true", **named)
        others = set(there.load(chosen["path"]).inputFiles()) - set(read) if "path" in chosen else set()
        if lost := [path for path in sorted(others) if _stamp(self.session, path)[0] < oldest]:
            raise UsageError(
                "these files are older than the newest of the history by more than the stream's maxFileAge, so "
                "spark would never read them: add them to the history, or raise that option, such as "
                'maxFileAge="1000d"',
                code="bootstrap-file-age",
                max_file_age=age,
                files=len(lost),
                first=lost[0],
            )


class FileStamps:
    """Size and modification time of the files of the history, before it is read."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._taken: dict[str, tuple[int, int]] = {}

    def take(self, paths: Sequence[str]) -> dict[str, int]:
        """Modification times of files in milliseconds, by URL."""
        for path in paths:
            if path not in self._taken:
                self._taken[path] = _stamp(self._session, path)
        return {path: self._taken[path][0] for path in sorted(set(paths))}

    def check_unchanged(self) -> None:
        """Raise `ConflictError` where a file has changed since."""
        changed = [path for path, stamp in self._taken.items() if _stamp(self._session, path) != stamp]
        if changed:
            raise ConflictError(
                "files of the history changed while they were read: bootstrap again, from files that do not change",
                code="bootstrap-files-changed",
                files=len(changed),
                first=changed[0],
            )


def sources_of(stream: DataFrame) -> list[StreamSource]:
    """The sources of a stream, in the order in which Spark numbers them: from left to right."""
    leaves = stream._jdf.queryExecution().analyzed().collectLeaves()
    return [
        StreamSource(str(leaf.sourceName()), leaf, stream.sparkSession)
        for leaf in elements_of(leaves)
        if _streams(leaf)
    ]


def separated(stream: DataFrame) -> DataFrame:
    """``stream`` with a source for each place that reads one. Where one DataFrame is there twice, Spark would read
    both from one source, but write the offsets of two.
    """
    leaves = [source.leaf for source in sources_of(stream)]
    if not any(one.equals(other) for place, one in enumerate(leaves) for other in leaves[:place]):
        return stream
    session = stream.sparkSession
    plan = _renamed(session, stream._jdf.queryExecution().analyzed(), [])
    return dataset_of(session, plan)


def _renamed(session: SparkSession, step: Any, met: list[Any]) -> Any:
    """A plan where each source that equals one of ``met`` has another name, which makes it another source."""
    if _streams(step):
        before = sum(step.equals(one) for one in met)
        met.append(step)
        if not before:
            return step
        fields = [step.productElement(place) for place in range(step.productArity())]
        fields[fields.index(step.sourceName())] = f"{step.sourceName()} {before + 1}"
        tag = java_class(session, "scala.reflect.ClassTag").AnyRef()
        return step.makeCopy(scala_sequence(session, fields).toArray(tag))
    below = [_renamed(session, child, met) for child in elements_of(step.children())]
    return step.withNewChildren(scala_sequence(session, below).toIndexedSeq()) if below else step


def _streams(leaf: Any) -> bool:
    return str(leaf.getClass().getSimpleName()).startswith("StreamingRelation")


def dropping(frame: DataFrame) -> Iterator[str]:
    """Names of the steps of `DROPPING` in a plan, in any order."""
    return (name for name, _ in steps_of(frame) if name in DROPPING)


def steps_of(frame: DataFrame) -> Iterator[tuple[str, bool]]:
    """The names of the steps of a plan, in any order, and whether all that a step reads are streams."""
    waiting = [frame._jdf.queryExecution().analyzed()]
    while waiting:
        step = waiting.pop()
        below = elements_of(step.children())
        yield str(step.getClass().getSimpleName()), all(child.isStreaming() for child in below)
        waiting += below


def _stamp(session: SparkSession, url: str) -> tuple[int, int]:
    """Modification time in milliseconds, and size."""
    file = local_file(url)
    if file is not None and file.exists():
        found = file.stat()
        return found.st_mtime_ns // 1_000_000, found.st_size
    path = java_class(session, "org.apache.hadoop.fs.Path")(java_class(session, "java.net.URI")(url))
    status = path.getFileSystem(session._jsc.hadoopConfiguration()).getFileStatus(path)  # type: ignore[attr-defined]
    return int(status.getModificationTime()), int(status.getLen())
