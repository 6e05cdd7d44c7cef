"""Questions to a checkpoint that Spark answers: its tasks read the state, a partition each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.inspect.query import QuerySchemas, query
from tidestate.operators.windows.stored_windows import Moment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def windows_on_spark(
    spark: SparkSession,
    root: str | os.PathLike[str],
    start: Moment | None = None,
    end: Moment | None = None,
    *,
    key: Any = None,
    values: Sequence[str] | None = None,
    checkpoint: int | None = None,
    operator: str | None = None,
    description: Runnable | None = None,
    schema: QuerySchemas | None = None,
) -> DataFrame:
    """The windows of a checkpoint, with the columns of `Query.get_windows`, not in order; other arguments as of
    `query`.

    The checkpoint is fixed when this is called, by default the newest. With the whole key one task reads its state
    partition, and with a range of times only that of fixed windows is read. The executors must reach the root.
    """
    given: dict[str, Any] = {"operator": operator, "description": description, "schema": schema}
    asked = query(root, checkpoint=checkpoint, **given)
    form: dict[str, Any] = {
        "start": start,
        "end": end,
        "key": key,
        "values": None if values is None else list(values),
    }
    columns = next(asked.scan_windows(**form)).schema
    read = partial(_windows, os.fspath(root), {"checkpoint": asked.checkpoint, **given}, form)
    return _frame(spark, read, asked.window_partitions(key), columns)


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
    checkpoint: int | None = None,
    operator: str | None = None,
) -> DataFrame:
    """The messages that are kept at a checkpoint, with the columns of `Query.get_messages`, not in order; as
    `windows_on_spark`.
    """
    asked = query(root, checkpoint=checkpoint, operator=operator)
    form: dict[str, Any] = {
        "start_time": start_time,
        "start_offset": start_offset,
        "end_time": end_time,
        "end_offset": end_offset,
        "session": session,
        "equal": equal,
        "side": side,
    }
    columns = next(asked.scan_messages(**form)).schema
    read = partial(_messages, os.fspath(root), {"checkpoint": asked.checkpoint, "operator": operator}, form)
    return _frame(spark, read, asked.message_partitions(session, equal, side), columns)


def _windows(root: str, asked: dict[str, Any], form: dict[str, Any], partition: int) -> Iterator[pa.Table]:
    return query(root, **asked).scan_windows(**form, partition=partition)


def _messages(root: str, asked: dict[str, Any], form: dict[str, Any], partition: int) -> Iterator[pa.Table]:
    return query(root, **asked).scan_messages(**form, partition=partition)


def _frame(spark: SparkSession, read: Any, partitions: range, columns: pa.Schema) -> DataFrame:
    from tidestate.operators.spark.partitioned_reads import read_by_tasks  # pyspark is an extra

    return read_by_tasks(spark, read, partitions, columns)
