"""The jobs whose roots are kept: a description of each kind, over its input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidestate.operators.describe.given_join import join

from tests.golden.continued import OWN
from tests.golden.inputs import (
    SECOND,
    SIDE_COLUMNS,
    Case,
    buffers,
    case,
    clocked,
    clocked_join,
    edges,
    future,
    idle,
    named,
    reprocessed,
    sided,
    streams,
)
from tidestate.agg import (
    arg_max,
    arg_min,
    count,
    count_by_value,
    count_distinct,
    count_distinct_approx,
    earliest,
    first,
    last,
    latest,
    mean,
    median,
    quantile,
    sorted_list,
    stddev,
    top_n,
    variance,
)
from tidestate.agg import list as list_
from tidestate.agg import max as max_
from tidestate.agg import min as min_
from tidestate.agg import set as set_
from tidestate.agg import sum as sum_
from tidestate.operators import global_window, sliding, tumbling
from tidestate.operators.describe.altered import altered
from tidestate.operators.describe.chain import chain
from tidestate.operators.describe.deduplicate import deduplicated
from tidestate.operators.describe.join_choices import every, keep
from tidestate.operators.describe.merge import merge
from tidestate.operators.describe.overlap_join import overlap_join
from tidestate.operators.describe.session_join import session_join
from tidestate.operators.describe.triggers import every_element
from tidestate.operators.describe.union import union
from tidestate.operators.describe.windowed import ACCUMULATING, DISCARDING, RETRACTING, Windowed, windowed
from tidestate.operators.describe.windows import count_window, session
from tidestate.operators.progress.cti_settings import advance_time, generation
from tidestate.operators.progress.generators import IngestionTime, Punctuation, max_event_time
from tidestate.operators.progress.watermarks import BufferProgress
from tidestate.statestore.messages.tables import Retention
from tidestate.trigger import (
    after_count,
    after_processing_time,
    after_watermark,
    all_of,
    any_of,
    every_event_time,
    every_processing_time,
    or_finally,
    repeatedly,
)
from tidestate.watermark import fixed


def _job(window: Any = None, late: str | None = "5 seconds", rule: str = "event", **given: Any) -> Windowed:
    given = {"event_time": "t", "key": "k", "watermark_delay": "2 seconds", "name": "job", **given}
    made = windowed(**given)
    made = made if window is None else made.window(window)
    made = made.aggregate(n=count(), total=sum_("v"), names=list_("name"))
    return made if late is None else made.late(late, rule=rule, keep=["at", "v"])  # type: ignore[arg-type]


def _numbers(**aggregates: Any) -> Windowed:
    made = windowed(event_time="t", key="k", watermark_delay="2 seconds", name="job").window(tumbling("10 seconds"))
    return made.late("5 seconds").aggregate(**aggregates).trigger(early=after_count(3)).accumulation(RETRACTING)


def _known(window: Any, **given: Any) -> Windowed:
    return _job(window, offset="at", origin="part").messages(**given)


TEN = tumbling("10 seconds")
EARLY: dict[str, Any] = {"early": after_count(2), "late": after_count(2), "closing": "if_new"}
JOIN: dict[str, Any] = {
    "event_time": "t", "on": "k", "watermark_delay": "2 seconds", "name": "job", "offset": "at", "origin": "part"
}  # fmt: skip
CASES: dict[str, Callable[[], Case]] = {
    "tumbling": lambda: case(_job(TEN), 1),
    "tumbling_retracting": lambda: case(_job(TEN).accumulation(RETRACTING), 2),
    "tumbling_discarding": lambda: case(_job(TEN).accumulation(DISCARDING), 3),
    "tumbling_shifted": lambda: case(_job(tumbling("10 seconds", offset="3 seconds")), 4),
    "tumbling_without_key": lambda: case(_job(TEN, key=None), 5),
    "tumbling_by_window": lambda: case(_job(TEN, rule="window"), 6),
    "timestamps": lambda: case(_job(TEN).timestamps("end_of_window"), 7),
    "sliding": lambda: case(_job(sliding("10 seconds", "5 seconds")).accumulation(RETRACTING), 8),
    "sliding_by_slices": lambda: case(_job(sliding("60 seconds", "2 seconds"), rule="window"), 9),
    "sliding_with_gaps": lambda: case(_job(sliding("5 seconds", "8 seconds", strict=False)), 10),
    "lifetimes": lambda: case(_job(sliding("10 seconds", "5 seconds", end="end")), 11),
    "sessions": lambda: case(_job(session("3 seconds")), 12),
    "sessions_retracting": lambda: case(
        _job(session("3 seconds")).trigger(**EARLY).accumulation(RETRACTING), 13
    ),
    "sessions_by_gap_column": lambda: case(_job(session(gap_column="gap")), 14),
    "counted": lambda: case(_job(count_window(4)), 15),
    "counted_sliding": lambda: case(_job(count_window(4, 2)).accumulation(RETRACTING), 16),
    "offsets": lambda: case(
        _job(count_window(6, 3, by="offset"), None, event_time=None, watermark_delay="0 s", offset="at",
             origin="part"),
        17, parts=("x",),
    ),
    "offset_sessions": lambda: case(
        _job(session(offsets=2), None, event_time=None, watermark_delay="0 s", offset="at", origin="part"),
        18, parts=("x",),
    ),
    "global_counted": lambda: case(_job(global_window()).trigger(when=repeatedly(after_count(3))), 19),
    "global_discarding": lambda: case(
        _job(global_window()).trigger(early=after_count(2)).accumulation(DISCARDING), 20
    ),
    "named_by_rows": lambda: named(_job(event_time=None, watermark_delay="0 s")),
    "triggers": lambda: case(_job(TEN).trigger(**EARLY).accumulation(ACCUMULATING), 22),
    "triggers_discarding": lambda: case(_job(TEN).trigger(**EARLY).accumulation(DISCARDING), 23),
    "triggers_retracting": lambda: case(_job(TEN).trigger(**EARLY).accumulation(RETRACTING), 24),
    "triggers_updated": lambda: case(
        _job(sliding("10 seconds", "5 seconds")).trigger(early=every_element(), only_updated=True), 25
    ),
    "trigger_each_element": lambda: case(_job(TEN, offset="at").trigger(early=after_count(2), per_element=True), 26),
    "trigger_of_event_time": lambda: case(
        _job(TEN).trigger(early=every_event_time("3 seconds"), on_time="non_empty", late=None), 27
    ),
    "trigger_or_finally": lambda: case(
        _job(TEN).trigger(when=or_finally(repeatedly(after_count(2)), after_watermark()), closing="always"), 28
    ),
    "trigger_any": lambda: case(
        _job(TEN).trigger(when=repeatedly(any_of(after_count(3), after_watermark()))).accumulation(RETRACTING), 29
    ),
    "trigger_all": lambda: case(
        _job(TEN, offset="at")
        .trigger(when=repeatedly(all_of(after_count(2), after_watermark())), per_element=True), 30
    ),
    "trigger_of_clock": lambda: clocked(
        _job(TEN).trigger(early=every_processing_time("4 seconds"), late=after_processing_time("2 seconds")), 31
    ),
    "trigger_of_clock_discarding": lambda: clocked(
        _job(sliding("10 seconds", "5 seconds"))
        .trigger(early=after_processing_time("4 seconds"), closing="if_new").accumulation(DISCARDING), 32
    ),
    "retained": lambda: reprocessed(_job(TEN).retain("70 seconds").accumulation(RETRACTING), 33),
    "retained_windows": lambda: case(_job(sliding("10 seconds", "5 seconds")).retain(windows=4), 34),
    "aggregates_of_numbers": lambda: case(
        _numbers(s=sum_("v"), sx=sum_("x"), sd=sum_("d"), m=mean("v"), mx=mean("x"), md=mean("d"),
                 low=min_("v"), high=max_("d"), c=count("v"), var=variance("v"), dev=stddev("x", population=True)),
        35,
    ),
    "aggregates_of_order": lambda: case(
        _numbers(med=median("v"), medd=median("d"), q=quantile("x", 0.9), lists=list_("v"), sorts=sorted_list("d"),
                 by=sorted_list("name", by="x", descending=True), top=top_n("v", 2), least=top_n("name", 2, by="x",
                 largest=False)),
        36,
    ),
    "aggregates_of_rows": lambda: case(
        _numbers(f=first("name", by="at"), la=last("v", by="at"), e=earliest("name"), l=latest("name"),
                 am=arg_min("name", by="v"), ax=arg_max("d", by="x"), lo=min_("name"), hi=max_("t")),
        37,
    ),
    "aggregates_of_sets": lambda: case(
        _numbers(s=set_("name"), n=count_distinct("v"), by=count_by_value("name")), 38
    ),
    "sketches": lambda: case(_numbers(about=count_distinct_approx("name"), more=count_distinct_approx("v")), 39),
    "own_function": lambda: case(_numbers(spread=OWN["spread"], n=count()), 40),
    "in_order": lambda: case(_job(TEN, in_order=True, offset="at", origin="part"), 41),
    "in_order_sessions": lambda: case(
        _job(session("3 seconds"), in_order=True).aggregate(newest=latest("name")), 42
    ),
    "messages": lambda: case(_known(TEN).accumulation(RETRACTING), 43, sent_again=3),
    "messages_retained": lambda: case(
        _job(sliding("10 seconds", "5 seconds"), None, offset="at", origin="part")
        .messages(retention=Retention(time=30 * SECOND)), 44, sent_again=3
    ),
    "messages_of_sessions": lambda: case(_known(session("3 seconds")).accumulation(RETRACTING), 45, sent_again=3),
    "messages_by_count": lambda: case(
        _job(TEN, None, offset="at", origin="part").messages(retention=Retention(count=20)), 46, sent_again=3
    ),
    "by_hand": lambda: case(_known(TEN).accumulation(RETRACTING), 47, "by hand", sent_again=3),
    "by_hand_sessions": lambda: case(_known(session("3 seconds")), 48, "by hand", sent_again=2),
    "by_hand_join": lambda: sided(
        join(event_time="t", on="k", offset="at", within=("-3 seconds", "4 seconds"), how="left", name="job"),
        49, SIDE_COLUMNS, "by hand",
    ),
    "ctis_dropped": lambda: case(
        _job(TEN, None, watermark_delay="0 s", offset="at", origin="part")
        .advance_time(advance_time("drop", generation(4, "3 seconds"))), 50
    ),
    "ctis_adjusted": lambda: case(
        _job(sliding("10 seconds", "5 seconds", end="end"), "4 seconds", watermark_delay="0 s", offset="at")
        .advance_time(advance_time("adjust", generation("5 seconds", "2 seconds")), shape="interval", end="end",
                      by="part", sources=["x"]), 51
    ),
    "ctis_imported": lambda: case(
        _job(TEN, "6 seconds", watermark_delay="0 s", offset="at", origin="part").advance_time(
            {"x": advance_time("drop", generation(3, "2 seconds")), "y": advance_time("adjust", import_from="x")},
            sources=["x", "y"]), 52
    ),
    "sources": lambda: case(
        _job(TEN).watermark(max_event_time("t", "3 seconds"), by="part", sources=["x", "y"]), 53
    ),
    "idle_sources": lambda: idle(
        _job(TEN).watermark(max_event_time("t"), by="part", sources=["x", "y"], idle_timeout="5 seconds"), 54
    ),
    "quiet": lambda: clocked(_job(TEN).watermark(max_event_time("t", "2 seconds", quiet="5 seconds")), 55),
    "hold_future": lambda: clocked(_job(TEN).watermark(max_event_time("t", hold_future="6 seconds")), 56),
    "future": lambda: future(_job(TEN, "5 seconds", watermark_delay="120 seconds"), 57),
    "fixed_watermark": lambda: clocked(_job(TEN).watermark(fixed("4 seconds")), 58),
    "ingestion": lambda: clocked(
        _job(TEN, event_time="arrival", watermark_delay="0 s").watermark(IngestionTime("arrival")), 59
    ),
    "processing_time": lambda: clocked(
        _job(TEN, None, event_time=None, watermark_delay="0 s", processing_time=True), 60
    ),
    "punctuation": lambda: case(_job(TEN).watermark(Punctuation("t", "name", "yew")), 61),
    "buffers": lambda: buffers(_buffered(None), 102, patient=False),
    "buffers_with_patience": lambda: buffers(_buffered("4 seconds"), 102, patient=True),
    "deduplicated": lambda: case(
        deduplicated(event_time="t", on="name", within="10 seconds", watermark_delay="2 seconds", name="job"), 62
    ),
    "deduplicated_exactly": lambda: case(deduplicated(event_time="t", on=["k", "t"], name="job"), 63),
    "deduplicated_in_order": lambda: case(
        deduplicated(event_time="t", on="name", within="8 seconds", in_order=True, watermark_delay="4 s", name="job"),
        64,
    ),
    "altered": lambda: case(
        altered(event_time="t", shift="-5 seconds", end="end", duration="20 seconds", watermark_delay="2 s",
                name="job"), 65
    ),
    "union": lambda: sided(
        union(event_time="t", sides=("left", "right"), watermark_delay="2 seconds", name="job"), 66, SIDE_COLUMNS
    ),
    "merge": lambda: sided(_merged().accumulation(RETRACTING), 68),
    "merge_of_sessions": lambda: sided(_merged(session("3 seconds"), in_order=True), 70),
    "join": lambda: sided(join(within=("-3 seconds", "4 seconds"), late="3 seconds", **JOIN), 72, SIDE_COLUMNS),
    "join_full": lambda: sided(
        join(within=("-3 seconds", "4 seconds"), how="full", late="3 seconds", **JOIN), 74, SIDE_COLUMNS
    ),
    "join_final": lambda: sided(
        join(within=("0 seconds", None), how="left", unmatched="final", retain=keep("9 seconds"), **JOIN),
        76, SIDE_COLUMNS,
    ),
    "join_in_order": lambda: sided(
        join(within=("-3 seconds", "4 seconds"), how="left", in_order=True, **JOIN), 78, SIDE_COLUMNS
    ),
    "join_large": lambda: sided(
        join(within=("-3 seconds", "4 seconds"), large_windows=True, how="right", **JOIN), 80, SIDE_COLUMNS
    ),
    "join_of_windows": lambda: sided(
        join(window=sliding("10 seconds", "5 seconds"), how="full", late="4 seconds", occurrence="each", **JOIN),
        82, SIDE_COLUMNS,
    ),
    "join_of_own_windows": lambda: sided(
        join(window=(TEN, sliding("10 seconds", "5 seconds")), how="left", retain=keep(windows=2), **JOIN),
        84, SIDE_COLUMNS,
    ),
    "join_of_offsets": lambda: sided(
        join(window=(count_window(8, by="offset"), count_window(6, 3, by="offset")), **JOIN), 86, SIDE_COLUMNS
    ),
    "join_updated": lambda: clocked_join(
        join(window=(TEN, TEN), how="left", update=every("4 seconds"), retain=keep(windows=1), **JOIN), 88
    ),
    "session_join": lambda: sided(session_join(gap="3 seconds", how="left", late="4 s", **JOIN), 90, SIDE_COLUMNS),
    "session_join_of_offsets": lambda: sided(
        session_join(on="k", offset="at", origin="part", offsets=2, late=4, how="full", name="job"), 92, SIDE_COLUMNS
    ),
    "overlap": lambda: sided(_overlap("adjust", "3 seconds", shape="interval", end="end"), 94),
    "overlap_of_edges": lambda: edges(_overlap("drop", "20 seconds", end="end", shape_column="shape"), 96),
    "chain": lambda: case(_chain(), 98),
    "chain_deduplicated": lambda: case(
        chain(deduplicated(event_time="t", on="name", within="9 seconds", watermark_delay="3 s", name="once"),
              _job(session("3 seconds"), watermark_delay="0 s")), 99
    ),
    "chain_named": lambda: case(
        chain(_job(TEN, name="first").accumulation(RETRACTING),
              windowed(name="second", key="total").aggregate(keys=count(), most=max_("n")).late("20 s")), 100
    ),
    "chain_join": lambda: streams(
        chain(join(within=("-3 seconds", "4 seconds"), name="pairs", event_time="t", on="k", watermark_delay="2 s"),
              windowed(event_time="time", key="k", name="counted").window(TEN)
              .aggregate(n=count(), total=sum_("right_v")).late("5 s"),
              inputs={"pairs": ["orders", "payments"]}), 101, ("orders", "payments")
    ),
    "sessions_of_extremes": lambda: case(
        windowed(event_time="t", key="k", watermark_delay="2 seconds", name="job").window(session("3 seconds"))
        .aggregate(n=count(), low=first("name", by="x"), high=last("name", by="x"), best=top_n("name", 3, by="x"))
        .late("5 seconds"), 103
    ),
}  # fmt: skip


def _merged(window: Any = TEN, **given: Any) -> Any:
    made = merge(event_time="t", key="k", offset="at", origin="part", name="job",
                 watermark_delay=("2 seconds", "1 second"), **given).window(window)  # fmt: skip
    made = made.aggregate(n=count(), left=sum_("left_v"), right=list_("right_name"))
    return made.late("5 seconds", keep=["left_v"])


def _overlap(policy: Any, delay: str, **given: Any) -> Any:
    made = overlap_join(event_time="t", on="k", offset="at", origin="part", name="job", **given)
    return made.advance_time(advance_time(policy, generation(3, delay)))


def _chain() -> Any:
    first_ = _job(TEN, name="hours").accumulation(RETRACTING)
    second = windowed(name="days").window(tumbling("30 seconds")).aggregate(n=sum_("n"), most=max_("total"))
    return chain(first_, second.late("1 minute").accumulation(RETRACTING))


def _buffered(patience: str | None) -> Any:
    progress = BufferProgress("origin", "sequence", "mark", "chunk", "last", patience)
    return _job(TEN).watermark(progress, sources=["1", "2"])
