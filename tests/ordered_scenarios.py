"""Transcripts worked out by hand, one for each sentence about order, other axes, retention and feeding back.

As in `general_scenarios` a step is text and the panes after it: ``0..10 a early0 1+2``, ``-`` for a retraction, ``!``
for last. Words of a step: ``a7`` an event of key a at 7, ``a@5`` one at offset 5 (``a@2/5``: of origin 2, ``a7@5``:
at time 7; ``a@-`` without an offset), ``a[0..10]`` one that brings its window (``a[0..10]7``: and a time), ``?7`` one
without a key; ``W10`` and ``P5`` then move the watermark and the clock, ``feed`` feeds back the ledger, ``feed:`` the
events after it, ``end`` ends the input. ``x3 very_late 20 0..10`` is a row of the ledger: event 3, the reason, the
watermark it met, and the window that refused it if that is named. ``= 0..10 a 1+2`` lists the windows that are kept
then (in each step that has such a line, all of them; ``=`` alone: none).
"""

from __future__ import annotations

import re
from typing import Any

from tests.general_twin import (
    EACH_BATCH,
    FOREVER,
    Kind,
    Rejected,
    Row,
    Trigger,
    count_window,
    global_window,
    session,
    sliding,
    tumbling,
)
from tests.ordered_twin import Message, OrderedSetting, OrderedTwin, inherited, offset_session, offset_window

Step = tuple[str, ...]
TEN = tumbling(10)
COUNT_2, COUNT_3 = Trigger("after_count", 2), Trigger("after_count", 3)
AFTER_5, EVERY_5 = Trigger("after_processing_time", 5), Trigger("every_processing_time", 5)


def event_time(windows: Kind, **more: Any) -> OrderedSetting:
    return OrderedSetting(windows, **more)


def by_clock(windows: Kind, **more: Any) -> OrderedSetting:
    return OrderedSetting(windows, axis="processing", **more)


def ordered(windows: Kind, **more: Any) -> OrderedSetting:
    return OrderedSetting(windows, offset=True, **more)


def each(windows: Kind = TEN, early: Trigger | None = COUNT_2, **more: Any) -> OrderedSetting:
    return ordered(windows, early=early, per_element=True, **more)


ORDER: dict[str, tuple[OrderedSetting, list[Step]]] = {
    "messages of a batch count in the order of their offsets": (
        ordered(count_window(2)),
        [("a@7 a@3 a@5 a@4", "0..2 a on_time0 2+4!", "2..4 a on_time0 1+3!")],
    ),
    "without offsets, in the order they come": (
        event_time(count_window(2)),
        [("a7 a3 a5 a4", "0..2 a on_time0 1+2!", "2..4 a on_time0 3+4!")],
    ),
    "by origin first, then by offset": (
        ordered(count_window(2), origin=True),
        [("a@2/1 a@1/9 a@2/0 a@1/8", "0..2 a on_time0 2+4!", "2..4 a on_time0 1+3!")],
    ),
    "batches count in the order they come, whatever their offsets": (
        ordered(count_window(2)),
        [("a@9",), ("a@1 a@0", "0..2 a on_time0 1+3!"), ("end", "2..4 a on_time0 2!")],
    ),
    "the order is of a key's own messages": (
        ordered(count_window(2)),
        [("b@9 a@7 b@1 a@0 a@8", "0..2 a on_time0 2+4!", "0..2 b on_time0 1+3!"), ("end", "2..4 a on_time0 5!")],
    ),
    "no offset, or a negative one, is rejected; 0 is an offset": (
        ordered(count_window(2)),
        [("a@- a@-1 a@0", "x1 bad_offset -", "x2 bad_offset -"), ("a@3", "0..2 a on_time0 3+4!")],
    ),
    "no origin is rejected": (
        ordered(TEN, origin=True),
        [
            ("a1@-/5 a1@2/5", "x1 bad_offset -"),
            ("W4",),
            ("a9@2/-", "x3 bad_offset 4"),
            ("W10", "0..10 a on_time0 2!"),
        ],
    ),
}

