"""An operator of no kind that the product has: tables, panes, what is too late, and a step are enough to run it."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.every_store import STORES, new_folder, store_config
from tests.helpers.process import LONG
from tidestate.operators.describe.configuration import configuration_of
from tidestate.operators.engine.driver import Driver
from tidestate.operators.engine.job import Job, Position
from tidestate.operators.engine.tasks import Batches, InProcess
from tidestate.operators.plan.graph import single_operator
from tidestate.operators.plan.input_spec import InputSpec
from tidestate.operators.plan.plan import Plan
from tidestate.operators.plan.transition import Timer, Transition
from tidestate.operators.progress.generators import MaxEventTime
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import BEGINNING_US, Watermarks
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import InputPosition
from tidestate.statestore.arrays import Flags, Times
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.store import StateView, StoreConfig, StoreName
from tidestate.statestore.spec.tables import TIME, Column, TableSpec

SCHEMA = pa.schema([("t", TIME), ("k", pa.string()), ("v", pa.int64())])
DELAY_US = 10
# What is stored in a manifest is a description of a kind that there is.
STORED = configuration_of(ts.stream(event_time="t").deduplicate("k", name="totals").graph.description)
Row = tuple[int, str, int]


@dataclass(frozen=True, kw_only=True)
class ClosingBalances(Plan):
    """The sum of ``v`` of each key, emitted once the watermark has passed the time of its first row."""

    @cached_property
    def open_(self) -> TableSpec:
        """Balances by when they are due."""
        key = (Column("due", "int64"), *self.input.key_specs)
        return TableSpec("open", key, (Column("sum", "int64", "", "sum"),), "due", partition_by=("k",))

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return (self.open_,)

    @property
    def pane_schema(self) -> pa.Schema:
        return pa.schema([("due", pa.int64()), ("k", pa.string()), ("sum", pa.int64())])

    def too_late(self, events: pa.Table, times: Times, watermark: int) -> Flags:
        return times < watermark

    def timers(self, context: Context) -> tuple[Timer, ...]:
        return (Timer("open", "due"),)

    def expiry(self, context: Context) -> dict[str, int]:
        return {} if context.watermark == BEGINNING_US else {"open": context.watermark}

    def step(self, view: StateView, arriving: pa.Table, context: Context) -> Transition:
        """Rows of a decade are one balance, due at its end."""
        ends = (arriving["t"].cast(pa.int64()).to_numpy() // 10 + 1) * 10
        new = pa.table({"due": ends, "k": arriving["k"], "sum": arriving["v"]}, schema=self.pane_schema)
        new = new.group_by(["due", "k"]).aggregate([("sum", "sum")]).rename_columns(["due", "k", "sum"])
        whole = pa.concat_tables([*view["open"].scan(), new]).group_by(["due", "k"]).aggregate([("sum", "sum")])
        whole = whole.rename_columns(["due", "k", "sum"]).sort_by([("due", "ascending"), ("k", "ascending")])
        due = whole.filter(pc.less_equal(whole["due"], context.watermark))
        changes = {"open": TableChanges(merge=new.filter(pc.greater(new["due"], context.watermark)))}
        return Transition(changes, due.cast(self.pane_schema), {"closed": due.num_rows} if due.num_rows else {})


def operator() -> ClosingBalances:
    source = Watermarks(MaxEventTime("t", DELAY_US))
    spec = InputSpec(schema=SCHEMA, event_time="t", key=(SCHEMA.field("k"),), watermarks=source)
    return ClosingBalances(name="totals", input=spec, configuration=STORED)


def started(root: Path, store: StoreConfig, partitions: int) -> Driver[Batches, pa.Table]:
    job = Job.begin(single_operator(operator()), Checkpoint.open_or_create(str(root)), store, partitions=partitions)
    return Driver(job, InProcess())


def rows_of(batch: list[Row]) -> pa.Table:
    times, keys, values = zip(*batch, strict=True) if batch else ((), (), ())
    return pa.table([pa.array(times, pa.int64()).cast(TIME), pa.array(keys), pa.array(values)], schema=SCHEMA)


def naive(batches: list[list[Row]]) -> tuple[list[list[tuple[int, str, int]]], int]:
    """The balances that each batch closes, and the end of the input those that are left; how many rows were late."""
    sums: dict[tuple[int, str], int] = {}
    closed, late, newest = [], 0, None
    for batch in batches:
        mark = None if newest is None else newest - DELAY_US
        for time, key, value in batch:
            if mark is not None and time < mark:
                late += 1
                continue
            due = (time // 10 + 1) * 10, key
            sums[due] = sums.get(due, 0) + value
            newest = time if newest is None else max(newest, time)
        now = -1 if newest is None else newest - DELAY_US
        closed.append(sorted((*due, sums.pop(due)) for due in list(sums) if due[0] <= now))
    return [*closed, sorted((*due, value) for due, value in sums.items())], late


def emitted(panes: pa.Table) -> list[tuple[int, str, int]]:
    return sorted(tuple(row.values()) for row in panes.to_pylist())


BATCHES = st.lists(
    st.lists(st.tuples(st.integers(0, 80), st.sampled_from("abcd"), st.integers(-5, 5)), max_size=6), max_size=5
)


@settings(max_examples=600 if LONG else 24)
@given(
    store=st.sampled_from(STORES),
    batches=BATCHES,
    partitions=st.sampled_from([1, 3]),
    restarts=st.sets(st.integers(0, 4)),
)
def test_it_runs_and_restarts(
    store: StoreName, batches: list[list[Row]], partitions: int, restarts: set[int]
) -> None:
    with new_folder() as folder:
        check(folder / "root", store_config(store, folder, (2, 1 << 20)), batches, partitions, restarts)


def check(root: Path, config: StoreConfig, batches: list[list[Row]], partitions: int, restarts: set[int]) -> None:
    driver = started(root, config, partitions)
    found = []
    for number, batch in enumerate(batches):
        if number in restarts:
            driver = started(root, config, partitions)
        position = Position(input=InputPosition(number + 1, ""))
        published = driver.batch([{"input": rows_of(batch)}], 0, lambda _id, position=position: position)
        found.append(emitted(driver.rows(published)))
    driver.drain()
    found.append(emitted(driver.rows(driver.head)))
    expected, late = naive(batches)
    assert found == expected
    assert driver.head.totals.get("very_late", 0) == late
    assert driver.head.totals.get("closed", 0) == sum(map(len, expected))


def test_it_is_sent_to_tasks() -> None:
    assert pickle.loads(pickle.dumps(operator())) == operator()


def test_it_is_held_to_what_the_engine_asks_for() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Plan(name="nothing", input=operator().input, configuration=STORED)  # type: ignore[abstract]
    assert np.array_equal(operator().needed_until(rows_of([(1, "a", 1)])), [np.iinfo(np.int64).max])
