"""Durations are compared in every unit and store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.bundles import other_needs
from tests.helpers.process import few, in_turn
from tests.helpers.root_scans import scan_panes
from tidestate import agg
from tidestate.operators.aggregates.aggregate import Aggregate
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.inspect.query import query
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import IncompatibleError, UsageError
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB, StoreConfig
from tidestate.statestore.spec.tables import TIME

HOURLY = ts.stream(event_time="t").group_by().window(ts.tumbling("1 hour"))


def rows(unit: str, *pairs: tuple[int, int | None]) -> pa.Table:
    seconds, spans = zip(*pairs, strict=True)
    times = pa.array([second * 1_000_000 for second in seconds], TIME)
    return pa.table({"t": times, "d": pa.array(spans, pa.duration(unit))})


@pytest.mark.parametrize(
    ("unit", "store"), few(in_turn(("us", "s", "ms", "ns"), (Parquet(), Memory(), RocksDB())), 0, 3)
)
def test_extremes_of_durations(tmp_path: Path, unit: str, store: StoreConfig) -> None:
    job = (
        HOURLY.aggregate(least=agg.min("d"), most=agg.max("d"))
        .allowed_lateness("0 seconds")
        .standalone(checkpoint=tmp_path / "root", store=store)
    )
    job.run([rows(unit, (0, 5), (1, None)), rows(unit, (2, -3), (3, 9)), rows(unit, (4000, None))], drain=True)
    panes = scan_panes(tmp_path / "root").to_table()
    assert panes.schema.field("least").type == panes.schema.field("most").type == pa.duration(unit)
    assert panes["least"].cast(pa.int64()).to_pylist() == [-3, None]
    assert panes["most"].cast(pa.int64()).to_pylist() == [9, None]


EVENTS = [(0, "a", 5), (1, "b", None), (2, "c", -3), (3, None, 9), (4, "d", 9), (5, "e", 5), (6, "f", -3)]
COMPARING: dict[str, tuple[Aggregate, Any]] = {
    "earliest_d": (agg.first("v", by="d"), "c"),
    "latest_d": (agg.last("v", by="d"), "d"),
    "arg_min": (agg.arg_min("v", by="d"), "c"),
    "arg_max": (agg.arg_max("v", by="d"), "d"),
    "arg_max_d": (agg.arg_max("d", by="d"), 9),
    "top": (agg.top_n("d", 3), [9, 9, 5]),
    "bottom": (agg.top_n("d", 3, largest=False), [-3, -3, 5]),
    "top_by": (agg.top_n("v", 2, by="d"), ["d", "a"]),
    "bottom_by": (agg.top_n("v", 2, by="d", largest=False), ["c", "f"]),
    "sorted": (agg.sorted_list("d"), [-3, -3, 5, 5, 9, 9]),
    "sorted_by": (agg.sorted_list("v", by="d", descending=True), ["d", "a", "e", "c", "f"]),
    "set": (agg.set("d"), [-3, 5, 9]),
    "distinct": (agg.count_distinct("d"), 3),
    "about": (agg.count_distinct_approx("d"), 3),
    "by_value": (agg.count_by_value("d"), [(-3, 2), (5, 2), (9, 2)]),
    "middle": (agg.quantile("d", 0.5, interpolation="lower"), 5),
}
"""Each with its result over all events: of equals those that arrived first, the last one for `last`."""


def whole_numbers(kind: pa.DataType) -> pa.DataType:
    """The type with numbers for durations, in lists and maps too."""
    if pa.types.is_map(kind):
        return pa.map_(whole_numbers(kind.key_type), kind.item_type)
    if pa.types.is_list(kind):
        return pa.list_(whole_numbers(kind.value_type))
    return pa.int64() if pa.types.is_duration(kind) else kind


def of_events(unit: str, events: list[tuple[int, str | None, int | None]]) -> pa.Table:
    values = pa.array([value for _, value, _ in events], pa.string())
    return rows(unit, *((second, span) for second, _, span in events)).append_column("v", values)


def values_of(panes: pa.Table, name: str) -> list[Any]:
    column = panes[name]
    if pa.types.is_map(column.type):
        parts = [(column.chunk(0).keys, column.chunk(0).items)]
        return [list(zip(keys.cast(pa.int64()).to_pylist(), items.to_pylist(), strict=True)) for keys, items in parts]
    return column.cast(whole_numbers(column.type)).to_pylist()


@pytest.mark.parametrize(
    ("unit", "store"), few(in_turn(("us", "s", "ms", "ns"), (Parquet(), Memory(), RocksDB())), 0, 3)
)
def test_what_compares_durations(tmp_path: Path, unit: str, store: StoreConfig) -> None:
    job = HOURLY.aggregate(**{name: aggregate for name, (aggregate, _) in COMPARING.items()}).allowed_lateness(
        "0 seconds"
    )
    standalone = job.standalone(checkpoint=tmp_path / "root", store=store)
    standalone.run([of_events(unit, EVENTS[:3]), of_events(unit, EVENTS[3:])], drain=True)
    panes = scan_panes(tmp_path / "root").to_table()
    assert {name: values_of(panes, name) for name in COMPARING} == {
        name: [result] for name, (_, result) in COMPARING.items()
    }
    assert panes.schema.field("top").type == pa.list_(pa.duration(unit))
    assert panes.schema.field("by_value").type == pa.map_(pa.duration(unit), pa.int64())
    assert query(tmp_path / "root").get_windows().num_rows == 0


def test_rows_that_are_taken_back_and_stored_messages_are_compared_too() -> None:
    """Two windows of a minute have 5 and 7 at most; then the first has 9, and its 5 is taken back."""
    minutes = ts.stream(event_time="t").group_by().window(ts.tumbling("1 minute")).aggregate(d=agg.max("d"))
    inner = minutes.allowed_lateness("2 hours").accumulation("retracting").named("inner")
    hours = inner.group_by().window(ts.tumbling("1 hour"))
    outer = hours.aggregate(best=agg.top_n("d", 2), all=agg.sorted_list("d")).named("outer")
    both = outer.allowed_lateness("2 hours").accumulation("retracting")
    harness = both.harness(rows("s", (0, 1)).schema)
    harness.feed(rows("s", (0, 5), (61, 7), (4000, 1)))
    found = harness.feed(rows("s", (1, 9), (8000, 1))).slice(1, 1)
    assert (values_of(found, "best"), values_of(found, "all")) == ([[9, 7]], [[7, 9]])
    stored = HOURLY.aggregate(
        all=agg.sorted_list("d"), middle=agg.quantile("d", 0.5, interpolation="higher")
    ).allowed_lateness("0 seconds")
    schema = of_events("ms", EVENTS).append_column("id", pa.array(range(len(EVENTS)))).schema
    kept = stored.messages(identity="id", retain=ts.Retention(span="3600 seconds")).harness(schema)
    kept.feed(of_events("ms", EVENTS).append_column("id", pa.array(range(len(EVENTS)))))
    assert values_of(kept.finish(), "middle") == [5]


def test_a_column_of_durations_does_not_become_one_of_another_unit_or_of_numbers(tmp_path: Path) -> None:
    job = HOURLY.aggregate(best=agg.top_n("d", 2), at=agg.arg_max("t", by="d")).allowed_lateness("0 seconds")
    job.standalone(checkpoint=tmp_path).run([rows("s", (0, 5))])
    numbers = rows("s", (0, 5)).cast(pa.schema([("t", TIME), ("d", pa.int64())]))
    for changed in (rows("ms", (0, 5)), numbers):
        with pytest.raises(IncompatibleError, match="configuration-changed"):
            job.standalone(checkpoint=tmp_path).run([changed])
    assert other_needs(Checkpoint.open(tmp_path).chosen(None).manifest.needs) == ["duration-extremes/1"]


def test_what_has_no_order_says_what_to_do() -> None:
    columns = rows("us", (0, 1)).append_column("lists", [[[1]]])
    for aggregate in (agg.top_n("lists", 1), agg.arg_max("d", by="lists"), agg.set("lists")):
        with pytest.raises(UsageError, match="aggregate-type"):
            bind_graph(
                (HOURLY.aggregate(a=aggregate).allowed_lateness("0 seconds")).graph.description, columns.schema
            )
    with pytest.raises(UsageError, match="interpolation='lower'"):
        bind_graph(
            (HOURLY.aggregate(a=agg.quantile("d", 0.5)).allowed_lateness("0 seconds")).graph.description,
            columns.schema,
        )
