"""A description is the configuration in the manifest: stored as text and read again it is the same operator."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from tests.helpers import old_grammar as api
from tests.helpers.join_jobs import SCHEMA as JOINED
from tests.helpers.join_jobs import described as described_join
from tests.twins import general_streams, ordered_streams, streams
from tests.twins.join import Asked, Window
from tests.twins.ordered import OrderedSetting
from tests.twins.ordered_strategies import feeding_settings, inherited_settings, ordered_settings
from tidestate.operators.bind.evolve import new_operator
from tidestate.operators.bind.operator import bind_plan
from tidestate.operators.describe.configuration import configuration_of, description_of
from tidestate.operators.describe.merge import merge
from tidestate.operators.describe.runnable import Runnable, Sided
from tidestate.operators.describe.union import union
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
    wide = description.schema(*[schema] * len(description.sides.names)) if isinstance(description, Sided) else schema
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
    assert (again.watermarks, again.triggers, again.kind) == (plan.watermarks, plan.triggers, plan.kind)


@given(streams.settings())
def test_windows_of_a_fixed_size(setting: Any) -> None:
    check_same(streams.description(setting), streams.SCHEMA)


@given(general_streams.settings(), st.booleans())
def test_windows_of_any_kind(setting: Any, few: bool) -> None:
    check_same(general_streams.description(setting, general_streams.History(()), few), general_streams.SCHEMA)


@given(ordered_settings() | feeding_settings() | inherited_settings())
def test_windows_of_rows_in_order(setting: OrderedSetting) -> None:
    schema = pa.schema(ordered_streams.TYPES)
    try:
        description = ordered_streams.description(setting)
        bind_plan(description, schema)
    except UsageError:
        reject()  # settings are drawn one by one, and some are refused together
    check_same(description, schema)


BOUNDS = st.sampled_from([(-3, 3), (None, 4), (None, None)])
PAIR = st.sampled_from([(None, None), (8, 8), (30, None)])


@given(BOUNDS, PAIR, PAIR, st.booleans(), st.booleans(), st.sampled_from(["inner", "left", "full"]))
def test_joins_by_distance(bounds: Any, spans: Any, updates: Any, named: bool, large: bool, how: str) -> None:
    asked = Asked(how, *bounds, named=named, large=large, spans=spans, updates=updates, delays=(0, 3))
    check_same(described_join(asked), JOINED)


@given(st.sampled_from([Window(7, 7), Window(12, 4), Window(5, 5, True), None]), st.booleans(), st.booleans())
def test_joins_by_windows(window: Window | None, named: bool, in_order: bool) -> None:
    offset = window is not None and window.by_offset
    check_same(described_join(Asked(own=(window, Window(6, 6)), named=named or offset, in_order=in_order)), JOINED)
    if window is not None and not offset:
        check_same(described_join(Asked(window=window, named=named, first=in_order, past=(3, None))), JOINED)


def base(**options: Any) -> Any:
    return api.windowed(event_time="t", key="k", **options).window(api.tumbling("10 seconds"))


EVERY_AGGREGATE = {
    "n": api.count(),
    "s": api.sum_("d"),
    "m": api.mean("v"),
    "var": api.variance("v", population=True),
    "dev": api.stddev("d"),
    "l": api.list_("k"),
    "sl": api.sorted_list("k", by="v", descending=True),
    "q": api.quantile("v", 1.0, interpolation="lower"),
    "med": api.median("d"),
    "set": api.set_("t"),
    "cd": api.count_distinct("d"),
    "cv": api.count_by_value("k"),
    "top": api.top_n("k", 3, by="v", largest=False),
    "sk": api.count_distinct_approx("k", precision=11),
    "f": api.first("d", by="o"),
    "lt": api.latest("k"),
    "am": api.arg_max("k", by="t"),
}
CTIS = api.advance_time("drop", api.generation("10 s", "-1 us", final=True))
NAMED = {"a": CTIS, "b": api.advance_time("adjust", api.generation(3), "a")}
COMPOSITE = api.or_finally(
    api.repeatedly(api.any_of(api.after_count(3), api.after_processing_time("5 s"))), api.after_watermark()
)
DESCRIPTIONS: dict[str, Runnable] = {
    "every aggregate": base().aggregate(**EVERY_AGGREGATE).timestamps("end_of_window"),
    "composite trigger": base().aggregate(n=api.count()).trigger(when=COMPOSITE),
    "spans": base(watermark_delay="1 hour").aggregate(n=api.count()).late("1 day", keep=["v", "o"]).retain("2 days"),
    "gaps": base().window(api.session(gap_column="gap")).aggregate(n=api.count()),
    "punctuation": base().aggregate(n=api.count()).watermark(api.Punctuation("t", "k", equals="w")),
    "held future": base()
    .aggregate(n=api.count())
    .watermark(api.max_event_time("t", "1 s", hold_future="1 h"), by="k"),
    "idle": base()
    .aggregate(n=api.count())
    .watermark(api.fixed("2 s"), by="k", sources=["a"], idle_timeout="1 min", own_timeouts={"a": "1 h"}),
    "ingestion": api.windowed(event_time="at")
    .window(api.tumbling("1 s"))
    .aggregate(n=api.count())
    .watermark(api.IngestionTime("at")),
    "buffers": base().aggregate(n=api.count()).watermark(api.BufferProgress("o", "v", "t", patience="5 s")),
    "ctis": base(offset="o").aggregate(n=api.count()).advance_time(CTIS),
    "ctis of sources": base(offset="o")
    .aggregate(n=api.count())
    .advance_time(NAMED, at_source=CTIS, end="end", shape="interval", by="k", sources=["a", "b"]),
    "deduplicated": api.deduplicated(event_time="t", on=["k", "v"], within="3 days", in_order=True),
    "merge": merge(event_time="t", key="k", watermark_delay=["1 s", "2 s"])
    .window(api.session("3 s"))
    .aggregate(n=api.count())
    .cogroup(left="v", right="d"),
    "session join": api.session_join(event_time="t", on="k", gap="3 s", how="full", late="5 s"),
    "session join by a key of its own": api.session_join(
        event_time="t", on=["k", "v"], session="k", gap_column="gap", offset="o"
    ),
    "union": union(event_time="t", sides=["a", "b", "c"], watermark_delay="1 s"),
}


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_everything_else(name: str) -> None:
    check_same(DESCRIPTIONS[name])


def test_rows_that_take_others_back() -> None:
    schema = SCHEMA.append(pa.field("kind", pa.string()))
    plan, state = stored(base().aggregate(n=api.count(), l=api.list_("v")), schema, signed=True)
    again = plan_from(plan.name, state)
    assert (again.signed, again.tables, again.fingerprint) == (True, plan.tables, plan.fingerprint)


def own() -> Any:
    accumulated = api.accumulate(
        name="kept",
        columns=["v"],
        state={"total": pa.int64()},
        lift=len,  # type: ignore[arg-type]
        merge=len,  # type: ignore[arg-type]
        result=len,  # type: ignore[arg-type]
        result_type=pa.int64(),
    )
    return base().aggregate(a=accumulated, b=api.apply_rows(len, columns=["v"], result_type=pa.int64()))


def test_functions_are_not_stored() -> None:
    described = own()
    plan, state = stored(described, SCHEMA)
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

    again = description_of(configuration_of(base().aggregate(n=api.count()).watermark(Wise())))
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
    plan, state = stored(base().aggregate(n=api.count()), SCHEMA)
    forged = msgspec.structs.replace(state, configuration=state.configuration | LIES[name])
    with pytest.raises(CorruptionError, match="manifest-damaged"):
        plan_from(plan.name, forged)
