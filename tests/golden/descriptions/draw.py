"""Draws recipes by a seed: those that today's functions accept, each once. ``python -m`` this writes the file.

Never drawn is what `unsure` names, and: CTIs of one stream in front of a join by a column of all sides; a time of its
own of what reads a deduplication or shift of panes; panes with the earliest or latest time of panes whose time goes
without saying; a span in another form than "10 minutes".
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from tests.golden.descriptions.dice import Dice, grid, time_window
from tests.golden.descriptions.drawn_joins import (
    SIDES,
    deduplicate,
    join,
    join_lifetimes,
    join_offset_sessions,
    join_sessions,
    shift_time,
    side_streams,
    union,
)
from tests.golden.descriptions.drawn_windows import merge, own_windows, windows
from tests.golden.descriptions.sketch import Sketch, Source, lifetime, usual, with_ctis, with_watermark
from tests.golden.descriptions.today import record
from tests.golden.descriptions.words import counted
from tidestate.statestore.errors import UsageError

FILE = Path(__file__).parent / "descriptions.jsonl.gz"
SEED, SIZE, RARE = 39, 2000, 30


def drawn(seed: int = SEED) -> Iterator[dict[str, Any]]:
    """Recipes with what a manifest holds of them, each once, without end."""
    dice, known = Dice(seed), set[str]()
    while True:
        sketch = Sketch(dice)
        try:
            SCENES[dice.weighted(WEIGHTS)](sketch)
            if not walks(sketch.operators) or unsure(sketch.recipe):
                continue
            text = json.dumps(sketch.recipe)
            if text not in known:
                yield record(json.loads(text))
                known.add(text)
        except UsageError:
            continue


def unsure(recipe: dict[str, Any]) -> bool:
    """Whether the grammar refuses it, or leaves open what it stores, while today's functions take it: a delay of
    a stream with a generator that replaces it; sessions with a pane for each element; panes that have the times of
    events which have none, if only until a later call.
    """
    if any(stream["settings"].get("processing_time") for stream in recipe["streams"]) and (
        "earliest" in str(recipe["operators"][0].get("calls")) or "latest" in str(recipe["operators"][0].get("calls"))
    ):
        return True
    late = [stream["name"] for stream in recipe["streams"] if "watermark_delay" in stream["settings"]]
    for operator in recipe["operators"]:
        views = [
            view for view in operator["reads"] if isinstance(view, dict) and view.get("watermark", {}).get("args")
        ]
        over = operator.get("watermark") or operator.get("options", {}).get("watermark") or {}
        names = [name if isinstance(name, str) else name["of"] for name in operator["reads"]]
        claims = over if over.get("watermark") != "over" else over.get("args")
        if any(view["of"] in late for view in views) or (claims and set(names) & set(late)):
            return True
        by_element = "each_element" in str(operator.get("calls")) or "'element'" in str(operator.get("calls"))
        if by_element and operator.get("window", {}).get("window") in ("sessions", "offset_sessions"):
            return True
    return False


def walks(operators: list[dict[str, Any]]) -> bool:
    """Whether operators stand in the order in which a walk from the last one meets them."""
    by_name = {operator["name"]: operator for operator in operators}
    met: dict[str, None] = {}

    def visit(name: str) -> None:
        if name in by_name and name not in met:
            for reference in by_name[name]["reads"]:
                visit(reference if isinstance(reference, str) else reference["of"])
            met[name] = None

    visit(operators[-1]["name"])
    return list(met) == list(by_name)


def _input(sketch: Sketch) -> str | None:
    """What the only stream of a job is called, where it goes unnamed."""
    return "input" if sketch.dice.chance(0.5) else None


def _sides(sketch: Sketch) -> list[str | None]:
    """What two streams are called, where they go unnamed."""
    return [*SIDES] if sketch.dice.chance(0.4) else [None, None]


def _keywords(sketch: Sketch, size: int) -> tuple[list[str | None], list[str] | None]:
    """What streams of a merge or union are called where they go unnamed, and the keywords that are written."""
    dice = sketch.dice
    words = SIDES if size == 2 and dice.chance(0.6) else ["old", "new", "other"][:size]
    if dice.chance(0.35):
        return [*words], words
    return [None] * size, words if dice.chance(0.4) else None


# Scenes of one operator.


def _windows(sketch: Sketch) -> Source:
    return windows(sketch, *own_windows(sketch, name=_input(sketch)))


def _merge(sketch: Sketch) -> Source:
    names, sides = _keywords(sketch, sketch.dice.pick([2, 2, 3]))
    return merge(sketch, side_streams(sketch, names, same=True, ahead=True), sides=sides)


def _union(sketch: Sketch) -> Source:
    names, sides = _keywords(sketch, sketch.dice.pick([2, 2, 3]))
    return union(sketch, side_streams(sketch, names, same=True), sides)


def _join(sketch: Sketch) -> Source:
    left, right = side_streams(sketch, _sides(sketch))
    return join(sketch, left, right)


def _join_sessions(sketch: Sketch) -> Source:
    if sketch.dice.chance(0.35):
        return join_offset_sessions(sketch, _sides(sketch))
    left, right = side_streams(sketch, _sides(sketch))
    return join_sessions(sketch, left, right)


def _join_lifetimes(sketch: Sketch) -> Source:
    return join_lifetimes(sketch, None, _sides(sketch))


def _stream(sketch: Sketch) -> Source:
    """A stream with an event time, as it is or with a watermark."""
    stream = sketch.stream(name=_input(sketch), **usual(sketch.dice))
    return with_watermark(sketch.dice, stream) if sketch.dice.chance(0.3) else stream


def _deduplicate(sketch: Sketch) -> Source:
    return deduplicate(sketch, _stream(sketch))


def _shift_time(sketch: Sketch) -> Source:
    dice, name = sketch.dice, _input(sketch)
    if dice.chance(0.3):
        return shift_time(sketch, with_ctis(sketch, usual(dice), name=name))
    lives = {"lifetime": lifetime(dice, edges=False)} if dice.chance(0.4) else {}
    return shift_time(sketch, sketch.stream(name=name, **usual(dice), **lives))


# Scenes of several.


def _chain(sketch: Sketch) -> Source:
    """Windows behind an operator, and perhaps others behind these."""
    first = [_calm_windows, _deduplicate, _shift_time, _join, _union, _merge, _join_sessions, _join_lifetimes]
    source = sketch.dice.pick([*first, _calm_windows, _deduplicate])(sketch)
    for _ in range(sketch.dice.pick([0, 0, 1, 1, 2, 3, 3])):
        source = sketch.dice.pick([_calm_behind, deduplicate, shift_time])(sketch, source)
    return _behind(sketch, source)


def _calm_windows(sketch: Sketch) -> Source:
    return windows(sketch, *own_windows(sketch, name=_input(sketch)), calm=True)


def _calm_behind(sketch: Sketch, source: Source) -> Source:
    return _behind(sketch, source, calm=True)


def _behind(sketch: Sketch, source: Source, *, calm: bool = False) -> Source:
    """Windows behind an operator: of their own, or those that its panes name."""
    dice = sketch.dice
    if dice.chance(0.5) and "window_end" in source.times:
        source = source.timed_by(dice.pick(source.times[1:]))
    window = None if source.panes and dice.chance(0.35) else grid(dice) if dice.chance(0.6) else time_window(dice)
    return windows(sketch, source, window, calm=calm)


def _of_one(sketch: Sketch) -> Source:
    """Two operators of one stream, and one of both."""
    dice = sketch.dice
    stream = sketch.stream(name=_input(sketch), **usual(dice))
    view = with_watermark(dice, stream) if dice.chance(0.25) else stream
    other = stream if dice.chance(0.2) else view
    makers = [_calm_behind, deduplicate, shift_time]
    return _pair(sketch, dice.pick(makers)(sketch, view), dice.pick(makers)(sketch, other))


def _own_past(sketch: Sketch) -> Source:
    """A stream with its own past, or with itself."""
    stream = sketch.stream(name=_input(sketch), **usual(sketch.dice))
    return _pair(sketch, stream, shift_time(sketch, stream) if sketch.dice.chance(0.4) else stream)


def _of_several(sketch: Sketch) -> Source:
    """An operator of one stream with another stream, or with an operator of that."""
    dice = sketch.dice

    def made(stream: Source) -> Source:
        return dice.pick([deduplicate, shift_time, _calm_behind])(sketch, stream)

    ordered = dice.pick([0, 0.8])
    left = made(sketch.stream(**usual(dice, ordered=ordered)))
    kind = dice.weighted({"operator": 5, "stream": 3, "ctis": 1})
    if kind == "ctis":
        right = with_ctis(sketch, usual(dice))
    else:
        right = sketch.stream(**usual(dice, ordered=ordered))
        right = made(right) if kind == "operator" else right
    return _pair(sketch, *((left, right) if dice.chance(0.7) or right.operator else (right, left)))


def _living(sketch: Sketch) -> Source:
    """An operator of one stream, joined by lifetimes with another stream."""
    dice = sketch.dice
    made = dice.pick([deduplicate, shift_time])(sketch, sketch.stream(**usual(dice)))
    return join_lifetimes(sketch, made, [None, None])


def _pair(sketch: Sketch, left: Source, right: Source) -> Source:
    """Two sources together, and perhaps windows of that."""
    dice = sketch.dice
    if dice.chance(0.3):
        left = left.timed_by(dice.pick(left.times)) if "window_end" in left.times else left
    kind = dice.weighted({"join": 5, "merge": 3, "union": 2, "sessions": 1.5})
    same = left.name == right.name
    if kind == "join":
        made = join(sketch, left, right)
    elif kind == "sessions":
        made = join_sessions(sketch, left, right)
    else:
        sides = SIDES if same or dice.chance(0.4) or "input" in (left.name, right.name) else None
        made = merge(sketch, [left, right], sides=sides) if kind == "merge" else union(sketch, [left, right], sides)
    return _behind(sketch, made) if dice.chance(0.3) else made


SCENES: dict[str, Callable[[Sketch], Source]] = {
    "windows": _windows,
    "merge": _merge,
    "union": _union,
    "join": _join,
    "sessions": _join_sessions,
    "lifetimes": _join_lifetimes,
    "deduplicate": _deduplicate,
    "shift": _shift_time,
    "chain": _chain,
    "of one": _of_one,
    "own past": _own_past,
    "of several": _of_several,
    "living": _living,
}
WEIGHTS = {
    "windows": 56,
    "merge": 16,
    "union": 6,
    "join": 22,
    "sessions": 16,
    "lifetimes": 6,
    "deduplicate": 5,
    "shift": 5,
    "chain": 56,
    "of one": 24,
    "own past": 22,
    "of several": 30,
    "living": 3,
}


def chosen(records: Iterable[dict[str, Any]], size: int) -> list[dict[str, Any]]:
    """So many, those with a rare word before others."""
    known: Counter[str] = Counter()
    rare: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for drawing in records:
        words = counted([drawing["recipe"]])
        (rare if any(known[word] < RARE for word in words) else others).append(drawing)
        known += words
    return [*rare, *others][:size]


def main() -> None:
    """Write the file."""
    records = chosen(islice(drawn(), 4 * SIZE), SIZE)
    lines = [json.dumps(drawing, separators=(",", ":")) + "\n" for drawing in records]
    with gzip.GzipFile(FILE, "wb", compresslevel=9, mtime=0) as file:
        file.write("".join(lines).encode())


if __name__ == "__main__":
    main()
