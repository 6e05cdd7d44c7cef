"""The jobs whose roots are kept: one of each kind, over its input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

import tidestate as ts
from tests.golden.inputs import (
    SIDE_COLUMNS,
    TIME,
    Case,
    buffers,
    buffers_of_sides,
    case,
    clocked,
    clocked_join,
    edges,
    edited,
    future,
    idle,
    in_texts,
    named,
    reprocessed,
    reprocessed_apart,
    reprocessed_by_reason,
    sided,
    streams,
)
from tidestate import Aggregation, JoinedStream, OperatorStream, Stream, agg, trigger, watermark
from tidestate.operators.expressions.builder import expr


def _events(**about: Any) -> Stream:
    return ts.stream(**{"event_time": "t", "watermark_delay": "2 seconds", **about})


def _job(
    window: Any = None,
    late: str | None = "5 seconds",
    rule: Any = "event",
    *,
    of: Stream | None = None,
    keys: Sequence[str] = ("k",),
    **results: Any,
) -> Aggregation:
    grouped = (of or _events()).group_by(*keys)
    grouped = grouped if window is None else grouped.window(window)
    made = grouped.aggregate(n=agg.count(), total=agg.sum("v"), names=agg.list("name"), **results).named("job")
    return made if late is None else made.allowed_lateness(late, rule=rule, ledger_columns=["at", "v"])


def _with_kind() -> Aggregation:
    """Over a shift of rows that have a column of that name, some with one of the words of panes."""
    kind = ts.when(ts.col("name") == "oak", "retract").otherwise(ts.col("name"))
    return _job(TEN, of=_events().with_columns(kind=kind).shift_time("1 second", name="moved"))


def _numbers(**aggregates: Any) -> Aggregation:
    made = _events().group_by("k").window(TEN).aggregate(**aggregates).named("job").allowed_lateness("5 seconds")
    return made.trigger(early=trigger.after_count(3)).accumulation("retracting")


def _known(window: Any) -> Aggregation:
    return _job(window, of=_events(**ORDER)).messages()


def _joined(**choices: Any) -> JoinedStream:
    return _events(**ORDER).join(_events(**ORDER), on="k", identity=True, name="job", **choices)


def _ctis(policy: Any, every: Any, delay: str) -> Any:
    return watermark.cti_settings(policy, generate=watermark.generate_ctis(every, delay=delay))


def _by_own_ctis(policy: Any) -> Any:
    return _events(**ORDER).watermark(watermark.ctis(_ctis(policy, 3, "2 seconds")))


TEN, SLIDING = ts.tumbling("10 seconds"), ts.sliding("10 seconds", "5 seconds")
LIVING = ts.sliding("10 seconds", "5 seconds", of="lifetime")
ORDER: dict[str, Any] = {"offset": "at", "origin": "part"}
NEAR: dict[str, Any] = {"within": ("-3 seconds", "4 seconds")}
EARLY: dict[str, Any] = {"early": trigger.after_count(2), "late": trigger.after_count(2), "closing": "if_new"}
BY_PART: dict[str, Any] = {"by": "part", "sources": ["x", "y"]}
CASES: dict[str, Callable[[], Case]] = {
    "tumbling": lambda: case(_job(TEN), 1),
    "tumbling_retracting": lambda: case(_job(TEN).accumulation("retracting"), 2),
    "tumbling_discarding": lambda: case(_job(TEN).accumulation("discarding"), 3),
    "tumbling_shifted": lambda: case(_job(ts.tumbling("10 seconds", offset="3 seconds")), 4),
    "tumbling_without_key": lambda: case(_job(TEN, keys=()), 5),
    "tumbling_by_window": lambda: case(_job(TEN, rule="window"), 6),
    "timestamps": lambda: case(_job(TEN).pane_timestamp("end_of_window"), 7),
    "decoded": lambda: in_texts(
        _job(TEN, of=_events(decode=ts.json("value", {"t": TIME, "k": "string", "v": "int64", "name": "string"})))
        .retain_windows("1 hour"), 118
    ),
    "expected": lambda: case(
        _job(TEN, of=_events().expect("few", "v < 6").expect_all({"key": "k is not null", "name": "name <> 'ash'"},
                                                                 otherwise="count")).retain_windows("1 hour"), 121
    ),
    "computed": lambda: case(
        _job(TEN, of=_events().where("v > 2 or k is null").with_columns(v="v * 2 - at", k="upper(k)"))
        .retain_windows("1 hour"), 119
    ),
    # The same job, of which the version before took the column for that of panes.
    "kind_by_name": lambda: case(_with_kind(), 194),
    "kind_of_rows": lambda: case(_with_kind(), 195),
    # A zone that no tzdata will ever change: with other rules a start would log a line.
    "zoned": lambda: case(
        _job(TEN, of=_events().where("minute(t, zone => 'Etc/GMT-5') >= 0")
             .with_columns(k="concat(k, date_format(t, 'HHmm', zone => 'Etc/GMT-5'))"))
        .derive(local="date_trunc('day', window_start, zone => 'Etc/GMT-5')").retain_windows("1 hour"), 189
    ),
    "sliding": lambda: case(_job(SLIDING).accumulation("retracting"), 8),
    "sliding_by_slices": lambda: case(_job(ts.sliding("60 seconds", "2 seconds"), rule="window"), 9),
    "sliding_with_gaps": lambda: case(_job(ts.sliding("5 seconds", "8 seconds", strict=False)), 10),
    "rolling": lambda: case(
        _job(ts.rolling("4 seconds")).trigger(early=trigger.each_batch()).accumulation("retracting"), 10
    ),
    "window_timing": lambda: case(
        _job(SLIDING).allowed_lateness("5 seconds", ledger_columns="at", window_timing=True), 66
    ),
    "lifetimes": lambda: case(_job(LIVING, of=_events(lifetime=ts.lifetime("end"))), 11),
    "lifetimes_of_edges": lambda: edges(
        _events(**ORDER, lifetime=ts.lifetime("end", "point", "shape"))
        .watermark(watermark.ctis(_ctis("adjust", 3, "20 seconds"))).group_by("k").window(LIVING)
        .aggregate(n=agg.count(), total=agg.sum("v")).named("job"), 107, sides=1
    ),
    "sessions": lambda: case(_job(ts.sessions("3 seconds")), 12),
    "sessions_retracting": lambda: case(
        _job(ts.sessions("3 seconds")).trigger(**EARLY).accumulation("retracting"), 13
    ),
    "sessions_by_gap_column": lambda: case(_job(ts.sessions(gap_column="gap")), 14),
    "counted": lambda: case(_job(ts.count_windows(4)), 15),
    "counted_sliding": lambda: case(_job(ts.count_windows(4, 2)).accumulation("retracting"), 16),
    "offsets": lambda: case(_job(ts.offset_windows(6, 3), None, of=ts.stream(**ORDER)), 17, parts=("x",)),
    "offset_sessions": lambda: case(_job(ts.offset_sessions(2), None, of=ts.stream(**ORDER)), 18, parts=("x",)),
    "message_sessions": lambda: case(_job(ts.message_sessions(1), None, of=ts.stream(**ORDER)), 114, parts=("x",)),
    "global_counted": lambda: case(
        _job(ts.global_window()).trigger(when=trigger.repeatedly(trigger.after_count(3))), 19
    ),
    "global_discarding": lambda: case(
        _job(ts.global_window()).trigger(early=trigger.after_count(2)).accumulation("discarding"), 20
    ),
    "named_by_rows": lambda: named(_job(of=ts.stream())),
    "triggers": lambda: case(_job(TEN).trigger(**EARLY).accumulation("accumulating"), 22),
    "triggers_discarding": lambda: case(_job(TEN).trigger(**EARLY).accumulation("discarding"), 23),
    "triggers_retracting": lambda: case(_job(TEN).trigger(**EARLY).accumulation("retracting"), 24),
    "triggers_updated": lambda: case(_job(SLIDING).trigger(early=trigger.each_batch(), only_updated=True), 25),
    "trigger_each_element": lambda: case(
        _job(TEN, of=_events(offset="at")).trigger(early=trigger.after_count(2), evaluate="element"), 26
    ),
    "trigger_each_arrival": lambda: case(
        _job(TEN).trigger(early=trigger.each_element(), late=trigger.after_processing_time("2 seconds")), 26
    ),
    "trigger_each_element_of_sessions": lambda: case(
        _job(ts.sessions("3 seconds")).trigger(early=trigger.each_element()).accumulation("retracting"), 26
    ),
    "trigger_of_event_time": lambda: case(
        _job(TEN).trigger(early=trigger.every_event_time("3 seconds"), on_time="non_empty", late=None), 27
    ),
    "trigger_or_finally": lambda: case(
        _job(TEN).trigger(
            when=trigger.or_finally(trigger.repeatedly(trigger.after_count(2)), trigger.after_watermark()),
            closing="always"), 28
    ),
    "trigger_any": lambda: case(
        _job(TEN)
        .trigger(when=trigger.repeatedly(trigger.any_of(trigger.after_count(3), trigger.after_watermark())))
        .accumulation("retracting"), 29
    ),
    "trigger_all": lambda: case(
        _job(TEN, of=_events(offset="at")).trigger(
            when=trigger.repeatedly(trigger.all_of(trigger.after_count(2), trigger.after_watermark())),
            evaluate="element"), 30
    ),
    "trigger_of_clock": lambda: clocked(
        _job(TEN).trigger(
            early=trigger.every_processing_time("4 seconds"), late=trigger.after_processing_time("2 seconds")), 31
    ),
    "trigger_of_clock_discarding": lambda: clocked(
        _job(SLIDING).trigger(early=trigger.after_processing_time("4 seconds"), closing="if_new")
        .accumulation("discarding"), 32
    ),
    "retained": lambda: reprocessed(_job(TEN).retain_windows("70 seconds").accumulation("retracting"), 33),
    "retained_windows": lambda: case(_job(SLIDING).retain_windows(windows=4), 34),
    "aggregates_of_numbers": lambda: case(
        _numbers(s=agg.sum("v"), sx=agg.sum("x"), sd=agg.sum("d"), m=agg.mean("v"), mx=agg.mean("x"),
                 md=agg.mean("d"), low=agg.min("v"), high=agg.max("d"), c=agg.count("v"), var=agg.variance("v"),
                 dev=agg.stddev("x", population=True)),
        35,
    ),
    "aggregates_of_order": lambda: case(
        _numbers(med=agg.median("v"), medd=agg.median("d"), q=agg.quantile("x", 0.9), lists=agg.list("v"),
                 sorts=agg.sorted_list("d"), by=agg.sorted_list("name", by="x", descending=True),
                 top=agg.top_n("v", 2), least=agg.top_n("name", 2, by="x", largest=False)),
        36,
    ),
    "aggregates_of_rows": lambda: case(
        _numbers(f=agg.first("name", by="at"), la=agg.last("v", by="at"), e=agg.earliest("name"),
                 l=agg.latest("name"), am=agg.arg_min("name", by="v"), ax=agg.arg_max("d", by="x"),
                 lo=agg.min("name"), hi=agg.max("t")),
        37,
    ),
    "aggregates_of_sets": lambda: case(
        _numbers(s=agg.set("name"), n=agg.count_distinct("v"), by=agg.count_by_value("name")), 38
    ),
    "aggregates_of_expressions": lambda: case(
        _numbers(n=agg.count(), some=agg.count(where="v > 2"), total=agg.sum("v", where="name != 'b'"),
                 twice=agg.sum(expr("v * 2"), where="x is not null"), seen=agg.set("name", where="v % 2 = 0"),
                 best=agg.first("name", by=expr("-v")), names=agg.list("name", where="v is null or v > 3")),
        119,
    ),
    "shown": lambda: case(
        _job(TEN).derive(share="total / n", more="share + n").having("n >= 2 and total > 3")
        .accumulation("retracting").trigger(early=trigger.each_batch()), 120
    ),
    "sketches": lambda: case(
        _numbers(about=agg.count_distinct_approx("name"), more=agg.count_distinct_approx("v")), 39
    ),
    "value_sketches": lambda: case(
        _numbers(names=agg.hll("name", precision=7), values=agg.theta("v"), common=agg.most_common("name", 2),
                 near=agg.quantile_approx("v", 0.5)), 44
    ),
    "own_function": lambda: case(
        _numbers(spread=agg.apply_rows(spread, columns=["v"], result_type=pa.int64(), name="spread",
                                       per_group=True), n=agg.count()), 40
    ),
    "in_order": lambda: case(_job(TEN, of=_events(**ORDER)).in_order(), 41),
    "in_order_sessions": lambda: case(_job(ts.sessions("3 seconds"), newest=agg.latest("name")).in_order(), 42),
    "messages": lambda: case(_known(TEN).accumulation("retracting"), 43, sent_again=3),
    "messages_retained": lambda: case(
        _job(SLIDING, None, of=_events(**ORDER)).messages(retain="30 seconds"), 44, sent_again=3
    ),
    "messages_of_sessions": lambda: case(
        _known(ts.sessions("3 seconds")).accumulation("retracting"), 45, sent_again=3
    ),
    "messages_by_count": lambda: case(
        _job(TEN, None, of=_events(**ORDER)).messages(retain=ts.Retention(messages=20)), 46, sent_again=3
    ),
    "by_hand": lambda: case(_known(TEN).accumulation("retracting"), 47, "by hand", sent_again=3),
    "by_hand_sessions": lambda: case(_known(ts.sessions("3 seconds")), 48, "by hand", sent_again=2),
    "by_hand_join": lambda: sided(
        ts.stream(event_time="t", offset="at").join(
            ts.stream(event_time="t", offset="at"), on="k", how="left", identity=True, name="job", **NEAR),
        49, SIDE_COLUMNS, "by hand",
    ),
    "ctis_dropped": lambda: case(
        _job(TEN, None, of=_events(**ORDER).watermark(watermark.ctis(_ctis("drop", 4, "3 seconds")))), 50
    ),
    "ctis_adjusted": lambda: case(
        _job(LIVING, "4 seconds", of=_events(offset="at", lifetime=ts.lifetime("end")).watermark(
            watermark.ctis(_ctis("adjust", "5 seconds", "2 seconds")), by="part", sources=["x"])), 51
    ),
    "ctis_imported": lambda: case(
        _job(TEN, "6 seconds", of=_events(**ORDER).watermark(
            watermark.ctis({"x": _ctis("drop", 3, "2 seconds"),
                            "y": watermark.cti_settings("adjust", import_from="x")}),
            sources=["x", "y"])), 52
    ),
    "sources": lambda: case(_job(TEN, of=_events().watermark(watermark.bounded("3 seconds"), **BY_PART)), 53),
    "idle_sources": lambda: idle(
        _job(TEN, of=_events().watermark(watermark.bounded(), **BY_PART, idle_timeout="5 seconds")), 54
    ),
    "quiet": lambda: clocked(
        _job(TEN, of=_events().watermark(watermark.bounded("2 seconds", quiet="5 seconds"))), 55
    ),
    "hold_future": lambda: clocked(
        _job(TEN, of=_events().watermark(watermark.bounded(hold_future="6 seconds"))), 56
    ),
    "future": lambda: future(_job(TEN, of=_events(watermark_delay="120 seconds")), 57),
    "fixed_watermark": lambda: clocked(_job(TEN, of=_events().watermark(watermark.fixed("4 seconds"))), 58),
    "ingestion": lambda: clocked(
        _job(TEN, of=ts.stream(event_time="arrival").watermark(watermark.ingestion_time("arrival"))), 59
    ),
    "processing_time": lambda: clocked(_job(TEN, None, of=ts.stream(processing_time=True)), 60),
    "punctuation": lambda: case(
        _job(TEN, of=_events().watermark(watermark.punctuated("t", flag="name", equals="yew"))), 61
    ),
    "buffers": lambda: buffers(_buffered(None), 102, patient=False),
    "buffers_with_patience": lambda: buffers(_buffered("4 seconds"), 102, patient=True),
    "given_origins": lambda: idle(_by_given_origins(), 108),
    "deduplicated": lambda: case(_events().deduplicate("name", within="10 seconds", name="job"), 62),
    "deduplicated_exactly": lambda: case(ts.stream(event_time="t").deduplicate(["k", "t"], name="job"), 63),
    "deduplicated_in_order": lambda: case(
        _events(watermark_delay="4 s").deduplicate("name", within="8 seconds", in_order=True, name="job"), 64
    ),
    "altered_by_columns": lambda: case(
        _events().shift_time("v", at_least="-20 microseconds", end="end", duration="gap", name="job"), 65
    ),
    "altered_by_expressions": lambda: case(
        _events().shift_time(
            expr("case when name = 'yew' then -4000000 else v * 100000 end"),
            at_least="-3 seconds", end="end", duration=expr("gap * 2 + 1000000"), name="job",
        ),
        66,
    ),
    "altered": lambda: case(
        _events().shift_time("-5 seconds", end="end", duration="20 seconds", name="job"), 65
    ),
    "early_by_element_late_by_batch": lambda: case(
        _job(TEN).trigger(early=trigger.each_element(), late=trigger.each_batch()).accumulation("retracting"), 71
    ),
    "window_offsets": lambda: case(_job(SLIDING, of=_events(**ORDER)).window_offsets(), 70),
    "origins_of_join": lambda: sided(
        _joined(allowed_lateness="3 seconds", how="full", **NEAR).origins(), 73, SIDE_COLUMNS
    ),
    "union_of_ctis": lambda: sided(
        ts.union(left=_by_own_ctis("drop"), right=_by_own_ctis("adjust"), name="job"), 68, SIDE_COLUMNS
    ),
    "altered_in_order": lambda: case(
        _events(**ORDER, watermark_delay="4 s").shift_time("5 seconds", in_order=True, name="job"), 69
    ),
    "union": lambda: sided(ts.union(left=_events(), right=_events(), name="job"), 66, SIDE_COLUMNS),
    "merge": lambda: sided(_merged(TEN).accumulation("retracting"), 68),
    "merge_of_sessions": lambda: sided(_merged(ts.sessions("3 seconds")).in_order(), 70),
    "join": lambda: sided(_joined(allowed_lateness="3 seconds", **NEAR), 72, SIDE_COLUMNS),
    "join_full": lambda: sided(_joined(how="full", allowed_lateness="3 seconds", **NEAR), 74, SIDE_COLUMNS),
    "join_final": lambda: sided(
        _joined(within=("0 seconds", None), how="left", unmatched="final", sides=ts.side(retain="9 seconds")),
        76, SIDE_COLUMNS,
    ),
    "join_in_order": lambda: sided(_joined(how="left", in_order=True, **NEAR), 78, SIDE_COLUMNS),
    "join_large": lambda: sided(_joined(large_windows=True, how="right", **NEAR), 80, SIDE_COLUMNS),
    "join_of_windows": lambda: sided(
        _joined(window=SLIDING, how="full", allowed_lateness="4 seconds", occurrence="each"), 82, SIDE_COLUMNS
    ),
    "join_of_own_windows": lambda: sided(
        _joined(left=ts.side(window=TEN), right=ts.side(window=SLIDING), how="left",
                sides=ts.side(retain=ts.Retention(windows=2))),
        84, SIDE_COLUMNS,
    ),
    "join_of_offsets": lambda: sided(
        _joined(left=ts.side(window=ts.offset_windows(8)), right=ts.side(window=ts.offset_windows(6, 3))),
        86, SIDE_COLUMNS,
    ),
    "join_of_first_offsets": lambda: sided(
        _joined(left=ts.side(window=ts.offset_windows(7)), right=ts.side(window=ts.offset_windows(6, 3)), how="full"),
        107, SIDE_COLUMNS,
    ),
    "join_of_buffers": lambda: buffers_of_sides(
        _of_buffers().join(_of_buffers(), on="k", how="full", name="job", **NEAR), 109
    ),
    "join_updated": lambda: clocked_join(
        _joined(sides=ts.side(window=TEN, update="4 seconds", retain=ts.Retention(windows=1)), how="left"), 88
    ),
    "session_join": lambda: sided(
        _events(**ORDER).join_sessions(
            _events(**ORDER), on="k", gap="3 seconds", how="left", allowed_lateness="4 s", identity=True, name="job"),
        90, SIDE_COLUMNS,
    ),
    "session_join_of_offsets": lambda: sided(
        ts.stream(**ORDER).join_sessions(
            ts.stream(**ORDER), on="k", offsets=2, allowed_lateness=4, how="full", name="job"),
        92, SIDE_COLUMNS,
    ),
    "overlap": lambda: sided(_overlap(ts.lifetime("end"), "adjust", "3 seconds"), 94),
    "overlap_of_edges": lambda: edges(
        _overlap(ts.lifetime("end", "point", "shape"), "drop", "20 seconds"), 96
    ),
    "chain": lambda: case(_chain(), 98),
    "chain_deduplicated": lambda: case(
        _job(ts.sessions("3 seconds"),
             of=_events(watermark_delay="3 s").deduplicate("name", within="9 seconds", name="once")), 99
    ),
    "chain_named": lambda: case(
        _job(TEN).named("first").accumulation("retracting").group_by("total")
        .aggregate(keys=agg.count(), most=agg.max("n")).named("second").allowed_lateness("20 s"), 100
    ),
    "chain_join": lambda: streams(
        _events(name="orders").join(_events(name="payments"), on="k", name="pairs", **NEAR).group_by("k").window(TEN)
        .aggregate(n=agg.count(), total=agg.sum("right_v")).named("counted").allowed_lateness("5 s"),
        101,
    ),
    "sessions_of_extremes": lambda: case(
        _events().group_by("k").window(ts.sessions("3 seconds"))
        .aggregate(n=agg.count(), low=agg.first("name", by="x"), high=agg.last("name", by="x"),
                   best=agg.top_n("name", 3, by="x")).named("job").allowed_lateness("5 seconds"), 103
    ),
    "join_by_side": lambda: sided(
        _events(**ORDER).watermark(watermark.ctis(_ctis("drop", 3, "3 seconds")))
        .join(_events(watermark_delay="1 second").watermark(by="part", idle_timeout="5 seconds"), on="k", how="left",
              name="job", **NEAR), 105, SIDE_COLUMNS
    ),
    "edited": lambda: edited(
        _events().group_by("k").window(TEN)
        .aggregate(n=agg.count(), total=agg.sum("v"), most=agg.max("v")).named("job").allowed_lateness("20 seconds"),
        106,
    ),
    "bundles": lambda: case(
        _known(ts.sessions("3 seconds")).trigger(**EARLY).accumulation("retracting"), 115, sent_again=3
    ),
    "outputs": lambda: case(_three_outputs(), 116),
    "reprocessed_by_operator": lambda: reprocessed_apart(
        ts.union(_retained_apart("short", TEN), _retained_apart("wide", ts.tumbling("30 seconds")), name="job"),
        112, "short",
    ),
    "reprocessed_by_reason": lambda: reprocessed_by_reason(
        _job(TEN, of=_events().expect("value", "v < 60")).retain_windows("1 hour").accumulation("retracting"), 122
    ),
}  # fmt: skip


def job_of(root: str) -> OperatorStream:
    """The job that goes on with a root, of whatever runner."""
    job: OperatorStream = CASES[root.removeprefix("on_spark_")]().job
    return job


def spread(rows: pa.Table) -> int | None:
    """A function of one's own, which no root has."""
    values = [value for value in rows["v"].to_pylist() if value is not None]
    return max(values) - min(values) if values else None