OFFSETS: dict[str, tuple[OrderedSetting, list[Step]]] = {
    "a window is on time when the largest offset passes its end": (
        offset_window(3),
        [("a@0 a@1",), ("a@2", "0..3 a on_time0 1+2+3"), ("a@3",), ("a@5", "3..6 a on_time0 4+5")],
    ),
    "progress is the largest offset plus one, of all keys": (
        offset_window(3),
        [("a@0 b@2", "0..3 a on_time0 1", "0..3 b on_time0 2")],
    ),
    "a gap in the offsets passes windows too": (
        offset_window(3),
        [("a@1 a@4 a@100", "0..3 a on_time0 1!", "3..6 a on_time0 2!"), ("end", "99..102 a on_time0 3!")],
    ),
    "later offsets show it again until it is K behind; K is n by default": (
        offset_window(3),
        [
            ("a@0 b@2", "0..3 a on_time0 1", "0..3 b on_time0 2"),
            ("b@4 a@1", "0..3 a late1 1+4"),
            ("a@2 b@5", "0..3 a late2 1+4+5!", "3..6 b on_time0 3+6"),
            ("a@1", "x7 very_late 6"),
            ("end",),
        ],
    ),
    "late=0: no offset behind a passed window": (
        offset_window(3, behind=0),
        [
            ("a@0 b@3", "0..3 a on_time0 1!"),
            ("a@2", "x3 very_late 4"),
            ("b@4 a@5", "3..6 a on_time0 5!", "3..6 b on_time0 2+4!"),
        ],
    ),
    "late=5": (
        offset_window(2, behind=5),
        [
            ("a@0 b@5", "0..2 a on_time0 1", "4..6 b on_time0 2"),
            ("a@1 b@6", "0..2 a late1 1+3!"),
            ("a@1", "x5 very_late 7"),
        ],
    ),
    "an offset behind the largest is not late while its window is open": (
        offset_window(10, behind=0),
        [("a@8",), ("a@0 a@3",), ("a@9", "0..10 a on_time0 1+2+3+4!")],
    ),
    "windows that overlap; the first begins at 0": (
        offset_window(4, 2, behind=0),
        [
            ("a@0 a@1",),
            ("a@2 a@3", "0..4 a on_time0 1+2+3+4!"),
            ("a@5", "2..6 a on_time0 3+4+5!"),
            ("end", "4..8 a on_time0 5!"),
        ],
    ),
    "too late for one of two windows: a row for it, and taken by the other": (
        offset_window(4, 2, behind=0),
        [
            ("b@4",),
            ("a@3 b@3", "x2 very_late 5 0..4", "x3 very_late 5 0..4"),
            ("a@5", "2..6 a on_time0 2+4!", "2..6 b on_time0 1+3!"),
        ],
    ),
    "a step longer than the window leaves gaps": (
        offset_window(2, 5, behind=0),
        [("a@1 a@3 a@6 a@9", "0..2 a on_time0 1!", "5..7 a on_time0 3!"), ("end",)],
    ),
    "a batch is judged by the progress at its start": (
        offset_window(3, behind=0),
        [("a@49",), ("b@48 b@49 b@90", "48..51 a on_time0 1!", "48..51 b on_time0 2+3!")],
    ),
    "within a batch, too, nothing is late that was not before": (
        offset_window(3, behind=0),
        [("a@49 a@0", "0..3 a on_time0 2!")],
    ),
    "the time of an event does not matter": (
        offset_window(3, behind=0),
        [("a1000@0",), ("a1@1 a-7@2", "0..3 a on_time0 1+2+3!")],
    ),
    "early panes by count": (
        offset_window(10, early=COUNT_2, mode="retracting"),
        [
            ("a@0",),
            ("a@1", "0..10 a early0 1+2"),
            ("a@2 a@3", "-0..10 a early0 1+2", "0..10 a early1 1+2+3+4"),
            ("a@9", "-0..10 a on_time1 1+2+3+4", "0..10 a on_time2 1+2+3+4+5"),
        ],
    ),
    "an event without a key, and one without a place": (
        offset_window(2),
        [("?@0 a@- a@0", "x1 null_key -", "x2 bad_offset -"), ("a@1", "0..2 a on_time0 3+4")],
    ),
    "one origin": (
        offset_window(2, origin=True, behind=0),
        [("a@4/0",), ("a@4/1", "0..2 a on_time0 1+2!"), ("a@4/0", "x3 very_late 2")],
    ),
    "sessions: less than g apart are one, exactly g stay apart": (
        offset_session(3, mode="retracting"),
        [("a@0 a@2 a@5 b@9", "0..5 a on_time0 1+2!", "5..8 a on_time0 3"), ("end", "9..12 b on_time0 4!")],
    ),
    "sessions: on time when the largest offset passes last + g, of another key too": (
        offset_session(3, mode="retracting"),
        [("a@0 a@1",), ("b@2",), ("b@3", "0..4 a on_time0 1+2")],
    ),
    "sessions: a later message retracts and shows again; gone K behind, K is g by default": (
        offset_session(3, mode="retracting"),
        [
            ("a@0 b@4", "0..3 a on_time0 1"),
            ("a@1", "-0..3 a late0 1", "0..4 a late0 1+3"),
            ("b@6",),
            ("a@1", "x5 very_late 7"),
        ],
    ),
    "sessions, late=0": (
        offset_session(3, behind=0, mode="retracting"),
        [
            ("a@0 b@4", "0..3 a on_time0 1!"),
            ("a@1", "x3 very_late 5"),
            ("a@3 a@4",),
            ("b@20", "4..7 b on_time0 2!", "3..7 a on_time0 4+5!"),
        ],
    ),
    "sessions: a bridge": (
        offset_session(4, behind=9, mode="retracting"),
        [("a@0 a@6", "0..4 a on_time0 1"), ("a@3", "-0..4 a early0 1"), ("b@9", "0..10 a on_time0 1+2+3")],
    ),
}

