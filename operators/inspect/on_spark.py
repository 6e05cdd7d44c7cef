"""Questions to a checkpoint that Spark answers: its tasks read the state, a partition each."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds

from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.inspect.frames import frame_of_answer, frame_of_scan
from tidestate.operators.inspect.query import QuerySchemas, messages_asked, query, windows_asked
from tidestate.operators.inspect.scan import (
    changes_of_root,
    late_of_root,
    panes_of_root,
    state_of_root,
)
from tidestate.recovery.log.manifest import OutputKind
from tidestate.recovery.log.moments import CheckpointAt
from tidestate.statestore.arguments import checked
from tidestate.statestore.durations import Moment
from tidestate.statestore.errors import UsageError
from tidestate.statestore.storage.options import root_with_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@checked
def windows_on_spark(
    spark: SparkSession,
    root: str | os.PathLike[str],
    start: Moment | None = None,
    end: Moment | None = None,
    *,
    key: Any = None,
    values: Sequence[str] | None = None,
    checkpoint: CheckpointAt = None,
    operator: str | None = None,
    description: Runnable | None = None,
    schema: QuerySchemas | None = None,
) -> DataFrame:
    """The windows of a checkpoint, with the columns of `Query.get_windows`, not in order; other arguments as of
    `query`.

    The checkpoint is fixed when this is called, by default the newest. With the whole key one task reads its state
    partition, and with a range of times only that of fixed windows is read. The executors must reach the root.
    """
    arguments: dict[str, Any] = {"operator": operator, "description": description, "schema": schema}
    state_query = query(root, checkpoint=checkpoint, **arguments)
    answer = partial(
        windows_asked, root_with_options(root, None), {"checkpoint": state_query.checkpoint, **arguments}
    )
    form: dict[str, Any] = {
        "start": start,
        "end": end,
        "key": key,
        "values": None if values is None else list(values),
    }
    return frame_of_answer(spark, answer, form, state_query.window_partitions(key))


@checked
def messages_on_spark(
    spark: SparkSession,
    root: str | os.PathLike[str],
    start_time: Moment | None = None,
    start_offset: int | None = None,
    end_time: Moment | None = None,
    end_offset: int | None = None,
    *,
    session: Any = None,
    equal: Any = None,
    side: str | None = None,
    checkpoint: CheckpointAt = None,
    operator: str | None = None,
) -> DataFrame:
    """The messages that are kept at a checkpoint, with the columns of `Query.get_messages`, not in order; as
    `windows_on_spark`.
    """
    state_query = query(root, checkpoint=checkpoint, operator=operator)
    form: dict[str, Any] = {
        "start_time": start_time,
        "start_offset": start_offset,
        "end_time": end_time,
        "end_offset": end_offset,
        "session": session,
        "equal": equal,
        "side": side,
    }
    answer = partial(
        messages_asked, root_with_options(root, None), {"checkpoint": state_query.checkpoint, "operator": operator}
    )
    return frame_of_answer(spark, answer, form, state_query.message_partitions(session, equal, side))


@checked
def register(
    spark: SparkSession, *, storage_options: Mapping[str | os.PathLike[str], Mapping[str, Any]] | None = None
) -> None:
    """Make the format ``tidestate`` known to a session: ``spark.read.format("tidestate")``, in SQL ``USING
    tidestate``, and ``spark.readStream`` for panes; docs/how-to/read-a-root.md has the options.

    ``storage_options`` are fsspec's, such as credentials, by root, and hold for the folders below it. They go to the
    processes of Spark that read, are in no plan or checkpoint, and replace those of an earlier call in the session.
    Raises `UsageError`: ``storage-options`` for those of a local root, ``spark-version`` before Spark 4.0, where
    `panes_on_spark` and the like work.
    """
    from tidestate.operators.spark.compat import SPARK_4  # pyspark is an extra

    if not SPARK_4:
        raise UsageError(
            "data sources in Python need Spark 4.0: use panes_on_spark, late_on_spark, state_on_spark or "
            "changes_on_spark",
            code="spark-version",
        )
    from tidestate.operators.inspect.spark_source import TidestateSource, source_with_options

    roots = [root_with_options(root, options) for root, options in (storage_options or {}).items()]
    spark.dataSource.register(source_with_options(roots) if roots else TidestateSource)


@checked
def panes_on_spark(
    spark: SparkSession,
    root: str | os.PathLike[str],
    checkpoint: CheckpointAt = None,
    *,
    net: bool = False,
    operator: str | None = None,
    where: ds.Expression | None = None,
) -> DataFrame:
    """`scan_panes` as a DataFrame, on every Spark. Its checkpoint is fixed when this is called; tasks read the files,
    so the executors must reach the root. Files without rows for the filter ``where`` are not read.
    """
    return frame_of_scan(spark, panes_of_root(os.fspath(root), checkpoint, net=net, operator=operator), where)


@checked
def late_on_spark(
    spark: SparkSession,
    root: str | os.PathLike[str],
    checkpoint: CheckpointAt = None,
    *,
    operator: str | None = None,
    where: ds.Expression | None = None,
) -> DataFrame:
    """`scan_late` as a DataFrame; as `panes_on_spark`."""
    return frame_of_scan(spark, late_of_root(os.fspath(root), checkpoint, operator), where)


@checked
def state_on_spark(
    spark: SparkSession,
    root: str | os.PathLike[str],
    checkpoint: CheckpointAt = None,
    *,
    operator: str | None = None,
    table: str | None = None,
    where: ds.Expression | None = None,
) -> DataFrame:
    """`scan_state` as a DataFrame; as `panes_on_spark`. A task reads a state partition, or a range of a large one."""
    return frame_of_scan(spark, state_of_root(os.fspath(root), checkpoint, operator, table), where)


@checked
def changes_on_spark(
    spark: SparkSession,
    root: str | os.PathLike[str],
    since: Moment,
    until: CheckpointAt = None,
    *,
    kind: OutputKind = "panes",
    operator: str | None = None,
    where: ds.Expression | None = None,
) -> DataFrame:
    """`scan_changes` as a DataFrame; as `panes_on_spark`."""
    return frame_of_scan(spark, changes_of_root(os.fspath(root), since, until, kind, operator), where)
