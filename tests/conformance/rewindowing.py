"""Cases of windows behind windows: a chain of an operator for each stage; each element keeps its time."""

from __future__ import annotations

from typing import Any

import tidestate as ts
from tests.conformance.bench import Bench
from tests.conformance.case import Case, Unsupported, steps_of
from tests.conformance.compare import Expectation, Failure, Fields, check_state
from tests.conformance.harness import rows_of
from tests.conformance.mapping import Input, check_supported, input_of, window_of
from tidestate import Aggregation, Stream, agg


def rewindowed(case: Case, bench: Bench) -> list[Failure]:
    """The windows of the last stage once all elements are in, with all their values."""
    check_supported(case)
    steps, made = steps_of(case), input_of(case)
    if case.aggregate != "list" or any(not step.events for step in steps):
        raise Unsupported("rewindowing of this")
    harness: Any = bench.open(described(case, made), made.schema, bench.store, bench.room(0))
    for number, step in enumerate(steps):
        harness.feed(made.table(step.events, [number] * len(step.events), 0))
    observed = [_emission(row, made) for row in rows_of(harness.finish())]
    failures = []
    for expected in case.expect:
        only = Expectation(from_step=expected.from_step, after_step=expected.after_step, windows=expected.windows)
        failures += check_state(case, Fields(("values",), False, frozenset(case.soft_fields)), only, observed)
    return failures


def described(case: Case, made: Input) -> Aggregation:
    """Each stage but the last by element, so that each goes on once for each window it lies in."""
    *stages, last = (case.window or {})["stages"]
    keys = ["key"] if made.keyed else []
    read: Stream = ts.stream(event_time="time")
    for number, stage in enumerate(stages):
        read = _stage(read, [*keys, "row"], stage, made).named(f"stage{number}")
    return _stage(read, keys, last, made).named(f"stage{len(stages)}")


def _stage(read: Stream, keys: list[str], window: dict[str, Any], made: Input) -> Aggregation:
    values = read.group_by(*keys).window(window_of(window, made.units)).aggregate(value=agg.list("value"))
    return values.pane_timestamp("latest").allowed_lateness("0 seconds")


def _emission(row: dict[str, Any], made: Input) -> dict[str, Any]:
    answered: dict[str, Any] = {"window": made.units.window(row["window_start"], row["window_end"])}
    if made.keyed:
        answered["key"] = made.key.decode(row["key"])
    answered["value"] = [made.value.decode(value) for value in _flat(row["value"])]
    return answered


def _flat(values: Any) -> list[Any]:
    return [one for value in values for one in _flat(value)] if isinstance(values, list) else [values]