CLOCK: dict[str, tuple[OrderedSetting, list[Step]]] = {
    "an event lies where the clock stands": (
        by_clock(TEN),
        [("a",), ("P9",), ("a",), ("P10", "0..10 a on_time0 1+2!"), ("a",), ("P25", "10..20 a on_time0 3!")],
    ),
    "all events of a batch have one time; sessions": (
        by_clock(session(5), mode="retracting"),
        [
            ("a b",),
            ("P4",),
            ("a",),
            ("P5", "0..5 b on_time0 2!"),
            ("b",),
            ("P9", "0..9 a on_time0 1+3!"),
            ("P10", "5..10 b on_time0 4!"),
        ],
    ),
    "overlapping windows": (
        by_clock(sliding(10, 5)),
        [
            ("P7",),
            ("a",),
            ("P10", "0..10 a on_time0 1!"),
            ("P14",),
            ("a",),
            ("P15", "5..15 a on_time0 1+2!"),
            ("end", "10..20 a on_time0 2!"),
        ],
    ),
    "a time far ahead of or behind the clock says nothing": (
        by_clock(TEN),
        [("P15",), ("a1 a99",), ("P20", "10..20 a on_time0 1+2!")],
    ),
    "a key is needed all the same": (
        by_clock(TEN),
        [("? a", "x1 null_key -"), ("P3",), ("?", "x3 null_key 3"), ("P10", "0..10 a on_time0 2!")],
    ),
    "early by the clock": (
        by_clock(TEN, early=Trigger("every_processing_time", 4)),
        [("a",), ("P4", "0..10 a early0 1"), ("a",), ("P9", "0..10 a early1 1+2"), ("P10", "0..10 a on_time2 1+2!")],
    ),
    "count windows": (
        by_clock(count_window(2)),
        [("a b",), ("P50",), ("a", "0..2 a on_time0 1+3!"), ("end", "0..2 b on_time0 2!")],
    ),
}

