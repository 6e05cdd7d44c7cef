"""Readers of a root: tables of it, and questions to one of its operators."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa
import pyarrow.dataset as ds

from tidestate.operators.bind.stored_streams import schemas_of_streams
from tidestate.operators.inspect.frames import frame_of_answer, frame_of_scan
from tidestate.operators.inspect.query import Query, messages_asked, query, windows_asked
from tidestate.operators.inspect.scan import (
    changes_of_root,
    checkpoints_of_root,
    late_of_root,
    panes_of_root,
    state_of_root,
)
from tidestate.operators.root.jobs import described_job
from tidestate.operators.root.rooted import Rooted
from tidestate.operators.root.rows import AnsweredRows
from tidestate.recovery.inspect.rows import output_operator_of
from tidestate.recovery.inspect.scans import RowScan
from tidestate.recovery.log.manifest import Manifest, OutputKind
from tidestate.recovery.log.moments import CheckpointAt, head_at
from tidestate.statestore.arguments import called, checked
from tidestate.statestore.durations import Moment
from tidestate.statestore.errors import UsageError
from tidestate.statestore.missing_columns import missing_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NAME = re.compile(r"Name\((.*?)\)")
QUESTION_BYTES = 256 << 20
"""The memory of a question to a state partition."""
called("a filter of Arrow", 'pyarrow.dataset.field("n") > 1')(ds.Expression)


@dataclass(frozen=True, repr=False)
class RootReaders(Rooted):
    """Each reader returns rows that are not read yet: an Arrow ``Dataset`` or `AnsweredRows`; with ``spark=`` a
    DataFrame, which tasks read, so executors must reach the root. The checkpoint is fixed by the call. Files without
    rows for the filter ``where`` are not read. Nothing is written or fenced; the job may be running.
    """

    @overload
    def panes(
        self,
        *,
        net: bool = False,
        operator: str | None = None,
        where: ds.Expression | None = None,
        spark: None = None,
    ) -> ds.Dataset: ...
    @overload
    def panes(
        self,
        *,
        net: bool = False,
        operator: str | None = None,
        where: ds.Expression | None = None,
        spark: SparkSession,
    ) -> DataFrame: ...
    @checked
    def panes(
        self,
        *,
        net: bool = False,
        operator: str | None = None,
        where: ds.Expression | None = None,
        spark: SparkSession | None = None,
    ) -> ds.Dataset | DataFrame:
        """The panes that the job has emitted, in order, with the ``checkpoint`` of each. ``net``: only what counts,
        which is the last pane of each window and key unless it was retracted; of a join, rows that were not.
        ``operator``: one of the outputs of a job that has several, by default the last
        (docs/how-to/several-outputs.md).

        Columns that the job had at any time are there, null where it had them not. Raises `UsageError`
        (``net-panes``) for the net of a job whose panes are parts of results.
        """
        return _read(panes_of_root(self.url, self.moment, net=net, operator=operator), where, spark)

    @overload
    def late(
        self, *, operator: str | None = None, where: ds.Expression | None = None, spark: None = None
    ) -> ds.Dataset: ...
    @overload
    def late(
        self, *, operator: str | None = None, where: ds.Expression | None = None, spark: SparkSession
    ) -> DataFrame: ...
    @checked
    def late(
        self, *, operator: str | None = None, where: ds.Expression | None = None, spark: SparkSession | None = None
    ) -> ds.Dataset | DataFrame:
        """The late ledger of an operator, by default the last: rejected events, each with the columns that the job
        uses and `Aggregation.allowed_lateness` names in ``ledger_columns``, the reason, the watermark at that time,
        and the ``checkpoint``. Reasons: ``very_late``, further behind than is allowed; ``purged``, put back when its
        window was gone; ``out_of_retention``, a message older than is known; and others, by the operator
        (docs/reference/semantics.md). Rows stay when they are reprocessed.
        """
        return _read(late_of_root(self.url, self.moment, operator), where, spark)

    @overload
    def state(
        self,
        *,
        operator: str | None = None,
        table: str | None = None,
        where: ds.Expression | None = None,
        spark: None = None,
    ) -> ds.Dataset: ...
    @overload
    def state(
        self,
        *,
        operator: str | None = None,
        table: str | None = None,
        where: ds.Expression | None = None,
        spark: SparkSession,
    ) -> DataFrame: ...
    @checked
    def state(
        self,
        *,
        operator: str | None = None,
        table: str | None = None,
        where: ds.Expression | None = None,
        spark: SparkSession | None = None,
    ) -> ds.Dataset | DataFrame:
        """A state table as it is stored; for results of windows, open ones too, see `windows`. By state partition, in
        key order within each; by default the first table of the last operator. ``root.operator().tables`` has the
        names of all.
        """
        return _read(state_of_root(self.url, self.moment, operator, table), where, spark)

    @overload
    def changes(
        self,
        since: Moment,
        until: CheckpointAt = None,
        *,
        of: OutputKind = "panes",
        operator: str | None = None,
        where: ds.Expression | None = None,
        spark: None = None,
    ) -> ds.Dataset: ...
    @overload
    def changes(
        self,
        since: Moment,
        until: CheckpointAt = None,
        *,
        of: OutputKind = "panes",
        operator: str | None = None,
        where: ds.Expression | None = None,
        spark: SparkSession,
    ) -> DataFrame: ...
    @checked
    def changes(
        self,
        since: Moment,
        until: CheckpointAt = None,
        *,
        of: OutputKind = "panes",
        operator: str | None = None,
        where: ds.Expression | None = None,
        spark: SparkSession | None = None,
    ) -> ds.Dataset | DataFrame:
        """What happened to the output between two checkpoints: rows of ``until`` that ``since`` has not, in order.

        ``since`` is an id, which may have been collected, a time, or 0 for all output. The column ``change`` is
        ``added``; or ``removed`` for rows of checkpoints that a reset has abandoned in between, which come first.
        ``of``: panes, or late for the ledger; of an ``operator``, by default the last. A program that remembers
        ``until`` and asks from
        there next time sees each row once, whatever was rewound.
        """
        if until is not None and self.moment is not None:
            raise UsageError(
                "this root is read as of a checkpoint, where changes end: remove until=",
                code="root-at",
                at=str(self.moment),
            )
        until = self.moment if until is None else until
        return _read(changes_of_root(self.url, since, until, of, operator), where, spark)

    def checkpoints(self) -> ds.Dataset:
        """A row for each checkpoint that was not collected, oldest first, those abandoned by a reset too: when and by
        which run it was made, its watermark, how many events, panes and late rows it has, how much state. ``kind``:
        a "batch", or "tick" of the clock; "fence" of a start; "reset" of a rewind or repair; and so on.
        """
        self._whole("checkpoints()")
        return checkpoints_of_root(self.url).dataset()

    @checked
    def pane_paths(self, *, operator: str | None = None) -> list[str]:
        """Full paths of all committed pane files, oldest first, for a Parquet reader; on S3 ``s3a://``, for Spark. Of
        several outputs those of one ``operator``, by default the last.
        """
        checkpoint, manifest = self._as_of()
        name = None if operator is None else output_operator_of(manifest, operator)
        return checkpoint.pane_paths(of=manifest, operator=name)

    @checked
    def manifest(self, checkpoint_id: int | None = None) -> Manifest:
        """All that a checkpoint records: position in the input, watermarks, state, files, counters."""
        return head_at(self._open(), self.moment if checkpoint_id is None else checkpoint_id).manifest

    @overload
    def windows(
        self,
        start: Moment | None = None,
        end: Moment | None = None,
        *,
        key: Any = None,
        values: Sequence[str] | None = None,
        side: str | None = None,
        operator: str | None = None,
        job: object = None,
        budget_bytes: int = QUESTION_BYTES,
        spark: None = None,
    ) -> AnsweredRows: ...
    @overload
    def windows(
        self,
        start: Moment | None = None,
        end: Moment | None = None,
        *,
        key: Any = None,
        values: Sequence[str] | None = None,
        side: str | None = None,
        operator: str | None = None,
        job: object = None,
        budget_bytes: int = QUESTION_BYTES,
        spark: SparkSession,
    ) -> DataFrame: ...
    @checked
    def windows(
        self,
        start: Moment | None = None,
        end: Moment | None = None,
        *,
        key: Any = None,
        values: Sequence[str] | None = None,
        side: str | None = None,
        operator: str | None = None,
        job: object = None,
        budget_bytes: int = QUESTION_BYTES,
        spark: SparkSession | None = None,
    ) -> AnsweredRows | DataFrame:
        """The windows that overlap ``start`` to ``end``, both inclusive, with their current results, as
        `Query.get_windows` has them. ``job`` is needed for results that functions of yours compute: a stream, or what
        runs it. With the whole key only its state partition is read.
        """
        question = self._question(operator, job, budget_bytes)
        reader = query(self.url, **question)
        form: dict[str, Any] = {"start": start, "end": end, "key": key}
        form["values"] = None if values is None else list(values)
        if side is not None and not reader.sides:
            raise UsageError("only joins that keep messages have sides: remove side=", code="sides", found=side)
        if reader.sides:
            if spark is not None:
                raise UsageError(
                    "windows of a side are computed in this process, from its messages: remove spark=",
                    code="root-spark",
                    sides=reader.sides,
                )
            reader.message_key(side)  # what is wrong with the question is an error of this call
            reader.check_windows(side)
            table = partial(reader.get_windows, **form, side=side)
            return AnsweredRows(_title("windows", reader, side), table, lambda: [table()])
        if spark is not None:
            answer = partial(windows_asked, self.url, question)
            return frame_of_answer(spark, answer, form, reader.window_partitions(key))
        next(reader.scan_windows(**form))
        title = _title("windows", reader)
        return AnsweredRows(title, partial(reader.get_windows, **form), partial(reader.scan_windows, **form))

    @overload
    def messages(
        self,
        start_time: Moment | None = None,
        start_offset: int | None = None,
        end_time: Moment | None = None,
        end_offset: int | None = None,
        *,
        session: Any = None,
        equal: Any = None,
        side: str | None = None,
        operator: str | None = None,
        budget_bytes: int = QUESTION_BYTES,
        spark: None = None,
    ) -> AnsweredRows: ...
    @overload
    def messages(
        self,
        start_time: Moment | None = None,
        start_offset: int | None = None,
        end_time: Moment | None = None,
        end_offset: int | None = None,
        *,
        session: Any = None,
        equal: Any = None,
        side: str | None = None,
        operator: str | None = None,
        budget_bytes: int = QUESTION_BYTES,
        spark: SparkSession,
    ) -> DataFrame: ...
    @checked
    def messages(
        self,
        start_time: Moment | None = None,
        start_offset: int | None = None,
        end_time: Moment | None = None,
        end_offset: int | None = None,
        *,
        session: Any = None,
        equal: Any = None,
        side: str | None = None,
        operator: str | None = None,
        budget_bytes: int = QUESTION_BYTES,
        spark: SparkSession | None = None,
    ) -> AnsweredRows | DataFrame:
        """The messages that are kept between these bounds, both inclusive, as `Query.get_messages` has them."""
        question = self._question(operator, None, budget_bytes)
        reader = query(self.url, **question)
        form: dict[str, Any] = {
            "start_time": start_time,
            "start_offset": start_offset,
            "end_time": end_time,
            "end_offset": end_offset,
            "session": session,
            "equal": equal,
            "side": side,
        }
        if spark is not None:
            answer = partial(messages_asked, self.url, question)
            return frame_of_answer(spark, answer, form, reader.message_partitions(session, equal, side))
        next(reader.scan_messages(**form))
        title = _title("messages", reader, side)
        return AnsweredRows(title, partial(reader.get_messages, **form), partial(reader.scan_messages, **form))

    @checked
    def operator(self, name: str | None = None, *, job: object = None, budget_bytes: int = QUESTION_BYTES) -> Query:
        """One operator, by default the last: watermark, tables, layouts of messages, incomplete windows, offsets to
        replay from. Raises `NotFoundError` for one that is not there.
        """
        return query(self.url, **self._question(name, job, budget_bytes))

    def _question(self, operator: str | None, job: object, budget_bytes: int) -> dict[str, Any]:
        """The arguments of `query`, at one checkpoint; the columns of a job's streams are those of then."""
        _, manifest = self._as_of()
        job_arguments: Mapping[str, Any] = {}
        if job is not None:
            description = described_job(job)
            job_arguments = {"description": description, "schema": schemas_of_streams(description, manifest)}
        return {"checkpoint": manifest.id, "operator": operator, "budget_bytes": budget_bytes, **job_arguments}


