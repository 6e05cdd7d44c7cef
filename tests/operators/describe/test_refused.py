"""Descriptions that make no sense are refused when they are bound, by code; what is doubtful is warned about."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tidestate.agg import count
from tidestate.operators import global_window, sliding, tumbling
from tidestate.operators.describe.triggers import every_element
from tidestate.operators.describe.windowed import Windowed, windowed
from tidestate.operators.describe.windows import count_window, session
from tidestate.operators.local.harness import Harness
from tidestate.statestore.errors import UsageError
from tidestate.trigger import (
    after_count,
    after_processing_time,
    every_event_time,
    every_processing_time,
    or_finally,
    repeatedly,
)

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("time", TIME), ("k", pa.string()), ("offset", pa.int64()), ("origin", pa.int64())])
TEN = tumbling("10 seconds")
EVENT_TIME = every_event_time("3 seconds")


def base(window: Any = TEN, **more: Any) -> Windowed:
    return windowed(event_time="time", key="k", **more).window(window).aggregate(n=count())


def by_offset(window: Any = None, **more: Any) -> Windowed:
    return base(window or count_window(3, by="offset"), offset="offset", **more)


def by_clock() -> Windowed:
    return windowed(processing_time=True, key="k").window(TEN).aggregate(n=count())


REFUSED: dict[str, tuple[Callable[[], Windowed], str | None]] = {
    "event time within windows of counts": (lambda: base(count_window(3)).trigger(early=EVENT_TIME), None),
    "event time within the global window": (lambda: base(global_window()).trigger(early=EVENT_TIME), None),
    "event time within windows of offsets": (lambda: by_offset().trigger(early=EVENT_TIME), None),
    "event time within sessions of offsets": (
        lambda: by_offset(session(offsets=3)).accumulation("retracting").trigger(early=EVENT_TIME),
        None,
    ),
    "retracting, and never two panes": (
        lambda: base().trigger(late=None, closing="never").accumulation("retracting"),
        None,
    ),
    "retracting, and never two panes of a sliding window": (
        lambda: (
            base(sliding("10 seconds", "5 seconds")).trigger(late=None, closing="never").accumulation("retracting")
        ),
        None,
    ),
    "nothing is ever observed": (lambda: base().trigger(on_time="never", late=None, closing="never"), None),
    "nothing is ever observed of offsets": (
        lambda: by_offset().trigger(on_time="never", late=None, closing="never"),
        None,
    ),
    "per element without an order": (lambda: base().trigger(early=after_count(2), per_element=True), None),
    "per element of sessions": (
        lambda: (
            base(session("3 seconds"), offset="offset")
            .accumulation("retracting")
            .trigger(early=after_count(2), per_element=True)
        ),
        None,
    ),
    "per element of sessions of offsets": (
        lambda: (
            by_offset(session(offsets=3)).accumulation("retracting").trigger(early=after_count(2), per_element=True)
        ),
        None,
    ),
    "per element by the clock": (
        lambda: base(offset="offset").trigger(early=every_processing_time("3 seconds"), per_element=True),
        None,
    ),
    "per element after a delay": (
        lambda: base(offset="offset").trigger(early=after_processing_time("3 seconds"), per_element=True),
        None,
    ),
    "per element by event time": (
        lambda: base(offset="offset").trigger(early=EVENT_TIME, per_element=True),
        None,
    ),
    "per element early, late by the clock": (
        lambda: base(offset="offset").trigger(
            early=after_count(2), late=every_processing_time("3 seconds"), per_element=True
        ),
        None,
    ),
    "per element of a composite trigger without an order": (
        lambda: base().trigger(when=repeatedly(after_count(2)), per_element=True),
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
    "in order perhaps": (
        lambda: windowed(event_time="time", in_order="yes").window(tumbling("1 day")).aggregate(n=count()),  # type: ignore[arg-type]
        None,
    ),
    "per element of no trigger that counts": (
        lambda: base(offset="offset").trigger(late=None, per_element=True),
        None,
    ),
    "offsets without an order": (lambda: base(count_window(3, by="offset")), None),
    "sessions of offsets without an order": (
        lambda: base(session(offsets=3)).accumulation("retracting"),
        None,
    ),
    "late() of windows of offsets": (lambda: by_offset().late("3 seconds"), None),
    "late() of sessions of offsets": (
        lambda: by_offset(session(offsets=3)).accumulation("retracting").late("3 seconds"),
        None,
    ),
    "a window by something else": (lambda: by_offset(count_window(3, by="size")), None),  # type: ignore[arg-type]
    "a window of no offsets": (lambda: by_offset(count_window(0, by="offset")), None),
    "a step of no offsets": (lambda: by_offset(count_window(3, 0, by="offset")), None),
    "less than no lateness": (lambda: by_offset(count_window(3, by="offset", late=-1)), None),
    "a session of no offsets": (lambda: by_offset(session(offsets=0)).accumulation("retracting"), None),
    "a session of offsets and of time": (
        lambda: by_offset(session("3 seconds", offsets=3)).accumulation("retracting"),
        None,
    ),
    "lateness of counts in order of arrival": (lambda: base(count_window(3, late=2)), None),
    "an origin without an offset": (lambda: base(origin="origin"), None),
    "an offset that is not there": (lambda: base(offset="other"), None),
    "an origin that is not there": (lambda: base(offset="offset", origin="other"), None),
    "an offset that is no number": (lambda: base(offset="k"), None),
    "processing time and event time": (
        lambda: windowed(event_time="time", processing_time=True, key="k").window(TEN).aggregate(n=count()),
        None,
    ),
    "no time at all": (lambda: windowed(key="k").window(TEN).aggregate(n=count()), None),
    "kept for less than it is open": (lambda: base().late("9 seconds").retain("8 seconds"), "retention"),
    "kept for less than it is open by default": (lambda: base().retain("59 seconds"), "retention"),
    "kept for less than no time": (lambda: base().late("0 seconds").retain("-1 seconds"), None),
    "no window kept": (lambda: base().late("0 seconds").retain("1 hour", windows=0), None),
    "windows of counts kept": (lambda: base(count_window(3)).retain("1 hour"), None),
    "the global window kept": (lambda: base(global_window()).retain("1 hour"), None),
    "the newest sessions kept": (
        lambda: base(session("3 seconds")).accumulation("retracting").retain("1 hour", windows=2),
        None,
    ),
    "feeding windows the input does not bring": (lambda: windowed(event_time="time").aggregate(n=count()), None),
}
TAKEN: dict[str, Callable[[], Windowed]] = {
    "event time within windows of time": lambda: base().trigger(early=EVENT_TIME),
    "event time within windows that slide": lambda: base(sliding("10 seconds", "5 seconds")).trigger(
        early=EVENT_TIME
    ),
    "event time within sessions, retracting": lambda: (
        base(session("3 seconds")).accumulation("retracting").trigger(early=EVENT_TIME)
    ),
    "retracting with a late trigger": lambda: base().accumulation("retracting"),
    "retracting with an early trigger": lambda: (
        base().trigger(early=after_count(2), late=None, closing="never").accumulation("retracting")
    ),
    "retracting with a closing pane": lambda: base().trigger(late=None, closing="if_new").accumulation("retracting"),
    "retracting sessions, which merge": lambda: (
        base(session("3 seconds")).trigger(late=None, closing="never").accumulation("retracting")
    ),
    "observed on time alone": lambda: base().trigger(late=None, closing="never"),
    "observed at the close alone": lambda: base().trigger(on_time="never", late=None, closing="if_new"),
    "observed early alone": lambda: base().trigger(
        early=every_element(), on_time="never", late=None, closing="never"
    ),
    "observed late alone": lambda: base().trigger(on_time="never", closing="never"),
    "per element": lambda: base(offset="offset").trigger(early=after_count(2), per_element=True),
    "per element, late alone": lambda: base(offset="offset").trigger(late=after_count(2), per_element=True),
    "per element, early alone": lambda: base(offset="offset").trigger(
        early=every_element(), late=None, per_element=True
    ),
    "per element of offsets": lambda: by_offset().trigger(early=after_count(2), per_element=True),
    "per element of counts": lambda: base(count_window(3), offset="offset").trigger(
        early=after_count(2), per_element=True
    ),
    "per element of the global window": lambda: base(global_window(), offset="offset", origin="origin").trigger(
        early=after_count(2), per_element=True
    ),
    "processing time": by_clock,
    "kept as long as it is open": lambda: base().late("9 seconds").retain("9 seconds"),
    "the newest windows kept": lambda: base().retain("1 hour", windows=3),
    "the newest of windows that slide": lambda: base(sliding("10 seconds", "5 seconds")).retain("1 hour", windows=3),
    "sessions kept": lambda: base(session("3 seconds")).accumulation("retracting").retain("1 hour"),
    "a duration of nothing allowed, and nothing kept": lambda: base().late("0 seconds").retain("0 seconds"),
}
WARNED: dict[str, Callable[[], Windowed]] = {
    "sessions that accumulate": lambda: base(session("3 seconds")),
    "sessions that discard": lambda: base(session("3 seconds")).accumulation("discarding"),
    "sessions of offsets that accumulate": lambda: by_offset(session(offsets=3)),
    "sessions of offsets that discard": lambda: by_offset(session(offsets=3)).accumulation("discarding"),
    "sessions of the clock that accumulate, and show what may grow": lambda: (
        windowed(processing_time=True, key="k")
        .window(session("3 seconds"))
        .aggregate(n=count())
        .trigger(early=every_element())
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(name: str) -> None:
    described, code = REFUSED[name]
    with pytest.raises(UsageError) as caught:
        Harness(described(), SCHEMA)
    assert code is None or caught.value.code == code
    assert caught.value.code
    assert caught.value.message[0].islower()


@pytest.mark.parametrize("name", TAKEN)
def test_it_is_taken_without_a_word(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        harness = Harness(TAKEN[name](), SCHEMA)
    assert harness.feed([{"time": 0, "k": "a", "offset": 0, "origin": 0}]) is not None


@pytest.mark.parametrize("name", WARNED)
def test_it_is_warned_about(name: str) -> None:
    with pytest.warns(UserWarning, match="(?i)session"):
        harness = Harness(WARNED[name](), SCHEMA)
    assert harness.windows().num_rows == 0


@pytest.mark.parametrize("window", [session("3 seconds"), TEN])
def test_sessions_that_retract_are_not_warned_about(window: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        harness = Harness(base(window).accumulation("retracting"), SCHEMA)
    assert harness.windows().num_rows == 0
