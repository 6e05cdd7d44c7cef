"""The column of a DataFrame that says which source of a stream each row is from, by the analysed plan. Pure.

A stream is one source, or as many as its connector reads in an order of their own, as partitions of Kafka. Only
scans, projections and filters are looked through: they keep the rows of a source in their order, and a column what it
was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from tidestate.operators.spark.scan.analysed import Expression, PlanStep
from tidestate.statestore.errors import UsageError

SINGLE = frozenset({"rate", "rate-micro-batch", "socket", "memory"})
"""Connectors that are one source. So are files: a batch has each of them whole, so none is ever waited for."""
PARTITIONED: Mapping[str, tuple[str, str]] = {"kafka": ("topic", "partition")}
"""Connectors whose partitions are sources: the columns of a partition's topic, and of its number in there."""
_Columns = dict[int, tuple[str, str]]
"""By Spark's id: what a column is called, and what the source calls it."""


def origin_column(plan: PlanStep, stream: str) -> str | None:
    """The column whose values are the sources of this ``stream``; None where it is a single one. Raises `UsageError`
    (``origin-unknown``) where that does not follow from the plan.
    """
    leaves = [step for step in plan.steps() if step.source is not None]
    if len(leaves) != 1:
        raise _unknown("the stream combines several sources", (), stream, [str(leaf.source) for leaf in leaves])
    leaf = leaves[0]
    name = str(leaf.source)
    columns = _kept(plan, stream)
    if name in SINGLE or name.startswith("FileSource["):
        return None
    if name not in PARTITIONED:
        raise _unknown("how this connector divides its rows into sources is not known", (), stream, [name])
    topic, partition = PARTITIONED[name]
    if not _has_one_topic(leaf.options):
        raise _unknown(
            "the stream has partitions of several topics, which only both columns tell apart", (topic, partition),
            stream, [name],
        )  # fmt: skip
    for column, original in columns.values():
        if original == partition:
            return column
    raise _unknown("the column with the partition of each row does not reach the job", (partition,), stream, [name])


def _has_one_topic(options: Mapping[str, str]) -> bool:
    """Whether what is subscribed to is a single topic."""
    options = {name.lower(): value for name, value in options.items()}
    if "assign" in options:
        try:
            return len(json.loads(options["assign"])) == 1
        except (ValueError, TypeError):
            return False
    return "subscribe" in options and "," not in options["subscribe"]


def _kept(step: PlanStep, stream: str) -> _Columns:
    """The columns of the source that are columns of this step, unchanged but for name and type."""
    if step.source is not None:
        return {column.id: (column.name, column.name) for column in step.columns}
    if step.kind in ("alias", "filter"):
        return _kept(step.below[0], stream)
    if step.kind == "project":
        below = _kept(step.below[0], stream)
        return {
            expression.id: (expression.name, below[number][1])
            for expression in step.expressions
            if (number := _origin_of(expression)) in below
        }
    raise _unknown(
        "only scans, projections and filters are known to keep what a source gives", (), stream, [step.name]
    )


def _origin_of(expression: Expression) -> int:
    """The id of the column that an expression is, whatever its name and type; -1 of any other expression."""
    while expression.kind in ("named", "cast") and expression.inside:
        expression = expression.inside[0]
    return expression.id if expression.kind == "column" else -1


def _unknown(reason: str, columns: tuple[str, ...], stream: str, sources: list[str]) -> UsageError:
    names = " and ".join(f'"{column}"' for column in columns)
    if len(columns) == 1:
        keep = f"keep the column {names} of the source"
    elif columns:
        keep = f"keep the columns {names} of the source as one, such as concat_ws('/', {', '.join(columns)})"
    else:
        keep = "keep a column that tells them apart, or add one with withColumn(…) to each before they are combined"
    return UsageError(
        f"watermark.buffers() gives an origin to each source, and {reason}: {keep}, and name it, "
        "ts.stream(origin=…) or .watermark(…, by=…)",
        code="origin-unknown",
        stream=stream,
        columns=list(columns),
        found=sources,
    )
