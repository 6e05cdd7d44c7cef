"""Rows that were combined before they are classified: the same partials, counters and claims as one by one."""

from __future__ import annotations

import random
from dataclasses import replace
from decimal import Decimal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tidestate as ts
from tidestate import agg, watermark
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.plan.classify import Classified, ahead_from, classify, classify_left_out, classify_sliced
from tidestate.operators.plan.plan import Plan
from tidestate.operators.plan.slicing import LeftOutRows, SlicedRows, Slicing
from tidestate.operators.progress.progress import Context
from tidestate.statestore.spec.tables import TIME
from tidestate.statestore.table.fold import combine

SCHEMA = pa.schema([("t", TIME), ("k", pa.string()), ("p", pa.int32()), ("v", pa.int64())])
WATERMARK_US = 130_500_000
WINDOWS = {"tumbling": ts.tumbling("1 minute"), "sliding": ts.sliding("1 minute", "15 seconds", offset="5 seconds")}


def plan_of(windows: str) -> Plan:
    read = ts.stream(event_time="t").watermark(watermark.bounded("5 seconds", "t"), by="p")
    counted = read.group_by("k").window(WINDOWS[windows])
    made = counted.aggregate(n=agg.count(), s=agg.sum("v"), x=agg.max("v")).allowed_lateness("40 seconds")
    return bind_graph(made.graph.description, SCHEMA).output


def rows_from(first_us: int) -> pa.Table:
    """Rows that no window refuses, on both sides of the watermark and in the future."""
    chance = random.Random(3)
    times = [chance.randrange(first_us, 2 * WATERMARK_US) for _ in range(300)]
    columns = [times, *([chance.choice(values) for _ in times] for values in ("abc", (1, 2), (-5, 3, 2**62)))]
    return pa.table([pa.array(column).cast(kind) for column, kind in zip(columns, SCHEMA.types, strict=True)], SCHEMA)


def combined(plan: Plan, rows: pa.Table, context: Context) -> SlicedRows:
    """As a reader combines them, by slice, key, source and side of the watermark."""
    slicing, ahead_us = plan.slicing, ahead_from(plan, context.watermark_before)
    assert isinstance(slicing, Slicing)
    assert ahead_us is not None
    groups: dict[tuple[object, ...], list[tuple[int, int]]] = {}
    for time, key, part, value in zip(*(rows.cast(_plain(rows)).to_pydict().values()), strict=True):
        start = (time - slicing.shift_us) // slicing.width_us * slicing.width_us + slicing.shift_us
        side = (time < context.watermark_before, time > ahead_us)
        groups.setdefault((start, key, part, side), []).append((time, value))
    times = [[time for time, _ in group] for group in groups.values()]
    values = [[value for _, value in group] for group in groups.values()]
    keys = {"k": [key[1] for key in groups], "p": pa.array([key[2] for key in groups], pa.int32())}
    sums = [sum(group) for group in values]
    totals = pa.array(map(Decimal, sums), pa.decimal128(38, 0))
    return SlicedRows(
        pa.table(keys),
        np.array([key[0] for key in groups]) + slicing.width_us,
        np.array([len(group) for group in times]),
        np.array([min(group) for group in times]),
        np.array([max(group) for group in times]),
        {"n": pa.array([len(group) for group in times]), "s": totals, "x": pa.array([max(g) for g in values])},
        np.array(sorted(time for group in times for time in group)),
    )


def _plain(rows: pa.Table) -> pa.Schema:
    return rows.schema.set(0, pa.field("t", pa.int64()))


def facts(plan: Plan, piece: Classified) -> list[object]:
    rows = combine(plan.exchanged, piece.partials.rows).to_pylist()
    return [rows, dict(piece.partials.counts).keys(), piece.counters, piece.claims]


