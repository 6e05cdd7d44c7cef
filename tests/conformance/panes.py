"""Cases of kind `pane`: the whole operator, step by step."""

from __future__ import annotations

from tests.conformance.bench import Bench, built, fields_of
from tests.conformance.case import Case, Dropped, Expectation, Step, steps_of
from tests.conformance.compare import Emission, Failure, Fields, check_emissions, check_state, failure
from tests.conformance.driver import Driver


def pane(case: Case, bench: Bench) -> list[Failure]:
    """Emissions, live windows, refused elements."""
    made = built(case)
    driver, fields = bench.driver(case, made), fields_of(case, made.asked)
    failures: list[Failure] = []
    for index, step in enumerate(steps_of(case)):
        driver.take(step)
        for expected in case.expect:
            if expected.after_step == index:
                failures += _as_it_is(case, driver, fields, expected)
    if (case.triggers or {}).get("ontime", True) is not None:
        failures += check_emissions(case, fields, driver.emitted)
    return failures + refused(case, driver)


def _as_it_is(case: Case, driver: Driver, fields: Fields, expected: Expectation) -> list[Failure]:
    """What is asserted of the operator after a step."""
    asserted = (expected.state, expected.windows, expected.state_present, expected.state_absent)
    failures: list[Failure] = []
    if any(one is not None for one in asserted):
        failures += check_state(case, fields, expected, driver.live())
    if expected.dropped_total is not None:
        found = len(driver.refusals(driver.ledger()))
        if found != expected.dropped_total:
            failures.append(failure(case, expected, "refusals", [expected.dropped_total], [found]))
    return failures


def refused(case: Case, driver: Driver) -> list[Failure]:
    """Whether the elements that must be refused are in the ledger: by all windows, or by those listed."""
    if not case.expect_dropped and case.dropped_total is None:
        return []
    ledger, steps, failures = driver.ledger(), steps_of(case), []
    for dropped in case.expect_dropped:
        rows = _rows(dropped, steps[dropped.step], driver.rows[dropped.step])
        failures += _refusal(case, driver, dropped, [entry for entry in ledger if entry["row"] in rows])
    total = len(driver.refusals(ledger))
    if case.dropped_total not in (None, total):
        failures.append(failure(case, None, "refusals", [case.dropped_total], [total]))
    return failures


def _rows(dropped: Dropped, step: Step, rows: list[int]) -> list[int]:
    """The events of a step that a refusal speaks of."""
    return [
        row
        for row, event in zip(rows, step.events, strict=True)
        if all(getattr(event, name, None) == value for name, value in dropped.event.items())
    ]


def _refusal(case: Case, driver: Driver, dropped: Dropped, entries: list[Emission]) -> list[Failure]:
    span = Expectation(from_step=dropped.step, after_step=dropped.step)
    if not entries:
        return [failure(case, span, "an element that is refused", [dropped.event], ["accepted by all its windows"])]
    if dropped.windows is None:
        return []
    found = driver.refusals(entries)
    if sorted(map(repr, found)) == sorted(map(repr, dropped.windows)):
        return []
    return [failure(case, span, "windows that refuse an element", dropped.windows, found)]
