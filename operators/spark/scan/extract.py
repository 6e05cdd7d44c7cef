"""The analysed plan of a DataFrame as values."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tidestate.operators.spark.classic_platform import elements_of, entries_of, hadoop_settings, is_stream, options_of
from tidestate.operators.spark.scan.analysed import Expression, PlanStep, ReaderSettings, StreamColumn, StreamRelation
from tidestate.operators.spark.scan.decide import REBASE, REQUIRED

_PLANS = "org.apache.spark.sql.catalyst.plans.logical."
_STEPS = {
    "Project": "project",
    "Filter": "filter",
    "Union": "union",
    "SubqueryAlias": "alias",
}
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


def reader_settings(session: SparkSession) -> ReaderSettings:
    """The settings of a session that change what Spark's Parquet reader returns."""
    conf = session.conf
    spark = {name: str(conf.get(name)) for name in (*REQUIRED, REBASE)}
    of_parquet = hadoop_settings(session).getValByRegex(r"^parquet\..*")
    return ReaderSettings(spark, tuple(sorted(of_parquet.keySet().toArray())))


class _Walk:
    """Goes through a plan from left to right, and numbers its sources as Spark does: each once."""

    def __init__(self, *, columns: bool) -> None:
        self._leaves: list[Any] = []
        self._columns = columns

    def step(self, node: Any) -> PlanStep:
        java, relation = _class(node), None
        if java in _RELATION:
            kind, relation = "relation", self._relation(node)
        else:
            kind = _STEPS.get(java.removeprefix(_PLANS), java) if java.startswith(_PLANS) else java
        expressions: list[Any] = []
        if self._columns and kind == "project":
            expressions = elements_of(node.projectList())
        elif self._columns and kind == "filter":
            expressions = [node.condition()]
        source = str(node.sourceName()) if is_stream(node) else None
        wanted = self._columns and source is not None
        return PlanStep(
            kind,
            tuple(self._expression(expression) for expression in expressions),
            tuple(self.step(child) for child in elements_of(node.children())),
            relation,
            name=java.rpartition(".")[2].rpartition("$")[2],
            source=source,
            streaming=bool(node.isStreaming()),
            columns=tuple(self._column(one) for one in elements_of(node.output())) if wanted else (),
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
            tuple(self._column(one) for one in elements_of(leaf.output())) if self._columns else (),
            tuple(map(str, elements_of(data.sourceInfo().partitionColumns()))),
            bucketed=bool(data.bucketSpec().isDefined()),
            table=bool(data.catalogTable().isDefined()),
        )

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
