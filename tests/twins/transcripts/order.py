"""The order of the input, and panes at each element."""

from __future__ import annotations

from tests.twins.ordered import OrderedSetting, offset_window
from tests.twins.transcripts.script import COUNT_2, COUNT_3, TEN, Step, each, event_time, ordered
from tests.twins.words import EACH_BATCH, count_window, global_window, sliding

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
            ("W10",),
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
    "late panes in the batch that ends the lateness: no closing pane next to them": (
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
