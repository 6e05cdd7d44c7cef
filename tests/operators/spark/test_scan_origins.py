"""Which column of a DataFrame has the source of each row, and that a plan without one says what to keep."""

from __future__ import annotations

import pytest

from tidestate.operators.spark.scan.analysed import Expression, PlanStep, StreamColumn
from tidestate.operators.spark.scan.origins import origin_column
from tidestate.statestore.errors import UsageError

COLUMNS = (
    StreamColumn(1, "value", "binary"),
    StreamColumn(2, "topic", "string"),
    StreamColumn(3, "partition", "int"),
    StreamColumn(4, "timestamp", "timestamp"),
)
VALUE, TOPIC, PARTITION, TIME = (Expression("column", one.id, one.name, one.type) for one in COLUMNS)


def source(name: str = "kafka", **options: str) -> PlanStep:
    return PlanStep("leaf", source=name, columns=COLUMNS, options=options or {"subscribe": "orders"})


def named(inside: Expression, name: str, number: int = 9) -> Expression:
    return Expression("named", number, name, inside.type, inside=(inside,))


def project(below: PlanStep, *columns: Expression) -> PlanStep:
    return PlanStep("project", columns, (below,))


def refusal(plan: PlanStep) -> UsageError:
    with pytest.raises(UsageError) as caught:
        origin_column(plan, "orders")
    assert caught.value.code == "origin-unknown"
    assert caught.value.context["stream"] == "orders"
    return caught.value


@pytest.mark.parametrize("name", ["FileSource[/in]", "rate", "rate-micro-batch", "socket", "memory"])
def test_a_stream_that_is_read_in_one_order_is_one_source(name: str) -> None:
    plan = project(PlanStep("filter", (PARTITION,), (PlanStep("alias", (), (source(name),)),)), TIME)
    assert origin_column(plan, "orders") is None


def test_the_partition_of_kafka_is_found_by_whatever_name_it_has() -> None:
    assert origin_column(source(), "orders") == "partition"
    as_text = named(Expression("cast", type="string", inside=(PARTITION,)), "shard")
    renamed = project(PlanStep("filter", (VALUE,), (project(source(), TIME, as_text),)), named(as_text, "x", 10))
    again = project(renamed.below[0], named(Expression("column", 9, "shard", "string"), "lane", 11), TIME)
    assert origin_column(again, "orders") == "lane"
    assert origin_column(project(source(assign='{"orders":[0,1]}'), PARTITION), "orders") == "partition"


def test_what_does_not_reach_the_job_is_named() -> None:
    for plan in (
        project(source(), VALUE, TIME),
        project(source(), named(Expression("Remainder"), "partition")),
        project(project(source(), TIME), Expression("column", 4, "timestamp", "timestamp")),
    ):
        found = refusal(plan)
        assert found.context["columns"] == ["partition"]
        assert 'keep the column "partition" of the source' in str(found)


@pytest.mark.parametrize(
    "options",
    [{"subscribe": "a,b"}, {"subscribePattern": "a.*"}, {"assign": '{"a":[0],"b":[0]}'}, {"assign": "?"}],
)
def test_partitions_of_several_topics_need_both_columns(options: dict[str, str]) -> None:
    found = refusal(source(**options))
    assert found.context["columns"] == ["topic", "partition"]
    assert "concat_ws('/', topic, partition)" in str(found)


def test_any_other_plan_is_refused() -> None:
    union = PlanStep("union", (), (source("rate"), source("rate")))
    assert refusal(union).context["found"] == ["rate", "rate"]
    assert refusal(source("kinesis")).context["found"] == ["kinesis"]
    assert refusal(PlanStep("java", (), (source("rate"),), name="Repartition")).context["found"] == ["Repartition"]
