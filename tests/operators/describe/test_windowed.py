"""What a user may write, and how each mistake is answered before anything has happened."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidestate as ts
from tidestate import Aggregation, GroupedStream, UsageError, agg
from tidestate.operators.bind.operator import bind_plan
from tidestate.operators.describe.configuration import configuration_of
from tidestate.operators.plan.plan import RESERVED, Plan
from tidestate.statestore.durations import span_us, text_of
from tidestate.stores import Memory
from tidestate.trigger import (
    after_count,
    after_watermark,
    any_of,
    every_event_time,
    every_processing_time,
    repeatedly,
)

SCHEMA = pa.schema(
    [
        ("t", pa.timestamp("us", tz="UTC")),
        ("k", pa.string()),
        ("j", pa.int64()),
        ("v", pa.int64()),
        ("x", pa.float64()),
        ("s", pa.string()),
        ("naive", pa.timestamp("us")),
        ("reason", pa.string()),
        ("b", pa.bool_()),
        ("l", pa.list_(pa.int64())),
    ]
)


def grouped(key: str | list[str] = "k", **changes: Any) -> GroupedStream:
    return ts.stream(**{"event_time": "t"} | changes).group_by(key)


def whole(key: str | list[str] = "k", event_time: str = "t", **results: Any) -> Aggregation:
    windows = grouped(key, event_time=event_time).window(ts.tumbling("1 minute"))
    return windows.aggregate(**{"n": agg.count()} | results)


def bound(job: Aggregation, schema: pa.Schema = SCHEMA) -> Plan:
    return bind_plan(job.graph.description, schema)


DESCRIBING: dict[str, tuple[Callable[[], Any], str]] = {
    "key twice": (lambda: whole(key=["k", "k"]), "key-columns"),
    "key is event time": (lambda: whole(key=["k", "t"]), "key-columns"),
    "negative delay": (lambda: ts.stream(watermark_delay="-1 seconds"), "watermark-delay"),
    "delay is no span": (lambda: ts.stream(watermark_delay="soon"), "span"),
    "delay is a number": (lambda: ts.stream(watermark_delay=5), "span"),  # type: ignore[arg-type]
    "empty name": (lambda: whole().named(""), "operator-name"),
    "name with a slash": (lambda: whole().named("a/b"), "operator-name"),
    "name leads out": (lambda: whole().named(".."), "operator-name"),
    "not a window": (lambda: grouped().window("10 minutes"), "window"),  # type: ignore[arg-type]
    "size 0": (lambda: ts.tumbling("0 seconds"), "window-size"),
    "size below 0": (lambda: ts.tumbling("-5 minutes"), "window-size"),
    "slide 0": (lambda: ts.sliding("5 minutes", "0 seconds"), "window-size"),
    "slide below 0": (lambda: ts.sliding("5 minutes", "-1 minutes", strict=False), "window-size"),
    "slide does not divide": (lambda: ts.sliding("5 minutes", "2 minutes"), "window-slide"),
    "slide beyond size": (lambda: ts.sliding("5 minutes", "10 minutes"), "window-slide"),
    "not an aggregate": (lambda: whole(n="count"), "aggregate"),
    "aggregate not called": (lambda: whole(n=agg.count), "aggregate"),
    "aggregate twice": (lambda: whole().aggregate(n=agg.count("v")), "group-by"),
    "negative lateness": (lambda: whole().allowed_lateness("-1 seconds"), "lateness"),
    "negative tolerance": (
        lambda: whole().allowed_lateness("1 second", future_tolerance="-1 seconds"),
        "lateness",
    ),
    "other rule": (lambda: whole().allowed_lateness("1 second", rule="none"), "late-rule"),  # type: ignore[arg-type]
    "late by event time": (lambda: whole().trigger(late=every_event_time("1 second")), "trigger"),
    "composite as early": (lambda: whole().trigger(early=repeatedly(after_count(2))), "trigger"),
    "composite and early": (lambda: whole().trigger(early=after_count(2), when=after_watermark()), "trigger-when"),
    "composite of a span": (lambda: repeatedly(every_processing_time("1 second")), "trigger-parts"),
    "empty composite": (lambda: any_of(), "trigger-parts"),
    "no such choice": (lambda: whole().trigger(on_time="sometimes"), "trigger"),  # type: ignore[arg-type]
    "no such closing": (lambda: whole().trigger(closing="yes"), "trigger"),  # type: ignore[arg-type]
    "count of nothing": (lambda: after_count(0), "trigger-count"),
    "span of nothing": (lambda: every_processing_time("0 seconds"), "trigger-span"),
    "no gap": (lambda: ts.sessions(), "session-gap"),
    "two gaps": (lambda: ts.sessions("1 second", gap_column="g"), "session-gap"),
    "negative gap": (lambda: ts.sessions("-1 second"), "session-gap"),
    "count window of none": (lambda: ts.count_windows(0), "window-count"),
    "count window that stands": (lambda: ts.count_windows(2, 0), "window-count"),
    "other mode": (lambda: whole().accumulation("both"), "accumulation"),  # type: ignore[arg-type]
    "no room for files": (lambda: Memory(max_levels=1), "store-levels"),
    "no snapshots": (lambda: Memory(snapshot_bytes=0), "store-snapshots"),
}
BINDING: dict[str, tuple[Callable[[], Aggregation], str]] = {
    "no window": (lambda: grouped().aggregate(n=agg.count()), "no-window"),
    "no aggregate": (lambda: grouped().window(ts.tumbling("1 minute")).aggregate(), "no-aggregate"),
    "no event time": (lambda: whole(event_time="when"), "column-missing"),
    "no key column": (lambda: whole(key="user"), "column-missing"),
    "no column to aggregate": (lambda: whole(m=agg.sum("amount")), "column-missing"),
    "no column to keep": (lambda: whole().allowed_lateness("1 second", ledger_columns=["id"]), "column-missing"),
    "event time is a number": (lambda: whole(event_time="v"), "event-time-type"),
    "event time without zone": (lambda: whole(event_time="naive"), "event-time-type"),
    "float key": (lambda: whole(key="x"), "key-float"),
    "list key": (lambda: whole(key="l"), "key-type"),
    "sum of text": (lambda: whole(m=agg.sum("s")), "aggregate-type"),
    "mean of a flag": (lambda: whole(m=agg.mean("b")), "aggregate-type"),
    "sum of times": (lambda: whole(m=agg.sum("naive")), "aggregate-type"),
    "smallest list": (lambda: whole(m=agg.min("l")), "aggregate-type"),
    "largest list": (lambda: whole(m=agg.max("l")), "aggregate-type"),
    "aggregate named like the key": (lambda: whole(k=agg.sum("v")), "name-taken"),
    "aggregate named like a mean's part": (lambda: whole(m=agg.mean("v"), m_sum=agg.sum("v")), "name-taken"),
    "ledger column as key": (lambda: whole(key="reason"), "name-taken"),
    "ledger column kept": (lambda: whole().allowed_lateness("1 second", ledger_columns=["reason"]), "name-taken"),
}


@pytest.mark.parametrize(("wrong", "code"), DESCRIBING.values(), ids=DESCRIBING.keys())
def test_a_mistake_is_answered_where_it_is_made(wrong: Callable[[], Any], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        wrong()
    assert caught.value.code == code


@pytest.mark.parametrize(("wrong", "code"), BINDING.values(), ids=BINDING.keys())
def test_a_mistake_is_answered_when_the_input_is_known(wrong: Callable[[], Aggregation], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        bound(wrong())
    assert caught.value.code == code


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_names_of_our_own_columns_are_reserved(name: str) -> None:
    with pytest.raises(UsageError, match="name-taken"):
        bound(whole(**{name: agg.count()}))
    with pytest.raises(UsageError, match="name-taken"):
        bound(whole(key=name), SCHEMA.append(pa.field(name, pa.int64())) if name != "reason" else SCHEMA)


INTERNAL = ("__row", "__ask", "__found", "__window")


@pytest.mark.parametrize("name", INTERNAL)
def test_names_of_columns_that_come_and_go_are_reserved(name: str) -> None:
    with pytest.raises(UsageError, match="name-taken"):
        bound(whole(key=name), SCHEMA.append(pa.field(name, pa.int64())))


def test_the_whole_difference_is_named() -> None:
    with pytest.raises(UsageError) as caught:
        bound(whole(key=["user", "k"], m=agg.sum("amount")))
    assert caught.value.context == {"missing": ["user", "amount"], "columns": SCHEMA.names}


def test_a_trigger_that_is_text() -> None:
    with pytest.raises(UsageError, match="trigger"):
        whole().trigger(when="often")  # type: ignore[arg-type]


def test_one_column_to_keep_may_be_named_alone() -> None:
    kept = configuration_of(whole().allowed_lateness("1 second", ledger_columns="naive").graph.description)
    assert kept["ledger_columns"] == ["naive"]


def test_every_step_makes_another_stream() -> None:
    first = grouped()
    second = first.window(ts.tumbling("1 minute")).aggregate(n=agg.count())
    third = second.allowed_lateness("5 minutes").accumulation("retracting")
    fourth = third.accumulation("accumulating")
    assert first.kind is None
    stored = configuration_of(fourth.graph.description)
    assert configuration_of(third.graph.description) == stored | {"accumulation": "retracting"}
    assert configuration_of(second.graph.description) == stored | {"allowed_lateness_us": None}
    assert stored == {
        "kind": "windowed",
        "name": "windows",
        "event_time": "t",
        "processing_time": False,
        "key": ["k"],
        "origin": None,
        "offset": None,
        "watermark_delay_us": 0,
        "watermark": None,
        "window": {"kind": "sliding", "size_us": 60_000_000, "slide_us": 60_000_000, "offset_us": 0},
        "aggregates": {"n": {"kind": "plain", "function": "count"}},
        "allowed_lateness_us": 300_000_000,
        "late_rule": "event",
        "triggers": {
            "early": None,
            "on_time": "always",
            "late": {"kind": "each_batch"},
            "closing": "never",
            "only_updated": False,
            "when": None,
            "per_element": False,
        },
        "ledger_columns": [],
        "future_tolerance_us": 60_000_000,
        "accumulation": "accumulating",
        "retained": None,
        "in_order": False,
        "signed": False,
        "messages": None,
    }


def test_the_same_windows_described_differently_are_the_same_job() -> None:
    plans = [
        bound(grouped().window(window).aggregate(n=agg.count()))
        for window in (
            ts.tumbling("90 seconds"),
            ts.tumbling(timedelta(minutes=1, seconds=30), offset="-90 s"),
            ts.sliding("1 minute 30 seconds", "90 s", offset="3 minutes"),
        )
    ]
    assert len({plan.fingerprint for plan in plans}) == 1


@given(st.integers(0, 2**62))
def test_a_span_written_out_reads_the_same(span: int) -> None:
    assert span_us(text_of(span)) == span


@given(st.timedeltas(timedelta(days=-365 * 10_000), timedelta(days=365 * 10_000)))
def test_a_timedelta_is_its_microseconds(span: timedelta) -> None:
    assert span_us(span) == span // timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("1 hour 30 minutes", 5_400_000_000),
        ("1 hour, 30 minutes", 5_400_000_000),
        ("90 min", 5_400_000_000),
        (" 2  Weeks ", 14 * 86_400_000_000),
        ("1 d 1 h 1 s 1 ms 1 us", 90_001_001_001),
        ("250ms", 250_000),
        ("0 seconds", 0),
        ("-5 minutes", -300_000_000),
    ],
)
def test_spans_as_people_write_them(text: str, span: int) -> None:
    assert span_us(text) == span


WRONG_SPANS = ["", " ", "5", "minutes", "5 parsecs", "1 hour 30", "1 month", "--1 s", "1 hourss"]


@pytest.mark.parametrize(
    "span", [*WRONG_SPANS, f"{2**63} s", "99999999999999999 days", 5, 1.5, None, b"1 s"], ids=repr
)
def test_a_span_that_is_none(span: Any) -> None:
    with pytest.raises(UsageError, match=r"\[span\]"):
        span_us(span)


def test_a_negative_span_written_out_reads_the_same() -> None:
    assert span_us(text_of(-5_400_000_000)) == -5_400_000_000


def test_a_timedelta_beyond_int64_is_refused() -> None:
    with pytest.raises(UsageError, match=r"\[span\]"):
        span_us(timedelta.max)