PER_ELEMENT: dict[str, tuple[OrderedSetting, list[Step]]] = {
    "early panes at each second element, what is left over stays": (
        each(),
        [
            ("a1@0 a2@1 a3@2 a4@3 a5@4", "0..10 a early0 1+2", "0..10 a early1 1+2+3+4"),
            ("a6@5", "0..10 a early2 1+2+3+4+5+6"),
            ("a7@6",),
            ("W10", "0..10 a on_time3 1+2+3+4+5+6+7!"),
        ],
    ),
    "at every element": (
        each(early=EACH_BATCH),
        [("a1@0 a2@1 a3@2", "0..10 a early0 1", "0..10 a early1 1+2", "0..10 a early2 1+2+3")],
    ),
    "in the order of the offsets": (
        each(),
        [("a1@7 a2@3 a3@5 a4@4", "0..10 a early0 2+4", "0..10 a early1 1+2+3+4")],
    ),
    "by origin first": (
        each(origin=True),
        [("a1@2/1 a1@1/9 a1@2/0 a1@1/8", "0..10 a early0 2+4", "0..10 a early1 1+2+3+4")],
    ),
    "discarding: what is new since the pane before": (
        each(mode="discarding"),
        [
            ("a1@0 a2@1 a3@2 a4@3 a5@4", "0..10 a early0 1+2", "0..10 a early1 3+4"),
            ("a6@5 a7@6", "0..10 a early2 5+6"),
            ("W10", "0..10 a on_time3 7!"),
        ],
    ),
    "retracting: each pane takes back the one before": (
        each(mode="retracting"),
        [
            (
                "a1@0 a2@1 a3@2 a4@3 a5@4",
                "0..10 a early0 1+2",
                "-0..10 a early0 1+2",
                "0..10 a early1 1+2+3+4",
            ),
            ("a6@5", "-0..10 a early1 1+2+3+4", "0..10 a early2 1+2+3+4+5+6"),
            ("W10", "-0..10 a on_time2 1+2+3+4+5+6", "0..10 a on_time3 1+2+3+4+5+6!"),
        ],
    ),
    "a window that is passed in the batch: first its early panes, then the one on time": (
        offset_window(4, behind=9, early=COUNT_2, per_element=True),
        [
            ("a@0 a@1 a@2 a@3", "0..4 a early0 1+2", "0..4 a early1 1+2+3+4", "0..4 a on_time2 1+2+3+4"),
            ("a@0", "0..4 a late3 1+2+3+4+5"),
        ],
    ),
    "the same, and the elements left over": (
        offset_window(4, early=COUNT_3, per_element=True, mode="retracting"),
        [
            ("a@1",),
            (
                "a@0 a@2 a@3",
                "0..4 a early0 1+2+3",
                "-0..4 a on_time0 1+2+3",
                "0..4 a on_time1 1+2+3+4",
            ),
        ],
    ),
    "on time without anything new: non_empty leaves it out": (
        offset_window(4, early=COUNT_2, per_element=True, on_time="non_empty"),
        [("a@0 a@1 a@2 a@3", "0..4 a early0 1+2", "0..4 a early1 1+2+3+4")],
    ),
    "late panes at each second late element": (
        each(allowed=50, early=None, late=COUNT_2, closing="if_new"),
        [
            ("a1@0",),
            ("W10", "0..10 a on_time0 1"),
            ("a2@1 a3@2 a4@3", "0..10 a late1 1+2+3"),
            ("a5@4 a6@5", "0..10 a late2 1+2+3+4+5"),
            ("W60", "0..10 a late3 1+2+3+4+5+6!"),
        ],
    ),
    "late at every element, which is the default": (
        each(allowed=50),
        [("a1@0",), ("W10", "0..10 a on_time0 1"), ("a2@1 a3@2", "0..10 a late1 1+2", "0..10 a late2 1+2+3")],
    ),
    "late panes in the batch that ends the lateness: no closing pane beside them": (
        offset_window(3, behind=2, closing="always", per_element=True),
        [
            ("a@0 b@3", "0..3 a on_time0 1"),
            ("a@1 a@2 b@4", "0..3 a late1 1+3", "0..3 a late2 1+3+4!"),
        ],
    ),
    "but one for what they leave over": (
        offset_window(3, behind=2, late=COUNT_2, closing="if_new", per_element=True),
        [
            ("a@0 b@3", "0..3 a on_time0 1"),
            ("a@2 a@1 a@2 b@4", "0..3 a late1 1+3+4", "0..3 a late2 1+3+4+5!"),
        ],
    ),
    "only the last of several panes in a step is the last": (
        offset_window(3, behind=0, early=EACH_BATCH, per_element=True),
        [("a@0 a@1 a@2", "0..3 a early0 1", "0..3 a early1 1+2", "0..3 a early2 1+2+3", "0..3 a on_time3 1+2+3!")],
    ),
    "count windows: early panes and the full one in a batch": (
        each(count_window(4)),
        [
            (
                "a@0 a@1 a@2 a@3 a@4 a@5 a@6",
                "0..4 a early0 1+2",
                "0..4 a early1 1+2+3+4",
                "0..4 a on_time2 1+2+3+4!",
                "4..8 a early0 5+6",
            ),
            ("end", "4..8 a on_time1 5+6+7!"),
        ],
    ),
    "each window by itself": (
        each(sliding(10, 5), early=COUNT_2),
        [
            (
                "a7@0 a2@1 b8@2 a6@3",
                "0..10 a early0 1+2",
                "5..15 a early0 1+4",
            ),
            ("b9@4", "0..10 b early0 3+5", "5..15 b early0 3+5"),
        ],
    ),
    "global": (
        each(global_window()),
        [("a1@0 a2@1 a3@2", "-inf..inf a early0 1+2"), ("end", "-inf..inf a on_time1 1+2+3!")],
    ),
}

