"""What a stream was made from: names of streams and operators, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidestate.agg import count, top_n
from tidestate.agg import max as max_
from tidestate.agg import sum as sum_
from tidestate.operators import tumbling
from tidestate.operators.describe import triggers as trigger
from tidestate.operators.describe.chain import Chain
from tidestate.operators.describe.windowed import Windowed
from tidestate.operators.describe.windows import SlidingLifetimes
from tidestate.operators.streams import generators as watermark
from tidestate.operators.streams.inputs import cti_settings, merge_streams, stream, union_streams
from tidestate.operators.streams.settings import RetentionSettings, lifetime, period, side
from tidestate.operators.streams.stream import Aggregation, Stream
from tidestate.operators.streams.windows import offset_windows
from tidestate.statestore.errors import UsageError, of_type
from tidestate.watermark import fixed

MINUTE = tumbling("1 minute")
WITHIN = ("0 seconds", "1 minute")


def at(name: str | None = None, **settings: Any) -> Stream:
    return stream(name, **{"event_time": "t", **settings})


def counted(one: Stream) -> Aggregation:
    return one.group_by("k").window(MINUTE).aggregate(n=count())


def windows(made: Aggregation) -> Windowed:
    return of_type(made.graph.description, Windowed)


def test_streams_are_called_as_they_are_named_or_by_the_side_that_reads_them() -> None:
    clicks, orders = at(), at("orders")
    assert counted(clicks).graph.streams == ("input",)
    assert counted(orders).graph.streams == ("orders",)
    assert clicks.join(at(), on="k", within=WITHIN).graph.streams == ("left", "right")
    assert counted(clicks.join(at(), on="k", within=WITHIN)).graph.inputs == (("left", "right"), ("joined",))
    assert clicks.join(clicks, on="k", within=WITHIN).graph.inputs == (("input", "input"),)
    assert clicks.join(clicks.shift_time("1 minute"), on="k", within=WITHIN).graph.inputs[1] == ("input", "altered")
    assert union_streams(web=at(), app=at()).graph.streams == ("web", "app")
    assert union_streams(orders, at("returns")).graph.streams == ("orders", "returns")
    assert union_streams(orders, returns=at("back")).graph.inputs == (("orders", "back"),)


def test_two_objects_of_one_name_are_one_stream_and_views_are_too() -> None:
    assert at("a").join(at("a"), on="k", within=WITHIN).graph.streams == ("a",)
    source = at("a")
    idle = source.watermark(idle_timeout="1 minute")
    assert counted(idle).join(counted(source).named("other"), on="k", within=WITHIN).graph.streams == ("a",)


def test_an_operator_that_two_read_is_there_once() -> None:
    first = at().deduplicate("k")
    both = counted(first).join(counted(first).named("again"), on="k", within=WITHIN)
    assert both.graph.operators == ("deduplicated", "windows", "again", "joined")
    timed = first.join(first.timed_by("seen"), on="k", within=WITHIN)
    assert timed.graph.inputs == (("input",), ("deduplicated", "deduplicated"))


def test_many_operators_in_a_row_need_no_recursion() -> None:
    last: Any = at()
    many = 1_100  # more than the frames that Python allows
    for number in range(many):
        last = last.deduplicate("k", name=f"d{number}")
    assert len(last.graph.operators) == many
    assert isinstance(last.graph.description, Chain)
    assert repr(last).count(".deduplicate(") == many
    assert len(last.explain().splitlines()) == many + 1


def test_each_setter_replaces_what_an_earlier_call_has_set() -> None:
    made = counted(at(offset="o", future_tolerance="5 minutes"))
    late = made.allowed_lateness("1 hour", rule="window", ledger_columns="k", future_tolerance="1 minute")
    assert windows(late.allowed_lateness()) == windows(made)
    assert windows(made).future_tolerance_us == 300_000_000
    early = made.trigger(early=trigger.each_element(), closing="always")
    assert windows(early).triggers.per_element
    assert windows(early.trigger()) == windows(made)
    stamped = made.pane_timestamp("latest").pane_timestamp("end_of_window")
    assert windows(stamped) == windows(made.pane_timestamp("end_of_window"))
    assert windows(made.retain_windows(windows=3).retain_windows("1 day")) == windows(made.retain_windows("1 day"))
    assert windows(made.messages(retain="1 day").messages()) == windows(made.messages())


def test_a_pane_of_panes_is_stamped_by_their_time() -> None:
    made = counted(at())
    for first, time in ((made, "pane_time"), (made.pane_timestamp("earliest"), "timestamp")):
        behind = first.named("first").group_by().window(MINUTE).aggregate(n=sum_("n"))
        read = behind.pane_timestamp("latest").operator.description
        assert isinstance(read, Windowed)
        assert read.aggregates["timestamp"] == max_(time)
        assert read.event_time is None


def test_rows_of_panes_have_lifetimes() -> None:
    spans = at().group_by("k").window(MINUTE).aggregate(until=max_("t"))
    later = spans.timed_by("window_start", lifetime=lifetime("until")).group_by("k")
    touched = later.window(tumbling("1 minute", of="lifetime")).aggregate(n=count()).named("touched")
    description = of_type(touched.operator.description, Windowed)
    assert (description.event_time, of_type(description.windows, SlidingLifetimes).end) == ("window_start", "until")
    assert (touched.streams, touched.operators) == (("input",), ("windows", "touched"))


def test_an_operator_in_another_order_of_its_setters_is_the_same() -> None:
    made = counted(at())
    one = made.in_order().accumulation("retracting").allowed_lateness("1 hour").named("x")
    other = made.named("x").allowed_lateness("1 hour").accumulation("retracting").in_order()
    assert windows(one) == windows(other)
    assert windows(made).name == "windows"


def test_settings_of_a_source_come_from_its_author_with_the_configuration_and_the_shape() -> None:
    given = []

    def author(configuration: Any, shape: str) -> Any:
        given.append((configuration, shape))
        return cti_settings("drop", generate=watermark.generate_ctis(configuration["every"]))

    source = at(offset="o", lifetime=lifetime("e"), cti_settings=author, configuration={"every": 5})
    assert given == [({"every": 5}, "interval")]
    again = at(
        offset="o",
        lifetime=lifetime("e"),
        cti_settings=cti_settings("drop", generate=watermark.generate_ctis(5)),
    )
    assert windows(counted(source)) == windows(counted(again))
    assert windows(counted(source)).lateness_us == 0


CTIS = cti_settings("drop", generate=watermark.generate_ctis(5))
ORIGIN_BUFFERS = watermark.by_buffers(origin="o", sequence="s", watermark="w")
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "one of two streams has a name": (lambda: at("a").join(at(), on="k", within=WITHIN).graph, "stream-name"),
    "a stream without a name that two read": (
        lambda: union_streams(a=counted(at()), b=counted(at()).named("w")).graph,
        "stream-name",
    ),
    "two joins of streams without names": (
        lambda: (
            at()
            .join(at(), on="k", within=WITHIN)
            .join(at().join(at(), on="k", within=WITHIN, name="x"), on="k", within=WITHIN, name="y")
            .graph
        ),
        "stream-name",
    ),
    "a positional side without a name": (lambda: union_streams(at(), at()), "stream-name"),
    "two sides of one name": (lambda: merge_streams(at("a"), a=at("b")), "sides"),
    "a side called watermark": (lambda: merge_streams(watermark=at(), name=at()), "sides"),
    "what is no stream": (lambda: union_streams(a=at(), b="b"), "argument"),  # type: ignore[arg-type]
    "two operators of one name": (lambda: counted(counted(at())).graph, "operator-name"),
    "an operator called as a stream": (lambda: counted(at("a")).named("a").graph, "operator-name"),
    "windows of what is not grouped": (lambda: at().window(MINUTE), "group-by"),
    "results of what is not grouped": (lambda: at().aggregate(n=count()), "group-by"),
    "results in two parts": (lambda: counted(at()).aggregate(m=count()), "group-by"),
    "a watermark of an operator's output": (
        lambda: counted(at()).watermark(idle_timeout="1 minute"),
        "chain-watermark",
    ),
    "a future tolerance that nothing takes": (
        lambda: at(future_tolerance="1 minute").deduplicate("k").graph,
        "future-tolerance",
    ),
    "two future tolerances": (
        lambda: (
            merge_streams(a=at(future_tolerance="1 minute"), b=at(future_tolerance="2 minutes"))
            .group_by("k")
            .aggregate(n=count())
        ),
        "future-tolerance",
    ),
    "buffers of one side whose sources another column names": (
        lambda: at().watermark(ORIGIN_BUFFERS, by="k").join(at(), on="k", within=WITHIN),
        "watermark",
    ),
    "origins of one side that are no numbers": (
        lambda: at().watermark(ORIGIN_BUFFERS, sources=["trucks"]).join(at(), on="k", within=WITHIN),
        "progress-source",
    ),
    "buffers of a join by lifetimes": (
        lambda: at(offset="o").watermark(ORIGIN_BUFFERS).join_lifetimes(at(offset="o"), on="k"),
        "advance-time",
    ),
    "ingestion time of one side": (
        lambda: at().watermark(watermark.ingestion_time()).join(at(), on="k", within=WITHIN),
        "watermark",
    ),
    "watermarks of a side and over all": (
        lambda: (
            at().watermark(idle_timeout="1 minute").join(at(), on="k", within=WITHIN, watermark=fixed("1 minute"))
        ),
        "watermark",
    ),
    "CTIs in front of a deduplication": (lambda: at(offset="o", cti_settings=CTIS).deduplicate("k"), "advance-time"),
    "CTIs and a generator": (
        lambda: counted(at(offset="o", cti_settings=CTIS).watermark(watermark.bounded())),
        "watermark",
    ),
    "an author that returns a number": (lambda: at(cti_settings=lambda *_: 5), "advance-time"),  # type: ignore[arg-type]
    "an offset of one side of a merge": (
        lambda: merge_streams(a=at(offset="o"), b=at()).group_by("k").aggregate(n=count()),
        "side-columns",
    ),
    "windows of lifetimes that there are not": (
        lambda: at().group_by().window(tumbling("1 minute", of="lifetime")).aggregate(n=count()),
        "event-shape",
    ),
    "lifetimes of two columns": (
        lambda: (
            merge_streams(a=at(lifetime=lifetime("e")), b=at(lifetime=lifetime("f")))
            .group_by()
            .window(tumbling("1 minute", of="lifetime"))
            .aggregate(n=count())
        ),
        "side-columns",
    ),
    "a join of lifetimes without an order": (lambda: at().join_lifetimes(at(), on="k"), "join-offset"),
    "a join without a time": (lambda: stream("a").join(at("b"), on="k", within=WITHIN), "event-time"),
    "bounds and a window": (lambda: at().join(at(), on="k", within=WITHIN, window=MINUTE), "join-bounds"),
    "a window of both and of a side": (
        lambda: at().join(at(), on="k", window=MINUTE, left=side(window=MINUTE)),
        "join-bounds",
    ),
    "windows of each side as a pair": (lambda: at().join(at(), on="k", window=(MINUTE, None)), "join-window"),  # type: ignore[arg-type]
    "a first offset of a join": (lambda: at().join(at(), on="k", within=WITHIN, left=side(start=5)), "window-start"),
    "a window of a side of sessions": (
        lambda: at().join_sessions(at(), on="k", gap="1 minute", left=side(window=MINUTE)),
        "join-side",
    ),
    "messages of a side": (
        lambda: at().join(at(), on="k", sides=side(retain=RetentionSettings(bytes=5))),
        "retention-field",
    ),
    "windows of messages": (
        lambda: counted(at(offset="o")).messages(retain=RetentionSettings(windows=5)),
        "retention-field",
    ),
    "offsets of windows of time": (
        lambda: counted(at(offset="o")).messages(retain=RetentionSettings(offsets=5)),
        "retention-field",
    ),
    "a span of windows of offsets": (
        lambda: at(offset="o").group_by().window(offset_windows(4)).aggregate(n=count()).messages(retain="1 hour"),
        "retention-field",
    ),
    "a span for a generator": (lambda: at().watermark("5 minutes"), "watermark"),  # type: ignore[arg-type]
    "a generator that was not called": (lambda: at().watermark(watermark.bounded), "watermark"),
    "settings without ctis": (lambda: at().watermark(cti_settings("drop", import_from="a")), "watermark"),
    "a generator over sides": (lambda: at().join(at(), on="k", within=WITHIN, watermark=5), "watermark"),
    "a setting before the results": (lambda: at().group_by("k").allowed_lateness("1 hour"), "group-by"),
    **{
        f"a retention of {field} {value!r}": (
            lambda field=field, value=value: RetentionSettings(**{field: value}),
            "argument",
        )
        for field in ("messages", "offsets", "windows", "bytes", "slot")
        for value in (1.5, True, float("nan"), [5], 10**30)
    },
    "a retention of text": (lambda: RetentionSettings(messages="100"), "argument"),  # type: ignore[arg-type]
    "a retention of no span": (lambda: RetentionSettings(5), "span"),  # type: ignore[arg-type]
    "a slot of no span": (lambda: RetentionSettings(messages=5, slot="x"), "span"),
    "a union called 5": (lambda: union_streams(at("a"), at("b"), name=5), "argument"),  # type: ignore[arg-type]
    "a union called a list": (lambda: union_streams(at("a"), at("b"), name=[1]), "argument"),  # type: ignore[arg-type]
    "ctis of a number": (lambda: cti_settings("drop", generate=5), "argument"),  # type: ignore[arg-type]
    "ctis of a mapping": (lambda: cti_settings("drop", generate={}), "argument"),  # type: ignore[arg-type]
    "ctis of a far count": (lambda: watermark.generate_ctis(10**30), "argument"),
    "a far top": (lambda: top_n("v", 10**30), "argument"),
    "a far first offset": (lambda: offset_windows(2, start=10**30), "argument"),
    "a first offset near the end": (lambda: offset_windows(2, start=2**62), "window-start"),
    "a far mark": (lambda: watermark.punctuated("t", flag="v", equals=10**30), "argument"),
    "a number kept": (lambda: side(retain=5), "argument"),  # type: ignore[arg-type]
    "elements by batch": (
        lambda: counted(at(offset="o")).trigger(early=trigger.each_element(), evaluate="batch"),
        "trigger-element",
    ),
    "windows of nothing": (lambda: tumbling("1 minute", of="end"), "window-of"),  # type: ignore[arg-type]
    "an origin without an offset": (lambda: at(origin="o"), "offset"),
    "a negative delay": (lambda: at(watermark_delay="-1 minute"), "watermark-delay"),
    "a time in processing time": (lambda: at(processing_time=True), "processing-time"),
    "two underscores": (lambda: at("a__b"), "stream-name"),
    "a name with a point": (lambda: at("a.b"), "operator-name"),
    "a key that is no name": (lambda: at().group_by(5), "key-columns"),  # type: ignore[arg-type]
    "a period of nothing": (lambda: period("0 seconds"), "join-update"),
    "a timestamp next to a result of that name": (
        lambda: at().group_by("k").window(MINUTE).aggregate(timestamp=count()).pane_timestamp("latest"),
        "aggregate-twice",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    make, code = REFUSED[name]
    with pytest.raises(UsageError) as caught:
        make()
    assert caught.value.code == code


def test_keys_are_names_or_one_list_of_them() -> None:
    one, other = at().group_by("a", "b"), at().group_by(["a", "b"])
    assert one.keys == other.keys == ("a", "b")
    assert at().group_by().keys == ()


def test_sums_of_a_merge_are_of_the_columns_of_sides() -> None:
    merged = merge_streams(left=at(), right=at()).group_by("k").window(MINUTE).aggregate(x=sum_("left_price"))
    assert merged.graph.streams == ("left", "right")
