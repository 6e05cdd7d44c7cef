"""The sources of a streaming DataFrame in Spark's order, and files as a source of files records them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from tidestate.operators.spark.plans import analysed_plan
from tidestate.operators.spark.platform import Platform
from tidestate.statestore.errors import ConflictError, UsageError

DROPPING = {"Filter", "GlobalLimit", "LocalLimit", "Offset", "Tail", "Sample", "Join", "Aggregate", "Distinct"}
DROPPING |= {"Deduplicate", "Except", "Intersect", "Generate"}
"""Steps of a plan that drop or add rows of the files."""


@dataclass(frozen=True)
class StreamSource:
    """A source of a stream: its name in Spark, and the options of one that reads files."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def of_files(self) -> bool:
        """Whether it is Spark's source of files, which records each file."""
        return self.name.startswith("FileSource[")

    def check_age(self, platform: Platform, read: Mapping[str, int]) -> None:
        """Raise `UsageError` if a file that was not ``read`` is so old that Spark would never read it.

        Spark ignores files that are older than the newest one it has read by more than ``maxFileAge``. ``read`` has
        the time of each, in milliseconds.
        """
        chosen = {name.lower(): value for name, value in self.options.items()}
        age = str(chosen.get("maxfileage", "7d"))
        oldest = max(read.values()) - span_ms(age)
        named = {"pathGlobFilter": chosen["pathglobfilter"]} if "pathglobfilter" in chosen else {}
        there = platform.session.read.format("binaryFile").options(recursiveFileLookup="true", **named)
        others = set(there.load(chosen["path"]).inputFiles()) - set(read) if "path" in chosen else set()
        if lost := [path for path in sorted(others) if platform.file_stamp(path)[0] < oldest]:
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

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._taken: dict[str, tuple[int, int]] = {}
        self._listed = list[tuple[DataFrame, set[str]]]()

    def take(self, batch: DataFrame, paths: Sequence[str]) -> dict[str, int]:
        """Modification times of the files of a batch in milliseconds, by URL."""
        self._listed.append((batch, set(paths)))
        for path in paths:
            if path not in self._taken:
                self._taken[path] = self._platform.file_stamp(path)
        return {path: self._taken[path][0] for path in sorted(set(paths))}

    def check_unchanged(self) -> None:
        """Raise `ConflictError` where a file has changed since."""
        changed = [path for path, stamp in self._taken.items() if self._platform.file_stamp(path) != stamp]
        for batch, paths in self._listed:
            # Of Spark Connect each reading of a batch lists its files anew.
            changed += sorted(paths.symmetric_difference(batch.inputFiles()))
        if changed:
            raise ConflictError(
                "files of the history changed while they were read: bootstrap again, from files that do not change",
                code="bootstrap-files-changed",
                files=len(changed),
                first=changed[0],
            )


# As the method timeStringAsMs of Spark, which a client of Spark Connect cannot call.
_SPAN = re.compile(r"(-?[0-9]+)(us|ms|s|m|min|h|d)?")
_MS = {"us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def span_ms(text: str) -> int:
    """The milliseconds of a span as Spark writes it in options, such as ``7d``; a number alone is milliseconds.
    Raises `UsageError` (``spark-span``) for what Spark would refuse.
    """
    parts = _SPAN.fullmatch(text.strip().lower())
    if parts is None:
        raise UsageError("Spark does not read this as a span: write it as 7d or 12h", code="spark-span", found=text)
    return int(int(parts[1]) * _MS[parts[2] or "ms"])


def sources_of(stream: DataFrame) -> list[StreamSource]:
    """The sources of a stream, in the order in which Spark numbers them: from left to right."""
    return [
        StreamSource(step.source, step.relation.options if step.relation is not None else {})
        for step in analysed_plan(stream).steps()
        if step.source is not None
    ]


def dropping(frame: DataFrame) -> Iterator[str]:
    """Names of the steps of `DROPPING` in a plan, in any order."""
    return (step.name for step in analysed_plan(frame).steps() if step.name in DROPPING)
