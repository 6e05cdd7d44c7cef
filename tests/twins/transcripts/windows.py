"""Windows that a composite trigger has closed, and windows that the input brings."""

from __future__ import annotations

from tests.twins.ordered import OrderedSetting, inherited
from tests.twins.transcripts.script import COUNT_2, TEN, Step, event_time
from tests.twins.words import Trigger, sliding

CLOSED: dict[str, tuple[OrderedSetting, list[Step]]] = {
    "what comes to a finished window is in the ledger": (
        event_time(TEN, when=COUNT_2, closing="if_new"),
        [
            ("a1",),
            ("a2 b2", "0..10 a early0 1+2!"),
            ("a3 b4", "x4 window_closed - 0..10", "0..10 b early0 3+5!"),
            ("W9",),
            ("a9 a11", "x6 window_closed 9 0..10"),
            ("W20", "10..20 a on_time0 7!"),
        ],
    ),
    "the batch that finishes it is taken whole": (
        event_time(TEN, when=COUNT_2, closing="if_new"),
        [("a1 a2 a3", "0..10 a early0 1+2+3!"), ("a4", "x4 window_closed - 0..10")],
    ),
    "finished by the watermark": (
        event_time(TEN, when=Trigger("count_or_end", 5), allowed=5, closing="if_new"),
        [("a1 W10", "0..10 a on_time0 1!"), ("a9", "x2 window_closed 10 0..10"), ("a3", "x3 very_late 10")],
    ),
    "overlapping windows: the one that is finished": (
        event_time(sliding(10, 5), when=COUNT_2, closing="if_new"),
        [
            ("a2",),
            ("a7", "0..10 a early0 1+2!"),
            ("a8", "x3 window_closed - 0..10", "5..15 a early0 2+3!"),
            ("a9", "x4 window_closed - 0..10", "x4 window_closed - 5..15"),
        ],
    ),
    "repeatedly until the watermark": (
        event_time(TEN, when=Trigger("counts_until_end", 2), allowed=5, closing="if_new"),
        [
            ("a1 a2", "0..10 a early0 1+2"),
            ("a3",),
            ("a4", "0..10 a early1 1+2+3+4"),
            ("W10", "0..10 a on_time2 1+2+3+4!"),
            ("a9", "x5 window_closed 10 0..10"),
        ],
    ),
    "both": (
        event_time(TEN, when=Trigger("count_and_end", 2), allowed=5, closing="if_new"),
        [
            ("a1 a2",),
            ("W10", "0..10 a on_time0 1+2!"),
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
            ("W10",),
            ("a[0..10]7", "-0..10 a late0 1+2", "0..10 a late1 1+2+3"),
        ],
    ),
}