FEEDING: dict[str, tuple[OrderedSetting, list[Step]]] = {
    "what was too late comes after all, once": (
        event_time(TEN, retain=20),
        [
            ("a1 W10", "0..10 a on_time0 1!"),
            ("a2 b3", "x2 very_late 10", "x3 very_late 10"),
            ("feed", "0..10 a late1 1+2!", "0..10 b late0 3!"),
            ("feed",),
            ("a4", "x4 very_late 10"),
            ("feed", "0..10 a late2 1+2+4!"),
        ],
    ),
    "all rows of a feeding are one batch": (
        event_time(TEN, retain=90),
        [
            ("W10",),
            ("a1", "x1 very_late 10"),
            ("a2 W20", "x2 very_late 10"),
            ("a3", "x3 very_late 20"),
            ("feed", "0..10 a late0 1+2+3!"),
        ],
    ),
    "a window is kept for reading until W >= end + retention": (
        event_time(TEN, retain=20),
        [
            ("a1 W9", "= 0..10 a 1"),
            ("W10", "0..10 a on_time0 1!", "= 0..10 a 1"),
            ("W29", "= 0..10 a 1"),
            ("W30", "="),
        ],
    ),
    "and for feeding": (
        event_time(TEN, retain=20),
        [
            ("W29",),
            ("a1 b1", "x1 very_late 29", "x2 very_late 29"),
            ("feed", "0..10 a late0 1!", "0..10 b late0 2!", "= 0..10 a 1", "= 0..10 b 2"),
            ("a2 W30", "x3 very_late 29", "="),
            ("feed", "x3 purged 30"),
            ("feed",),
        ],
    ),
    "retention is the allowed lateness by default": (
        event_time(TEN, allowed=2),
        [
            ("a1 W11", "0..10 a on_time0 1"),
            ("a8", "x2 very_late 11"),
            ("feed", "0..10 a late1 1+2", "= 0..10 a 1+2"),
            ("a8 W12", "x3 very_late 11", "="),
            ("feed", "x3 purged 12"),
        ],
    ),
    "the larger of retention and allowed lateness": (
        event_time(TEN, allowed=5, retain=5),
        [("a1 W14", "0..10 a on_time0 1", "= 0..10 a 1"), ("W15", "=")],
    ),
    "retained, it takes no ordinary event": (
        event_time(TEN, rule="window", allowed=2, retain=20),
        [
            ("a1 W11", "0..10 a on_time0 1"),
            ("a2 W12", "0..10 a late1 1+2"),
            ("a3", "x3 very_late 12", "= 0..10 a 1+2"),
        ],
    ),
    "the closing pane comes when ordinary events are over, not when it is forgotten": (
        event_time(TEN, allowed=5, retain=20, late=None, closing="always"),
        [
            ("a1 W10", "0..10 a on_time0 1"),
            ("a8 W15", "0..10 a late1 1+2!"),
            ("W29", "= 0..10 a 1+2"),
            ("W30", "="),
        ],
    ),
    "an open window: by the early trigger": (
        event_time(sliding(10, 5), early=EACH_BATCH, retain=9),
        [
            ("W7",),
            ("a6", "x1 very_late 7"),
            ("feed", "0..10 a early0 1", "5..15 a early0 1"),
            ("W10", "0..10 a on_time1 1!"),
        ],
    ),
    "an open window without an early trigger waits for its end": (
        event_time(TEN, retain=9),
        [("a9 W7",), ("a6", "x2 very_late 7"), ("feed",), ("W10", "0..10 a on_time0 1+2!")],
    ),
    "an open window, early by count: fed elements count with the others": (
        event_time(TEN, early=COUNT_2),
        [("a9 W7",), ("a6", "x2 very_late 7"), ("feed", "0..10 a early0 1+2")],
    ),
    "a passed window: by the late trigger": (
        event_time(TEN, allowed=4, late=COUNT_2, closing="if_new"),
        [
            ("a1 W13", "0..10 a on_time0 1"),
            ("a8", "x2 very_late 13"),
            ("feed",),
            ("a8", "x3 very_late 13"),
            ("feed", "0..10 a late1 1+2+3"),
        ],
    ),
    "a window that is over: by the late trigger, else a closing pane": (
        event_time(TEN, late=COUNT_2, closing="if_new", retain=20),
        [
            ("a1 W10", "0..10 a on_time0 1!"),
            ("a2", "x2 very_late 10"),
            ("feed", "0..10 a late1 1+2!"),
            ("a3 a4", "x3 very_late 10", "x4 very_late 10"),
            ("feed", "0..10 a late2 1+2+3+4!"),
            ("W30",),
        ],
    ),
    "the same, closing always: nothing that was not fed is shown again": (
        event_time(TEN, late=None, closing="always", retain=20),
        [
            ("a1 b1 W10", "0..10 a on_time0 1!", "0..10 b on_time0 2!"),
            ("a2", "x3 very_late 10"),
            ("feed", "0..10 a late1 1+3!"),
            ("feed",),
            ("W12",),
        ],
    ),
    "closing never, no late trigger: no pane, but the state has changed": (
        event_time(TEN, late=None, retain=20),
        [
            ("a1 W10", "0..10 a on_time0 1!"),
            ("a2", "x2 very_late 10"),
            ("feed", "= 0..10 a 1+2"),
            ("W29",),
            ("end",),
        ],
    ),
    "late by processing time: no need to wait when the window is over": (
        event_time(TEN, late=AFTER_5, closing="if_new", retain=20),
        [
            ("a1 W10", "0..10 a on_time0 1!"),
            ("a2", "x2 very_late 10"),
            ("feed", "0..10 a late1 1+2!"),
            ("P9",),
        ],
    ),
    "periodic triggers do not show what is only retained": (
        event_time(TEN, early=EVERY_5, late=EVERY_5, closing="if_new", retain=20),
        [("a1 P5", "0..10 a early0 1"), ("W10", "0..10 a on_time1 1!"), ("P10",), ("P15",)],
    ),
    "retracting": (
        event_time(TEN, mode="retracting", retain=20),
        [
            ("a1 W10", "0..10 a on_time0 1!"),
            ("a2", "x2 very_late 10"),
            ("feed", "-0..10 a late0 1", "0..10 a late1 1+2!"),
        ],
    ),
    "discarding": (
        event_time(TEN, mode="discarding", retain=20),
        [
            ("a1 W10", "0..10 a on_time0 1!"),
            ("a2 a3", "x2 very_late 10", "x3 very_late 10"),
            ("feed", "0..10 a late1 2+3!"),
        ],
    ),
    "overlapping windows: one gone, one not": (
        event_time(sliding(20, 10), retain=15),
        [
            ("W36",),
            ("a15", "x1 very_late 36"),
            ("feed", "x1 purged 36 0..20", "10..30 a late0 1!"),
            ("W44",),
            ("a15", "x2 very_late 44"),
            ("W45",),
            ("feed", "x2 purged 45"),
            ("feed",),
        ],
    ),
    "a row that names a window is fed to that window": (
        event_time(sliding(10, 5), rule="window", retain=20),
        [
            ("W10",),
            ("a7", "x1 very_late 10 0..10"),
            ("feed", "0..10 a late0 1!"),
            ("W15", "5..15 a on_time0 1!"),
        ],
    ),
    "such a row keeps its window when that is gone: others have taken the event": (
        event_time(sliding(10, 5), rule="window"),
        [("W10",), ("a7", "x1 very_late 10 0..10"), ("feed", "x1 purged 10 0..10"), ("W15", "5..15 a on_time0 1!")],
    ),
    "the newest windows behind the watermark": (
        event_time(TEN, retain=1000, newest=2),
        [
            (
                "a5 a15 a25 W35",
                "0..10 a on_time0 1!",
                "10..20 a on_time0 2!",
                "20..30 a on_time0 3!",
                "= 10..20 a 2",
                "= 20..30 a 3",
            ),
            ("a12 a7", "x4 very_late 35", "x5 very_late 35"),
            ("feed", "10..20 a late1 2+4!", "x5 purged 35"),
            ("W39", "= 10..20 a 2+4", "= 20..30 a 3"),
            ("W40", "= 20..30 a 3"),
        ],
    ),
    "newest of the grid, also where there was no window": (
        event_time(TEN, retain=1000, newest=2),
        [("a5 W10", "0..10 a on_time0 1!"), ("W29", "= 0..10 a 1"), ("W30", "=")],
    ),
    "newest windows that overlap": (
        event_time(sliding(10, 5), retain=1000, newest=2),
        [
            ("a4 W9", "-5..5 a on_time0 1!", "= -5..5 a 1", "= 0..10 a 1"),
            ("W14", "0..10 a on_time0 1!", "= -5..5 a 1", "= 0..10 a 1"),
            ("W15", "= 0..10 a 1"),
        ],
    ),
    "span and number: the shorter": (
        event_time(TEN, retain=12, newest=3),
        [
            (
                "a5 a15 a25 W31",
                "0..10 a on_time0 1!",
                "10..20 a on_time0 2!",
                "20..30 a on_time0 3!",
                "= 10..20 a 2",
                "= 20..30 a 3",
            ),
            ("W32", "= 20..30 a 3"),
        ],
    ),
    "the number is never shorter than the allowed lateness": (
        event_time(TEN, allowed=30, retain=1000, newest=1),
        [("a5 W10", "0..10 a on_time0 1"), ("W39", "= 0..10 a 1"), ("W40", "=")],
    ),
    "sessions: kept until retention is over": (
        event_time(session(5), retain=20, mode="retracting"),
        [("a0 a3 W8", "0..8 a on_time0 1+2!", "= 0..8 a 1+2"), ("W27", "= 0..8 a 1+2"), ("W28", "=")],
    ),
    "sessions: what is fed merges, and retracts": (
        event_time(session(5), retain=30, mode="retracting"),
        [
            ("a0 a8 W20", "0..5 a on_time0 1!", "8..13 a on_time0 2!"),
            ("a4", "x3 very_late 20"),
            ("feed", "-0..5 a late0 1", "-8..13 a late0 2", "0..13 a late0 1+2+3!"),
        ],
    ),
    "sessions: grown over the watermark it is open again": (
        event_time(session(5), retain=20, mode="retracting"),
        [
            ("a0 W5", "0..5 a on_time0 1!"),
            ("a3", "x2 very_late 5"),
            ("feed", "-0..5 a early0 1"),
            ("W8", "0..8 a on_time0 1+2!"),
        ],
    ),
    "sessions: an ordinary event does not wake one that is only retained": (
        event_time(session(10), rule="window", retain=20, mode="retracting"),
        [
            ("a0 W10", "0..10 a on_time0 1!"),
            ("a5", "= 0..10 a 1", "= 5..15 a 2"),
            ("W15", "5..15 a on_time0 2!"),
        ],
    ),
    "the global window": (
        event_time(global_window()),
        [("a11 W10",), ("a9", "x2 very_late 10"), ("feed",), ("end", "-inf..inf a on_time0 1+2!")],
    ),
    "count windows: the next number": (
        event_time(count_window(2)),
        [("a11 W10",), ("a9", "x2 very_late 10"), ("feed", "0..2 a on_time0 1+2!")],
    ),
    "rows given: taken though they were never in the ledger, and the watermark stays": (
        event_time(TEN, retain=20),
        [
            ("W12",),
            ("feed: a1 a99", "0..10 a late0 1!"),
            ("a13 W20", "10..20 a on_time0 3!"),
            ("feed: a1", "0..10 a late1 1+4!"),
            ("W30",),
            ("feed: a9 b1", "x5 purged 30", "x6 purged 30"),
            ("W100", "90..100 a on_time0 2!"),
        ],
    ),
    "per element, in order": (
        each(early=None, retain=50),
        [
            ("a1@5 W10", "0..10 a on_time0 1!"),
            ("a2@9 a3@7", "x2 very_late 10", "x3 very_late 10"),
            ("feed", "0..10 a late1 1+3", "0..10 a late2 1+2+3!"),
        ],
    ),
    "windows of offsets, the newest": (
        offset_window(3, behind=0, newest=2),
        [
            ("b@8", "6..9 b on_time0 1!"),
            ("a@4 a@0", "x2 very_late 9", "x3 very_late 9"),
            ("feed", "3..6 a late0 2!", "x3 purged 9"),
            ("a@9",),
            ("a@8", "x5 very_late 10"),
            ("feed", "6..9 a late0 5!"),
        ],
    ),
    "windows of the input": (
        inherited(retain=20),
        [
            ("a[0..10]5 W10", "0..10 a on_time0 1!"),
            ("a[0..10]9", "x2 very_late 10"),
            ("feed", "0..10 a late1 1+2!"),
        ],
    ),
}