def _retained_apart(name: str, window: Any) -> Any:
    panes = _events(name="events").group_by("k").window(window).aggregate(n=agg.count(), values=agg.list("v"))
    late = panes.named(name).allowed_lateness("0 seconds", ledger_columns=["at"]).retain_windows("10 minutes")
    return late.accumulation("discarding").timed_by("window_end")


def _three_outputs() -> ts.OutputsJob:
    """Of two operators that read the stream, and one that reads the first of them."""
    rows = _events()
    by_key = rows.group_by("k").window(ts.tumbling("4 seconds")).aggregate(n=agg.count(), total=agg.sum("v"))
    by_key = by_key.named("by_key").allowed_lateness("20 seconds").accumulation("retracting")
    together = by_key.group_by().window(TEN).aggregate(keys=agg.count(), total=agg.sum("total")).named("together")
    sessions = rows.group_by("name").window(ts.sessions("3 seconds")).aggregate(n=agg.count()).named("sessions")
    return ts.job(by_key, together.allowed_lateness("20 seconds").accumulation("retracting"), sessions)


def _merged(window: Any) -> Aggregation:
    sides = {"left": _events(**ORDER), "right": _events(**ORDER, watermark_delay="1 second")}
    made = ts.merge(**sides).group_by("k").window(window)
    panes = made.aggregate(n=agg.count(), left=agg.sum("left_v"), right=agg.list("right_name"))
    return panes.named("job").allowed_lateness("5 seconds", ledger_columns=["left_v"])


