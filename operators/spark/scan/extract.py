"""The analysed plan of a DataFrame as values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tidestate.operators.spark.classic_platform import (
    elements_of,
    entries_of,
    hadoop_settings,
    is_stream,
    java_class,
    options_of,
)
from tidestate.operators.spark.scan.analysed import (
    DeltaFiles,
    Expression,
    PlanStep,
    ReaderSettings,
    StreamColumn,
    StreamRelation,
)
from tidestate.operators.spark.scan.decide import DELTA, REBASE, REQUIRED, NeedsJvmError

_PLANS = "org.apache.spark.sql.catalyst.plans.logical."
_STEPS = {
    "Project": "project",
    "Filter": "filter",
    "Union": "union",
    "SubqueryAlias": "alias",
}
_OF_ROWS = f"{_PLANS}LocalRelation"
_OF_BATCH = "org.apache.spark.sql.execution.datasources.LogicalRelation"
_OF_FILES = "org.apache.spark.sql.execution.datasources.HadoopFsRelation"
_OF_DELTA = (
    "org.apache.spark.sql.delta.DeltaParquetFileFormat",
    "org.apache.spark.sql.delta.files.TahoeBatchFileIndex",
)
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""Spark's notes for the thread of a batch."""
_STREAMING = "org.apache.spark.sql.execution.streaming."
_RELATION = (f"{_STREAMING}runtime.StreamingRelation", f"{_STREAMING}StreamingRelation")
"""Its name from Spark 4.1 on, and before."""
_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions."
_KINDS = {
    "AttributeReference": "column",
    "Alias": "named",
    "Literal": "literal",
    "Cast": "cast",
    "And": "and",
    "Or": "or",
    "Not": "not",
    "IsNull": "null",
    "IsNotNull": "not null",
    "In": "in",
    "EqualTo": "=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
}


def plan_of_jvm(frame: DataFrame, *, columns: bool = False) -> PlanStep:
    """The plan of a DataFrame, with ``columns`` those and expressions too: a step costs some calls of the JVM, and so
    does a column.
    """
    return _Walk(columns=columns).step(frame._jdf.queryExecution().analyzed())


def plan_of_batch(session: SparkSession, batch_session: SparkSession) -> PlanStep:
    """The plan by which Spark reads the batch that this thread has, with the files of tables, which the plan of the
    stream does not have. ``session``: of the query. Raises `NeedsJvmError` where it is not known.
    """
    context = batch_session.sparkContext
    query_id, batch_id = (context.getLocalProperty(name) for name in (_QUERY, _BATCH))
    query = session._jsparkSession.streams().get(query_id) if query_id else None  # type: ignore[attr-defined]
    if query is None:
        raise NeedsJvmError("the plan of the batch is not known")
    executed = query.streamingQuery().lastExecution()
    if str(executed.currentBatchId()) != batch_id:
        raise NeedsJvmError("the plan of the batch is that of another one")
    plan = executed.analyzed()
    while _class(plan).rpartition(".")[2].startswith("WriteTo"):
        plan = plan.children().apply(0)
    return _Walk(columns=True, mapper=_json_of_delta(batch_session)).step(plan)


def _json_of_delta(session: SparkSession) -> Callable[[Any], str]:
    """What makes JSON of entries of Delta's log: a call for all, where one for each field of each would take long."""

    def written(value: Any) -> str:
        utility = java_class(session, "org.apache.spark.sql.delta.util.JsonUtils$")
        return str(getattr(utility, "MODULE$").mapper().writeValueAsString(value))

    return written


def reader_settings(session: SparkSession) -> ReaderSettings:
    """The settings of a session that change what Spark's Parquet reader returns."""
    conf = session.conf
    spark = {name: str(conf.get(name)) for name in (*REQUIRED, REBASE)}
    of_parquet = hadoop_settings(session).getValByRegex(r"^parquet\..*")
    return ReaderSettings(spark, tuple(sorted(of_parquet.keySet().toArray())))