CLOSED: dict[str, tuple[OrderedSetting, list[Step]]] = {
    "what comes to a finished window is in the ledger": (
        event_time(TEN, when=COUNT_2, closing="if_new"),
        [
            ("a1",),
            ("a2 b2", "0..10 a early0 1+2"),
            ("a3 b4", "x4 window_closed - 0..10", "0..10 b early0 3+5"),
            ("W9",),
            ("a9 a11", "x6 window_closed 9 0..10"),
            ("W20", "10..20 a on_time0 7!"),
        ],
    ),
    "the batch that finishes it is taken whole": (
        event_time(TEN, when=COUNT_2, closing="if_new"),
        [("a1 a2 a3", "0..10 a early0 1+2+3"), ("a4", "x4 window_closed - 0..10")],
    ),
    "finished by the watermark": (
        event_time(TEN, when=Trigger("count_or_end", 5), allowed=5, closing="if_new"),
        [("a1 W10", "0..10 a on_time0 1"), ("a9", "x2 window_closed 10 0..10"), ("a3", "x3 very_late 10")],
    ),
    "overlapping windows: the one that is finished": (
        event_time(sliding(10, 5), when=COUNT_2, closing="if_new"),
        [
            ("a2",),
            ("a7", "0..10 a early0 1+2"),
            ("a8", "x3 window_closed - 0..10", "5..15 a early0 2+3"),
            ("a9", "x4 window_closed - 0..10", "x4 window_closed - 5..15"),
        ],
    ),
    "repeatedly until the watermark": (
        event_time(TEN, when=Trigger("counts_until_end", 2), allowed=5, closing="if_new"),
        [
            ("a1 a2", "0..10 a early0 1+2"),
            ("a3",),
            ("a4", "0..10 a early1 1+2+3+4"),
            ("W10", "0..10 a on_time2 1+2+3+4"),
            ("a9", "x5 window_closed 10 0..10"),
        ],
    ),
    "both": (
        event_time(TEN, when=Trigger("count_and_end", 2), allowed=5, closing="if_new"),
        [
            ("a1 a2",),
            ("W10", "0..10 a on_time0 1+2"),
            ("a9", "x3 window_closed 10 0..10"),
        ],
    ),
    "fed to a finished window": (
        event_time(TEN, when=Trigger("count_or_end", 5), retain=20, closing="if_new"),
        [
            ("a1 W10", "0..10 a on_time0 1!"),
            ("a3", "x2 very_late 10"),
            ("feed", "x2 window_closed 10 0..10"),
            ("feed",),
        ],
    ),
}

