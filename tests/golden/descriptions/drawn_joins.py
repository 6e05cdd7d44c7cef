"""Joins and unions of a drawn recipe, and what passes rows on."""

from __future__ import annotations

from typing import Any

from tests.golden.descriptions.dice import MINUTES, SECONDS, SPANS, Dice, Value, buffers, grid, offset_grid, tagged
from tests.golden.descriptions.drawn_windows import over
from tests.golden.descriptions.sketch import Sketch, Source, lifetime, order, usual, with_ctis

SIDES = ["left", "right"]
HOWS = ["inner", "left", "right", "full"]
PERIODS = ["1 minute", "10 seconds"]


def side_streams(sketch: Sketch, names: list[str | None], *, same: bool = False, ahead: bool = False) -> list[Source]:
    """Streams for the sides of an operator, unnamed under ``names``; ``same``: with offset and origin in common;
    ``ahead``: perhaps with a tolerance of the future.
    """
    dice = sketch.dice
    common = order(dice, 0.4)
    kind = dice.weighted({"plain": 8, "idle": 1.5, "ctis": 1.5})
    delays = {"watermark_delay": dice.pick(MINUTES)} if kind == "idle" and dice.chance(0.3) else {}
    future = {"future_tolerance": dice.pick(MINUTES)} if ahead and kind == "plain" and dice.chance(0.15) else {}
    lives = {"lifetime": lifetime(dice, edges=False)} if same and kind == "plain" and dice.chance(0.15) else {}
    made: list[Source] = []
    for name in names:
        settings = usual(dice) | future | lives
        if same:
            settings = {part: value for part, value in settings.items() if part not in ("offset", "origin")} | common
        if kind == "ctis":
            made.append(_with_ctis(sketch, settings, made, name))
            continue
        if kind == "idle":
            settings = {part: value for part, value in settings.items() if part != "watermark_delay"} | delays
        stream = sketch.stream(name=name, **settings)
        idle = kind == "idle" and (dice.chance(0.8) or not made)
        made.append(stream.marked(idle_timeout=dice.pick(MINUTES)) if idle else stream)
    return made


def _with_ctis(sketch: Sketch, settings: Value, others: list[Source], name: str | None) -> Source:
    """A side with CTIs, some of them imported from another side."""
    imports = others[0].name if others and sketch.dice.chance(0.3) else None
    return with_ctis(sketch, settings, name=name, from_stream=imports)


def join(sketch: Sketch, left: Source, right: Source) -> Source:
    """A join."""
    dice = sketch.dice
    on = _on(dice, left, right)
    options: Value = {"on": on[0] if len(on) == 1 and dice.chance(0.6) else on} if on else {}
    options |= dice.options(0.5, how=HOWS) | _meeting(dice, left, right, bool(on))
    options |= dice.options(0.15, unmatched=["close", "final"], in_order=[True, False], large_windows=[True, False])
    own = "window" in str(options.get("left", "")) + str(options.get("right", "")) + str(options.get("sides", ""))
    options |= {} if own else dice.options(0.3, allowed_lateness=SPANS)
    options |= dice.options(0.15, identity=[True])
    if left.plain and right.plain and dice.chance(0.2):
        options["watermark"] = over(dice, ["side", *on], SIDES)
    name = sketch.operator("join", "joined", [left, right], options=options)
    return _pairs(name, left, right, on)


def _on(dice: Dice, left: Source, right: Source) -> list[str]:
    """Columns that both have."""
    return dice.some([name for name in left.keys if name in right.keys], 0 if dice.chance(0.15) else 1, 2)


