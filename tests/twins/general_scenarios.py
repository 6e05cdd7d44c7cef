"""Transcripts of the general window operator worked out by hand: what each rule shows, step by step.

A step is text: ``a7`` is an event of key a at 7 (events are numbered from 1 in a scenario), ``W10`` the new
watermark, ``P5`` the new processing time, ``end`` the end of the input. After it come the panes, in order:
``0..10 a on_time0 1+2`` shows events 1 and 2; ``-`` before it is a retraction, ``!`` after it says last.
"""

from __future__ import annotations

from tests.twins.general import Twin
from tests.twins.naive import Event
from tests.twins.words import (
    EACH_BATCH,
    FOREVER,
    Row,
    Setting,
    Trigger,
    count_window,
    global_window,
    session,
    sliding,
    tumbling,
)

COUNT_2 = Trigger("after_count", 2)
EVERY_5, AFTER_5 = Trigger("every_processing_time", 5), Trigger("after_processing_time", 5)
TEN = tumbling(10)

Step = tuple[str, ...]
SCENARIOS: dict[str, tuple[Setting, list[Step]]] = {
    "on time when the end is reached, late until it is forgotten": (
        Setting(TEN, allowed=5),
        [
            ("a1 b9 a10 W9",),
            ("W10", "0..10 a on_time0 1", "0..10 b on_time0 2"),
            ("a8 W14", "0..10 a late1 1+4"),
            ("a9 b8 W15", "0..10 a late2 1+4+5!"),
            ("a9",),
            ("end", "10..20 a on_time0 3!"),
        ],
    ),
    "a watermark never goes back": (
        Setting(TEN),
        [("a1 W10", "0..10 a on_time0 1!"), ("a12 W5",), ("W20", "10..20 a on_time0 2!")],
    ),
    "before 1970": (
        Setting(sliding(4, 2)),
        [("a-3 W-2", "-6..-2 a on_time0 1!"), ("W0", "-4..0 a on_time0 1!")],
    ),
    "a slide longer than the window leaves gaps": (
        Setting(sliding(2, 5)),
        [("a1 a3 a6 W10", "0..2 a on_time0 1!", "5..7 a on_time0 3!")],
    ),
    "rule window takes what rule event rejects": (
        Setting(TEN, rule="window"),
        [("a1 W9",), ("a2 W10", "0..10 a on_time0 1+2!"), ("a9",)],
    ),
    "rule window: too late for one of two windows": (
        Setting(sliding(10, 5), rule="window"),
        [("W10",), ("a7 W15", "5..15 a on_time0 1!")],
    ),
    "an event allowed for a window that did not exist when it passed": (
        Setting(TEN, allowed=5, mode="retracting"),
        [("W12",), ("a8", "0..10 a late0 1"), ("a9 W15", "-0..10 a late0 1", "0..10 a late1 1+2!")],
    ),
    "early by count, counted again, and an on-time pane of nothing new": (
        Setting(TEN, early=COUNT_2),
        [
            ("a1",),
            ("a2", "0..10 a early0 1+2"),
            ("a3",),
            ("a4 a5", "0..10 a early1 1+2+3+4+5"),
            ("W10", "0..10 a on_time2 1+2+3+4+5!"),
        ],
    ),
    "discarding: an on-time pane of nothing": (
        Setting(TEN, early=COUNT_2, mode="discarding"),
        [("a1 a2 a3", "0..10 a early0 1+2+3"), ("W10", "0..10 a on_time1 !")],
    ),
    "discarding: non_empty leaves it out": (
        Setting(TEN, early=COUNT_2, mode="discarding", on_time="non_empty"),
        [("a1 a2", "0..10 a early0 1+2"), ("W10",)],
    ),
    "the on-time pane replaces an early one": (
        Setting(TEN, early=EACH_BATCH),
        [("a1 W10", "0..10 a on_time0 1!")],
    ),
    "without on-time panes the early one of that batch is observed": (
        Setting(TEN, early=EACH_BATCH, on_time="never", allowed=5),
        [("a1 W10", "0..10 a early0 1"), ("a9", "0..10 a late1 1+2"), ("W15",)],
    ),
    "retracting: the last pane first": (
        Setting(TEN, early=EACH_BATCH, allowed=5, mode="retracting"),
        [
            ("a1", "0..10 a early0 1"),
            ("a2", "-0..10 a early0 1", "0..10 a early1 1+2"),
            ("W10",),
            ("a8", "-0..10 a late1 1+2", "0..10 a late2 1+2+3"),
        ],
    ),
    "only updated panes win over on-time always": (
        Setting(TEN, early=EACH_BATCH, only_updated=True, mode="retracting"),
        [("a1", "0..10 a early0 1"), ("W10",), ("a11 W20", "10..20 a on_time0 2!")],
    ),
    "at each multiple of processing time, also unchanged": (
        Setting(TEN, early=EVERY_5),
        [
            ("a1 P4",),
            ("P5", "0..10 a early0 1"),
            ("a2 P9",),
            ("P21", "0..10 a early1 1+2"),
            ("P25", "0..10 a early2 1+2"),
        ],
    ),
    "at each multiple, discarding: not of nothing": (
        Setting(TEN, early=EVERY_5, mode="discarding"),
        [("a1 P5", "0..10 a early0 1"), ("P10",), ("a2 P15", "0..10 a early1 2")],
    ),
    "a span after the first element that is in no pane": (
        Setting(TEN, early=AFTER_5, late=AFTER_5, allowed=50),
        [
            ("P3",),
            ("a1 P5",),
            ("a2 P7",),
            ("P8", "0..10 a early0 1+2"),
            ("P20",),
            ("W10", "0..10 a on_time1 1+2"),
            ("a3 P24",),
            ("P25", "0..10 a late2 1+2+3"),
        ],
    ),
    "each span of event time within the window": (
        Setting(TEN, early=Trigger("every_event_time", 4)),
        [
            ("a1 W3",),
            ("W4", "0..10 a early0 1"),
            ("a6 W7",),
            ("W9", "0..10 a early1 1+2"),
            ("a9 W11", "0..10 a on_time2 1+2+3!"),
        ],
    ),
    "late by count: what stays unseen is observed when the window is forgotten": (
        Setting(TEN, late=COUNT_2, closing="if_new", allowed=10),
        [
            ("a1 W10", "0..10 a on_time0 1"),
            ("a2",),
            ("a3", "0..10 a late1 1+2+3"),
            ("a4 W19",),
            ("W20", "0..10 a late2 1+2+3+4!"),
        ],
    ),
    "a closing pane always, but never a second one in the batch": (
        Setting(TEN, closing="always", allowed=5),
        [
            ("a1 a11 W10", "0..10 a on_time0 1"),
            ("W15", "0..10 a late1 1!"),
            ("W30", "10..20 a on_time0 2!"),
        ],
    ),
    "on time never, closing if new: on time when forgotten with the passage": (
        Setting(TEN, on_time="never", closing="if_new", late=None),
        [("a1 W9",), ("W10", "0..10 a on_time0 1!")],
    ),
    "sessions: exactly a gap apart stay apart, less merges": (
        Setting(session(5)),
        [("a0 a5 a9 b4 W5", "0..5 a on_time0 1!"), ("end", "5..14 a on_time0 2+3!", "4..9 b on_time0 4!")],
    ),
    "sessions: a bridge retracts what both had fired": (
        Setting(session(5), early=EACH_BATCH, mode="retracting"),
        [
            ("a0 a8", "0..5 a early0 1", "8..13 a early0 2"),
            ("a4", "-0..5 a early0 1", "-8..13 a early0 2", "0..13 a early0 1+2+3"),
            ("a5", "-0..13 a early0 1+2+3", "0..13 a early1 1+2+3+4"),
        ],
    ),
    "sessions: retracted at the merge though no pane follows": (
        Setting(session(5), early=COUNT_2, mode="retracting"),
        [
            ("a0 a1", "0..6 a early0 1+2"),
            ("a3", "-0..6 a early0 1+2"),
            ("W8", "0..8 a on_time0 1+2+3!"),
        ],
    ),
    "sessions: grown over the watermark it fires on time again": (
        Setting(session(5), allowed=9),
        [
            ("a0 W5", "0..5 a on_time0 1"),
            ("a3 W7",),
            ("W8", "0..8 a on_time0 1+2"),
            ("a2", "0..8 a late1 1+2+3"),
        ],
    ),
    "sessions: grown below the watermark it is late, and not on time once more": (
        Setting(session(5), allowed=20, mode="retracting"),
        [
            ("a10 W20", "10..15 a on_time0 1"),
            ("a12 W21", "-10..15 a late0 1", "10..17 a late0 1+2"),
            ("W30",),
        ],
    ),
    "sessions, discarding: only what is new after a merge": (
        Setting(session(5), early=EACH_BATCH, mode="discarding"),
        [("a0", "0..5 a early0 1"), ("a4", "0..9 a early0 2"), ("W9", "0..9 a on_time1 !")],
    ),
    "sessions: a forgotten one is not revived": (
        Setting(session(10), rule="window"),
        [("a0 W10", "0..10 a on_time0 1!"), ("a5 W15", "5..15 a on_time0 2!")],
    ),
    "sessions, rule window: an event by its own interval, not by the session's": (
        Setting(session(10), rule="window", allowed=5),
        [("a0 a9 a18 W15",), ("a0 a1 W28", "0..28 a on_time0 1+2+3+5")],
    ),
    "global: early panes, and one at the end": (
        Setting(global_window(), early=COUNT_2),
        [("a1 a100 W500", "-inf..inf a early0 1+2"), ("a500",), ("end", "-inf..inf a on_time1 1+2+3!")],
    ),
    "global, rule event": (Setting(global_window()), [("W10",), ("a9 a10",), ("end", "-inf..inf a on_time0 2!")]),
    "counts: full ones are on time, others wait for the end": (
        Setting(count_window(2), closing="never"),
        [("a5 b1 a3 a9", "0..2 a on_time0 1+3!"), ("end", "0..2 b on_time0 2!", "2..4 a on_time0 4!")],
    ),
    "counts that hop, each element": (
        Setting(count_window(4, 2), early=EACH_BATCH, on_time="never"),
        [
            ("a1", "0..4 a early0 1"),
            ("a1 a1", "0..4 a early1 1+2+3", "2..6 a early0 3"),
            ("a1", "0..4 a early2 1+2+3+4!", "2..6 a early1 3+4"),
        ],
    ),
    "counts with a step longer than the window; the rejected have no number": (
        Setting(count_window(1, 2)),
        [("a1 a2 W10", "0..1 a on_time0 1!"), ("a9 a11", "2..3 a on_time0 4!")],
    ),
}


def played(setting: Setting, steps: list[Step]) -> list[Step]:
    """What the twin shows, in the words of the scenario."""
    twin = Twin(setting, lambda events: tuple(event.v for event in events))
    number, found = 0, []
    for text, *_ in steps:
        events, watermark, now = [], None, None
        for word in text.split():
            if word == "end":
                watermark = FOREVER
            elif word[0] == "W":
                watermark = int(word[1:])
            elif word[0] == "P":
                now = int(word[1:])
            else:
                number += 1
                events.append(Event(int(word[1:]), word[0], 0, number, None))
        found.append((text, *map(answered, twin.batch(events, watermark, now))))
    return found


def answered(row: Row) -> str:
    bounds = [str(time).replace(str(FOREVER), "inf") for time in row[:2]]
    values = "+".join(map(str, row.values))
    sign = "-" if row.kind == "retract" else ""
    return f"{sign}{'..'.join(bounds)} {row.key[0]} {row.timing}{row.pane} {values}{'!' * row.last}"