PROPAGATED: dict[str, tuple[OrderedSetting, list[Step]]] = {
    "the windows of the input's rows": (
        inherited(),
        [
            ("a[0..10]5 a[0..20]5 b[0..10]5 a[3..11]4 a[0..10]9 W10", "0..10 a on_time0 1+5!", "0..10 b on_time0 3!"),
            ("W11", "3..11 a on_time0 4!"),
            ("W20", "0..20 a on_time0 2!"),
        ],
    ),
    "the time of a row is the last moment of its window": (
        inherited(timeless=True),
        [
            ("a[0..10] W9",),
            ("a[5..10] W10", "0..10 a on_time0 1!", "5..10 a on_time0 2!"),
            ("a[5..10]", "x3 very_late 10"),
            ("a[7..11] W11", "7..11 a on_time0 4!"),
        ],
    ),
    "allowed lateness from the last moment": (
        inherited(timeless=True, allowed=5),
        [
            ("a[0..10] W14", "0..10 a on_time0 1"),
            ("a[0..10]", "0..10 a late1 1+2"),
            ("W15",),
            ("a[0..10]", "x3 very_late 15"),
        ],
    ),
    "with a time it is the time that counts": (
        inherited(),
        [("W8",), ("a[0..10]7 a[0..10]8", "x1 very_late 8"), ("W10", "0..10 a on_time0 2!")],
    ),
    "or the window, by that rule": (
        inherited(rule="window"),
        [("W8",), ("a[0..10]7",), ("W10", "0..10 a on_time0 1!"), ("a[0..10]7", "x2 very_late 10")],
    ),
    "before 1970": (inherited(timeless=True), [("a[-20..-10] W-11",), ("W-10", "-20..-10 a on_time0 1!")]),
    "triggers and retractions as ever": (
        inherited(early=COUNT_2, mode="retracting", allowed=5),
        [
            ("a[0..10]1 a[0..10]2", "0..10 a early0 1+2"),
            ("W10", "-0..10 a on_time0 1+2", "0..10 a on_time1 1+2"),
            ("a[0..10]7", "-0..10 a late1 1+2", "0..10 a late2 1+2+3"),
        ],
    ),
}

