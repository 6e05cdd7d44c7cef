"""Makes a new root from files of history, in this process: for a query on Spark, or for the standalone runner."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.describe.chain import streams_of
from tidestate.operators.describe.runnable import Runnable, Sided
from tidestate.operators.describe.runs import Offset
from tidestate.operators.engine.bootstrap import FILES_READ, new_job, offset_text, spark_position
from tidestate.operators.engine.driver import Driver
from tidestate.operators.engine.job import Position
from tidestate.operators.engine.tasks import InProcess
from tidestate.operators.engine.untyped_columns import check_types_known
from tidestate.operators.local.history_files import HistoryFiles
from tidestate.operators.plan.graph import Graph
from tidestate.operators.progress.watermarks import INPUT
from tidestate.operators.streams.of_graph import OfGraph
from tidestate.recovery.log.manifest import InputPosition, Manifest
from tidestate.recovery.spark.spark_checkpoint import finish_checkpoint
from tidestate.statestore.errors import UsageError
from tidestate.statestore.storage.local import local_path

RowsCallback = Callable[[int], None]


@dataclass(frozen=True)
class Survey:
    """The contents of a stream's files: number of rows, columns that are read, range of event times."""

    files: int
    rows: int
    columns: tuple[str, ...]
    first_us: int | None
    last_us: int | None


@dataclass(frozen=True)
class Archive:
    """A description with the files of history of each of its streams or sides, in its order."""

    description: Runnable
    streams: Mapping[str, HistoryFiles]

    @classmethod
    def of(cls, description: Runnable, files: Mapping[str, HistoryFiles]) -> Archive:
        """The archive of ``description``; a single stream may have any name. Raises `UsageError` unless each stream
        has files.
        """
        names = streams_of(description)
        if len(names) == 1 and len(files) == 1:
            files = dict(zip(names, files.values(), strict=True))
        if set(files) != set(names):
            raise UsageError(
                "give the files of each stream by its name", code="streams", streams=names, found=sorted(files)
            )
        return cls(description, {name: files[name] for name in names})

    @property
    def graph(self) -> Graph:
        """The description bound to the columns of the files. Raises `UsageError`."""
        schemas = {name: files.schema for name, files in self.streams.items()}
        if isinstance(self.description, Sided):
            return bind_graph(self.description, self.description.sides.schema(schemas))
        return bind_graph(self.description, schemas)

    def survey(self, on_rows: RowsCallback) -> dict[str, Survey]:
        """Look at all rows. ``on_rows`` hears of rows."""
        graph, surveys = self.graph, {}
        for name, files in self.streams.items():
            time, rows = self._time_of(graph, name), 0
            ends: list[Any] = []
            for batch in files.batches([time] if time else self._columns(graph, name)[:1]):
                rows += batch.num_rows
                on_rows(batch.num_rows)
                if time:
                    ends += pc.min_max(batch[time].cast(pa.int64())).as_py().values()
            times = [value for value in ends if value is not None]
            columns = tuple(self._columns(graph, name))
            surveys[name] = Survey(
                len(files.files), rows, columns, min(times, default=None), max(times, default=None)
            )
        return surveys

    def bootstrap(
        self,
        root: str | os.PathLike[str],
        *,
        offsets: Mapping[str, Offset] | None = None,
        standalone: bool = False,
        partitions: int = 1,
        deliver: bool = True,
        on_rows: RowsCallback = lambda _rows: None,
    ) -> Manifest:
        """Make the root. Spark's query then goes on from other files, or from ``offsets``, by stream; with
        ``standalone``, that runner goes on with batches.

        Raises `UsageError` where a job has begun there (``bootstrap-used``) or something does not fit,
        `ConflictError` where files changed meanwhile: nothing is handed over then, and it can be done again.
        """
        graph = self.graph
        check_types_known(graph)
        if strange := sorted(set(offsets or ()) - set(self.streams)):
            raise UsageError(
                "give the offsets of each stream by its name",
                code="streams",
                streams=list(self.streams),
                found=strange,
            )
        ends = {name: offset_text(offset, name) for name, offset in (offsets or {}).items()}
        job = new_job(graph, root, partitions)
        checkpoint = job.checkpoint
        driver = Driver(job, InProcess())

        def position(number: int) -> Position:
            for files in self.streams.values():
                files.check_unchanged()
            if standalone:
                return Position(input=InputPosition(0, ""))
            read = {n: files.read() for n, (name, files) in enumerate(self.streams.items()) if name not in ends}
            texts = [ends.get(name, FILES_READ) for name in self.streams]
            return Position(spark=spark_position(checkpoint.objects, texts, read, number))

        with driver.running():
            manifest = driver.bootstrap(self._batches(job.graph, on_rows), position, deliver=deliver)
            finish_checkpoint(checkpoint, manifest)
        return manifest

    def _batches(self, graph: Graph, on_rows: RowsCallback) -> Iterator[Mapping[str, pa.Table]]:
        """All rows as the graph takes them. ``on_rows`` hears of rows that were taken."""
        for name, files in self.streams.items():
            for rows in files.batches(self._columns(graph, name)):
                if isinstance(self.description, Sided):
                    schema = graph.output.input.schema
                    yield {INPUT: self.description.sides.rows(schema, name, rows)}
                else:
                    yield {name: rows}
                on_rows(rows.num_rows)

    def _columns(self, graph: Graph, name: str) -> list[str]:
        """The columns of a stream that are read."""
        names = self.streams[name].schema.names
        if isinstance(self.description, Sided):
            return names
        read_names = {part for read in graph.streams[name] for part in (read, read.partition(".")[0])}
        return [column for column in names if column in read_names]

    def _time_of(self, graph: Graph, name: str) -> str | None:
        """The column of a stream's event times, if it has one."""
        if isinstance(self.description, Sided):
            return self.description.sides.time_of(name)
        times = [feed.time for _, _, _, feed in graph.readers(name)]
        schema = self.streams[name].schema
        return next(
            (time for time in times if time in schema.names and pa.types.is_timestamp(schema.field(time).type)), None
        )


