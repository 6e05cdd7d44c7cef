"""Cases of two streams in one state: cogroups, joins of sessions, and of what two windows hold."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

import tidestate as ts
from tests.conformance.bench import Bench
from tests.conformance.case import Case, Step, Unsupported, steps_of
from tests.conformance.compare import Failure, failure
from tests.conformance.harness import rows_of
from tests.conformance.mapping import Input, check_supported, input_of, window_of
from tests.conformance.values import decoded, same, same_multiset
from tidestate import OperatorStream, Stream, agg

HOW = {"inner": "inner", "left": "left", "right": "right", "outer": "full", "full": "full"}
UNDERSTOOD = {"state_introspection", "window_join", "outer_join", "end_of_stream_flush", "window_join_accumulation"}
SIDES = ("left", "right")


def mine(case: Case) -> bool:
    """Whether it is about such a case."""
    sessions = (case.window or {}).get("type") == "session"
    return case.kind == "join" and ((case.join or {}).get("type") == "cogroup" or sessions)


def merged(case: Case, bench: Bench) -> list[Failure]:
    """The state of a cogroup after each step, or what a join of sessions shows."""
    check_supported(msgspec.structs.replace(case, requires=[r for r in case.requires if r not in UNDERSTOOD]))
    made = input_of(case)
    return _cogroup(case, bench, made) if (case.join or {}).get("type") == "cogroup" else _sessions(case, bench, made)


def _cogroup(case: Case, bench: Bench, made: Input) -> list[Failure]:
    if (case.window or {}).get("type") != "global" or any(one.emit is not None for one in case.expect):
        raise Unsupported("kind join")
    grouped = ts.merge(**dict(zip(SIDES, _streams("time"), strict=True))).group_by(*(["key"] if made.keyed else []))
    description = grouped.window(ts.global_window()).aggregate(
        left=agg.list("left_value"), right=agg.list("right_value")
    )
    harness = _open(bench, description, made)
    failures: list[Failure] = []
    for number, step in enumerate(steps_of(case)):
        _act(harness, made, step)
        live = [_group(row, made) for row in rows_of(harness.windows())]
        for expected in case.expect:
            asked = expected.after_step == number and expected.state is not None
            if asked and not same_multiset(expected.state or [], live, _same_in_all):
                failures.append(failure(case, expected, "groups", expected.state, live))
    return failures


def _group(row: dict[str, Any], made: Input) -> dict[str, Any]:
    answered: dict[str, Any] = {"window": made.units.window(row["window_start"], row["window_end"])}
    if made.keyed:
        answered["key"] = made.key.decode(row["key"])
    return answered | {side: decoded("values", made.value, row[side]) for side in SIDES}


def _same_in_all(wanted: dict[str, Any], found: dict[str, Any]) -> bool:
    lists = all(same(wanted[side], found[side], "values") for side in SIDES if side in wanted)
    return lists and all(same(wanted[name], found[name]) for name in wanted.keys() - set(SIDES))


def _sessions(case: Case, bench: Bench, made: Input) -> list[Failure]:
    asked = case.join or {}
    if asked.get("type") != "window" or asked.get("emit_mode") != "final" or asked.get("insert_mode") != "product":
        raise Unsupported("kind join")
    gap = made.units.span(window_of(case.window or {}, made.units).gap // made.units.scale)
    how: Any = HOW[asked["how"]]
    left, right = _streams("time")
    description = left.join_sessions(right, on="key" if made.keyed else None, gap=gap, how=how)
    harness = _open(bench, description, made)
    observed = [_act(harness, made, step) for step in steps_of(case)]
    failures = []
    for expected in case.expect:
        rows = [row for panes in observed[expected.from_step : expected.after_step + 1] for row in rows_of(panes)]
        found = [_pair(row, made) for row in rows]
        if expected.emit is not None and not same_multiset(expected.emit, found, _same_pair):
            failures.append(failure(case, expected, "pairs", expected.emit, found))
    return failures


def _pair(row: dict[str, Any], made: Input) -> dict[str, Any]:
    values = {side: row[f"{side}_value"] for side in SIDES}
    return {side: None if value is None else made.value.decode(value) for side, value in values.items()}


def _same_pair(wanted: dict[str, Any], found: dict[str, Any]) -> bool:
    return all(same(wanted[name], found.get(name)) for name in wanted)


def _streams(time: str) -> tuple[Stream, Stream]:
    return ts.stream(event_time=time), ts.stream(event_time=time)


def _open(bench: Bench, description: OperatorStream, made: Input) -> Any:
    return bench.open(description, dict.fromkeys(SIDES, made.schema), bench.store, bench.room(0))


def _act(harness: Any, made: Input, step: Step) -> pa.Table:
    """A step; the panes that it shows."""
    if step.action == "end_of_stream":
        return harness.finish()
    if step.action == "watermark" and not isinstance(step.body["wm_excl"], str):
        return harness.advance_watermark(made.units.us(step.body["wm_excl"]))
    if not step.events:
        raise Unsupported(f"step {step.action}")
    rows = [{event.side or "left": made.table([event], [number], 0)} for number, event in enumerate(step.events)]
    return pa.concat_tables([harness.feed(batch) for batch in rows])


def contents(case: Case, bench: Bench) -> list[Failure]:
    """A join of what two windows hold, as objects: their fields under each other's."""
    check_supported(msgspec.structs.replace(case, requires=[r for r in case.requires if r not in UNDERSTOOD]))
    asked = case.aggregate
    (name, other), *more = asked["on"]
    if more or name != other:
        raise Unsupported("window_join_accumulation on several or unlike columns")
    left, right = _streams("t")
    how: Any = HOW[asked["how"]]
    description = left.join_sessions(right, on=name, gap="1 second", how=how)
    sides = {side: _objects(getattr(case, side)) for side in SIDES}
    schemas = {side: table.schema for side, table in sides.items()}
    failures = []
    for number, output in enumerate(case.outputs or []):
        harness = bench.open(description, schemas, bench.store, bench.room(number))
        harness.feed(sides)
        found = [_object(row, name) for row in rows_of(harness.finish())]
        if not same_multiset(output["output"], found, _same_pair):
            failures.append(failure(case, None, "the objects of both", output["output"], found))
    return failures


def _objects(rows: list[dict[str, Any]]) -> pa.Table:
    """As rows of one time: those of a key are then in one session."""
    at = pa.array([0] * len(rows), pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    return pa.Table.from_pylist(rows).append_column("t", at)


def _object(row: dict[str, Any], key: str) -> dict[str, Any]:
    """A pair as one object; of a side that is not there all is null."""
    answered = {key: row[key]}
    for side in SIDES:
        fields = {name.removeprefix(f"{side}_"): value for name, value in row.items() if name.startswith(f"{side}_")}
        answered |= {name: value for name, value in fields.items() if name not in ("t", key)}
    return answered
