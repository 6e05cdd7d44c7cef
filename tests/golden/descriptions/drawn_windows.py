"""Windows and merges of a drawn recipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.golden.descriptions.dice import (
    MINUTES,
    SPANS,
    Dice,
    Value,
    called,
    cti_settings,
    generator,
    grid,
    offset_window,
    sources,
    tagged,
    time_window,
    triggers,
)
from tests.golden.descriptions.sketch import (
    Sketch,
    Source,
    lifetime,
    order,
    usual,
    with_ctis,
    with_sources,
    with_watermark,
)

INT = {"type": "int64"}
OWN = {"state": {"total": INT}, "merge": {"function": "add"}, "result": {"function": "total"}, "result_type": INT}
METHODS = {
    "allowed_lateness": 3,
    "trigger": 6,
    "accumulation": 2,
    "retain_windows": 1.5,
    "messages": 3,
    "pane_timestamp": 1.5,
    "in_order": 1,
}


def own_windows(sketch: Sketch, *, name: str | None = None) -> tuple[Source, Value | None]:
    """A stream, and windows that go with it; None: rows name them."""
    dice = sketch.dice
    kinds = {"time": 9, "offsets": 8, "clock": 2, "named": 2, "lifetimes": 2.5, "ctis": 3, "marks": 8, "ingested": 2}
    kind = dice.weighted(kinds)
    if kind == "offsets":
        times = {"event_time": "at"} if dice.chance(0.3) else {}
        return sketch.stream(name=name, **times, **order(dice, 1)), offset_window(dice)
    if kind == "clock":
        return sketch.stream(name=name, processing_time=True, **order(dice, 0.4)), time_window(dice)
    if kind == "named":
        return sketch.stream(name=name, **(usual(dice) if dice.chance(0.3) else {})), None
    if kind == "lifetimes":
        stream = sketch.stream(name=name, **usual(dice), lifetime=lifetime(dice, edges=False))
        return stream, grid(dice, of="lifetime")
    if kind == "ctis":
        stream = with_sources(dice, with_ctis(sketch, usual(dice), name=name))
        ends = "until" in str(stream.settings) and dice.chance(0.4)
        return stream, grid(dice, of="lifetime") if ends else time_window(dice)
    tolerance = dice.options(0.15, future_tolerance=MINUTES)
    if kind == "ingested":
        settings = {**usual(dice, delay=0), **tolerance, "event_time": "received"}
        stream = sketch.stream(name=name, **settings)
        return stream.marked(tagged("watermark", "ingestion_time", "received")), time_window(dice)
    stream = sketch.stream(name=name, **usual(dice, delay=0.1 if kind == "marks" else 0.3), **tolerance)
    return with_watermark(dice, stream) if kind == "marks" else stream, time_window(dice)


def windows(sketch: Sketch, source: Source, window: Value | None, *, calm: bool = False) -> Source:
    """An aggregation; ``calm``: others read its panes."""
    dice = sketch.dice
    keys = dice.some(source.keys, 0, 2) if dice.chance(0.85) else []
    parts: Value = {"keys": keys} | ({} if window is None else {"window": window})
    parts["results"] = results(dice, source)
    parts["calls"] = calls(dice, source, calm=calm)
    return _panes(sketch.operator("aggregate", "windows", [source], by_call=True, **parts), keys, parts)


def merge(sketch: Sketch, read: list[Source], *, sides: list[str] | None = None, calm: bool = False) -> Source:
    """A merge of several sources; without ``sides`` they are called as they are."""
    dice = sketch.dice
    names = sides or [source.name for source in read]
    common = [name for name in read[0].keys if all(name in source.keys for source in read)]
    keys = dice.some(common, 0, 2)
    shared = [name for name in dice.some(common, 0, 2) if name not in keys] if dice.chance(0.4) else []
    window = time_window(dice)
    if window["window"] == "sessions" and "args" not in window:
        shared = [*shared, "gap"]
    if all("until" in str(source.settings) for source in read) and dice.chance(0.5):
        window, shared = grid(dice, of="lifetime"), [*shared, "until"]
    merged = Source(
        "",
        texts=tuple(f"{names[0]}_{name}" for name in read[0].texts if name not in (*keys, *shared, read[0].origin)),
        numbers=tuple(
            f"{names[-1]}_{name}" for name in read[-1].numbers if name not in (*keys, *shared, read[0].origin)
        ),
        times=(),
        offset=read[0].offset,
        origin=read[0].origin,
    )
    claim = _over_merged(dice, read, [*keys, *shared], names) if all(source.plain for source in read) else None
    if claim and "buffers" in str(claim):
        more = ["partition", "buffer", "progress"]
        shared += [name for name in more if name not in (*keys, *shared, read[0].origin)]
    parts: Value = {} if sides is None else {"sides": sides}
    parts |= {"sharing": shared} if shared else {}
    parts |= {"watermark": claim} if claim else {}
    parts |= {"keys": keys, "window": window, "results": results(dice, merged, names)}
    parts["calls"] = calls(dice, merged, calm=calm, shared=[*keys, *shared])
    return _panes(sketch.operator("merge", "merged", read, by_call=True, **parts), keys, parts)


def _over_merged(dice: Dice, read: list[Source], shared: list[str], sides: list[str]) -> Value | None:
    """A watermark over the columns of a merge: of the sides, by a column that all have, of CTIs, or of buffers."""
    origin, lives = read[0].origin, any("lifetime" in (source.settings or {}) for source in read)
    kinds = {"none": 10, "usual": 7, "buffers": 6, "ctis": 0 if origin is None or lives else 15}
    kind = dice.weighted(kinds)
    if kind == "buffers":
        return tagged("watermark", "buffers", origin="partition", sequence="buffer", watermark="progress")
    if kind == "ctis":
        named = dice.options(0.5, sources=[["0", "1"]], idle_timeout=MINUTES)
        return tagged("watermark", "over", tagged("watermark", "ctis", cti_settings(dice)), by=origin, **named)
    return over(dice, ["side", *shared, origin or "side"], sides) if kind == "usual" else None


def over(dice: Dice, columns: Sequence[str], sides: Sequence[str]) -> Value:
    """A watermark over the columns of the one stream of several."""
    claims = [] if dice.chance(0.3) else [generator(dice) if dice.chance(0.9) else {"function": "slower"}]
    known = sources(dice, [name for name in columns if name])
    if known.get("by") == "side":
        known |= {"sources": list(sides)}
        known |= {"own_timeouts": {sides[0]: dice.pick(SPANS)}} if "own_timeouts" in known else {}
    if claims and "flag" in str(claims):
        claims = [tagged("watermark", "bounded", dice.pick(SPANS))]
    if claims and not known and dice.chance(0.7):
        return claims[0]
    return tagged("watermark", "over", *claims, **(known or {"idle_timeout": dice.pick(MINUTES)}))


def _panes(name: str, keys: list[str], parts: Value) -> Source:
    """What readers get of the panes of an operator."""
    numbers = [
        result for result, made in parts["results"].items() if made["agg"] in ("count", "sum", "count_distinct")
    ]
    time = "timestamp" if "pane_timestamp" in str(parts["calls"]) else "pane_time"
    texts = tuple(key for key in keys if key not in ("item", "amount", "partition"))
    whole = tuple(key for key in keys if key not in texts)
    return Source(
        name, texts=texts, numbers=(*whole, *numbers), times=(time, "window_start", "window_end"), panes=True
    )


def results(dice: Dice, source: Source, sides: Sequence[str] = ()) -> Value:
    """Aggregates by the names of their results."""
    size = dice.weighted({1: 5, 2: 3, 3: 2})
    return {name: aggregate(dice, source, sides) for name in ["n", "result", "other"][:size]}


def aggregate(dice: Dice, source: Source, sides: Sequence[str] = ()) -> Value:
    """One aggregate over columns of a source."""
    numbers = source.numbers or ("",)
    number, column = dice.pick(numbers), dice.pick([*source.texts, *numbers])
    if not column or not number or dice.chance(0.25):
        return tagged("agg", "count")
    word = dice.pick([*AGGREGATES, "quantile", "quantile", "accumulate"])
    if word == "accumulate" and list(sides) == ["left", "right"] and dice.chance(0.5):
        columns = {"left": [next((name for name in numbers if name.startswith("left_")), "side")], "right": [number]}
        lifts = {side: {"function": "lift"} for side in columns}
        return tagged("agg", word, name="both", columns=columns, lift=lifts, **OWN, **dice.options(0.6, version=[2]))
    orders = [name for name in (source.offset, *source.times[:1]) if name]
    return AGGREGATES[word](dice, word, number, column, dice.pick([*orders, number]))


def _of_number(dice: Dice, word: str, number: str, column: str, by: str) -> Value:
    return tagged("agg", word, number)


def _of_column(dice: Dice, word: str, number: str, column: str, by: str) -> Value:
    return tagged("agg", word, column)


def _spread(dice: Dice, word: str, number: str, column: str, by: str) -> Value:
    return tagged("agg", word, number, **dice.options(0.7, population=[True, False]))


def _choice(dice: Dice, word: str, number: str, column: str, by: str) -> Value:
    return tagged("agg", word, column, by=by)


def _top(dice: Dice, word: str, number: str, column: str, by: str) -> Value:
    return tagged("agg", word, column, dice.pick([1, 3, 10]), **dice.options(0.5, by=[by], largest=[False]))


def _sorted(dice: Dice, word: str, number: str, column: str, by: str) -> Value:
    return tagged("agg", word, column, **dice.options(0.5, by=[by], descending=[True]))


def _approximate(dice: Dice, word: str, number: str, column: str, by: str) -> Value:
    return tagged("agg", word, column, **dice.options(0.5, precision=[8, 12, 14]))


def _quantile(dice: Dice, word: str, number: str, column: str, by: str) -> Value:
    choices = dice.options(0.8, interpolation=["linear", "lower", "higher", "nearest"])
    return tagged("agg", word, number, dice.pick([0.1, 0.5, 0.99, 1]), **choices)


def _rows(dice: Dice, word: str, number: str, column: str, by: str) -> Value:
    each = dice.chance(0.5)
    options = {"columns": list(dict.fromkeys([number, column])), "result_type": INT}
    options |= dice.options(0.4, name=["spread", "largest"], version=[2, 3]) | ({"per_group": True} if each else {})
    return tagged("agg", word, {"function": "spread" if each else "spreads"}, **options)


def _accumulation(dice: Dice, word: str, number: str, column: str, by: str) -> Value:
    return tagged(
        "agg",
        word,
        name="total",
        columns=[number],
        lift={"function": "lift"},
        **OWN,
        **dice.options(0.6, version=[2]),
    )


AGGREGATES = {
    **dict.fromkeys(["sum", "mean", "median"], _of_number),
    **dict.fromkeys(["variance", "stddev"], _spread),
    **dict.fromkeys(["count", "min", "max", "earliest", "latest", "list", "set"], _of_column),
    **dict.fromkeys(["count_distinct", "count_by_value"], _of_column),
    **dict.fromkeys(["first", "last", "arg_min", "arg_max"], _choice),
    "top_n": _top,
    "sorted_list": _sorted,
    "count_distinct_approx": _approximate,
    "quantile": _quantile,
    "apply_rows": _rows,
    "accumulate": _accumulation,
}


def calls(dice: Dice, source: Source, *, calm: bool, shared: Sequence[str] = ()) -> list[Value]:
    """Methods of an aggregation, in any order; ``shared``: columns of a merge that have no side in front."""
    size = dice.pick([0, 1, 1, 1, 2, 2, 3, 4])
    weights, words = dict(METHODS), []
    while len(words) < size:
        words.append(dice.weighted(weights))
        del weights[words[-1]]
    made = [METHOD[word](dice, source, shared) for word in words]
    if calm and dice.chance(0.85) and "accumulation" not in words:
        made.append(called("accumulation", dice.pick(["discarding", "retracting"])))
    if dice.chance(0.06) and made:
        made.insert(0, METHOD[words[0]](dice, source, shared) if words else made[0])
    return made


def _lateness(dice: Dice, source: Source, shared: Sequence[str]) -> Value:
    options = dice.options(0.35, rule=["event", "window"], future_tolerance=MINUTES)
    columns = [name for name in (*source.texts[:3], *shared) if name]
    options |= {"ledger_columns": dice.some(columns, 1, 2)} if columns and dice.chance(0.35) else {}
    spans = [dice.pick(["0 seconds", *SPANS])] if dice.chance(0.8) or not options else []
    return called("allowed_lateness", *spans, **options)


def _trigger(dice: Dice, source: Source, shared: Sequence[str]) -> Value:
    return triggers(dice, ordered=source.offset is not None)


def _accumulating(dice: Dice, source: Source, shared: Sequence[str]) -> Value:
    return called("accumulation", dice.pick(["accumulating", "discarding", "retracting"]))


def _retained(dice: Dice, source: Source, shared: Sequence[str]) -> Value:
    if dice.chance(0.3):
        return called("retain_windows", windows=dice.pick([1, 3, 10]))
    return called(
        "retain_windows", dice.pick(["10 minutes", "1 hour", "7 days"]), **dice.options(0.3, windows=[2, 5])
    )


def _messages(dice: Dice, source: Source, shared: Sequence[str]) -> Value:
    options: dict[str, Any] = {}
    if source.offset is None or dice.chance(0.3):
        free = [name for name in (source.offset or "number", "id") if not shared or name in (source.offset, *shared)]
        names = [dice.pick(free or ["number"])]
        origins = [source.origin] if source.origin and dice.chance(0.5) else []
        options["identity"] = [*origins, *names] if origins or dice.chance(0.5) else names[0]
    options |= {"retain": _kept(dice)} if dice.chance(0.6) else {}
    plain = dice.pick(["ts_offset", "eq_ts_offset", "ts_eq_offset", "session_ts_offset"])
    plain = "eq_ts_id" if options.get("identity") in ("id", ["id"]) else plain
    options |= dice.options(0.4, layout=[plain])
    columns = [name for name in (*source.texts, *shared) if name not in (source.offset, source.origin)]
    options |= dice.options(0.25, equal=[dice.some(columns, 1, 2)]) if columns else {}
    return called("messages", **options)


def _kept(dice: Dice) -> Any:
    """How many messages are kept."""
    if dice.chance(0.3):
        return dice.pick(SPANS)
    limits = dice.options(0.5, span=SPANS, messages=[10, 1000], bytes=[4096, 1_000_000])
    slots = dice.options(0.6, slot=[1000]) if {"messages", "bytes"} & set(limits) else {}
    return tagged("ts", "Retention", **(limits or {"messages": 100}), **slots)


def _pane_timestamp(dice: Dice, source: Source, shared: Sequence[str]) -> Value:
    return called("pane_timestamp", dice.pick(["end_of_window", "earliest", "latest"]))


def _in_order(dice: Dice, source: Source, shared: Sequence[str]) -> Value:
    return called("in_order")


METHOD = {
    "allowed_lateness": _lateness,
    "trigger": _trigger,
    "accumulation": _accumulating,
    "retain_windows": _retained,
    "messages": _messages,
    "pane_timestamp": _pane_timestamp,
    "in_order": _in_order,
}