class _Walk:
    """Goes through a plan from left to right, and numbers its sources as Spark does: each once."""

    def __init__(self, *, columns: bool, mapper: Callable[[Any], str] = str) -> None:
        self._leaves: list[Any] = []
        self._columns, self._json = columns, mapper

    def step(self, node: Any) -> PlanStep:
        java, relation = _class(node), None
        if java in _RELATION:
            kind, relation = "relation", self._relation(node)
        elif java == _OF_ROWS and node.data().isEmpty():
            kind = "empty"  # as a source is in a batch to which it adds nothing
        elif java == _OF_BATCH:
            kind, relation = "relation", self._relation_of_batch(node)
        else:
            kind = _STEPS.get(java.removeprefix(_PLANS), java) if java.startswith(_PLANS) else java
        expressions: list[Any] = []
        if self._columns and kind == "project":
            expressions = elements_of(node.projectList())
        elif self._columns and kind == "filter":
            expressions = [node.condition()]
        source = str(node.sourceName()) if is_stream(node) else None
        wanted = self._columns and (source is not None or kind == "empty")
        return PlanStep(
            kind,
            tuple(self._expression(expression) for expression in expressions),
            tuple(self.step(child) for child in elements_of(node.children())),
            relation,
            name=java.rpartition(".")[2].rpartition("$")[2],
            source=source,
            streaming=bool(node.isStreaming()),
            columns=self._output(node) if wanted else (),
            options=(relation.options if relation is not None else options_of(node)) if wanted else {},
        )

    def _relation(self, leaf: Any) -> StreamRelation:
        source = next((place for place, one in enumerate(self._leaves) if leaf.equals(one)), len(self._leaves))
        if source == len(self._leaves):
            self._leaves.append(leaf)
        data = leaf.dataSource()
        return StreamRelation(
            source,
            str(data.providingClass().getName()),
            entries_of(data.options()),
            self._output(leaf) if self._columns else (),
            tuple(map(str, elements_of(data.sourceInfo().partitionColumns()))),
            bucketed=bool(data.bucketSpec().isDefined()),
            table=bool(data.catalogTable().isDefined()),
        )

    def _relation_of_batch(self, leaf: Any) -> StreamRelation:
        """A leaf of the plan of a batch; of a Delta table with the files that its connector has chosen."""
        self._leaves.append(leaf)
        relation, delta = leaf.relation(), None
        kind = _class(relation)
        if kind == _OF_FILES:
            location, kind = relation.location(), _class(relation.fileFormat())
            if (kind, _class(location)) == _OF_DELTA:
                kind, snapshot = DELTA, location.snapshot()
                protocol, metadata = (str(part.json()) for part in (snapshot.protocol(), snapshot.metadata()))
                delta = DeltaFiles(
                    str(location.path().toString()), protocol, metadata, self._json(location.addFiles())
                )
        return StreamRelation(
            len(self._leaves) - 1,
            kind,
            {},
            self._output(leaf),
            tuple(str(field.name()) for field in elements_of(relation.partitionSchema()))
            if delta is not None
            else (),
            delta=delta,
        )

    def _output(self, node: Any) -> tuple[StreamColumn, ...]:
        return tuple(self._column(column) for column in elements_of(node.output()))

    def _column(self, attribute: Any) -> StreamColumn:
        return StreamColumn(
            int(attribute.exprId().id()),
            str(attribute.name()),
            str(attribute.dataType().simpleString()),
            tuple(entries_of(attribute.metadata().map())),
        )

    def _expression(self, one: Any) -> Expression:
        name = _class(one)
        kind = _KINDS.get(name.removeprefix(_EXPRESSIONS)) if name.startswith(_EXPRESSIONS) else None
        if kind is None:
            return Expression(name)
        type_ = str(one.dataType().simpleString())
        if kind == "literal":
            return Expression(kind, type=type_, value=_value(one.value(), type_))
        inside = tuple(self._expression(inner) for inner in elements_of(one.children()))
        if kind in ("column", "named"):
            return Expression(kind, int(one.exprId().id()), str(one.name()), type_, inside=inside)
        return Expression(kind, type=type_, inside=inside)


def _value(value: Any, kind: str) -> Any:
    return value.toString() if kind == "string" and value is not None else value


def _class(one: Any) -> str:
    return str(one.getClass().getName())
