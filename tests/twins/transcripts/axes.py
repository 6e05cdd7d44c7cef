"""Windows over offsets and over processing time."""

from __future__ import annotations

from tests.twins.ordered import OrderedSetting, offset_session, offset_window
from tests.twins.transcripts.script import COUNT_2, TEN, Step, by_clock
from tests.twins.words import Trigger, count_window, session, sliding

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
