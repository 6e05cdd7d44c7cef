"""Chance, by a seed; and what is drawn of values."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")
Value = dict[str, Any]


class Dice:
    """Chance, by a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def chance(self, share: float) -> bool:
        """Yes, in this share of cases."""
        return self.random.random() < share

    def pick(self, choices: Sequence[T]) -> T:
        """One of them."""
        return self.random.choice(choices)

    def weighted(self, weights: dict[T, float]) -> T:
        """One of them, by weight."""
        return self.random.choices(list(weights), list(weights.values()))[0]

    def some(self, choices: Sequence[T], least: int, most: int) -> list[T]:
        """Several different ones."""
        size = min(len(choices), self.random.randint(least, most))
        return self.random.sample(list(choices), size)

    def options(self, share: float, **choices: Sequence[Any]) -> dict[str, Any]:
        """Each of these options in this share of cases, with a value of those that it may have."""
        return {name: self.pick(values) for name, values in choices.items() if self.chance(share)}


SECONDS = ["1 second", "5 seconds", "10 seconds", "30 seconds", "45 seconds"]
MINUTES = ["1 minute", "2 minutes", "5 minutes", "10 minutes", "30 minutes"]
SPANS = [*SECONDS, *MINUTES, "1 hour", "6 hours"]


def tagged(space: str, word: str, /, *args: Any, **options: Any) -> Value:
    """A value that is no JSON."""
    return {space: word} | ({"args": list(args)} if args else {}) | ({"options": options} if options else {})


def called(word: str, /, *args: Any, **options: Any) -> Value:
    """A call of a method."""
    return tagged("call", word, *args, **options)


# Windows.


def grid(dice: Dice, *, of: str = "start") -> Value:
    """Tumbling or sliding windows."""
    options = dice.options(0.25, offset=["1 minute", "5 minutes", "-1 second", "1 hour"])
    options |= {"of": of} if of != "start" or dice.chance(0.05) else {}
    if dice.chance(0.6):
        return tagged("window", "tumbling", dice.pick([*MINUTES, "1 hour", "1 day"]), **options)
    if dice.chance(0.25):
        return tagged(
            "window", "sliding", "1 hour", dice.pick(["7 minutes", "25 minutes", "2 hours"]), strict=False, **options
        )
    slide = dice.pick(["1 minute", "5 minutes", "10 minutes", "15 minutes"])
    return tagged("window", "sliding", dice.pick(["30 minutes", "1 hour", "1 day"]), slide, **options)


def time_window(dice: Dice) -> Value:
    """Windows that need no more than an event time."""
    kind = dice.weighted({"grid": 6, "sessions": 2, "gaps": 1, "count": 1.5, "global": 1})
    if kind == "grid":
        return grid(dice)
    if kind == "sessions":
        return tagged("window", "sessions", dice.pick(MINUTES))
    if kind == "gaps":
        return tagged("window", "sessions", gap_column="gap")
    if kind == "count":
        return tagged("window", "count_windows", dice.pick([2, 10, 100]), **dice.options(0.6, step=[1, 5, 20]))
    return tagged("window", "global_window")


def offset_window(dice: Dice) -> Value:
    """Windows of offsets."""
    if dice.chance(0.5):
        return tagged("window", "offset_sessions", dice.pick([2, 5, 50]), **dice.options(0.6, late=[0, 3, 100]))
    return offset_grid(dice)


def offset_grid(dice: Dice) -> Value:
    """Windows of as many offsets each."""
    return tagged(
        "window",
        "offset_windows",
        dice.pick([4, 10, 100]),
        **dice.options(0.4, step=[2, 5], late=[0, 3, 7], start=[1, 100]),
    )


# Triggers.


def simple_trigger(dice: Dice, *, late: bool) -> Value:
    """A trigger of early or late panes, of batches."""
    word = dice.pick(
        ["each_batch", "after_count", "every_processing_time", "after_processing_time", "every_event_time"]
    )
    word = "every_event_time" if not late and dice.chance(0.15) else word
    if word == "each_batch" or (word == "every_event_time" and late):
        return tagged("trigger", "each_batch")
    return tagged("trigger", word, dice.pick([1, 2, 3, 10]) if word == "after_count" else dice.pick(SPANS))


def element_trigger(dice: Dice) -> Value:
    """A trigger of early or late panes, of elements."""
    return (
        tagged("trigger", "each_element") if dice.chance(0.5) else tagged("trigger", "after_count", dice.pick([2, 3]))
    )


