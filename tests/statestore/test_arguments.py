"""Arguments of a wrong kind at the public doors are refused, with the parameter, what was found and an example."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidestate as ts
from tidestate.statestore.arguments import checked
from tidestate.statestore.errors import UsageError

EVENTS = ts.stream(event_time="t")
COUNTING = EVENTS.group_by().window(ts.tumbling("1 hour")).aggregate(n=ts.agg.count())
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "a key": (lambda: EVENTS.deduplicate(5), 'on="name"'),
    "a name": (lambda: ts.stream(5), 'name="name"'),
    "a name of an operator": (lambda: COUNTING.named(5), 'name="name"'),
    "a size of memory": (lambda: ts.stores.Parquet(budget_bytes="1 GB"), "budget_bytes=5"),
    "bounds": (lambda: EVENTS.join(EVENTS, within=timedelta(minutes=5)), 'within=("30 minutes", "30 minutes")'),
    "columns to keep": (lambda: COUNTING.allowed_lateness(ledger_columns=5), 'ledger_columns="name"'),
    "an identity": (lambda: COUNTING.messages(5), 'identity="name"'),
    "a type": (lambda: ts.agg.apply_rows(len, columns=["v"], result_type=int), "result_type=pa.int64()"),
    "text for a sequence": (lambda: ts.agg.apply_rows(len, columns="v", result_type=pa.int64()), 'columns=["name"]'),
    "a column": (lambda: ts.agg.sum(3), 'column="name"'),
    "a count": (lambda: ts.agg.top_n("v", "3"), "n=5"),
    "True for a count": (lambda: ts.trigger.after_count(True), "count=5"),
    "a flag": (lambda: ts.watermark.generate_ctis(1, final="yes"), "final=True"),
    "timeouts of sources": (lambda: EVENTS.watermark(own_timeouts=5), 'own_timeouts={"name": "30 minutes"}'),
    "a lifetime": (lambda: ts.stream(lifetime="end"), 'lifetime=lifetime(end="until")'),
    "names": (lambda: COUNTING.renamed(columns=["a", "b"]), 'columns={"name": "name"}'),
    "a stream": (lambda: EVENTS.join(5), 'other=stream("orders", event_time="at")'),
    "settings of a side": (lambda: EVENTS.join(EVENTS, left="1 hour"), 'left=side(retain="1 hour")'),
    "a policy": (lambda: COUNTING.standalone(checkpoint="/x", policy="ask"), 'policy=Policy(second="refuse")'),
    "checkpoints to keep": (
        lambda: COUNTING.standalone(checkpoint="/x", checkpoints=5),
        "checkpoints=CheckpointRetention(newest=100)",
    ),
    "messages to keep": (lambda: COUNTING.messages("v", retain=5), 'retain="30 minutes"'),
    "a description": (
        lambda: ts.Harness("job", pa.schema([])),
        "description=stream(…).group_by(…).window(…).aggregate(…)",
    ),
    "a schema": (lambda: COUNTING.harness(5), 'schema=pa.schema({"name": pa.string()})'),
    "servers": (lambda: ts.sinks.KafkaSink({"bootstrap.servers": "host:9092"}, "topic"), 'servers="name"'),
    "a list of sources": (lambda: EVENTS.watermark(sources=5), 'sources=["name"]'),
}


@pytest.mark.parametrize(("make", "example"), WRONG.values(), ids=WRONG.keys())
def test_an_argument_of_a_wrong_kind_is_refused(make: Callable[[], Any], example: str) -> None:
    with pytest.raises(UsageError) as refused:
        make()
    assert refused.value.code == "argument"
    assert f"such as {example}" in str(refused.value)
    assert refused.value.context["parameter"] == example.partition("=")[0]


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        (str, ["a"], [5, b"a", None]),
        (int, [5, np.int64(5)], [True, 5.0, "5"]),
        (float, [5, 0.5, np.float32(1)], [True, "5"]),
        (bool, [True, np.bool_(False)], [1, "yes"]),
        (str | None, ["a", None], [5]),
        (str | Sequence[str], ["a", ["a"], ("a", "b"), pa.array([])], [5, [5], {"a"}]),
        (Mapping[str, int], [{"a": 1}, {}], [["a"], {1: 1}, {"a": "b"}]),
        (tuple[str, int], [("a", 1), ["a", 1]], [("a",), ("a", "b"), "a1"]),
        (tuple[str, ...], [(), ("a", "b")], [(5,), "ab"]),
        (datetime | int, [datetime(2026, 1, 1, tzinfo=UTC), 4], ["2026"]),
        (Any, [5, None], []),
        (Callable[[], None], [5], []),
    ],
    ids=[
        *("text", "whole", "number", "flag", "text or none", "text or texts", "mapping", "pair", "texts", "moment"),
        *("anything", "function"),
    ],
)
def test_kinds(kind: Any, right: list[Any], wrong: list[Any]) -> None:
    def door(value: Any) -> Any:
        return value

    door.__annotations__["value"] = kind
    through = checked(door)
    assert [through(value) for value in right] == right
    for value in wrong:
        with pytest.raises(UsageError, match=r"door\(value=…\) takes"):
            through(value)


@pytest.mark.parametrize("make", [ts.sinks.DeltaSink, ts.sinks.ParquetSink])
@pytest.mark.parametrize("place", [5, "", None])
def test_a_place_is_a_path(make: Any, place: Any) -> None:
    with pytest.raises(UsageError, match="must be a path or a URL") as refused:
        make(place)
    assert refused.value.code == "argument"


def test_a_door_is_called_as_before() -> None:
    assert checked(len).__name__ == "len"
    with pytest.raises(TypeError, match="unexpected keyword"):
        ts.stream(event="t")  # type: ignore[call-arg]


def test_a_span_of_another_kind_is_refused_by_the_name_of_its_parameter() -> None:
    for call in (lambda: EVENTS.watermark(idle_timeout=5), lambda: ts.stream(watermark_delay=5)):  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"(idle_timeout|watermark_delay)=\"30 minutes\" \[span\]"):
            call()


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**30])
def test_whole_numbers_have_64_bits_and_nan_is_no_number(value: int) -> None:
    def door(count: int = 1, share: float = 0.5) -> str:
        return "open"

    assert checked(door)(2**63 - 1, float("inf")) == "open"
    with pytest.raises(UsageError, match="whole numbers of 64 bits"):
        checked(door)(value)
    with pytest.raises(UsageError, match="argument"):
        checked(door)(share=float("nan"))