def _meeting(dice: Dice, left: Source, right: Source, keyed: bool) -> Value:
    """Which rows meet, and the options of sides."""
    ordered = left.offset is not None and right.offset is not None
    kind = dice.weighted(
        {"within": 5, "window": 2, "own": 2, "kept": 1.5 if keyed else 0, "offsets": 2.5 if ordered else 0}
    )
    each: dict[str, Value] = {side: _updates(dice) for side in SIDES}
    options: Value = {}
    if kind == "within":
        bounds = [dice.pick(["0 seconds", "-1 minute", None]), dice.pick(["1 minute", "1 hour", None])]
        options["within"] = bounds
        if dice.chance(0.15):
            each = {side: own | {"retain": dice.pick(["1 hour", "1 day"])} for side, own in each.items()}
    elif kind == "window":
        options["window"] = grid(dice)
        options |= dice.options(0.8, occurrence=["first", "each"])
        if dice.chance(0.2):
            each = {side: own | {"retain": tagged("ts", "Retention", windows=2)} for side, own in each.items()}
    elif kind == "own":
        each = {side: own | _windows(dice, grid(dice)) for side, own in each.items()}
    elif kind == "offsets":
        each = {side: own | _windows(dice, offset_grid(dice)) for side, own in each.items()}
        if dice.chance(0.3):
            each["right"] = _updates(dice) | {"retain": tagged("ts", "Retention", offsets=dice.pick([10, 100]))}
    else:
        kept = dice.pick(["1 hour", tagged("ts", "Retention", span="1 day")])
        counted = tagged("ts", "Retention", offsets=dice.pick([10, 1000]))
        each = {
            side: own | {"retain": counted if ordered and dice.chance(0.5) else kept} for side, own in each.items()
        }
    return options | _written(dice, each)


def _windows(dice: Dice, window: Value) -> Value:
    """A window of a side's own, and how many of them are kept."""
    return {"window": window} | (
        {"retain": tagged("ts", "Retention", windows=dice.pick([1, 3]))} if dice.chance(0.3) else {}
    )


def _updates(dice: Dice) -> Value:
    if dice.chance(0.75):
        return {}
    period = tagged("ts", "period", dice.pick(PERIODS), **dice.options(0.5, offset=SECONDS[1:3]))
    return dice.options(0.6, update=[*PERIODS, period], late_update=["1 hour", period])


def _written(dice: Dice, each: dict[str, Value]) -> Value:
    """Options of sides as a user writes them: of both at once where they are equal, or partly."""
    left, right = each["left"], each["right"]
    common = {name: value for name, value in left.items() if name in right and right[name] == value}
    if dice.chance(0.2) and "window" in left and "window" in right:
        common["window"] = left["window"]
    rest = {
        side: {name: value for name, value in own.items() if common.get(name) != value} for side, own in each.items()
    }
    made = {"sides": common, **rest}
    return {name: tagged("ts", "side", **options) for name, options in made.items() if options}


def _pairs(name: str, left: Source, right: Source, on: list[str]) -> Source:
    """What readers get of pairs."""

    def columns(of: str) -> tuple[str, ...]:
        both = zip(SIDES, (left, right), strict=True)
        return tuple(f"{side}_{name}" for side, source in both for name in getattr(source, of) if name not in on)

    texts = (*(name for name in on if name in left.texts), *columns("texts"))
    numbers = (*(name for name in on if name in left.numbers), *columns("numbers"))
    return Source(name, texts=texts, numbers=numbers, times=("time",))


def join_sessions(sketch: Sketch, left: Source, right: Source) -> Source:
    """A join of sessions of time."""
    dice = sketch.dice
    on = _on(dice, left, right)
    options: Value = {"on": on} if on else {}
    options |= {"gap": dice.pick(MINUTES)} if dice.chance(0.75) else {"gap_column": "gap"}
    options |= dice.options(0.5, how=HOWS, allowed_lateness=["1 minute", "1 hour"])
    options |= dice.options(0.15, identity=[True])
    options |= {"session_key": on[0]} if len(on) > 1 and dice.chance(0.6) else {}
    if left.plain and right.plain and dice.chance(0.2):
        options["watermark"] = over(dice, ["side", *on], SIDES)
    name = sketch.operator("join_sessions", "session_joined", [left, right], options=options)
    return _pairs(name, left, right, on)


