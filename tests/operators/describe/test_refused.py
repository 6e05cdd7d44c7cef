"""Descriptions that make no sense are refused when they are bound, by code; what is doubtful is warned about."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tidestate import Aggregation, UsageError, agg
from tidestate.trigger import (
    after_count,
    each_batch,
    each_element,
    every_event_time,
    every_processing_time,
    or_finally,
    repeatedly,
)

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("time", TIME), ("k", pa.string()), ("offset", pa.int64()), ("origin", pa.int64())])
TEN = ts.tumbling("10 seconds")
EVENT_TIME = every_event_time("3 seconds")


def base(window: Any = TEN, **more: Any) -> Aggregation:
    stream = ts.stream(**{"event_time": "time"} | more)
    return stream.group_by("k").window(window).aggregate(n=agg.count())


def by_offset(window: Any = None, **more: Any) -> Aggregation:
    return base(window or ts.offset_windows(3), offset="offset", **more)


def by_clock(window: Any = TEN) -> Aggregation:
    return base(window, event_time=None, processing_time=True)


REFUSED: dict[str, tuple[Callable[[], Aggregation], str | None]] = {
    "event time within windows of counts": (lambda: base(ts.count_windows(3)).trigger(early=EVENT_TIME), None),
    "event time within the global window": (lambda: base(ts.global_window()).trigger(early=EVENT_TIME), None),
    "event time within windows of offsets": (lambda: by_offset().trigger(early=EVENT_TIME), None),
    "event time within sessions of offsets": (
        lambda: by_offset(ts.offset_sessions(3)).accumulation("retracting").trigger(early=EVENT_TIME),
        None,
    ),
    "retracting, and never two panes": (
        lambda: base().trigger(late=None, closing="never").accumulation("retracting"),
        None,
    ),
    "retracting, and never two panes of a sliding window": (
        lambda: (
            base(ts.sliding("10 seconds", "5 seconds")).trigger(late=None, closing="never").accumulation("retracting")
        ),
        None,
    ),
    "nothing is ever observed": (lambda: base().trigger(on_time="never", late=None, closing="never"), None),
    "nothing is ever observed of offsets": (
        lambda: by_offset().trigger(on_time="never", late=None, closing="never"),
        None,
    ),
    "per element of nothing but the clock": (
        lambda: base().trigger(early=every_processing_time("3 seconds"), late=None, evaluate="element"),
        None,
    ),
    "until what repeats": (
        lambda: base().trigger(when=or_finally(repeatedly(after_count(2)), repeatedly(after_count(4)))),
        None,
    ),
    "count of a half": (
        lambda: base().trigger(early=after_count(2.5)),  # type: ignore[arg-type]
        None,
    ),
    "per element of no trigger that counts": (
        lambda: base(offset="offset").trigger(late=None, evaluate="element"),
        None,
    ),
    "offsets without an order": (lambda: base(ts.offset_windows(3)), None),
    "sessions of offsets without an order": (
        lambda: base(ts.offset_sessions(3)).accumulation("retracting"),
        None,
    ),
    "allowed lateness of windows of offsets": (lambda: by_offset().allowed_lateness("3 seconds"), None),
    "allowed lateness of sessions of offsets": (
        lambda: by_offset(ts.offset_sessions(3)).accumulation("retracting").allowed_lateness("3 seconds"),
        None,
    ),
    "a window of no offsets": (lambda: by_offset(ts.offset_windows(0)), None),
    "a step of no offsets": (lambda: by_offset(ts.offset_windows(3, 0)), None),
    "less than no lateness": (lambda: by_offset(ts.offset_windows(3, late=-1)), None),
    "a session of no offsets": (lambda: by_offset(ts.offset_sessions(0)).accumulation("retracting"), None),
    "an origin without an offset": (lambda: base(origin="origin"), None),
    "an offset that is not there": (lambda: base(offset="other"), None),
    "an origin that is not there": (lambda: base(offset="offset", origin="other"), None),
    "an offset that is no number": (lambda: base(offset="k"), None),
    "processing time and event time": (
        lambda: base(processing_time=True),
        None,
    ),
    "no time at all": (lambda: base(event_time=None), None),
    "kept for less than it is open": (
        lambda: base().allowed_lateness("9 seconds").retain_windows("8 seconds"),
        "retention",
    ),
    "kept for less than it is open by default": (lambda: base().retain_windows("59 seconds"), "retention"),
    "kept for less than no time": (lambda: base().allowed_lateness("0 seconds").retain_windows("-1 seconds"), None),
    "no window kept": (lambda: base().allowed_lateness("0 seconds").retain_windows("1 hour", windows=0), None),
    "windows of counts kept": (lambda: base(ts.count_windows(3)).retain_windows("1 hour"), None),
    "the global window kept": (lambda: base(ts.global_window()).retain_windows("1 hour"), None),
    "the newest sessions kept": (
        lambda: base(ts.sessions("3 seconds")).accumulation("retracting").retain_windows("1 hour", windows=2),
        None,
    ),
    "feeding windows the input does not bring": (
        lambda: ts.stream(event_time="time").group_by().aggregate(n=agg.count()),
        None,
    ),
}
TAKEN: dict[str, Callable[[], Aggregation]] = {
    "event time within windows of time": lambda: base().trigger(early=EVENT_TIME),
    "event time within windows that slide": lambda: base(ts.sliding("10 seconds", "5 seconds")).trigger(
        early=EVENT_TIME
    ),
    "event time within sessions, retracting": lambda: (
        base(ts.sessions("3 seconds")).accumulation("retracting").trigger(early=EVENT_TIME)
    ),
    "retracting with a late trigger": lambda: base().accumulation("retracting"),
    "retracting with an early trigger": lambda: (
        base().trigger(early=after_count(2), late=None, closing="never").accumulation("retracting")
    ),
    "retracting with a closing pane": lambda: base().trigger(late=None, closing="if_new").accumulation("retracting"),
    "retracting sessions, which merge": lambda: (
        base(ts.sessions("3 seconds")).trigger(late=None, closing="never").accumulation("retracting")
    ),
    "observed on time alone": lambda: base().trigger(late=None, closing="never"),
    "observed at the close alone": lambda: base().trigger(on_time="never", late=None, closing="if_new"),
    "observed early alone": lambda: base().trigger(early=each_batch(), on_time="never", late=None, closing="never"),
    "observed late alone": lambda: base().trigger(on_time="never", closing="never"),
    "per element": lambda: base(offset="offset").trigger(early=after_count(2), evaluate="element"),
    "per element, late alone": lambda: base(offset="offset").trigger(late=after_count(2), evaluate="element"),
    "per element, early alone": lambda: base(offset="offset").trigger(
        early=each_element(), late=None, evaluate="element"
    ),
    "per element without an order": lambda: base().trigger(early=after_count(2), evaluate="element"),
    "per element of sessions": lambda: (
        base(ts.sessions("3 seconds")).accumulation("retracting").trigger(early=after_count(2), evaluate="element")
    ),
    "per element of sessions of offsets": lambda: (
        by_offset(ts.offset_sessions(3)).accumulation("retracting").trigger(early=after_count(2), evaluate="element")
    ),
    "per element late, early by the clock": lambda: base().trigger(
        early=every_processing_time("3 seconds"), evaluate="element"
    ),
    "per element late, early by event time": lambda: base().trigger(early=EVENT_TIME, evaluate="element"),
    "per element early, late by the clock": lambda: base().trigger(
        early=after_count(2), late=every_processing_time("3 seconds"), evaluate="element"
    ),
    "per element of a composite trigger": lambda: base().trigger(when=repeatedly(after_count(2)), evaluate="element"),
    "per element of offsets": lambda: by_offset().trigger(early=after_count(2), evaluate="element"),
    "per element of counts": lambda: base(ts.count_windows(3), offset="offset").trigger(
        early=after_count(2), evaluate="element"
    ),
    "per element of the global window": lambda: base(ts.global_window(), offset="offset", origin="origin").trigger(
        early=after_count(2), evaluate="element"
    ),
    "processing time": by_clock,
    "kept as long as it is open": lambda: base().allowed_lateness("9 seconds").retain_windows("9 seconds"),
    "the newest windows kept": lambda: base().retain_windows("1 hour", windows=3),
    "the newest of windows that slide": lambda: base(ts.sliding("10 seconds", "5 seconds")).retain_windows(
        "1 hour", windows=3
    ),
    "sessions kept": lambda: base(ts.sessions("3 seconds")).accumulation("retracting").retain_windows("1 hour"),
    "a duration of nothing allowed, and nothing kept": lambda: (
        base().allowed_lateness("0 seconds").retain_windows("0 seconds")
    ),
}
WARNED: dict[str, Callable[[], Aggregation]] = {
    "sessions that accumulate": lambda: base(ts.sessions("3 seconds")),
    "sessions that discard": lambda: base(ts.sessions("3 seconds")).accumulation("discarding"),
    "sessions of offsets that accumulate": lambda: by_offset(ts.offset_sessions(3)),
    "sessions of offsets that discard": lambda: by_offset(ts.offset_sessions(3)).accumulation("discarding"),
    "sessions of the clock that accumulate, and show what may grow": lambda: by_clock(
        ts.sessions("3 seconds")
    ).trigger(early=each_batch()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(name: str) -> None:
    described, code = REFUSED[name]
    with pytest.raises(UsageError) as caught:
        described().harness(SCHEMA)
    assert code is None or caught.value.code == code
    assert caught.value.code
    assert caught.value.message[0].islower()


@pytest.mark.parametrize("name", TAKEN)
def test_it_is_taken_without_a_word(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        harness = TAKEN[name]().harness(SCHEMA)
    assert harness.feed([{"time": 0, "k": "a", "offset": 0, "origin": 0}]) is not None


@pytest.mark.parametrize("name", WARNED)
def test_it_is_warned_about(name: str) -> None:
    with pytest.warns(UserWarning, match="(?i)session"):
        harness = WARNED[name]().harness(SCHEMA)
    assert harness.windows().num_rows == 0


@pytest.mark.parametrize("window", [ts.sessions("3 seconds"), TEN])
def test_sessions_that_retract_are_not_warned_about(window: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        harness = base(window).accumulation("retracting").harness(SCHEMA)
    assert harness.windows().num_rows == 0