def _overlap(lifetime: Any, policy: Any, delay: str) -> OperatorStream:
    side = _events(**ORDER, lifetime=lifetime).watermark(watermark.ctis(_ctis(policy, 3, delay)))
    other = _events(**ORDER, lifetime=lifetime).watermark(watermark.ctis(_ctis(policy, 3, delay)))
    return side.join_lifetimes(other, on="k", name="job")


def _chain() -> Aggregation:
    hours = _job(TEN).named("hours").accumulation("retracting")
    days = hours.group_by().window(ts.tumbling("30 seconds")).aggregate(n=agg.sum("n"), most=agg.max("total"))
    return days.named("days").allowed_lateness("1 minute").accumulation("retracting")


def _of_buffers() -> Any:
    return _events().watermark(watermark.buffers(origin="origin", sequence="sequence", watermark="mark"))


def _by_given_origins() -> Aggregation:
    return _job(TEN, of=_events().watermark(watermark.buffers(), **BY_PART, idle_timeout="15 seconds"))


def _buffered(patience: str | None) -> Aggregation:
    progress = watermark.buffers(
        origin="origin", sequence="sequence", watermark="mark", chunk="chunk", last="last", patience=patience
    )
    return _job(TEN, of=_events().watermark(progress, sources=["1", "2"]))
