"""Cases of windows alone: `assign`, `windows`, `window_merge`, and configurations to refuse (``invalid``)."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.conformance.aggregates import asked
from tests.conformance.bench import Bench, fields_of, plainly
from tests.conformance.case import Case, CaseError, Event, Expectation, Step, Unsupported, steps_of
from tests.conformance.compare import Failure, check_state, check_windows, failure
from tests.conformance.harness import emissions
from tests.conformance.mapping import describe, input_of, quietly
from tests.conformance.rewindowing import rewindowed
from tidestate.statestore.errors import UsageError


def windows(case: Case, bench: Bench) -> list[Failure]:
    """The grouping of all events: as live windows, and as the panes at the end of the input."""
    if (case.window or {}).get("type") == "chain":
        return rewindowed(case, bench)
    made = plainly(case)
    driver, fields = bench.driver(case, made), fields_of(case, made.asked)
    failures: list[Failure] = []
    steps = steps_of(case)
    for index, step in enumerate(steps):
        driver.take(step)
        for expected in case.expect:
            if expected.after_step == index:
                failures += check_state(case, fields, expected, driver.live())
    if not any(step.action == "end_of_stream" for step in steps):
        driver.emitted.append(emissions(driver.harness.finish(), made.input, made.asked))
    observed = [one for found in driver.emitted for one in found]
    for expected in case.expect:
        if expected.after_step == len(steps) - 1 and expected.windows is not None:
            only = Expectation(from_step=expected.from_step, after_step=expected.after_step, windows=expected.windows)
            failures += check_state(case, fields, only, observed)
    return failures


def assign(case: Case, bench: Bench) -> list[Failure]:
    """The windows of single elements: each on a harness that has seen no other."""
    alone = msgspec.structs.replace(case, keyed=False, aggregate=None)
    steps, failures = steps_of(case), []
    for number, expected in enumerate(case.expect):
        if expected.assign is None:
            continue
        brought = [step for step in steps[expected.from_step : expected.after_step + 1] if step.events]
        if not brought:
            raise CaseError(f"{case.id}: expectation {number} assigns no element")
        driver = bench.driver(alone, plainly(alone), number)
        driver.take(Step("event", {}, brought[-1].events[-1:]))
        failures += check_windows(case, expected, [one["window"] for one in driver.live()])
    return failures


def window_merge(case: Case, bench: Bench) -> list[Failure]:
    """Windows that merge where they overlap: a session whose elements bring a gap of their own is such a window.

    Either steps and the ``windows`` they come to; or ``merges`` of two windows (merged is null: they stay apart); or
    ``inputs`` and the ``outputs`` they merge to.
    """
    if case.steps:
        return windows(case, bench)
    asked_for = list(_merges(case))
    if not asked_for:
        raise Unsupported("window_merge without steps, merges or inputs")
    per_event = msgspec.structs.replace(
        case, window={"type": "session", "gap": "per_event"}, keyed=False, aggregate=None
    )
    failures = []
    for number, (given, wanted) in enumerate(asked_for):
        events = [Event(ts=start, gap=end - start) for start, end in given]
        driver = bench.driver(per_event, plainly(per_event, input_of(per_event, events)), number)
        for event in events:
            driver.take(Step("event", {}, (event,)))
        found = [one["window"] for one in driver.live()]
        failures += check_windows(case, Expectation(from_step=0, after_step=0, assign=wanted), found)
    return failures


def _merges(case: Case) -> Any:
    """Pairs: the windows given, the windows they come to."""
    for first, second, merged in case.merges:
        yield [first, second], ([first, second] if merged is None else _several(merged))
    for entry in [{"inputs": case.inputs, "output": output} for output in case.outputs or []] + case.more:
        output = entry["output"]
        output = output.get("output", output.get("windows")) if isinstance(output, dict) else output
        if entry["inputs"] is not None and output is not None:
            yield entry["inputs"], _several(output)


def _several(merged: list[Any]) -> list[Any]:
    """A list of windows; one window alone is a list of one."""
    return [merged] if merged and not isinstance(merged[0], list) else merged


def refuse(case: Case, bench: Bench) -> list[Failure]:
    """Configurations: each must build, or be refused with a usage error, as the case says."""
    failures = []
    for number, entry in enumerate(case.configs or []):
        config, valid = entry.get("config"), entry.get("valid")
        if not isinstance(valid, bool) or not isinstance(config, dict):
            raise CaseError(f"{case.id}: configuration {number} needs a config and valid")
        found = _builds(configured(case, config), bench, number)
        if found != valid:
            words = {True: "valid", False: "refused"}
            failures.append(failure(case, None, f"configuration {config}", [words[valid]], [words[found]]))
    return failures


def _builds(case: Case, bench: Bench, number: int) -> bool:
    """Whether there is a description, and it can be bound to an input."""

    def build() -> None:
        made = input_of(case)
        description = describe(case, made, asked(case.aggregate, made.value))
        bench.open(description, made.schema, bench.store, bench.room(number))

    try:
        quietly(build)
    except (UsageError, CaseError):
        return False
    return True


OWN = (
    "window",
    "aggregate",
    "allowed_lateness",
    "triggers",
    "trigger_ast",
    "accumulation_mode",
    "on_time_behavior",
    "closing",
    "timestamp_combiner",
    "keyed",
)


def configured(case: Case, config: dict[str, Any]) -> Case:
    """The case with a configuration's fields: those that cases have by their names, all others are the window's."""
    own = {name: value for name, value in config.items() if name in OWN}
    window = {name: value for name, value in config.items() if name not in OWN}
    if "grace" in window:
        own["allowed_lateness"] = window.pop("grace")
    if window:
        own["window"] = {**(case.window or {}), **own.get("window", {}), **window}
    return msgspec.structs.replace(case, **own)
