"""Cases of windows behind windows: a chain of an operator for each stage; each element keeps its time."""

from __future__ import annotations

from typing import Any

from tests.conformance.bench import Bench
from tests.conformance.case import Case, Unsupported, steps_of
from tests.conformance.compare import Expectation, Failure, Fields, check_state
from tests.conformance.harness import rows_of
from tests.conformance.mapping import Input, check_supported, input_of, window_of
from tidestate.agg import list as list_
from tidestate.operators.describe.chain import Chain, chain
from tidestate.operators.describe.windowed import Windowed, windowed


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


def described(case: Case, made: Input) -> Chain:
    """Each stage but the last by element, so that each goes on once for each window it lies in."""
    stages = (case.window or {})["stages"]
    operators: list[Windowed] = []
    for number, stage in enumerate(stages):
        last = number == len(stages) - 1
        keys = [*(["key"] if made.keyed else []), *([] if last else ["row"])]
        time = "timestamp" if number else "time"
        one = windowed(event_time=time, key=keys or None, name=f"stage{number}").window(window_of(stage, made.units))
        operators.append(one.aggregate(value=list_("value")).timestamps("latest").late("0 seconds"))
    return chain(*operators)


def _emission(row: dict[str, Any], made: Input) -> dict[str, Any]:
    answered: dict[str, Any] = {"window": made.units.window(row["window_start"], row["window_end"])}
    if made.keyed:
        answered["key"] = made.key.decode(row["key"])
    answered["value"] = [made.value.decode(value) for value in _flat(row["value"])]
    return answered


def _flat(values: Any) -> list[Any]:
    return [one for value in values for one in _flat(value)] if isinstance(values, list) else [values]
