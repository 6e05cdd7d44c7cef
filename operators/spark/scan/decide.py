"""Which streams the tasks can read themselves: those whose rows and types are certain to be Spark's own. Pure.

The answer is about the plan and the settings. What is in the files is known to the tasks alone (`reader`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from tidestate.operators.expressions.sql_types import type_named
from tidestate.operators.spark.scan.analysed import (
    Expression,
    PlanStep,
    ReaderSettings,
    StreamColumn,
    StreamRelation,
)

PARQUET = "org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat"
DELTA = "org.apache.spark.sql.delta.sources.DeltaDataSource"
"""A table whose connector says in the plan of each batch which files it has."""
REBASE = "spark.sql.parquet.datetimeRebaseModeInRead"
REQUIRED = {
    "spark.sql.parquet.mergeSchema": "false",
    "spark.sql.parquet.binaryAsString": "false",
    "spark.sql.legacy.parquet.nanosAsLong": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.caseSensitive": "false",
}
"""Spark's defaults. Another value changes what its reader returns. Not among them: ids of fields, which connectors of
tables switch on for their session, change nothing for columns that have none, and those with one are refused.
"""
OPTIONS = frozenset(
    {
        "path",
        "maxfilespertrigger",
        "maxbytespertrigger",
        "maxfileage",
        "maxcachedfiles",
        "discardcachedinputratio",
        "latestfirst",
        "filenameonly",
        "cleansource",
        "sourcearchivedir",
        "pathglobfilter",
        "recursivefilelookup",
    }
)
"""Options of a stream that decide which files are in a batch, not how they are read."""
OPTIONS_OF_DELTA = frozenset(
    {"path", "maxfilespertrigger", "maxbytespertrigger", "startingversion", "startingtimestamp", "ignoredeletes"}
    | {"ignorechanges", "skipchangecommits", "excluderegex", "failondataloss"}
)
"""Those of a stream of a Delta table."""
NO_SOURCE = -1
"""The number of a source that has no rows in a batch."""
IN_PATHS = frozenset({"string", "int", "bigint", "date"})
"""Types of partition columns whose values every Spark reads in the same way, see `folders`."""
PATTERN = frozenset("{}[]*?\\")
"""Characters by which Spark takes the path of a stream for a pattern."""
INTEGERS = ("tinyint", "smallint", "int", "bigint")
ORDERED = frozenset({*INTEGERS, "string", "date", "timestamp", "timestamp_ntz"})
"""Types that Arrow and Spark order in the same way."""
COMPARISONS = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""Each with its mirror image."""


@dataclass(frozen=True)
class FileColumn:
    """A column of the files, with the type that Spark expects."""

    name: str
    type: str


PathValue: TypeAlias = str | int | None
"""The value of a partition column: a text, a whole number, or a date as days since 1970."""


@dataclass(frozen=True)
class PathColumn:
    """A column whose value is in the path of each file: the partition column of this ``number``."""

    name: str
    type: str
    number: int


ReadColumn: TypeAlias = FileColumn | PathColumn
"""A column of a source."""


@dataclass(frozen=True)
class Constant:
    """The same value in each row: a text, or null of any type."""

    type: str
    value: str | None


@dataclass(frozen=True)
class Condition:
    """``kind`` is ``and``, ``or``, ``not``, ``null``, ``true`` (a boolean column), ``in`` or one of `COMPARISONS`."""

    kind: str
    inside: tuple[Condition, ...] = ()
    column: ReadColumn | None = None
    values: tuple[Any, ...] = ()

    @property
    def columns(self) -> Iterator[ReadColumn]:
        """The columns that it reads."""
        if self.column is not None:
            yield self.column
        for one in self.inside:
            yield from one.columns


@dataclass(frozen=True)
class Branch:
    """One source: what each column of the output is, and which rows are kept. ``folder``: where its files are, as
    Spark was told, with its ``partitions`` below.
    """

    source: int
    values: tuple[ReadColumn | Constant, ...]
    filters: tuple[Condition, ...] = ()
    folder: str = ""
    partitions: tuple[PathColumn, ...] = ()


