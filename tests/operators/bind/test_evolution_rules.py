"""Which changes a state can follow: the decision by itself, rule by rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from msgspec.structs import replace

from tidestate.agg import count, count_distinct_approx
from tidestate.agg import sum as sum_
from tidestate.operators import tumbling
from tidestate.operators.aggregates.custom import accumulate
from tidestate.operators.bind.evolve import evolve, new_operator
from tidestate.operators.bind.operator import bind_plan
from tidestate.operators.bind.setting_change import SettingChange
from tidestate.operators.describe.deduplicate import deduplicated
from tidestate.operators.describe.given_join import join
from tidestate.operators.describe.renames import given_renames
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.windowed import windowed
from tidestate.operators.describe.windows import session
from tidestate.operators.plan.graph import single_operator
from tidestate.statestore.errors import CorruptionError, IncompatibleError, UsageError
from tidestate.trigger import after_count, repeatedly
from tidestate.watermark import fixed

SCHEMA = pa.schema(
    [
        ("t", pa.timestamp("us", "UTC")),
        ("k", pa.string()),
        ("v", pa.int32()),
        ("kind", pa.string()),
        ("j", pa.int32()),
    ]
)
Rule = tuple[Callable[[], Runnable], Callable[[Any], Runnable], str]


def plain() -> Any:
    return windowed(event_time="t", key="k").window(tumbling("10 seconds")).aggregate(n=count(), s=sum_("v"))


def sessions() -> Any:
    return windowed(event_time="t", key="k").window(session("10 seconds")).aggregate(n=count())


def distinct() -> Any:
    return deduplicated(event_time="t", on="k", within="10 seconds")


def sketch() -> Any:
    return windowed(event_time="t").window(tumbling("10 seconds")).aggregate(d=count_distinct_approx("v"))


def decided(
    before: Runnable, after: Runnable, schema: pa.Schema = SCHEMA, *, signed: bool = False
) -> tuple[list[SettingChange], dict[str, str]]:
    """The changes, or why they are refused."""
    stored = new_operator(single_operator(bind_plan(before, SCHEMA, signed=signed)).nodes[0], 1, 1)
    try:
        return evolve(stored, bind_plan(after, schema, signed=signed), 7, may_change=True)[2], {}
    except IncompatibleError as error:
        return [], error.context["why"]


ALLOWED: dict[str, Rule] = {
    "delay": (plain, lambda d: replace(d, watermark_delay_us=5), "watermark_delay"),
    "generator": (plain, lambda d: d.watermark(fixed("1 second")), "watermark"),
    "lateness": (plain, lambda d: d.late("1 second"), "allowed_lateness"),
    "rule": (plain, lambda d: d.late(rule="window"), "allowed_lateness(rule=)"),
    "ledger": (plain, lambda d: d.late(keep="j"), "ledger_columns"),
    "retained": (plain, lambda d: d.retain("5 minutes"), "retain_windows"),
    "early": (plain, lambda d: d.trigger(early=after_count(3)), "trigger"),
    "late": (sessions, lambda d: d.trigger(late=None), "trigger"),
    "retracting": (plain, lambda d: d.accumulation("retracting"), "accumulation"),
    "sessions retracting": (sessions, lambda d: d.accumulation("retracting"), "accumulation"),
    "within": (distinct, lambda d: replace(d, within_us=5), "within"),
    "added": (plain, lambda d: d.aggregate(m=count("v")), "aggregate m"),
}
REFUSED: dict[str, Rule] = {
    "window": (plain, lambda d: d.window(tumbling("5 seconds")), "window"),
    "gap": (sessions, lambda d: d.window(session("5 seconds")), "window"),
    "key": (plain, lambda d: replace(d, key=("k", "j")), "group_by"),
    "composite": (sessions, lambda d: d.trigger(when=repeatedly(after_count(2))), "trigger"),
    "discarding": (plain, lambda d: d.accumulation("discarding"), "accumulation"),
    "everything again": (lambda: plain().accumulation("discarding"), lambda d: plain(), "accumulation"),
    "sums of what was emitted": (
        lambda: plain().accumulation("discarding"),
        lambda d: d.accumulation("retracting"),
        "accumulation",
    ),
    "sessions discarding": (sessions, lambda d: d.accumulation("discarding"), "accumulation"),
    "sessions accumulating": (lambda: sessions().accumulation("discarding"), lambda d: sessions(), "accumulation"),
    "order": (plain, lambda d: replace(d, offset="j"), "offset"),
    "sources": (plain, lambda d: d.watermark(fixed("1 second"), by="k"), "watermark"),
    "function": (plain, lambda d: replace(d, aggregates={"n": sum_("v"), "s": sum_("v")}), "aggregate n"),
    "ids": (distinct, lambda d: replace(d, on=("k", "j")), "on"),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_a_change_that_the_state_can_follow(name: str) -> None:
    before, change, setting = ALLOWED[name]
    changes, why = decided(before(), change(before()))
    assert not why
    assert [one.setting for one in changes] == [setting]
    assert changes[0].note
    assert decided(before(), before()) == ([], {})


@pytest.mark.parametrize("name", REFUSED)
def test_a_change_that_it_cannot_follow(name: str) -> None:
    before, change, setting = REFUSED[name]
    assert decided(before(), change(before()))[1][setting]


def test_what_rows_were_taken_from_cannot_be_computed_later() -> None:
    why = decided(plain(), plain().aggregate(m=count()), signed=True)[1]
    assert why == {"aggregate m": "rows that are taken back would be taken from it too, and it has not seen them"}


@pytest.mark.parametrize(("kind", "goes"), [(pa.int64(), True), (pa.decimal128(10, 0), False)], ids=str)
def test_a_sketch_of_wider_values(kind: pa.DataType, goes: bool) -> None:
    schema = SCHEMA.set(2, pa.field("v", kind))
    assert bool(decided(sketch(), sketch(), schema)[1]) is not goes


def test_columns_of_joined_rows_come_and_go() -> None:
    described = join(event_time="t", on="k", within=("-5 seconds", "5 seconds"))
    sides = [pa.schema([SCHEMA.field(n) for n in names]) for names in (("t", "k", "v"), ("t", "k", "v", "j"))]
    stored = new_operator(single_operator(bind_plan(described, described.schema(sides[0], sides[0]))).nodes[0], 1, 1)
    _, operator, _ = evolve(stored, bind_plan(described, described.schema(sides[0], sides[1])), 7, may_change=True)
    identities = {c.name: c.identity for spec in operator.tables for c in spec.values if c.name.startswith("right_")}
    assert identities["right_j"] == "__7.right_j"
    assert identities["right_v"] == ""
    late = replace(described, allowed_us=9)
    with pytest.raises(IncompatibleError, match="allowed_lateness"):
        evolve(stored, bind_plan(late, late.schema(sides[0], sides[0])), 7, may_change=True)


def test_a_change_is_written_in_the_words_of_the_builder() -> None:
    described = join(event_time="t", on="k", within=("0 seconds", "1 second"))
    side = pa.schema([SCHEMA.field(name) for name in ("t", "k", "v")])
    stored = new_operator(single_operator(bind_plan(described, described.schema(side, side))).nodes[0], 1, 1)
    wider = replace(described, upper_us=2_000_000, delays_us=(0, 5_000_000))
    with pytest.raises(IncompatibleError) as caught:
        evolve(stored, bind_plan(wider, wider.schema(side, side)), 7, may_change=True)
    assert caught.value.context["changed"] == {"within": "(0 seconds, 1 second) -> (0 seconds, 2 seconds)"}
    delayed = replace(described, delays_us=(0, 5_000_000))
    changes = evolve(stored, bind_plan(delayed, delayed.schema(side, side)), 7, may_change=True)[2]
    assert [(one.setting, str(one)) for one in changes] == [
        ("watermark_delay", "0 seconds -> (0 seconds, 5 seconds)")
    ]
    assert decided(plain(), distinct())[1].keys() == {"kind"}


def test_a_name_becomes_one_other() -> None:
    for pairs in ({"a": "b", "b": "c"}, {"a": "c", "b": "c"}):
        with pytest.raises(UsageError, match="renamed"):
            given_renames(pairs, None)


def test_functions_of_yours_pass_over_windows_from_before() -> None:
    def merge(older: pa.Table, newer: pa.Table) -> pa.Table:
        assert not older["x"].null_count + newer["x"].null_count
        return newer

    own = accumulate(
        name="newest-of-rules",
        columns=["v"],
        state={"x": pa.int64()},
        lift=lambda rows: pa.table({"x": rows["v"].cast(pa.int64())}),
        merge=merge,
        result=lambda state: state["x"],
        result_type=pa.int64(),
    )
    bound = own.bind("o", SCHEMA, "t")
    found = bound.finish(pa.table({"o_x": pa.array([None, 3], pa.int64())}))
    assert found.to_pylist() == [None, 3]


@pytest.mark.parametrize("forged", [{"kind": "os"}, {"aggregates": 7}, {"retained": {"span_us": "x"}}], ids=str)
def test_a_stored_configuration_that_no_job_writes_is_damage(forged: dict[str, Any]) -> None:
    stored = new_operator(single_operator(bind_plan(plain(), SCHEMA)).nodes[0], 1, 1)
    stored = msgspec.structs.replace(stored, configuration=stored.configuration | forged, watermark_us=5)
    for job in (plain(), plain().late("1 hour")):
        with pytest.raises(CorruptionError, match="manifest-damaged"):
            evolve(stored, bind_plan(job, SCHEMA), 7, may_change=True)
