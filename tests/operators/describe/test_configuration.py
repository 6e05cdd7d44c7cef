"""A description is the configuration in the manifest: stored as text and read again it is the same operator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.join_jobs import SCHEMA as JOINED
from tests.helpers.join_jobs import described as described_join
from tests.twins import general_streams, ordered_streams, streams
from tests.twins.join import Asked, Window
from tests.twins.ordered import OrderedSetting
from tests.twins.ordered_strategies import feeding_settings, inherited_settings, ordered_settings
from tidestate import Aggregation, OperatorStream, Stream, agg, trigger, watermark
from tidestate.operators.bind.evolve import new_operator
from tidestate.operators.bind.operator import bind_plan
from tidestate.operators.describe.configuration import configuration_of, description_of
from tidestate.operators.describe.runnable import Runnable, Sided
from tidestate.operators.inspect.plan_from_manifest import plan_from
from tidestate.operators.plan.graph import single_operator
from tidestate.operators.plan.plan import Plan
from tidestate.operators.progress.generators import OwnGenerator
from tidestate.recovery.log.manifest import OperatorState
from tidestate.statestore.errors import CorruptionError, UsageError

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("t", TIME),
        ("k", pa.string()),
        ("v", pa.int32()),
        ("d", pa.decimal128(20, 3)),
        ("o", pa.int64()),
        ("gap", pa.duration("us")),
        ("end", TIME),
        ("flag", pa.bool_()),
    ]
)


def stored(description: Runnable, schema: pa.Schema, *, signed: bool = False) -> tuple[Plan, OperatorState]:
    """Its plan, and its operator as a manifest has it."""
    sides = description.sides if isinstance(description, Sided) else None
    wide = schema if sides is None else sides.schema(dict.fromkeys(sides.names, schema))
    plan = bind_plan(description, wide, signed=signed)
    text = msgspec.json.encode(new_operator(single_operator(plan).nodes[0], 1, 1))
    return plan, msgspec.json.decode(text, type=OperatorState)


def check_same(description: Runnable, schema: pa.Schema = SCHEMA, *, signed: bool = False) -> None:
    """That it makes the way to text and back, and that the stored one is bound to the same plan."""
    text = msgspec.json.encode(configuration_of(description))
    again_described = description_of(msgspec.json.decode(text))
    assert again_described == description
    assert hash(again_described) == hash(description)
    plan, state = stored(description, schema, signed=signed)
    again = plan_from(plan.name, state)
    assert type(again) is type(plan)
    assert again.configuration == plan.configuration == state.configuration
    assert (again.tables, again.pane_schema, again.fingerprint) == (plan.tables, plan.pane_schema, plan.fingerprint)
    assert replace(again, renames=plan.renames) == plan


@given(streams.settings())
def test_windows_of_a_fixed_size(setting: Any) -> None:
    check_same(streams.description(setting).graph.description, streams.SCHEMA)


@given(general_streams.settings(), st.booleans())
def test_windows_of_any_kind(setting: Any, few: bool) -> None:
    check_same(
        general_streams.description(setting, general_streams.History(()), few).graph.description,
        general_streams.SCHEMA,
    )


@given(ordered_settings() | feeding_settings() | inherited_settings())
def test_windows_of_rows_in_order(setting: OrderedSetting) -> None:
    schema = pa.schema(ordered_streams.TYPES)
    try:
        description = ordered_streams.description(setting).graph.description
        bind_plan(description, schema)
    except UsageError:
        reject()  # settings are drawn one by one, and some are refused together
    check_same(description, schema)


BOUNDS = st.sampled_from([(-3, 3), (None, 4), (None, None)])
PAIR = st.sampled_from([(None, None), (8, 8), (30, None)])


@given(BOUNDS, PAIR, PAIR, st.booleans(), st.booleans(), st.sampled_from(["inner", "left", "full"]))
def test_joins_by_distance(bounds: Any, spans: Any, updates: Any, named: bool, large: bool, how: str) -> None:
    asked = Asked(how, *bounds, named=named, large=large, spans=spans, updates=updates, delays=(0, 3))
    check_same(described_join(asked).graph.description, JOINED)


@given(st.sampled_from([Window(7, 7), Window(12, 4), Window(5, 5, True), None]), st.booleans(), st.booleans())
def test_joins_by_windows(window: Window | None, named: bool, in_order: bool) -> None:
    offset = window is not None and window.by_offset
    check_same(
        described_join(Asked(own=(window, Window(6, 6)), named=named or offset, in_order=in_order)).graph.description,
        JOINED,
    )
    if window is not None and not offset:
        check_same(
            described_join(Asked(window=window, named=named, first=in_order, past=(3, None))).graph.description,
            JOINED,
        )


def stream(**options: Any) -> Stream:
    return ts.stream(**{"event_time": "t"} | options)


def windows(of: Stream | None = None, **results: Any) -> Aggregation:
    """By default a count."""
    grouped = (of or stream()).group_by("k").window(ts.tumbling("10 seconds"))
    return grouped.aggregate(**results or {"n": agg.count()})


EVERY_AGGREGATE = {
    "n": agg.count(),
    "s": agg.sum("d"),
    "m": agg.mean("v"),
    "var": agg.variance("v", population=True),
    "dev": agg.stddev("d"),
    "l": agg.list("k"),
    "sl": agg.sorted_list("k", by="v", descending=True),
    "q": agg.quantile("v", 1.0, interpolation="lower"),
    "med": agg.median("d"),
    "set": agg.set("t"),
    "cd": agg.count_distinct("d"),
    "cv": agg.count_by_value("k"),
    "top": agg.top_n("k", 3, by="v", largest=False),
    "sk": agg.count_distinct_approx("k", precision=11),
    "hll": agg.hll("k", precision=11),
    "th": agg.theta("k"),
    "qa": agg.quantile_approx("v", 0.25, k=100),
    "mc": agg.most_common("k", 3),
    "f": agg.first("d", by="o"),
    "lt": agg.latest("k"),
    "am": agg.arg_max("k", by="t"),
}
CTIS = watermark.cti_settings("drop", generate=watermark.generate_ctis("10 s", delay="-1 us", final=True))
NAMED = {
    "a": CTIS,
    "b": watermark.cti_settings("adjust", generate=watermark.generate_ctis(3), import_from="a"),
}
COMPOSITE = trigger.or_finally(
    trigger.repeatedly(trigger.any_of(trigger.after_count(3), trigger.after_processing_time("5 s"))),
    trigger.after_watermark(),
)
JOBS: dict[str, OperatorStream] = {
    "every aggregate": windows(**EVERY_AGGREGATE).pane_timestamp("end_of_window"),
    "composite trigger": windows().trigger(when=COMPOSITE),
    "spans": windows(stream(watermark_delay="1 hour"))
    .allowed_lateness("1 day", ledger_columns=["v", "o"])
    .retain_windows("2 days"),
    "gaps": stream().group_by("k").window(ts.sessions(gap_column="gap")).aggregate(n=agg.count()),
    "punctuation": windows(stream().watermark(watermark.punctuated("t", flag="k", equals="w"))),
    "held future": windows(stream().watermark(watermark.bounded("1 s", hold_future="1 h"), by="k")),
    "idle": windows(
        stream().watermark(
            watermark.fixed("2 s"), by="k", sources=["a"], idle_timeout="1 min", own_timeouts={"a": "1 h"}
        )
    ),
    "ingestion": stream(event_time="at")
    .watermark(watermark.ingestion_time("at"))
    .group_by()
    .window(ts.tumbling("1 s"))
    .aggregate(n=agg.count()),
    "buffers": windows(
        stream().watermark(watermark.buffers(origin="o", sequence="v", watermark="t", patience="5 s"))
    ),
    "ctis": windows(stream(offset="o").watermark(watermark.ctis(CTIS))),
    "ctis of sources": windows(
        stream(offset="o", cti_settings=CTIS, lifetime=ts.lifetime(end="end")).watermark(
            watermark.ctis(NAMED), by="k", sources=["a", "b"]
        )
    ),
    "deduplicated": stream().deduplicate(["k", "v"], within="3 days", in_order=True),
    "merge": ts.merge(left=stream(watermark_delay="1 s"), right=stream(watermark_delay="2 s"))
    .group_by("k")
    .window(ts.sessions("3 s"))
    .aggregate(n=agg.count(), left=agg.list("left_v"), right=agg.list("right_d")),
    "session join": stream().join_sessions(stream(), on="k", gap="3 s", how="full", allowed_lateness="5 s"),
    "session join by a key of its own": stream(offset="o").join_sessions(
        stream(offset="o"), on=["k", "v"], session_key="k", gap_column="gap", identity=True
    ),
    "union": ts.union(**{side: stream(watermark_delay="1 s") for side in "abc"}),
}


@pytest.mark.parametrize("name", JOBS)
def test_everything_else(name: str) -> None:
    check_same(JOBS[name].graph.description)


def test_rows_that_take_others_back() -> None:
    schema = SCHEMA.append(pa.field("kind", pa.string()))
    job = windows(n=agg.count(), l=agg.list("v"))
    plan, state = stored(job.graph.description, schema, signed=True)
    again = plan_from(plan.name, state)
    assert (again.input.signed, again.tables, again.fingerprint) == (True, plan.tables, plan.fingerprint)


def own() -> Aggregation:
    accumulated = agg.accumulate(
        name="kept",
        columns=["v"],
        state={"total": pa.int64()},
        lift=len,  # type: ignore[arg-type]
        merge=len,  # type: ignore[arg-type]
        result=len,  # type: ignore[arg-type]
        result_type=pa.int64(),
    )
    return windows(a=accumulated, b=agg.apply_rows(len, columns=["v"], result_type=pa.int64()))


def test_functions_are_not_stored() -> None:
    plan, state = stored(own().graph.description, SCHEMA)
    again = description_of(state.configuration)
    assert configuration_of(again) == plan.configuration
    with pytest.raises(UsageError, match="query-description"):
        bind_plan(again, SCHEMA)
    with pytest.raises(UsageError, match="query-description"):
        plan_from(plan.name, state)
    assert plan_from(plan.name, state, values=False).tables == plan.tables


def test_a_generator_of_the_users_is_stored_by_its_name() -> None:
    class Wise:
        def read(self, events: pa.Table, now_us: int, *, source: str, by: str | None = None) -> Any:
            raise NotImplementedError

    again = description_of(configuration_of(windows(stream().watermark(Wise())).graph.description))
    assert again.watermarks is not None
    generator = again.watermarks.generator
    assert isinstance(generator, OwnGenerator)
    assert generator.name.endswith("Wise")
    with pytest.raises(UsageError, match="query-description"):
        generator.read(SCHEMA.empty_table(), 0, source="input")


LIES: dict[str, dict[str, Any]] = {
    "kind": {"kind": "os.system"},
    "no kind": {"kind": None},
    "unknown setting": {"import": "os"},
    "function": {"aggregates": {"n": {"kind": "plain", "function": "eval"}}},
    "functions": {"aggregates": {"n": {"kind": "apply_rows", "function": "apply_rows", "functions": "os:system"}}},
    "generator": {"watermark": {"generator": {"kind": "os"}, "sources": {"names": ["input"]}}},
    "endless windows": {"window": {"kind": "sliding", "size_us": 10, "slide_us": 0}},
    "no aggregate": {"aggregates": {}},
    "column": {"key": ["nobody"]},
}


@pytest.mark.parametrize("name", LIES)
def test_what_no_job_writes_is_damage(name: str) -> None:
    plan, state = stored(windows().graph.description, SCHEMA)
    forged = msgspec.structs.replace(state, configuration=state.configuration | LIES[name])
    with pytest.raises(CorruptionError, match="manifest-damaged"):
        plan_from(plan.name, forged)