def named_files(streams: Sequence[str], files: Sequence[str], stream_files: Sequence[str]) -> dict[str, list[str]]:
    """Files by stream: ``files`` are those of the first one, ``stream_files`` are NAME=FILES, where a single stream
    may have any name. Raises `UsageError`.
    """
    by_stream = {streams[0]: list(files)} if files else {}
    for text in stream_files:
        name, sign, path = text.partition("=")
        if not sign:
            raise UsageError("a stream must be given as NAME=FILES", code="read-value", found=text)
        by_stream.setdefault(name, []).append(path)
    if not by_stream:
        raise UsageError(
            "no files are given: give those with past events, --input FILES", code="bootstrap-input", found="none"
        )
    single = len(streams) == len(by_stream) == 1
    return dict(zip(streams, by_stream.values(), strict=True)) if single else by_stream


def load_object(name: str) -> Any:
    """What is at ``MODULE:NAME``, or ``FILE.py:NAME``. Raises `UsageError`."""
    module, _, attribute = name.rpartition(":")
    folder = local_path("")
    if module.endswith(".py"):
        if not Path(module).is_file():
            raise UsageError("this file does not exist", code="bootstrap-job", found=name)
        folder, module = str(Path(module).resolve().parent), Path(module).stem
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        value = importlib.import_module(module)
        for part in attribute.split("."):
            value = getattr(value, part)
    except (Exception, SystemExit) as error:
        raise _not_loaded(error, name) from None
    return value


def load_job(name: str) -> OfGraph[Any]:
    """The stream or job at ``MODULE:NAME`` or ``FILE.py:NAME``, or the one that a function there returns. Raises
    `UsageError`.
    """
    value = load_object(name)
    try:
        job = value() if callable(value) and not isinstance(value, OfGraph) else value
    except (Exception, SystemExit) as error:
        raise _not_loaded(error, name) from None
    if not isinstance(job, OfGraph):
        raise UsageError(
            "this is not a job: give MODULE:NAME of what .aggregate(…), .join(…) or another verb returned",
            code="bootstrap-job",
            found=name,
        )
    return job


def _not_loaded(error: Exception | SystemExit, name: str) -> UsageError:
    return UsageError(
        f"this cannot be loaded ({type(error).__name__}: {error}): give MODULE:NAME, with the module on Python's "
        "path or in this folder",
        code="bootstrap-job",
        found=name,
    )
