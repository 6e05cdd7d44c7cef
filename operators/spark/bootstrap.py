"""Initial state of a job on Spark from a batch DataFrame, which becomes batch 0 of Spark's checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from pyspark.sql import DataFrame

from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.describe.chain import Chain
from tidestate.operators.describe.runnable import Sided
from tidestate.operators.describe.runs import Handover, Offset
from tidestate.operators.engine.bootstrap import FILES_READ, check_new, offset_text, spark_position
from tidestate.operators.engine.driver import Driver
from tidestate.operators.engine.job import Position
from tidestate.operators.plan.graph import Graph
from tidestate.operators.progress.watermarks import INPUT
from tidestate.operators.spark.platforms import platform_of
from tidestate.operators.spark.scan.batch import SparkRows
from tidestate.operators.spark.schemas import read_schemas
from tidestate.operators.spark.sides import all_sides, by_name
from tidestate.operators.spark.sources import FileStamps, StreamSource, dropping, sources_of
from tidestate.operators.spark.start_checks import check_plan
from tidestate.operators.spark.stream_job import StreamJob
from tidestate.operators.spark.transport import SparkTransport
from tidestate.operators.spark.types import arrow_schema, read_columns
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.log.spark_log import NOTHING_READ
from tidestate.recovery.spark.spark_checkpoint import finish_checkpoint
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.arrowtypes import type_texts
from tidestate.statestore.storage.objects import Objects

PastEvents: TypeAlias = DataFrame | Mapping[str, DataFrame]
"""Batch DataFrames: one for the only stream, or by the name of the stream."""


def bootstrap(job: StreamJob, history: PastEvents, offsets: Handover, *, deliver: bool) -> Manifest:
    """Make the root of a job from past events, as `SparkJob.bootstrap` says: one checkpoint, or none."""
    streams = job.streams or {INPUT: job.stream}
    batches = _by_stream(job.by_user, history)
    graph = bind_graph(job.description, read_schemas(job.description, job.stream))
    job.fit_sinks(graph)
    rows = past_rows(job, graph, history)
    check_plan(job.stream)
    stamps = FileStamps(job.platform)
    ends, files = _source_ends(streams, batches, _offsets(job.by_user, offsets), stamps)
    check_new(Objects(job.checkpoint))(None)
    checkpoint = job.open()
    begun = job.begin(graph, checkpoint, check_new(checkpoint.objects))
    driver = Driver(begun, SparkTransport(job.platform))

    def position(number: int) -> Position:
        stamps.check_unchanged()
        return Position(spark=spark_position(checkpoint.objects, ends, files, number))

    with driver.running():
        manifest = driver.bootstrap(SparkRows(rows), position, deliver=deliver)
        finish_checkpoint(checkpoint, manifest, job.hook)
    return manifest


def past_rows(job: StreamJob, graph: Graph, past: PastEvents) -> DataFrame:
    """What the job reads of past events, the streams together. Raises `UsageError` for other columns or streams."""
    streams = job.streams or {INPUT: job.stream}
    rows = _together(job, streams, _by_stream(job.by_user, past))
    _check_columns(graph, job.stream, rows)
    return read_columns(rows, graph.columns)


def _by_stream(names: Mapping[str, str], history: PastEvents) -> dict[str, DataFrame]:
    """Batches by stream, as it is called in the description; ``names`` has that by the name that the user knows.
    Streams may lack one. Raises `UsageError` for anything else.
    """
    given = dict.fromkeys(names, history) if isinstance(history, DataFrame) else dict(history)
    if not given or set(given) - set(names) or (isinstance(history, DataFrame) and len(names) > 1):
        raise UsageError(
            "give the history of each stream by its name", code="streams", streams=list(names), found=list(given)
        )
    if any(batch.isStreaming for batch in given.values()):
        raise UsageError(
            "the history must be a batch DataFrame, not a stream: read it with spark.read", code="bootstrap-stream"
        )
    return {names[name]: batch for name, batch in given.items()}


def _together(job: StreamJob, streams: Mapping[str, DataFrame], batches: Mapping[str, DataFrame]) -> DataFrame:
    """The history of all streams as one DataFrame."""
    session = job.stream.sparkSession
    whole = {
        name: batches[name] if name in batches else session.createDataFrame([], stream.schema)
        for name, stream in streams.items()
    }
    if isinstance(job.description, Chain):
        return by_name(whole)
    if isinstance(job.description, Sided) and len(whole) > 1:
        return all_sides(job.description.sides, whole)
    return next(iter(whole.values()))


def _check_columns(graph: Graph, stream: DataFrame, rows: DataFrame) -> None:
    """Raise `UsageError` unless the history has the columns that are read, in the types of the stream."""
    wanted, found = (type_texts(arrow_schema(one.schema, graph.columns)) for one in (stream, rows))
    if wanted != found:
        raise UsageError(
            "the columns of the history are not those of the stream: select and cast them to be the same",
            code="bootstrap-columns",
            differ=[
                f"{name}: {kind}, not {found.get(name)}" for name, kind in wanted.items() if found.get(name) != kind
            ],
        )


def _offsets(names: Mapping[str, str], offsets: Handover) -> dict[str, Any]:
    """The offsets that were given, by stream as `_by_stream`."""
    if len(names) == 1 and not (isinstance(offsets, Mapping) and set(offsets) == set(names)):
        return dict.fromkeys(names.values(), offsets)
    if offsets is not None and (not isinstance(offsets, Mapping) or set(offsets) - set(names)):
        raise UsageError(
            "give the offsets of each stream by its name", code="streams", streams=list(names), found=offsets
        )
    return {names[name]: of_stream for name, of_stream in (offsets or {}).items()}


def _source_ends(
    streams: Mapping[str, DataFrame],
    batches: Mapping[str, DataFrame],
    offsets: Mapping[str, Any],
    stamps: FileStamps,
) -> tuple[list[str], dict[int, tuple[str, ...]]]:
    """The offset at which each source goes on, and the files read, by the number of the source. Spark numbers its
    sources by their order in the plan, from left to right.
    """
    ends: list[str] = []
    files: dict[int, tuple[str, ...]] = {}
    for name, stream in streams.items():
        sources, batch = sources_of(stream), batches.get(name)
        for source, given in zip(sources, _each(sources, offsets.get(name), name), strict=True):
            if given is not None:
                ends.append(_given(source, given))
            elif batch is None:
                ends.append(NOTHING_READ)
            else:
                files[len(ends)] = _files(source, stream, batch, stamps)
                ends.append(FILES_READ)
    return ends, files


def _each(sources: Sequence[StreamSource], given: Any, name: str) -> list[Any]:
    """The given offset of each source of a stream."""
    several = list(given) if isinstance(given, (list, tuple)) else None
    if several is None:
        several = [given] if len(sources) == 1 or given is not None else [None] * len(sources)
    if len(several) != len(sources):
        raise UsageError(
            "this stream has several sources: give a list with the offset of each",
            code="bootstrap-offsets",
            stream=name,
            sources=[source.name for source in sources],
        )
    return several


def _given(source: StreamSource, given: Offset) -> str:
    text = offset_text(given, source.name)
    if source.of_files and text != NOTHING_READ:
        raise UsageError(
            'a file source continues after the files of the history: give no offset, or "-" to read all files',
            code="bootstrap-offsets",
            source=source.name,
            found=given,
        )
    return text


def _files(source: StreamSource, stream: DataFrame, batch: DataFrame, stamps: FileStamps) -> tuple[str, ...]:
    """The files of the history as this source records them."""
    paths = batch.inputFiles() if source.of_files else []
    if not paths:
        raise UsageError(
            'where the history ends is not known: read it from files as the stream does, or give offsets=: "-" to '
            "read the source from its beginning, for Kafka the endingOffsets of the batch read, "
            '{"topic":{"0":100}}',
            code="bootstrap-offsets",
            source=source.name,
        )
    if dropped := Counter(dropping(batch)) - Counter(dropping(stream)):
        raise UsageError(
            "the history drops rows of its files, which would count as read: leave out whole files instead, or "
            "drop the same rows from the stream",
            code="bootstrap-rows",
            found=sorted(dropped),
        )
    read = stamps.take(batch, paths)
    source.check_age(platform_of(stream.sparkSession), read)
    return tuple(f"{path} {time_ms}" for path, time_ms in read.items())
