"""Which plans, options and settings the direct scan refuses, and that it says why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tidestate.operators.spark.scan.analysed import Expression, PlanStep, ReaderSettings, StreamColumn, StreamRelation
from tidestate.operators.spark.scan.decide import (
    PARQUET,
    REBASE,
    REQUIRED,
    Condition,
    Constant,
    DirectScan,
    FileColumn,
    NeedsJvmError,
    PathColumn,
    decide,
)

COLUMNS = (StreamColumn(1, "t", "timestamp"), StreamColumn(2, "k", "string"), StreamColumn(3, "v", "bigint"))
RELATION = StreamRelation(0, PARQUET, {"path": "/in", "maxFilesPerTrigger": "1"}, COLUMNS)
SETTINGS = ReaderSettings({REBASE: "CORRECTED"})
V, K = (Expression("column", column.id, column.name, column.type) for column in (COLUMNS[2], COLUMNS[1]))
FIVE = Expression("literal", type="int", value=5)


def source(**changes: Any) -> PlanStep:
    return PlanStep("relation", relation=replace(RELATION, **changes))


def named(inside: Expression, name: str = "n", number: int = 9) -> Expression:
    return Expression("named", number, name, inside.type, inside=(inside,))


def compared(kind: str, *inside: Expression) -> PlanStep:
    return PlanStep("filter", (Expression(kind, type="boolean", inside=inside),), (source(),))


def refusal(plan: PlanStep, settings: ReaderSettings = SETTINGS) -> str:
    with pytest.raises(NeedsJvmError) as refused:
        decide(plan, settings)
    return str(refused.value)


def test_columns_aliases_and_filters_are_traced_to_the_files() -> None:
    filtered = compared(">", V, Expression("cast", type="bigint", inside=(FIVE,)))
    project = PlanStep("project", (named(K, "name", 10), V), (PlanStep("alias", (), (filtered,)),))
    again = PlanStep("project", (V, Expression("column", 10, "name", "string")), (project,))
    found = decide(again, SETTINGS)
    assert isinstance(found, DirectScan)
    assert (found.names, found.types, found.rebased) == (("v", "name"), ("bigint", "string"), False)
    (branch,) = found.branches
    assert branch.values == (FileColumn("v", "bigint"), FileColumn("k", "string"))
    assert branch.filters == (Condition(">", column=FileColumn("v", "bigint"), values=(5,)),)


@pytest.mark.parametrize(("kind", "mirrored"), [("<", ">"), ("<=", ">="), (">", "<"), (">=", "<="), ("=", "=")])
def test_a_literal_on_the_left_turns_the_comparison_around(kind: str, mirrored: str) -> None:
    five = Expression("literal", type="bigint", value=5)
    for inside, expected in (((V, five), kind), ((five, V), mirrored)):
        found = decide(compared(kind, *inside), SETTINGS)
        assert isinstance(found, DirectScan)
        assert found.branches[0].filters == (Condition(expected, column=FileColumn("v", "bigint"), values=(5,)),)


def test_a_union_has_a_branch_for_each_source() -> None:
    text = named(Expression("literal", type="string", value="left"), "side", 20)
    missing = named(Expression("cast", type="bigint", inside=(Expression("literal", type="void"),)), "w", 21)
    left = PlanStep("project", (text, V, missing), (source(),))
    right = PlanStep("project", (text, V, V), (source(source=1),))
    found = decide(PlanStep("union", (), (left, right)), SETTINGS)
    assert isinstance(found, DirectScan)
    assert [branch.source for branch in found.branches] == [0, 1]
    first = (Constant("string", "left"), FileColumn("v", "bigint"), Constant("bigint", None))
    assert found.branches[0].values == first


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (PlanStep("org.apache.spark.EventTimeWatermark"), "the plan has EventTimeWatermark"),
        (source(format="org.apache.spark.sql.kafka010.KafkaSourceProvider"), "the source is KafkaSourceProvider"),
        (source(options={"mergeSchema": "true"}), "the option mergeschema"),
        (source(options={"datetimeRebaseMode": "LEGACY"}), "the option datetimerebasemode"),
        (source(bucketed=True), "buckets"),
        (source(partitions=("t",)), "the partition column t has the type timestamp"),
        (source(partitions=("d",)), "the partition column d has the type of no column"),
        (source(partitions=("k",), options={"path": "/in/*"}), "partition columns below a pattern"),
        (source(partitions=("k",), options={}), "partition columns below a pattern"),
        (source(table=True), "a table"),
        (source(columns=(StreamColumn(1, "a", "int", ("EXISTS_DEFAULT",)),)), "a has a default"),
        (source(columns=(StreamColumn(1, "a", "int"), StreamColumn(2, "A", "int"))), "differ only in case"),
        (source(columns=(StreamColumn(1, "a", "struct<b:int>"),)), "type struct<b:int>"),
        (source(columns=(StreamColumn(1, "a", "string collate UNICODE"),)), "type string collate UNICODE"),
        (source(columns=(StreamColumn(1, "a", "time(6)"),)), "type time(6)"),
        (PlanStep("project", (named(Expression("x.y.InputFileName")),), (source(),)), "computed by InputFileName"),
        (PlanStep("project", (named(Expression("cast", type="int", inside=(V,))),), (source(),)), "computed by cast"),
        (PlanStep("project", (named(FIVE),), (source(),)), "computed by literal"),
        (PlanStep("project", (replace(V, id=77),), (source(),)), "not one of the files"),
        (compared("=", V, Expression("literal", type="bigint")), "compares with literal"),
        (compared("=", Expression("cast", type="double", inside=(V,)), FIVE), "uses literal where a column"),
        (compared("=", V, FIVE), "compares with literal of type int"),
        (compared("x.y.PythonUDF"), "a filter uses PythonUDF"),
        (compared("in", V, Expression("literal", type="bigint")), "compares with literal"),
        (
            PlanStep("union", (), (source(), source(columns=(COLUMNS[0], COLUMNS[2], COLUMNS[1])))),
            "columns of different types",
        ),
    ],
)
def test_refused_with_a_reason(plan: PlanStep, reason: str) -> None:
    assert reason in refusal(plan)


def test_partition_columns_are_read_from_the_path_and_filtered_as_others() -> None:
    plan = PlanStep(
        "filter",
        (Expression("=", type="boolean", inside=(K, Expression("literal", type="string", value="x"))),),
        (source(partitions=("v", "k")),),
    )
    found = decide(plan, SETTINGS)
    assert isinstance(found, DirectScan)
    (branch,) = found.branches
    v, k = PathColumn("v", "bigint", 0), PathColumn("k", "string", 1)
    assert (branch.folder, branch.partitions) == ("/in", (v, k))
    assert branch.values == (FileColumn("t", "timestamp"), k, v)
    assert branch.filters == (Condition("=", column=k, values=("x",)),)


@pytest.mark.parametrize("kind", ["float", "double", "binary", "decimal(7,2)"])
def test_no_filter_on_types_that_may_be_ordered_differently(kind: str) -> None:
    column = Expression("column", 1, "a", kind)
    plan = PlanStep(
        "filter",
        (Expression("<", type="boolean", inside=(column, Expression("literal", type=kind, value=1))),),
        (source(columns=(StreamColumn(1, "a", kind),)),),
    )
    assert f"a filter on the column a of type {kind}" == refusal(plan)


@pytest.mark.parametrize("name", REQUIRED)
def test_a_setting_that_changes_spark_s_reader_is_refused(name: str) -> None:
    assert refusal(source(), ReaderSettings({name: "true"})) == f"{name} is true"


def test_hadoop_s_settings_of_parquet_are_refused() -> None:
    assert "parquet.crypto.factory.class" in refusal(source(), ReaderSettings({}, ("parquet.crypto.factory.class",)))


def test_old_dates_are_checked_unless_the_session_reads_them_as_they_are() -> None:
    for mode in ("LEGACY", "EXCEPTION"):
        found = decide(source(), ReaderSettings({REBASE: mode}))
        assert isinstance(found, DirectScan)
        assert found.rebased