def join_offset_sessions(sketch: Sketch, names: list[str | None]) -> Source:
    """A join of sessions of offsets."""
    dice = sketch.dice
    left, right = (sketch.stream(name=name, **order(dice, 1)) for name in names)
    on = _on(dice, left, right)
    options: Value = ({"on": on} if on else {}) | {"offsets": dice.pick([2, 5, 50])}
    options |= dice.options(0.5, allowed_lateness=[3, 100], how=HOWS)
    starts = dice.options(0.4, left=[5, 100], right=[7, 100])
    options |= {side: tagged("ts", "side", start=start) for side, start in starts.items()}
    if dice.chance(0.2):
        options["watermark"] = tagged("watermark", "over", idle_timeout=dice.pick(MINUTES))
    sketch.operator("join_sessions", "session_joined", [left, right], options=options)
    return _pairs("", left, right, on)


def join_lifetimes(sketch: Sketch, left: Source | None, names: list[str | None]) -> Source:
    """A join by lifetimes of streams with CTIs, or of an operator and one."""
    dice = sketch.dice
    read = [] if left is None else [left]
    for name in names[len(read) :]:
        settings = usual(dice) | ({"lifetime": lifetime(dice)} if dice.chance(0.7) else {})
        read.append(_with_ctis(sketch, settings, [source for source in read if source.settings], name))
    if left is None and dice.chance(0.2):
        read = [_idle(dice, source) for source in read]
    on = _on(dice, *read)
    options = {"on": on} if on else {}
    return _pairs(sketch.operator("join_lifetimes", "overlapped", read, options=options), *read, on)


def _idle(dice: Dice, source: Source) -> Source:
    call = {} if isinstance(source.reference, str) else source.reference["watermark"]
    return source.marked(*call.get("args", ()), idle_timeout=dice.pick(MINUTES))


def union(sketch: Sketch, read: list[Source], sides: list[str] | None = None) -> Source:
    """A union of sources with the same columns."""
    dice = sketch.dice
    options: Value = {}
    if all(source.plain for source in read) and dice.chance(0.4):
        claim = over(dice, ["side", "part"], sides or [source.name for source in read])
        options["watermark"] = buffers(dice) if dice.chance(0.45) else claim
    parts: Any = {} if sides is None else {"sides": sides}
    name = sketch.operator("union", "union", read, options=options, **parts)
    texts = (*read[0].texts, "side") if "side" not in read[0].texts else read[0].texts
    return Source(
        name, texts=texts, numbers=read[0].numbers, times=("time",), offset=read[0].offset, origin=read[0].origin
    )


def deduplicate(sketch: Sketch, source: Source) -> Source:
    """A deduplication."""
    dice = sketch.dice
    on = dice.some([*source.keys], 1, 2)
    options = {"on": on[0] if len(on) == 1 and dice.chance(0.6) else on}
    options |= dice.options(0.5, within=["1 hour", "10 minutes"])
    options |= dice.options(0.3, allowed_lateness=["0 seconds", *SPANS], in_order=[True])
    return _passed(source, sketch.operator("deduplicate", "deduplicated", [source], options=options))


def shift_time(sketch: Sketch, source: Source) -> Source:
    """A shift of lifetimes."""
    dice = sketch.dice
    lives = "until" in str((source.settings or {}).get("lifetime"))
    options: Value = {"by": dice.pick(["1 minute", "-1 hour", "10 seconds"])} if dice.chance(0.8) else {}
    if lives or (source.settings and dice.chance(0.4)):
        options |= {"duration": dice.pick(["1 minute", "1 hour"])} if dice.chance(0.6) or not options else {}
        options |= {} if lives else {"end": "until"}
    return _passed(source, sketch.operator("shift_time", "altered", [source], options=options or {"by": "1 minute"}))


def _passed(source: Source, name: str) -> Source:
    """What readers get of rows that are passed on."""
    settings = {part: value for part, value in (source.settings or {}).items() if part == "event_time"}
    return Source(
        name,
        settings=None if source.settings is None else settings,
        texts=source.texts,
        numbers=source.numbers,
        times=source.times,
        offset=source.offset,
        origin=source.origin,
    )