@dataclass(frozen=True)
class DirectScan:
    """A stream that can be scanned. ``rebased``: Spark may move old dates of files that do not say who wrote them."""

    names: tuple[str, ...]
    types: tuple[str, ...]
    branches: tuple[Branch, ...]
    rebased: bool


class NeedsJvmError(Exception):
    """A stream, a batch or a file that Spark must read, and why."""


@dataclass(frozen=True)
class _Output:
    """The rows of a step: the id and name of each column, and the branches in order."""

    ids: tuple[int, ...]
    names: tuple[str, ...]
    branches: tuple[Branch, ...]


def decide(plan: PlanStep, settings: ReaderSettings) -> DirectScan:
    """How the tasks read this plan. Raises `NeedsJvmError`."""
    _check_settings(settings)
    output = _output(plan)
    types = tuple(one.type for one in output.branches[0].values)
    for kind in types:
        _check_type(kind)
    rebased = settings.spark.get(REBASE, "").upper() != "CORRECTED"
    return DirectScan(output.names, types, output.branches, rebased)


def _check_settings(settings: ReaderSettings) -> None:
    for name, wanted in REQUIRED.items():
        if (found := settings.spark.get(name, wanted)).lower() != wanted:
            raise NeedsJvmError(f"{name} is {found}")
    if settings.hadoop:
        raise NeedsJvmError(f"hadoop's setting {settings.hadoop[0]}")


def _output(step: PlanStep) -> _Output:
    if step.kind == "relation" and step.relation is not None:
        return _relation(step.relation)
    if step.kind == "empty":
        return _of_columns(step.columns, Branch(NO_SOURCE, ()))
    if step.kind == "alias":
        return _output(step.below[0])
    if step.kind == "project":
        return _projected(_output(step.below[0]), step.expressions)
    if step.kind == "filter":
        below = _output(step.below[0])
        return replace(below, branches=tuple(_filtered(below.ids, one, step.expressions) for one in below.branches))
    if step.kind == "union":
        parts = [_output(one) for one in step.below]
        _check_union(parts)
        return replace(parts[0], branches=tuple(one for part in parts for one in part.branches))
    raise NeedsJvmError(f"the plan has {_short(step.kind)}")


def _relation(relation: StreamRelation) -> _Output:
    if relation.format == DELTA:
        _check_options(relation, OPTIONS_OF_DELTA)
    elif relation.format != PARQUET:
        raise NeedsJvmError(f"the source is {_short(relation.format)}")
    else:
        _check_options(relation, OPTIONS)
        if relation.bucketed or relation.table:
            raise NeedsJvmError("the source is a table" if relation.table else "the source has buckets")
    folder, partitions = _folders(relation)
    return _of_columns(relation.columns, Branch(relation.source, (), folder=folder, partitions=partitions))


def _check_options(relation: StreamRelation, options: frozenset[str]) -> None:
    if strange := sorted(set(map(str.lower, relation.options)) - options):
        raise NeedsJvmError(f"the option {strange[0]} of the source")


def _of_columns(columns: Sequence[StreamColumn], branch: Branch) -> _Output:
    """The columns of a source as they are."""
    for column in columns:
        if set(column.metadata) - {"comment"}:
            raise NeedsJvmError(f"the column {column.name} has a default or another attribute")
    if len({column.name.lower() for column in columns}) < len(columns):
        raise NeedsJvmError("two columns differ only in case")
    paths = {column.name: column for column in branch.partitions}
    values = tuple(paths.get(column.name) or FileColumn(column.name, column.type) for column in columns)
    names, ids = tuple(column.name for column in columns), tuple(column.id for column in columns)
    return _Output(ids, names, (replace(branch, values=values),))


def _folders(relation: StreamRelation) -> tuple[str, tuple[PathColumn, ...]]:
    """The folder of a stream of files, and its partition columns."""
    options = {name.lower(): value for name, value in relation.options.items()}
    folder, types = options.get("path", ""), {column.name: column.type for column in relation.columns}
    for name in relation.partitions:
        if types.get(name) not in IN_PATHS:
            raise NeedsJvmError(f"the partition column {name} has the type {types.get(name, 'of no column')}")
    if relation.format == DELTA:
        folder = relation.delta.folder if relation.delta is not None else ""
    # Below a pattern Spark takes each folder with files for a base, and no name of a folder for a value.
    elif relation.partitions and (not folder or not PATTERN.isdisjoint(folder)):
        raise NeedsJvmError("the source has partition columns below a pattern")
    return folder, tuple(PathColumn(name, types[name], number) for number, name in enumerate(relation.partitions))


