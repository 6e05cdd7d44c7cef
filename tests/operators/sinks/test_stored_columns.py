"""The columns that a sink stores, under names of the target: nobody has to guess what a row is."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.memory_broker import Broker
from tests.helpers.memory_broker import broker as broker
from tests.helpers.process import some
from tests.helpers.targets import CASES, Target, target_of
from tests.servers.postgres import postgres as postgres
from tidestate import agg
from tidestate.operators import DeliveryId
from tidestate.operators.describe.sinks import Emitted
from tidestate.operators.sinks.forms import Form
from tidestate.operators.sinks.included import IncludedSink
from tidestate.operators.sinks.kafka import KafkaSink
from tidestate.operators.sinks.parquet import ParquetSink
from tidestate.operators.sinks.stored_columns import stored_columns
from tidestate.statestore.errors import UsageError

TIME = pa.timestamp("us", "UTC")
BATCH = pa.table({"t": pa.array([1, 2, 60_000_000], TIME), "k": ["a", "a", "b"]})
RUN = "f" * 32
Row = tuple[Any, ...]


def panes(*rows: tuple[str, int, str, int]) -> pa.Table:
    """Rows (key, pane, kind, value) of one window."""
    names = ("k", "pane", "kind", "n")
    columns = {name: [row[number] for row in rows] for number, name in enumerate(names)}
    times = [pa.array([end] * len(rows), TIME) for end in (0, 9)]
    return pa.table({"window_start": times[0], "window_end": times[1], **columns})


DELIVERIES = [
    panes(("a", 0, "emit", 1), ("b", 0, "emit", 5)),
    panes(("a", 0, "retract", 1), ("a", 1, "emit", 2), ("b", 0, "retract", 5)),
]
WINDOW = {"window_start": "begins", "window_end": "ends"}
STORED: dict[Form, tuple[dict[str, str], tuple[str, ...], list[Row]]] = {
    # the columns, those that are compared, what the target has of them
    "append": (
        {"kind": "what", "n": "flights", "k": "airport"},
        ("airport", "what", "flights"),
        [("a", "emit", 1), ("b", "emit", 5), ("a", "retract", 1), ("a", "emit", 2), ("b", "retract", 5)],
    ),
    "changelog": (
        {**WINDOW, "k": "airport", "n": "flights", "change": "change"},
        ("airport", "change", "flights"),
        [
            ("a", "insert", 1),
            ("b", "insert", 5),
            ("a", "update_before", 1),
            ("a", "update_after", 2),
            ("b", "delete", 5),
        ],
    ),
    "upsert": ({"n": "flights", "k": "airport", **WINDOW}, ("airport", "flights"), [("a", 2)]),
}


def at(checkpoint: int) -> DeliveryId:
    return ts.DeliveryId(RUN, checkpoint)


ON_HOST = [case for case in CASES if case[0] != "kafka" and not case[0].endswith("_by_day")]
"""Without partitions, which are by columns that are not chosen here: those have `test_tables_have_their_own`."""


@pytest.fixture
def target(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    place = f"{request.getfixturevalue('postgres').uri}#{uuid.uuid4().hex}" if kind == "postgres" else tmp_path / "t"
    return target_of(f"{kind}:{place}")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "form"), some(ON_HOST, 6))
def test_a_target_has_the_chosen_columns_by_their_names_there(form: Form, target: Target) -> None:
    columns, names, wanted = STORED[form]
    for number, rows in enumerate(DELIVERIES, 1):
        target.sink(form, columns=columns)(rows, at(number))
    stored = target.table()
    assert stored.column_names == list(columns.values())
    assert sorted(tuple(row[name] for name in names) for row in stored.to_pylist()) == sorted(wanted)


@pytest.mark.parametrize("form", STORED)
def test_messages_have_the_chosen_columns(form: Form, broker: Broker) -> None:
    """Their keys too."""
    columns, names, wanted = STORED[form]
    sink = KafkaSink("", "panes", changes=form, key="k", columns=columns)
    for number, rows in enumerate(DELIVERIES, 1):
        sink(rows, at(number))
    key = {"airport"} if form == "append" else {"begins", "ends", "airport"}
    messages = {str(of) if form == "upsert" else number: row for number, (of, row, _) in enumerate(broker.rows())}
    assert all(set(of) == key for of, _, _ in broker.rows())
    assert [tuple(row[name] for name in names) for row in messages.values() if row is not None] == wanted


def test_a_list_keeps_the_names(tmp_path: Path) -> None:
    target = target_of(f"parquet:{tmp_path / 't'}")
    target.sink(columns=["n", "kind"])(DELIVERIES[0], at(1))
    assert target.table().to_pydict() == {"n": [1, 5], "kind": ["emit", "emit"]}


@pytest.mark.parametrize(
    "columns",
    ["n", [], {}, ["n", "n"], [1], {"n": ""}, {"n": None}, {"n": "x", "k": "X"}, ["n", "N"], 5, {"n"}],
)
def test_columns_that_no_target_can_have(columns: Any) -> None:
    with pytest.raises(UsageError, match="sink-columns"):
        stored_columns(columns, None)


def job(mode: Any) -> Any:
    described = ts.stream(event_time="t").group_by("k").window(ts.tumbling("9 seconds")).aggregate(n=agg.count())
    return described.allowed_lateness("1 hour").accumulation(mode)


LACKING: list[tuple[Form, Any, list[str], str]] = [
    ("append", "retracting", ["k", "n"], r"missing=\['kind'\]"),
    ("append", "accumulating", ["k", "total"], r"found=\['total'\]"),
    ("changelog", "retracting", ["window_start", "window_end", "k", "n"], r"missing=\['change'\]"),
    ("changelog", "retracting", ["window_start", "window_end", "k", "n", "kind"], r"found=\['kind'\]"),
    ("changelog", "retracting", ["window_end", "k", "change"], r"missing=\['window_start'\]"),
]


@pytest.mark.parametrize(("form", "mode", "columns", "wrong"), LACKING)
def test_a_job_does_not_start_where_nobody_could_tell_what_a_row_is(
    form: Form, mode: Any, columns: list[str], wrong: str, tmp_path: Path
) -> None:
    sink = ParquetSink(tmp_path / "t", changes=form, columns=columns)
    with pytest.raises(UsageError, match=rf"sink-columns.*{wrong}"):
        job(mode).standalone(checkpoint=tmp_path / "root", sink=sink).run([BATCH])
    assert not (tmp_path / "root").exists()


SINKS: list[Callable[..., IncludedSink]] = [
    lambda **more: target_of("delta:/tmp/never").sink("upsert", **more),
    lambda **more: target_of("postgres:postgresql://#t").sink("upsert", **more),
    lambda **more: KafkaSink("", "t", changes="upsert", key="k", **more),
    lambda **more: KafkaSink("", "t", key="k", **more),
]


EMITTED = Emitted("per_minute", DELIVERIES[0].schema, ("k",), withdraws=False)


@pytest.mark.parametrize("sink", SINKS)
def test_the_key_of_a_row_is_stored(sink: Callable[..., IncludedSink]) -> None:
    with pytest.raises(UsageError, match=r"sink-columns.*missing=\['k'\]"):
        sink(columns=["window_start", "window_end", "n"]).fit(EMITTED)


def test_a_job_that_never_retracts_may_leave_out_the_kind(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "t", columns={"k": "airport", "n": "flights"})
    job("accumulating").standalone(checkpoint=tmp_path / "root", sink=sink).run([BATCH], drain=True)
    stored = target_of(f"parquet:{tmp_path / 't'}").table()
    assert sorted(stored.to_pylist(), key=str) == [{"airport": "a", "flights": 2}, {"airport": "b", "flights": 1}]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "form"), some(ON_HOST, 4))
def test_each_row_has_the_id_of_its_delivery(form: Form, target: Target) -> None:
    """Next to the columns that were chosen; of an upsert that of the pane that stands."""
    columns, names, wanted = STORED[form]
    for number, rows in enumerate(DELIVERIES, 1):
        target.sink(form, columns=columns, delivery_column="delivery")(rows, at(number))
    stored = target.table()
    assert stored.column_names == [*columns.values(), "delivery"]
    first = 0 if form == "upsert" else 2
    ids = [str(at(1 if number < first else 2)) for number in range(len(wanted))]
    found = [tuple(row[name] for name in (*names, "delivery")) for row in stored.to_pylist()]
    assert sorted(found) == sorted((*row, of) for row, of in zip(wanted, ids, strict=True))


def test_a_message_has_the_id_of_its_delivery(broker: Broker) -> None:
    KafkaSink("", "panes", key="k", delivery_column="delivery")(DELIVERIES[0], at(1))
    assert [row["delivery"] for _, row, _ in broker.rows()] == [str(at(1))] * 2


@pytest.mark.parametrize(("form", "taken"), [("append", "n"), ("append", "Kind"), ("changelog", "change")])
def test_the_id_takes_no_column_of_a_pane(form: Form, taken: str, tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "t", changes=form, delivery_column=taken)
    with pytest.raises(UsageError, match="sink-columns"):
        job("retracting").standalone(checkpoint=tmp_path / "root", sink=sink).run([BATCH])
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("name", ["", 5])
def test_the_id_has_a_column_of_a_name(name: Any) -> None:
    with pytest.raises(UsageError, match="sink-columns"):
        stored_columns(None, name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "iceberg", "postgres"])
def test_a_table_gets_the_column_of_the_id_by_choice(kind: str, target: Target) -> None:
    """As any other column; rows of before have none."""
    target.sink()(DELIVERIES[0], at(1))
    with pytest.raises(UsageError, match="sink-target"):
        target.sink(delivery_column="delivery")(DELIVERIES[1], at(2))
    target.sink(schema="merge", delivery_column="delivery")(DELIVERIES[1], at(2))
    ids = target.table()["delivery"].to_pylist()
    assert sorted(ids, key=str) == sorted([None, None, *[str(at(2))] * 3], key=str)


def broken(_rows: pa.Table, _delivery: DeliveryId) -> None:
    raise RuntimeError("for good")


def test_arrears_have_the_names_of_today(tmp_path: Path) -> None:
    """Of keys, and of results however often they were renamed, also if another result has their first name by now."""
    root, wide = tmp_path / "root", ts.tumbling("1 second")
    by_k = ts.stream("s", event_time="t").group_by("k").window(wide)
    by_airport = ts.stream("s", event_time="t").group_by("airport").window(wide)
    with pytest.raises(RuntimeError, match="for good"):
        by_k.aggregate(a=agg.count()).standalone(checkpoint=root, sink=broken).run([BATCH])
    once = by_k.aggregate(b=agg.count()).renamed(aggregates={"a": "b"})
    with pytest.raises(RuntimeError, match="for good"):
        once.standalone(checkpoint=root, sink=broken).run([BATCH])
    twice = by_airport.aggregate(flights=agg.count(), a=agg.count_distinct("airport"))
    twice = twice.renamed(columns={"k": "airport"}, aggregates={"b": "flights"})
    sink = ParquetSink(tmp_path / "t", columns={"airport": "place", "flights": "total", "kind": "kind"})
    twice.standalone(checkpoint=root, sink=sink).run([BATCH.rename_columns(["t", "airport"])], drain=True)
    stored = target_of(f"parquet:{tmp_path / 't'}").table()
    assert sorted(stored.to_pylist(), key=str) == [
        {"place": "a", "total": 2, "kind": "emit"},
        {"place": "b", "total": 1, "kind": "emit"},
    ]


def test_arrears_of_a_result_that_is_gone_leave_its_name_to_another(tmp_path: Path) -> None:
    root, took = tmp_path / "root", list[pa.Table]()
    by_k = ts.stream("s", event_time="t").group_by("k").window(ts.tumbling("1 second"))
    with pytest.raises(RuntimeError, match="for good"):
        by_k.aggregate(n=agg.count(), m=agg.max("k")).standalone(checkpoint=root, sink=broken).run([BATCH])

    def taken(rows: pa.Table, _delivery: DeliveryId) -> None:
        took.append(rows)

    without, dropped = by_k.aggregate(n=agg.count()), ts.Policy(dropped="accept")
    with pytest.raises(RuntimeError, match="for good"):
        without.standalone(checkpoint=root, sink=broken, policy=dropped).run([BATCH])
    renamed = by_k.aggregate(m=agg.count()).renamed(aggregates={"n": "m"})
    renamed.standalone(checkpoint=root, sink=taken).run([BATCH])
    assert [(rows["m"].to_pylist(), "n" in rows.column_names) for rows in took] == [([2], False)]


def test_a_sink_that_was_fitted_to_one_job_fits_another(tmp_path: Path) -> None:
    """As a plan does, of a job that is changed before it starts; the key is that of the newest."""
    sink, events = ParquetSink(tmp_path / "t", changes="changelog"), ts.stream("s", event_time="t")
    for key in (["k"], ["k", "shop"], []):
        described = events.group_by(*key).window(ts.tumbling("1 second")).aggregate(n=agg.count())
        schema = BATCH.schema.append(pa.field("shop", pa.string()))
        runs = described.standalone(checkpoint=tmp_path / "root", sink=sink)
        assert ts.Root(tmp_path / "root").plan(runs, schema=schema).refusals == ()
        assert sink.key == tuple(key)


def test_late_arrears_have_the_names_of_today(tmp_path: Path) -> None:
    root, late = tmp_path / "root", BATCH.slice(0, 1)
    counted = ts.stream("s", event_time="t").group_by("k").window(ts.tumbling("1 second")).aggregate(n=agg.count())
    counted = counted.allowed_lateness("0 seconds")
    with pytest.raises(RuntimeError, match="for good"):
        counted.standalone(checkpoint=root, late_sink=broken).run([BATCH, late])
    took: list[pa.Table] = []

    def taken(rows: pa.Table, _delivery: DeliveryId) -> None:
        took.append(rows)

    renamed = ts.stream("s", event_time="time").group_by("airport").window(ts.tumbling("1 second"))
    renamed = renamed.aggregate(n=agg.count()).allowed_lateness("0 seconds")
    renamed = renamed.renamed(columns={"t": "time", "k": "airport"})
    again = [rows.rename_columns(["time", "airport"]) for rows in (BATCH, late)]
    renamed.standalone(checkpoint=root, late_sink=taken).run(again)
    assert [rows.select(["airport", "time"]).to_pylist() for rows in took] == [[again[1].to_pylist()[0]]]
