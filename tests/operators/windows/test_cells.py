"""Sessions that wait in parts give what sessions that are kept whole give, and what the naive twin says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as run_settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.internals import stepped
from tests.helpers.pane_checks import check_panes
from tests.helpers.process import LONG
from tests.twins import ordered_streams as streams
from tests.twins.general_streams import plain, sensible
from tests.twins.ordered import Message, OrderedSetting, OrderedTwin
from tests.twins.ordered_checks import LIMITS, NAMES, RESTARTS, SOME, check_run, patient
from tests.twins.ordered_strategies import Step
from tests.twins.ordered_streams import COMPUTED, description, schema
from tests.twins.words import EACH_BATCH, FOREVER, Row, Trigger, session
from tidestate import agg
from tidestate.operators.bind.operator import bind_plan
from tidestate.operators.describe.triggers import Trigger as RealTrigger
from tidestate.operators.plan.classify import classify
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.operators.windows import session_slices
from tidestate.operators.windows.plan import WindowPlan
from tidestate.operators.windows.session_slices import live_parts
from tidestate.operators.windows.stored_windows import answer_schema, stored_groups, windows_stored
from tidestate.statestore.errors import of_type
from tidestate.statestore.spec.changes import Applied
from tidestate.statestore.spec.store import StoreName
from tidestate.statestore.stores.memory import MemoryStore, MemoryTable

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
RUNS = run_settings(max_examples=run_settings.default.max_examples if LONG else 4)
NOT_MOVED = BEGINNING_US
"""The watermark after a batch that does not move it."""
LATE = [EACH_BATCH, EACH_BATCH, None, Trigger("after_count", 2), Trigger("every_processing_time", 4)]


class Steps:
    """A plan with its state, watermark and ledger, step by step."""

    def __init__(self, plan: WindowPlan) -> None:
        self.plan, self.store = plan, MemoryStore(plan.tables)
        self.watermark, self.now, self.number = BEGINNING_US, 0, 0
        self.late: list[pa.Table] = []
        self.fed = 0

    def take(
        self, events: pa.Table, after: int | None = None, now: int | None = None, *, reprocessing: bool = False
    ) -> pa.Table:
        before, was = self.watermark, self.now
        self.watermark, self.now = max(before, before if after is None else after), max(was, now or 0)
        plan = replace(self.plan, rows_are="ledger") if reprocessing else self.plan
        admitted = classify(plan, events, Context.between(before, before, was, was), 1)
        if admitted.rejected is not None:
            self.late.append(admitted.rejected)
        context = Context.between(before, self.watermark, was, self.now)
        moved = stepped(plan, self.store, admitted.partials[0], context)
        self.number += 1
        self.store.apply(moved.changes, Applied(self.number, str(self.number)))
        assert all(end > self.watermark for (end,) in plain(self.parts().select(["window_end"])))
        return moved.panes

    def parts(self) -> pa.Table:
        """By key and cell, those of carried events and of its own combined."""
        rows = live_parts(self.plan, self.store, self.watermark)
        number = rows["_cell"].to_numpy() >> 1
        return (
            rows.set_column(0, "_cell", pa.array(number))
            .group_by(["_cell", *self.plan.group_keys])
            .aggregate([("window_end", "max")])
            .rename_columns(["_cell", *self.plan.group_keys, "window_end"])
        )

    def reprocess(self) -> pa.Table:
        fed, self.fed = self.late[self.fed :], len(self.late)
        back = [rows.filter(pa.compute.equal(rows["reason"], "very_late")) for rows in fed]
        return self.take(pa.concat_tables([self.plan.late_schema.empty_table(), *back]), reprocessing=True)

    def restart(self, plan: WindowPlan) -> None:
        """Into another store from a snapshot, under a plan with other triggers."""
        store = MemoryStore(plan.tables)
        schemas = {spec.name: spec.schema for spec in plan.tables}
        rows = {
            name: [evolved(batch, schemas[name]) for batch in found] for name, found in self.store.snapshot().items()
        }
        store.load(rows, self.store.applied, self.store.expired)
        self.plan, self.store = plan, store

    def groups(self, watermark: int | None) -> list[pa.Table]:
        return [self.plan.groups.schema.empty_table(), *stored_groups(self.plan, self.store, watermark)]

    def windows(self) -> list[tuple[Any, ...]]:
        watermark = None if self.watermark == BEGINNING_US else self.watermark
        found = pa.concat_tables(
            [answer_schema(self.plan).empty_table(), *windows_stored(self.plan, self.store, watermark)]
        )
        return plain(found.select(found.column_names[:-2]))


def evolved(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """With the columns of other triggers."""
    columns = [rows[f.name] if f.name in rows.column_names else pa.nulls(rows.num_rows, f.type) for f in schema]
    return pa.table(columns, schema=schema)


@st.composite
def session_settings(draw: st.DrawFn) -> OrderedSetting:
    allowed = draw(st.sampled_from([0, 0, 2, 5, 30]))
    setting = OrderedSetting(
        session(draw(st.sampled_from([1, 2, 3, 4, 7, 20]))),
        allowed=allowed,
        rule=draw(st.sampled_from(["event", "window"])),
        on_time=draw(st.sampled_from(["always", "always", "non_empty", "never"])),
        late=draw(st.sampled_from(LATE)),
        closing=draw(st.sampled_from(["never", "if_new", "if_new", "always"])),
        only_updated=draw(st.sampled_from([False, False, True])),
        mode=draw(st.sampled_from(["accumulating", "discarding", "retracting"])),
        key=draw(st.sampled_from([("k",), ("k",), ("k",), ()])),
        retain=draw(st.sampled_from([None, None, allowed + 4, 1000])),
    )
    if setting.rule == "window":  # then a retained session and a later one may overlap
        setting = replace(setting, retain=None)
    clock = setting.late is not None and "processing" in setting.late.kind
    setting = replace(setting, closing="if_new") if clock and setting.closing == "never" else setting
    return sensible(setting)  # type: ignore[return-value]


@st.composite
def session_histories(draw: st.DrawFn, *, back: bool = True) -> list[Step]:
    """Events mostly at or ahead of the watermark, some far ahead, some late; small and large steps of it."""
    base, clock, steps = draw(st.sampled_from([-12, 0, 1000])), 0, []
    kinds = ["feed"] * 6 + ["W"] * 6 + ["P"] + ["back"] * (2 if back else 0)
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=draw(st.sampled_from([0, 8, 14])), max_size=24)):
        if kind == "feed":
            ahead = st.sampled_from([*range(-3, 9), *range(12), -6, -9, 15, 20, 40])
            keys = st.sampled_from(["a"] * 6 + ["b", "é"])
            drawn = draw(st.lists(st.tuples(ahead, keys, st.integers(-3, 3) | st.none()), max_size=6))
            moves = draw(st.sampled_from([None, None, 0, 1, 2, 5, 12]))
            events = tuple(Message(base + time, key, value) for time, key, value in drawn)
            base += moves or 0
            steps.append(Step(kind, events, NOT_MOVED if moves is None else base))
        elif kind == "W":
            base += draw(st.sampled_from([0, 1, 1, 2, 3, 5, 9, 25]))
            steps.append(Step(kind, time=base))
        elif kind == "P":
            clock += draw(st.sampled_from([1, 3, 4, 9]))
            steps.append(Step(kind, time=clock))
        else:
            steps.append(Step(kind))
    return steps


def planned(setting: OrderedSetting, aggregates: str) -> WindowPlan:
    return of_type(bind_plan(description(setting, aggregates).graph.description, schema(setting)), WindowPlan)


def whole(plan: WindowPlan) -> WindowPlan:
    """The same plan with a trigger for which it looks at sessions before their end, and which never fires."""
    never = RealTrigger("every_processing_time", span_us=2**60)
    return replace(plan, triggers=type(plan.triggers)(**{**vars_of(plan.triggers), "early": never}))


def vars_of(triggers: Any) -> dict[str, Any]:
    return {name: getattr(triggers, name) for name in triggers.__struct_fields__}


def played(steps: Steps, setting: OrderedSetting, step: Step) -> pa.Table:
    nothing = streams.arrow(setting, [])
    if step.kind == "feed":
        return steps.take(streams.arrow(setting, step.events), step.time)
    if step.kind == "W":
        return steps.take(nothing, step.time)
    return steps.take(nothing, now=step.time) if step.kind == "P" else steps.reprocess()


def twin_played(twin: OrderedTwin, step: Step) -> list[Row]:
    if step.kind == "feed":
        return twin.batch(step.events, None if step.time == NOT_MOVED else step.time)
    if step.kind == "back":
        return twin.reprocess_late(None)
    return twin.batch([], now=step.time) if step.kind == "P" else twin.batch([], step.time)


def rows_of(setting: OrderedSetting, panes: pa.Table) -> list[Row]:
    keys = 2 + len(setting.key)
    return [Row(row[0], row[1], row[2:keys], row[keys:-4], *row[-4:]) for row in plain(panes)]


@pytest.mark.slow
@RUNS
@given(
    setting=session_settings(),
    history=session_histories(),
    aggregates=st.sampled_from(["values", "largest"]),
    switches=st.frozensets(st.integers(0, 20), max_size=4),
    looks=st.sampled_from([0, 1, 8, 1000]),
)
def test_every_step_equals_the_twins(
    setting: OrderedSetting, history: list[Step], aggregates: str, switches: frozenset[int], looks: int
) -> None:
    """Also where a restart switches between parts and whole sessions, and whether parts ahead are scanned or not."""
    plan = planned(setting, aggregates)
    assert plan.lazy
    assert not whole(plan).lazy
    real, twin = Steps(plan), OrderedTwin(setting, COMPUTED[aggregates])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session_slices, "LOOK_UP", looks)
        for number, step in enumerate(history):
            if number in switches:
                real.restart(whole(plan) if real.plan.lazy else plan)
            check_panes(setting, rows_of(setting, played(real, setting, step)), twin_played(twin, step), step)
            width = 2 + len(setting.key) if setting.mode == "discarding" else None
            expected = [(start, end, *key, *values)[:width] for start, end, key, values in twin.live_windows()]
            assert sorted((row[:width] for row in real.windows()), key=str) == sorted(expected, key=str)
        found = rows_of(setting, real.take(streams.arrow(setting, []), END_US))
        check_panes(setting, found, twin.batch([], FOREVER), "finish")


@pytest.mark.slow
@patient
@SOME
@given(setting=session_settings(), history=session_histories(), name=NAMES, limits=LIMITS, restarts=RESTARTS)
@pytest.mark.long
def test_every_store_and_restart(
    setting: OrderedSetting, history: list[Step], name: StoreName, limits: tuple[int, int], restarts: frozenset[int]
) -> None:
    check_run(setting, tuple(history), "values", name, 2, limits, restarts)


# What is not kept in parts


ORDER_SCHEMA = pa.schema([("time", pa.timestamp("us", "UTC")), ("by", pa.int64()), ("v", pa.int64())])
GROW = [agg.list("v"), agg.sorted_list("v"), agg.set("v"), agg.median("v"), agg.count_distinct("v")]
SEE_ORDER = [
    agg.first("v", by="by"),
    agg.last("v", by="by"),
    agg.arg_min("v", by="by"),
    agg.top_n("v", 2, by="by"),
    agg.latest("v"),
]


@pytest.mark.parametrize("kept", [*GROW, *SEE_ORDER])
def test_states_that_grow_or_see_the_order_are_kept_whole(kept: Any) -> None:
    described = ts.stream(event_time="time").group_by().window(ts.sessions("5 seconds")).aggregate(kept=kept)
    assert not of_type(bind_plan(described.graph.description, ORDER_SCHEMA), WindowPlan).lazy


@pytest.mark.parametrize("looks", [0, 1000])
def test_look_ups_are_of_keys_that_are_due(looks: int) -> None:
    """A gap far longer than a batch: most sessions go on, and are not read."""
    described = ts.stream(event_time="time").group_by("by").window(ts.sessions("30 seconds")).aggregate(n=agg.count())
    steps, asked = (
        Steps(
            of_type(bind_plan(described.allowed_lateness("0 seconds").graph.description, ORDER_SCHEMA), WindowPlan)
        ),
        [],
    )
    lookup, ranges = MemoryTable.lookup, MemoryTable.ranges
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session_slices, "LOOK_UP", looks)
        patch.setattr(MemoryTable, "lookup", lambda table, keys: asked.append(keys.num_rows) or lookup(table, keys))
        patch.setattr(MemoryTable, "ranges", lambda table, keys: asked.append(keys.num_rows) or ranges(table, keys))
        chance, panes, due_rows = np.random.default_rng(1), 0, 0
        for batch in range(40):
            times = batch * 1_000_000 + np.sort(chance.integers(0, 1_000_000, 20))
            rows = pa.table([times, chance.integers(0, 1000, 20), np.zeros(20, np.int64)], schema=ORDER_SCHEMA)
            ends = steps.parts()["window_end"].cast(pa.int64())
            due = ends.filter(pa.compute.less_equal(ends, batch * 1_000_000))
            panes, due_rows = panes + steps.take(rows, batch * 1_000_000).num_rows, due_rows + len(due)
    assert panes
    assert sum(asked) <= (due_rows if looks == 0 else 0)
