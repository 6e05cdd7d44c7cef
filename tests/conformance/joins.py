"""Cases of kind ``join``: two sides in, pairs and rows without a partner out."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

import tidestate as ts
from tests.conformance.bench import Bench
from tests.conformance.case import Case, Step, Unsupported, steps_of
from tests.conformance.compare import Failure, failure
from tests.conformance.driver import END_US
from tests.conformance.harness import rows_of
from tests.conformance.mapping import Input, check_supported, input_of, window_of
from tidestate import JoinedStream

HOW = {"inner": "inner", "left": "left", "right": "right", "outer": "full", "full": "full"}
Emission = dict[str, Any]


def joined(case: Case, bench: Bench) -> list[Failure]:
    """Every emission of the range, as a multiset; of a pair only what the case states."""
    check_supported(msgspec.structs.replace(case, requires=[r for r in case.requires if r not in UNDERSTOOD]))
    made = input_of(case)
    if any(expected.state is not None for expected in case.expect):
        raise Unsupported("kind join")
    description = _description(case, made)
    harness = bench.open(description, dict.fromkeys(SIDES, made.schema), bench.store, bench.room(0))
    emitted: list[list[Emission]] = []
    kept: list[dict[str, list[Any]]] = []
    clocks: dict[int, int] = {}
    for number, step in enumerate(steps_of(case)):
        panes = _act(harness, made, step, number, clocks)
        emitted.append([_emission(row, made) for table in panes for row in rows_of(table)])
        if step.action == "snapshot_restore":
            harness.restart()
        kept.append({side: _kept(harness, made, side) for side in SIDES if _asks(case, side)})
    stated = [expected for expected in case.expect if not expected.unasserted]
    pairs = [one for expected in stated if expected.emit is not None for one in _compare(case, expected, emitted)]
    return pairs + [one for expected in stated for one in _buffers(case, expected, kept)]


def _asks(case: Case, side: str) -> bool:
    return any(getattr(expected, f"{side}_buffer") is not None for expected in case.expect)


def _kept(harness: Any, made: Input, side: str) -> list[Any]:
    """Times of the rows of a side that are kept."""
    times = harness.state(side)["time"].cast(pa.int64()).to_pylist()
    return sorted(made.units.instant(time, "+inf") for time in times)


def _buffers(case: Case, expected: Any, kept: list[dict[str, list[Any]]]) -> list[Failure]:
    """What is kept of each side after the last of the steps."""
    wanted = {side: getattr(expected, f"{side}_buffer") for side in SIDES}
    found = kept[expected.after_step]
    return [
        failure(case, expected, f"what is kept of the {side}", times, found[side])
        for side, times in wanted.items()
        if times is not None and sorted(times) != found[side]
    ]


SIDES = ("left", "right")
UNDERSTOOD = {
    "interval_join",
    "window_join",
    "outer_join",
    "eager_join_emission",
    "unbounded_interval",
    "state_introspection",
}


def _description(case: Case, made: Input) -> JoinedStream:
    asked = case.join or {}
    units, kind = made.units, asked.get("type")
    if not case.keyed or kind not in ("interval", "window") or asked.get("emit_mode") == "final":
        raise Unsupported("kind join")
    late = units.span(0 if isinstance(case.allowed_lateness, str) else case.allowed_lateness or 0)
    left, right = (ts.stream(event_time="time") for _ in SIDES)
    chosen: dict[str, Any] = {"on": "key", "how": HOW[asked["how"]], "allowed_lateness": late}
    chosen["unmatched"] = "final"  # a row alone is due once nobody can come any more
    if kind == "window":
        return left.join(right, occurrence="each", window=window_of(case.window or {}, units), **chosen)
    low = _bound(asked["lower"], units, 0 if asked.get("lower_inclusive", True) else 1)
    high = _bound(asked["upper"], units, 0 if asked.get("upper_inclusive", True) else -1)
    return left.join(right, within=(low, high), **chosen)


def _bound(value: Any, units: Any, inside: int) -> str | None:
    return None if isinstance(value, str) else f"{value * units.scale + inside} microseconds"


def _act(harness: Any, made: Input, step: Step, number: int, clocks: dict[int, int]) -> list[pa.Table]:
    if step.events:
        return [harness.feed({event.side or "left": made.table([event], [number], 0)}) for event in step.events]
    if step.action == "watermark":
        value = step.body["wm_excl"]
        mark = END_US if isinstance(value, str) else made.units.us(value)
        if value == "-inf":
            return []
        if "input" in step.body:
            clocks[step.body["input"]] = mark
            return [harness.advance_watermark(min(clocks.values()))] if len(clocks) > 1 else []
        return [harness.advance_watermark(mark)]
    return [harness.finish()] if step.action == "end_of_stream" else []


def _emission(row: dict[str, Any], made: Input) -> Emission:
    answered: Emission = {"key": made.key.decode(row["key"]), "timestamp": made.units.instant(row["time"], "+inf")}
    for side in ("left", "right"):
        there = row[f"{side}_time"] is not None
        answered[side] = made.value.decode(row[f"{side}_value"]) if there else None
    if "window_start" in row:
        answered["window"] = made.units.window(row["window_start"], row["window_end"])
    return answered


def _compare(case: Case, expected: Any, emitted: list[list[Emission]]) -> list[Failure]:
    found = [one for step in emitted[expected.from_step : expected.after_step + 1] for one in step]
    left = list(found)
    for wanted in expected.emit:
        match = next(
            (one for one in left if all(one.get(name) == wanted[name] for name in wanted if name in one)), None
        )
        if match is None:
            return [failure(case, expected, "pairs", expected.emit, found)]
        left.remove(match)
    return [failure(case, expected, "pairs", expected.emit, found)] if left else []
