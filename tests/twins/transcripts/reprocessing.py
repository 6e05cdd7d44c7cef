"""Retention, and feeding the ledger back."""

from __future__ import annotations

from tests.twins.ordered import OrderedSetting, inherited, offset_window
from tests.twins.transcripts.script import AFTER_5, COUNT_2, EVERY_5, TEN, Step, each, event_time
from tests.twins.words import EACH_BATCH, count_window, global_window, session, sliding

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
    "the same, closing always: nothing that was not fed is observed again": (
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
