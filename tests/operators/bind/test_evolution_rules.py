"""Which changes a state can follow: the decision by itself, rule by rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers import look_up
from tests.helpers.changed_jobs import added, changed
from tidestate import OperatorStream, agg, trigger, watermark
from tidestate.operators.bind.evolve import evolve, new_operator
from tidestate.operators.bind.operator import bind_plan
from tidestate.operators.bind.setting_change import SettingChange
from tidestate.operators.bind.stored_description import stored_configuration
from tidestate.operators.describe.renames import given_renames
from tidestate.operators.describe.runnable import Sided
from tidestate.operators.describe.session_join import SessionJoin
from tidestate.operators.plan.graph import single_operator
from tidestate.operators.plan.plan import Plan
from tidestate.statestore.errors import CorruptionError, IncompatibleError, UsageError, of_type

SCHEMA = pa.schema(
    [
        ("t", pa.timestamp("us", "UTC")),
        ("k", pa.string()),
        ("v", pa.int32()),
        ("kind", pa.string()),
        ("j", pa.int32()),
    ]
)
Rule = tuple[Callable[[], OperatorStream], Callable[[Any], OperatorStream], str]


def plain(*, by: str | None = None, generator: Any = None) -> Any:
    events = ts.stream(event_time="t")
    return (
        (events if generator is None else events.watermark(generator, by=by))
        .group_by("k")
        .window(ts.tumbling("10 seconds"))
        .aggregate(n=agg.count(), s=agg.sum("v"))
    )


def sessions() -> Any:
    return ts.stream(event_time="t").group_by("k").window(ts.sessions("10 seconds")).aggregate(n=agg.count())


def distinct() -> Any:
    return ts.stream(event_time="t").deduplicate("k", within="10 seconds")


def sketch() -> Any:
    return (
        ts.stream(event_time="t")
        .group_by()
        .window(ts.tumbling("10 seconds"))
        .aggregate(d=agg.count_distinct_approx("v"))
    )


def decided(
    before: OperatorStream, after: OperatorStream, schema: pa.Schema = SCHEMA, *, signed: bool = False
) -> tuple[list[SettingChange], dict[str, str]]:
    """The changes, or why they are refused."""
    stored = new_operator(single_operator(bind_plan(before.graph.description, SCHEMA, signed=signed)).nodes[0], 1, 1)
    try:
        return evolve(stored, bind_plan(after.graph.description, schema, signed=signed), 7, may_change=True)[2], {}
    except IncompatibleError as error:
        return [], error.context["why"]


ALLOWED: dict[str, Rule] = {
    "delay": (plain, lambda d: changed(d, watermark_delay_us=5), "watermark_delay"),
    "generator": (plain, lambda d: plain(generator=watermark.fixed("1 second")), "watermark"),
    "lateness": (plain, lambda d: d.allowed_lateness("1 second"), "allowed_lateness"),
    "rule": (plain, lambda d: d.allowed_lateness(rule="window"), "allowed_lateness(rule=)"),
    "ledger": (plain, lambda d: d.allowed_lateness(ledger_columns="j"), "ledger_columns"),
    "timing": (plain, lambda d: d.allowed_lateness(window_timing=True), "window_timing"),
    "retained": (plain, lambda d: d.retain_windows("5 minutes"), "retain_windows"),
    "early": (plain, lambda d: d.trigger(early=trigger.after_count(3)), "trigger"),
    "late": (sessions, lambda d: d.trigger(late=None), "trigger"),
    "retracting": (plain, lambda d: d.accumulation("retracting"), "accumulation"),
    "sessions retracting": (sessions, lambda d: d.accumulation("retracting"), "accumulation"),
    "within": (distinct, lambda d: changed(d, within_us=5), "within"),
    "added": (plain, lambda d: added(d, m=agg.count("v")), "aggregate m"),
}
REFUSED: dict[str, Rule] = {
    "window": (plain, lambda d: changed(d, windows=ts.tumbling("5 seconds")), "window"),
    "gap": (sessions, lambda d: changed(d, windows=ts.sessions("5 seconds")), "window"),
    "key": (plain, lambda d: changed(d, key=("k", "j")), "group_by"),
    "composite": (sessions, lambda d: d.trigger(when=trigger.repeatedly(trigger.after_count(2))), "trigger"),
    "discarding": (plain, lambda d: d.accumulation("discarding"), "accumulation"),
    "everything again": (lambda: plain().accumulation("discarding"), lambda d: plain(), "accumulation"),
    "sums of what was emitted": (
        lambda: plain().accumulation("discarding"),
        lambda d: d.accumulation("retracting"),
        "accumulation",
    ),
    "sessions discarding": (sessions, lambda d: d.accumulation("discarding"), "accumulation"),
    "sessions accumulating": (lambda: sessions().accumulation("discarding"), lambda d: sessions(), "accumulation"),
    "order": (plain, lambda d: changed(d, offset="j"), "offset"),
    "sources": (plain, lambda d: plain(generator=watermark.fixed("1 second"), by="k"), "watermark"),
    "function": (plain, lambda d: changed(d, aggregates={"n": agg.sum("v"), "s": agg.sum("v")}), "aggregate n"),
    "ids": (distinct, lambda d: changed(d, on=("k", "j")), "on"),
}


def living() -> Any:
    every = watermark.cti_settings("drop", generate=watermark.generate_ctis(3))
    sides = [ts.stream(event_time="t", offset="j").watermark(watermark.ctis(every)) for _ in range(2)]
    return sides[0].join_lifetimes(sides[1], on="k")


def of_all_sides(job: Any) -> Any:
    """CTI settings given once, as they were stored for both sides."""
    stored = job.graph.description.watermarks
    generator = msgspec.structs.replace(stored.generator, at_query={"": stored.generator.at_query["left"]})
    return changed(job, watermarks=msgspec.structs.replace(stored, generator=generator))


def sided_schema() -> pa.Schema:
    sides = of_type(living().graph.description, Sided).sides
    return sides.schema(dict.fromkeys(sides.names, SCHEMA))


SAME: dict[str, tuple[Any, Callable[[Any], Any], Callable[[], pa.Schema]]] = {
    "a delay next to a generator": (
        plain(generator=watermark.fixed("1 second")),
        lambda d: changed(d, watermark_delay_us=5),
        lambda: SCHEMA,
    ),
    "settings of both sides": (living(), of_all_sides, sided_schema),
}


@pytest.mark.parametrize("name", SAME)
def test_what_acts_as_before_has_not_changed(name: str) -> None:
    job, stored_otherwise, schema = SAME[name]
    for jobs in ((job, stored_otherwise(job)), (stored_otherwise(job), job)):
        before, after = (bind_plan(each.graph.description, schema()) for each in jobs)
        assert before.fingerprint != after.fingerprint
        stored = new_operator(single_operator(before).nodes[0], 1, 1)
        assert evolve(stored, after, 7, may_change=False)[2] == []


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
    why = decided(plain(), added(plain(), m=agg.count()), signed=True)[1]
    assert list(why) == ["aggregate m"]
    assert "retracted from now on" in why["aggregate m"]


@pytest.mark.parametrize(("kind", "goes"), [(pa.int64(), True), (pa.decimal128(10, 0), False)], ids=str)
def test_a_sketch_of_wider_values(kind: pa.DataType, goes: bool) -> None:
    schema = SCHEMA.set(2, pa.field("v", kind))
    assert bool(decided(sketch(), sketch(), schema)[1]) is not goes


def bound(job: OperatorStream, left: pa.Schema, right: pa.Schema) -> Plan:
    description = of_type(job.graph.description, Sided)
    return bind_plan(description, description.sides.schema({"left": left, "right": right}))


def test_columns_of_joined_rows_come_and_go() -> None:
    described = ts.stream(event_time="t").join(ts.stream(event_time="t"), on="k", within=("-5 seconds", "5 seconds"))
    sides = [pa.schema([SCHEMA.field(n) for n in names]) for names in (("t", "k", "v"), ("t", "k", "v", "j"))]
    stored = new_operator(single_operator(bound(described, sides[0], sides[0])).nodes[0], 1, 1)
    _, operator, _ = evolve(stored, bound(described, sides[0], sides[1]), 7, may_change=True)
    identities = {c.name: c.identity for spec in operator.tables for c in spec.values if c.name.startswith("right_")}
    assert identities["right_j"] == "__7.right_j"
    assert identities["right_v"] == ""
    late = changed(described, allowed_us=9)
    with pytest.raises(IncompatibleError, match="allowed_lateness"):
        evolve(stored, bound(late, sides[0], sides[0]), 7, may_change=True)


def test_a_change_is_written_in_the_words_of_the_builder() -> None:
    clicks, views = ts.stream(event_time="t"), ts.stream(event_time="t")
    described = of_type(clicks.join(views, on="k", within=("0 seconds", "1 second")).graph.description, Sided)
    side = pa.schema([SCHEMA.field(name) for name in ("t", "k", "v")])
    schema = described.sides.schema({"left": side, "right": side})
    stored = new_operator(single_operator(bind_plan(described, schema)).nodes[0], 1, 1)
    wider = msgspec.structs.replace(described, upper_us=2_000_000, delays_us=(0, 5_000_000))
    with pytest.raises(IncompatibleError) as caught:
        evolve(stored, bind_plan(wider, schema), 7, may_change=True)
    assert caught.value.context["changed"] == {"within": "(0 seconds, 1 second) -> (0 seconds, 2 seconds)"}
    delayed = msgspec.structs.replace(described, delays_us=(0, 5_000_000))
    changes = evolve(stored, bind_plan(delayed, schema), 7, may_change=True)[2]
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

    own = agg.accumulate(
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
    stored = new_operator(single_operator(bind_plan(plain().graph.description, SCHEMA)).nodes[0], 1, 1)
    stored = msgspec.structs.replace(stored, configuration=stored.configuration | forged, watermark_us=5)
    for job in (plain(), plain().allowed_lateness("1 hour")):
        with pytest.raises(CorruptionError, match="manifest-damaged"):
            evolve(stored, bind_plan(job.graph.description, SCHEMA), 7, may_change=True)


def test_the_rows_of_a_function_have_other_columns() -> None:
    def over(*columns: str) -> OperatorStream:
        rows = agg.apply_rows(len, columns=columns, result_type=pa.int64(), name="rows")
        return ts.stream(event_time="t").group_by("k").window(ts.tumbling("10 seconds")).aggregate(r=rows)

    for before, after in ((("v",), ("v", "j")), (("v", "j"), ("v",)), (("v",), ("j",))):
        assert "another function" in decided(over(*before), over(*after))[1]["aggregate r"]


def test_a_session_join_of_offsets_becomes_one_of_a_gap_column() -> None:
    sides = [ts.stream(event_time="t", offset="v") for _ in range(2)]
    described = sides[0].join_sessions(sides[1], on="k", offsets=3)
    stored = new_operator(single_operator(bound(described, SCHEMA, SCHEMA)).nodes[0], 1, 1)
    with pytest.raises(IncompatibleError) as caught:
        evolve(
            stored,
            bound(sides[0].join_sessions(sides[1], on="k", gap_column="j"), SCHEMA, SCHEMA),
            7,
            may_change=True,
        )
    assert caught.value.code == "configuration-changed"
    assert {"offsets", "gap_column"} <= caught.value.context["changed"].keys()
    by_time = of_type(sides[0].join_sessions(sides[1], on="k", gap="5 seconds").graph.description, SessionJoin)
    without_its_column = msgspec.structs.replace(by_time, windows=ts.sessions(gap_column="j"))
    with pytest.raises(UsageError, match=r"column-missing.*missing=\['j'\]"):
        bind_plan(without_its_column, by_time.sides.schema({"left": SCHEMA, "right": SCHEMA}))


def of_sides(kind: str) -> Any:
    left, right = (ts.stream(event_time="t") for _ in range(2))
    if kind == "union":
        return ts.union(left=left, right=right)
    if kind == "merge":
        merged = ts.merge(left=left, right=right).group_by("k").window(ts.tumbling("10 seconds"))
        return merged.aggregate(n=agg.count())
    return left.join_sessions(right, on="k", gap="5 seconds")


DAMAGED: list[dict[str, Any]] = [
    *({"delays_us": delays} for delays in ([], [0], [0, 0, 0])),
    *({"sides": {"names": names}} for names in ([], ["left"], ["left", "left"])),
    *({"sides": {"times": times}} for times in ([], ["t"], ["t", "t", "t"])),
]


@pytest.mark.parametrize("kind", ["union", "merge", "session join"])
@pytest.mark.parametrize("damage", DAMAGED, ids=str)
def test_a_stored_description_of_other_sides_is_damage(kind: str, damage: dict[str, Any]) -> None:
    job = of_sides(kind)
    plan = bound(job, SCHEMA, SCHEMA)
    stored = new_operator(single_operator(plan).nodes[0], 1, 1)
    ((field, value),) = damage.items()
    forged = stored.configuration[field] | value if isinstance(value, dict) else value
    stored = msgspec.structs.replace(
        stored, configuration=stored.configuration | {field: forged}, fingerprint="another"
    )
    with pytest.raises(CorruptionError, match="manifest-damaged"):
        evolve(stored, plan, 7, may_change=True)


STORED_TRIGGERS = {
    "early": None,
    "on_time": "always",
    "late": {"kind": "each_batch"},
    "closing": "never",
    "only_updated": False,
    "when": None,
    "per_element": False,
}
STORED_MESSAGES = {"identity": ["v"], "retention": None, "layout": None, "equal": []}


def _without(settings: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key != name}


def _lacking(field: str, part: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda stored: stored | {field: _without(stored[field], part)}


LACKING: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], str, Any]] = {
    "a trigger by elements": (_lacking("triggers", "when"), "triggers", STORED_TRIGGERS),
    "a trigger at the end": (_lacking("triggers", "on_time"), "triggers", STORED_TRIGGERS),
    "all triggers": (lambda stored: _without(stored, "triggers"), "triggers", STORED_TRIGGERS),
    "a retention": (_lacking("messages", "retention"), "messages", STORED_MESSAGES),
    "limits": (
        lambda stored: stored | {"messages": STORED_MESSAGES | {"retention": {}}},
        "messages",
        STORED_MESSAGES | {"retention": {}},
    ),
}


@pytest.mark.parametrize("lacking", [*LACKING])
def test_a_stored_configuration_without_some_fields_has_their_defaults(lacking: str) -> None:
    older_of, field, defaults = LACKING[lacking]
    job = ts.stream(event_time="t", offset="v").group_by("k").window(ts.tumbling("10 seconds"))
    described = job.aggregate(n=agg.count()).messages("v")
    plan = bind_plan(described.graph.description, SCHEMA)
    stored = new_operator(single_operator(plan).nodes[0], 1, 1)
    older = msgspec.structs.replace(stored, configuration=older_of(stored.configuration), fingerprint="another")
    assert stored_configuration(older) == stored.configuration | {field: defaults}
    later = described.trigger(closing="always").allowed_lateness("2 hours")
    _, _, changes = evolve(older, bind_plan(later.graph.description, SCHEMA), 7, may_change=True)
    texts = {change.setting: (change.was, change.now) for change in changes}
    unlimited = {"messages": ('"v", retain=Retention()', "v")} if lacking == "limits" else {}
    later_settings = {"allowed_lateness": ("1 minute", "2 hours"), "trigger": (None, 'closing="always"')}
    assert texts == later_settings | unlimited


def test_a_join_of_lifetimes_that_lacks_those_of_a_side_is_damage() -> None:
    description = of_type(look_up.JOINED.graph.description, Sided)
    plan = bind_plan(description, description.sides.schema({"left": look_up.READINGS, "right": look_up.LIMITS}))
    stored = new_operator(single_operator(plan).nodes[0], 1, 1)
    forged = stored.configuration | {"events": {"left": stored.configuration["events"]["left"]}}
    with pytest.raises(CorruptionError, match="manifest-damaged"):
        evolve(msgspec.structs.replace(stored, configuration=forged), plan, 7, may_change=True)