def _projected(below: _Output, expressions: Sequence[Expression]) -> _Output:
    branches = []
    for branch in below.branches:
        there = dict(zip(below.ids, branch.values, strict=True))
        branches.append(replace(branch, values=tuple(_value(there, one) for one in expressions)))
    ids = tuple(one.id for one in expressions)
    return _Output(ids, tuple(one.name for one in expressions), tuple(branches))


def _value(there: Mapping[int, ReadColumn | Constant], expression: Expression) -> ReadColumn | Constant:
    while expression.kind == "named":
        (expression,) = expression.inside
    if expression.kind == "column":
        if expression.id not in there:
            raise NeedsJvmError(f"the column {expression.name} is not one of the files")
        return there[expression.id]
    inner = expression.inside[0] if expression.kind == "cast" else expression
    if inner.kind == "literal":
        if inner.value is None:
            return Constant(expression.type, None)
        if inner.type == expression.type == "string":
            return Constant("string", str(inner.value))
    raise NeedsJvmError(f"a column is computed by {_short(expression.kind)}")


def _filtered(ids: Sequence[int], branch: Branch, conditions: Sequence[Expression]) -> Branch:
    there = dict(zip(ids, branch.values, strict=True))
    return replace(branch, filters=(*branch.filters, *(_condition(there, one) for one in conditions)))


def _condition(there: Mapping[int, ReadColumn | Constant], one: Expression) -> Condition:
    if one.kind in ("and", "or", "not"):
        return Condition(one.kind, tuple(_condition(there, inner) for inner in one.inside))
    if one.kind == "column":
        return Condition("true", column=_compared(there, one, {"boolean"}))
    if one.kind in ("null", "not null"):
        condition = Condition("null", column=_compared(there, one.inside[0], None))
        return condition if one.kind == "null" else Condition("not", (condition,))
    if one.kind == "in":
        first, *others = one.inside
        column = _compared(there, first, ORDERED)
        return Condition("in", column=column, values=tuple(_literal(other, column.type) for other in others))
    if one.kind in COMPARISONS:
        left, right = one.inside
        kind = one.kind
        if left.kind != "column":
            left, right, kind = right, left, COMPARISONS[kind]
        column = _compared(there, left, ORDERED | {"boolean"} if kind == "=" else ORDERED)
        return Condition(kind, column=column, values=(_literal(right, column.type),))
    raise NeedsJvmError(f"a filter uses {_short(one.kind)}")


def _compared(
    there: Mapping[int, ReadColumn | Constant], one: Expression, types: frozenset[str] | set[str] | None
) -> ReadColumn:
    column = there.get(one.id) if one.kind == "column" else None
    if column is None or isinstance(column, Constant):
        raise NeedsJvmError(f"a filter uses {_short(one.kind)} where a column of the files can be")
    if types is not None and column.type not in types:
        raise NeedsJvmError(f"a filter on the column {column.name} of type {column.type}")
    return column


def _literal(one: Expression, kind: str) -> Any:
    """The value of a literal; Spark widens integers by a cast."""
    inner = one.inside[0] if one.kind == "cast" else one
    widened = kind in INTEGERS and inner.type in INTEGERS[: INTEGERS.index(kind) + 1]
    same = inner is one or widened
    if inner.kind != "literal" or inner.value is None or one.type != kind or not same:
        raise NeedsJvmError(f"a filter compares with {_short(inner.kind)} of type {inner.type or 'unknown'}")
    return inner.value


def _check_union(parts: Sequence[_Output]) -> None:
    types = {tuple(one.type for one in branch.values) for part in parts for branch in part.branches}
    if len(types) > 1:
        raise NeedsJvmError("a union of columns of different types")


def _check_type(kind: str) -> None:
    if type_named(kind) is None:
        raise NeedsJvmError(f"a column of type {kind}")


def _short(name: str) -> str:
    return name.rpartition(".")[2]