def _title(subject: str, reader: Query, side: str | None = None) -> str:
    of_side = "" if side is None else f" of side {side}"
    return f"{subject}{of_side} of operator {reader.operator} at checkpoint {reader.checkpoint}"


def _check_filter(where: ds.Expression, schema: pa.Schema) -> None:
    """Raise `UsageError` for a filter by a column that these rows have not, or by a value of another type."""
    null_row = pa.table([pa.nulls(1, field.type) for field in schema], names=schema.names)  # no row: some errors wait
    try:
        null_row.filter(where)
    except pa.ArrowException as error:
        problem, _, _ = str(error).partition(") in ")
        if problem.startswith("No match for FieldRef"):
            column = ".".join(_NAME.findall(f"{problem})"))
            raise missing_columns(
                "the rows lack the column to filter by", [column], schema.names, code="read-column"
            ) from None
        raise UsageError(
            f"where= does not fit the columns ({error}): compare each with values of its type, and with a comparison",
            code="read-value",
            where=str(where)[:200],
            types={field.name: str(field.type) for field in schema},
        ) from None


def _read(scan: RowScan, where: ds.Expression | None, spark: SparkSession | None) -> ds.Dataset | DataFrame:
    if where is not None:
        _check_filter(where, scan.schema)
    if spark is not None:
        return frame_of_scan(spark, scan, where)
    rows = scan.within(where).dataset()
    return rows if where is None else rows.filter(where)