def composite(dice: Dice, depth: int, each: str) -> Value:
    """A tree of triggers; ``each``: how the trigger of each batch or element is called in it."""
    kinds = ["repeatedly", "any_of", "all_of", "or_finally"] if depth else []
    word = dice.pick([*kinds, *kinds, "after_count", "after_processing_time", "after_watermark", each])
    if word == "repeatedly":
        return tagged("trigger", word, composite(dice, depth - 1, each))
    if word in ("any_of", "all_of"):
        return tagged("trigger", word, *(composite(dice, depth - 1, each) for _ in range(dice.pick([1, 2, 2, 3]))))
    if word == "or_finally":
        return tagged("trigger", word, composite(dice, depth - 1, each), composite(dice, 0, each))
    if word == "after_count":
        return tagged("trigger", word, dice.pick([1, 2, 5]))
    if word == "after_processing_time":
        return tagged("trigger", word, dice.pick(SPANS))
    return tagged("trigger", word)


def triggers(dice: Dice, *, ordered: bool) -> Value:
    """A call of ``trigger``; ``ordered``: whether there may be a pane for each element."""
    options: dict[str, Any] = dice.options(0.35, closing=["never", "if_new", "always"], only_updated=[True])
    by_element = ordered and dice.chance(0.5)
    if dice.chance(0.35):
        each = "each_element" if by_element else "each_batch"
        options["when"] = composite(dice, 3, each)
        if by_element and ("each_element" not in str(options) or dice.chance(0.3)):
            options["evaluate"] = "element"
    else:
        options |= dice.options(0.4, on_time=["always", "non_empty", "never"])
        for name in dice.some(["early", "late"], 1, 2):
            options[name] = element_trigger(dice) if by_element else simple_trigger(dice, late=name == "late")
        if dice.chance(0.15):
            options["late"] = None
        if by_element and ("each_element" not in str(options) or dice.chance(0.3)):
            options["evaluate"] = "element"
    if not by_element and dice.chance(0.1) and "each_element" not in str(options):
        options["evaluate"] = "batch"
    return called("trigger", **options)


# Watermarks.


def cti_settings(dice: Dice, *, import_from: str | None = None, source: bool = False) -> Value:
    """Settings of CTIs; ``source``: those at the source, which generate."""
    options: dict[str, Any] = {}
    if import_from is None or (not source and dice.chance(0.3)):
        every = dice.pick([1, 10, 100, "1 minute", "10 seconds"])
        more = dice.options(0.4, delay=["30 seconds", "-1 microsecond"], final=[True])
        options["generate"] = tagged("watermark", "generate_ctis", every, **more)
    if import_from is not None:
        options["import_from"] = import_from
    return tagged("watermark", "cti_settings", dice.pick(["drop", "adjust"]), **options)


def buffers(dice: Dice) -> Value:
    """Progress by buffers."""
    more = {"chunk": "chunk", "last": "last_chunk", "end": "final", "whole": "rows", "empty": "empty"}
    options = {name: more[name] for name in dice.some(list(more), 1, 5)}
    options |= dice.options(0.6, patience=["1 minute", "10 seconds"])
    return tagged("watermark", "buffers", origin="partition", sequence="buffer", watermark="progress", **options)


def generator(dice: Dice, *, columns: Sequence[str] = ()) -> Value:
    """What claims watermarks; ``columns``: of other times that the largest may be of."""
    word = dice.weighted({"bounded": 5, "fixed": 1.5, "punctuated": 3.5, "own": 3})
    if word == "bounded":
        options = dice.options(0.45, hold_future=SPANS, quiet=MINUTES)
        options |= {"column": dice.pick(columns)} if columns and dice.chance(0.5) else {}
        return tagged("watermark", word, dice.pick(["0 seconds", *SPANS]), **options)
    if word == "fixed":
        return tagged("watermark", word, dice.pick(SPANS))
    if word == "own":
        return {"function": "slower"}
    flags = {"flag": "flag"} if dice.chance(0.35) else {"flag": "mark", "equals": "end"}
    return tagged("watermark", word, "progress", **flags)


def sources(dice: Dice, columns: Sequence[str]) -> Value:
    """Which sources there are, by one of these columns, and how long they may be idle; any of it may be absent."""
    timeouts: Value = dice.options(0.4, idle_timeout=MINUTES)
    if not columns or dice.chance(0.4):
        return timeouts
    column = dice.pick(columns)
    names = {"side": ["left", "right"], "partition": ["0", "1", "2"]}.get(column, ["a", "b", "c"])
    named = dice.some(names, 0, 3)
    own = {name: dice.pick(SPANS) for name in dice.some(names, 1, 2)}
    return {"by": column} | ({"sources": named} if named else {}) | timeouts | dice.options(0.5, own_timeouts=[own])