@pytest.mark.parametrize("windows", WINDOWS)
def test_combined_rows_are_classified_as_one_by_one(windows: str) -> None:
    plan, context = plan_of(windows), Context.between(WATERMARK_US, WATERMARK_US)
    assert isinstance(plan.slicing, Slicing)
    rows = rows_from(plan.slicing.taken_from(WATERMARK_US))
    alone = classify(plan, rows, context, 3)
    assert alone.rejected is None
    assert {"mildly_late", "future", "on_time", "window_past", "window_future"} < alone.counters.keys()
    assert all(alone.counters[name] for name in ("mildly_late", "future", "on_time", "window_past", "window_future"))
    assert facts(plan, classify_sliced(plan, combined(plan, rows, context), context, 3)) == facts(plan, alone)


@pytest.mark.parametrize("windows", WINDOWS)
def test_a_row_before_the_first_bound_is_refused_by_a_window(windows: str) -> None:
    plan, context = plan_of(windows), Context.between(WATERMARK_US, WATERMARK_US)
    for rule in ("event", "window"):
        of_rule = replace(plan, rule=rule)
        assert isinstance(of_rule.slicing, Slicing)
        row = rows_from(of_rule.slicing.taken_from(WATERMARK_US) - 1).slice(0, 1)
        row = row.set_column(0, "t", pa.array([of_rule.slicing.taken_from(WATERMARK_US) - 1]).cast(TIME))
        assert classify(of_rule, row, context, 1).rejected is not None


def test_rows_that_are_left_out_are_classified_as_one_by_one() -> None:
    read = ts.stream(event_time="t").watermark(watermark.bounded("5 seconds", "t"), by="p").where("v = 7")
    made = read.group_by("k").window(ts.tumbling("1 minute")).aggregate(n=agg.count())
    plan = bind_graph(made.graph.description, SCHEMA).output
    context, slicing = Context.between(WATERMARK_US, WATERMARK_US), plan.slicing
    assert isinstance(slicing, Slicing)
    rows = rows_from(slicing.taken_from(WATERMARK_US))
    alone = classify(plan, rows, context, 3)
    times, sources = rows["t"].cast(pa.int64()).to_numpy(), rows["p"].to_numpy()
    of_sources = [times[sources == source] for source in (1, 2)]
    left_out = LeftOutRows(
        pa.table({"p": pa.array([1, 2], pa.int32())}),
        np.array([len(group) for group in of_sources]),
        np.array([group.min() for group in of_sources]),
        np.array([group.max() for group in of_sources]),
        times,
    )
    combined_rows = classify_left_out(plan, left_out, context)
    assert (
        {name: many for name, many in alone.counters.items() if many} == combined_rows.counters == {"filtered": 300}
    )
    assert not combined_rows.partials.rows.num_rows
    assert combined_rows.claims.newest_us == alone.claims.newest_us == times.max()
    assert combined_rows.claims.reports == alone.claims.reports
    assert combined_rows.claims.peak is not None
    assert alone.claims.peak is not None
    # Which row it was is known by its source alone.
    peaks = [msgspec.structs.replace(piece.claims.peak, event="") for piece in (combined_rows, alone)]
    assert peaks[0] == peaks[1]


def test_a_refused_row_takes_nothing_from_the_peak_of_the_others() -> None:
    read = ts.stream(event_time="t").watermark(watermark.bounded("5 seconds", "t"), by="p").expect("known", "v > 0")
    made = read.group_by("k").window(ts.tumbling("1 minute")).aggregate(n=agg.count())
    plan = bind_graph(made.graph.description, SCHEMA).output
    rows, context = rows_from(WATERMARK_US), Context.between(WATERMARK_US, WATERMARK_US)
    met = rows.filter(pc.greater(rows["v"], 0))
    assert 0 < met.num_rows < rows.num_rows
    pieces = [classify(plan, of_piece, context, 3) for of_piece in (rows, met)]
    assert pieces[0].rejected is not None
    assert pieces[0].claims.peak == pieces[1].claims.peak is not None