SCENARIOS = {**ORDER, **OFFSETS, **CLOCK, **PER_ELEMENT, **FEEDING, **CLOSED, **PROPAGATED}

_WORD = re.compile(r"([a-z?])(?:\[(-?\d+)\.\.(-?\d+)\])?(-?\d+)?(?:@(?:(-|\d+)/)?(-\d+|-|\d+))?")


class Told:
    """A step's text, read. ``moves`` are the watermark and the clock, in order; ``feeds``: events are fed back."""

    def __init__(self, text: str, told: int) -> None:
        self.events: list[Message] = []
        self.moves: list[tuple[str, int]] = []
        self.feeds: str = ""
        for word in text.split():
            if word in ("feed", "feed:"):
                self.feeds = word
            elif word == "end":
                self.moves.append(("end", FOREVER))
            elif word[0] in "WP":
                self.moves.append((word[0], int(word[1:])))
            else:
                self.events.append(message(word, told + len(self.events) + 1))


def message(word: str, number: int) -> Message:
    found = _WORD.fullmatch(word)
    assert found is not None, word
    key, start, end, time, origin, offset = found.groups()

    def of(text: str | None) -> int | None:
        return None if text in (None, "-") else int(text or "")

    placed = of(time) if time is not None or offset is None else 0
    return Message(placed, None if key == "?" else key, number, of(origin), of(offset), of(start), of(end))


def numbers(events: list[Any]) -> tuple[Any, ...]:
    return tuple(sorted(event.v for event in events))


def played(setting: OrderedSetting, steps: list[Step]) -> list[Step]:
    """What the twin shows, in the words of the scenario."""
    twin = OrderedTwin(setting, numbers)
    told, found = 0, []
    for text, *expected in steps:
        step = Told(text, told)
        told += len(step.events)
        before = len(twin.ledger)
        rows = play(twin, step)
        lines = [*map(said, rows), *(line for entry in twin.ledger[before:] for line in refused(entry))]
        if any(line.startswith("=") for line in expected):
            lines += kept(twin.live_windows())
        found.append((text, *lines))
    return found


def play(twin: OrderedTwin, step: Told) -> list[Row]:
    """Each of its words that moves something, and its events before them, is a batch of its own."""
    if step.feeds:
        assert not step.moves
        return twin.feed_back(step.events if step.feeds == "feed:" else None)
    rows: list[Row] = []
    if step.events:
        rows = twin.batch(step.events, twin.reached(step.events) if twin.setting.axis == "offset" else None)
    for what, time in step.moves:
        rows += twin.batch([], now=time) if what == "P" else twin.batch([], time)
    return rows


def said(row: Row) -> str:
    bounds = [str(time).replace(str(FOREVER), "inf") for time in row[:2]]
    values = "+".join(map(str, row.values))
    sign = "-" if row.kind == "retract" else ""
    key = row.key[0] if row.key else ""
    return f"{sign}{'..'.join(bounds)} {key} {row.timing}{row.pane} {values}{'!' * row.last}"


def refused(entry: Rejected) -> list[str]:
    start = f"x{entry.event.v} {entry.reason} {'-' if entry.watermark is None else entry.watermark}"
    return [f"{start} {low}..{high}" for low, high in entry.windows] if entry.taken else [start]


def kept(windows: list[tuple]) -> list[str]:
    rows = sorted(f"= {start}..{end} {key[0]} {'+'.join(map(str, values))}" for start, end, key, values in windows)
    return rows or ["="]


def sorted_steps(steps: list[Step]) -> list[Step]:
    """Panes of one window in their order, everything else in any."""
    return [(text, *sorted(lines, key=_of_window)) for text, *lines in steps]


def _of_window(line: str) -> tuple[str, ...]:
    return tuple(line.removeprefix("-").split()[:2]) if ".." in line.split()[0] else (line,)
