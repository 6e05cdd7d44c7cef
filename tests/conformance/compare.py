"""What was found against what a case expects. No engine here: lists of emissions in, failures out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tests.conformance.case import Case, Expectation, Unsupported
from tests.conformance.values import Shape, same, same_multiset

Emission = dict[str, Any]
COMPARED = (
    "window",
    "key",
    "value",
    "kind",
    "timestamp",
    "index",
    "nonspeculative_index",
    "is_first",
    "is_last",
)
DOCUMENTATION = {"window_raw", "value_raw"}
TIMINGS = ("early", "ontime", "late")
ELSEWHERE = ("watermark_out", "current", "status_out", "left_buffer", "right_buffer")
"""Expectations that only joins and watermark generators answer."""


@dataclass(frozen=True)
class Failure:
    """One difference. ``expected`` and ``found`` have a line for each thing compared."""

    case: str
    first: int | None
    last: int | None
    what: str
    expected: tuple[str, ...]
    found: tuple[str, ...]


@dataclass(frozen=True)
class Fields:
    """Which fields of a case's emissions are compared, and how its values are."""

    shapes: tuple[Shape, ...]
    several: bool
    soft: frozenset[str] = frozenset()

    def same_value(self, expected: Any, found: Any) -> bool:
        if not self.several:
            return same(expected, found, self.shapes[0])
        return (
            isinstance(expected, list)
            and len(expected) == len(found) == len(self.shapes)
            and all(map(same, expected, found, self.shapes))
        )

    def matches(self, expected: Emission, found: Emission) -> bool:
        """Whether a found emission is the expected one, in the fields that are given."""
        if (expected.get("kind") == "retract") != (found.get("kind") == "retract"):
            return False
        for name in expected.keys() - self.soft - DOCUMENTATION:
            if name == "kind":
                if expected["kind"] in TIMINGS and expected["kind"] != found["kind"]:
                    return False
            elif name == "value":
                if not self.same_value(expected["value"], found["value"]):
                    return False
            elif name == "values":
                if not same(expected["values"], found["value"], "values"):
                    return False
            elif name not in found or not same(expected[name], found[name]):
                return False
        return True


def check_known(case: Case) -> None:
    """Raises `Unsupported` for an expectation that nothing here compares: a case must not pass unseen."""
    for expected in case.expect:
        asked = [name for name in ELSEWHERE if getattr(expected, name) not in (None, msgspec.UNSET)]
        if asked:
            raise Unsupported(f"expectation {asked[0]}")
        for emission in expected.emit or []:
            strange = sorted(emission.keys() - set(COMPARED) - DOCUMENTATION - set(case.soft_fields))
            if strange:
                raise Unsupported(f"emission field {strange[0]}")


def check_emissions(case: Case, fields: Fields, steps: Sequence[Sequence[Emission]]) -> list[Failure]:
    """``steps`` has the emissions of each step, in their order."""
    failures = []
    for expected in case.expect:
        covered = steps[expected.from_step : expected.after_step + 1]
        found = [one for step in covered for one in step if _asked(case, one)]
        if expected.last is not None:
            history = [one for step in steps[: expected.after_step + 1] for one in step]
            failures += _last(case, fields, expected, history)
        if expected.unasserted:
            continue
        if expected.emit is not None:
            wanted = [one for one in expected.emit if _asked(case, one)]
            failures += _emitted(case, fields, expected, wanted, found)
        if expected.ordered == "retract_first":
            failures += _retractions_first(case, expected, steps)
        failures += _sizes(case, expected, found)
    return failures


def _asked(case: Case, emission: Emission) -> bool:
    bound, window = case.ignore_window_start_below, emission.get("window")
    if bound is None or window is None:
        return True
    return bool(window[0] != "-inf" and window[0] >= bound)


def _emitted(
    case: Case, fields: Fields, expected: Expectation, wanted: list[Emission], found: list[Emission]
) -> list[Failure]:
    if expected.ordered is True:
        if len(wanted) == len(found) and all(map(fields.matches, wanted, found)):
            return []
        return [failure(case, expected, "emissions, in this order", wanted, _reported(wanted, found))]
    if same_multiset(wanted, found, fields.matches):
        return []
    return [failure(case, expected, "emissions", wanted, _reported(wanted, found))]


def _reported(wanted: list[Emission], found: list[Emission]) -> list[Emission]:
    """Without the fields that nobody asked for."""
    names = {"window", "key", "value", "kind"}.union(*wanted)
    return [{name: value for name, value in one.items() if name in names} for one in found]


def _retractions_first(case: Case, expected: Expectation, steps: Sequence[Sequence[Emission]]) -> list[Failure]:
    """Within a step, whatever is taken back of a key is taken back before the key's new panes."""
    for number in range(expected.from_step, expected.after_step + 1):
        observed: set[str] = set()
        for emission in steps[number]:
            key = repr(emission.get("key"))
            if emission["kind"] != "retract":
                observed.add(key)
            elif key in observed:
                return [failure(case, expected, "retractions before new panes", [], list(steps[number]))]
    return []


def _last(case: Case, fields: Fields, expected: Expectation, history: list[Emission]) -> list[Failure]:
    latest = {(repr(one["window"]), repr(one.get("key"))): one for one in history if one["kind"] != "retract"}
    found = list(latest.values())
    missing = [one for one in expected.last or [] if not any(fields.matches(one, other) for other in found)]
    return [failure(case, expected, "the latest value of each window", missing, found)] if missing else []


def _sizes(case: Case, expected: Expectation, found: list[Emission]) -> list[Failure]:
    observed = [one for one in found if one["kind"] != "retract"]
    failures = []
    if expected.pane_count is not None and expected.pane_count != len(observed):
        failures.append(failure(case, expected, "number of panes", [expected.pane_count], [len(observed)]))
    if expected.pane_sizes is not None:
        sizes = [_size(one["value"]) for one in observed]
        if not same_multiset(expected.pane_sizes, sizes, same):
            failures.append(failure(case, expected, "sizes of panes", expected.pane_sizes, sizes))
    if expected.sum is not None:
        total = sum(_total(one["value"]) for one in observed)
        if not same(expected.sum, total):
            failures.append(failure(case, expected, "sum of all values", [expected.sum], [total]))
    return failures


def _size(value: Any) -> Any:
    """Of a pane: how many values it lists, or the number that its count is."""
    return len(value) if isinstance(value, list | dict) else value


def _total(value: Any) -> Any:
    return sum(map(_total, value)) if isinstance(value, list) else value or 0


def check_state(case: Case, fields: Fields, expected: Expectation, live: list[Emission]) -> list[Failure]:
    """The live windows after a step."""
    live = [one for one in live if _asked(case, one)]
    failures = []
    for name in ("state", "windows"):
        wanted = getattr(expected, name)
        if wanted is not None and not same_multiset(wanted, live, fields.matches):
            failures.append(failure(case, expected, name, wanted, live))
    if (wanted := expected.state_present) is not None:
        missing = [one for one in wanted if not any(fields.matches(one, other) for other in live)]
        if missing:
            failures.append(failure(case, expected, "state that is present", missing, live))
    if (unwanted := expected.state_absent) is not None:
        there = [one for one in live if any(fields.matches(other, one) for other in unwanted)]
        if there:
            failures.append(failure(case, expected, "state that is absent", [], there))
    return failures


def check_windows(case: Case, expected: Expectation, found: Sequence[Sequence[Any]]) -> list[Failure]:
    """The windows of one element, as a set."""
    wanted = expected.assign or []
    if sorted(map(repr, map(list, wanted))) == sorted(map(repr, map(list, found))):
        return []
    return [failure(case, expected, "windows of the element", [_interval(w) for w in wanted], map(_interval, found))]


def failure(case: Case, expected: Expectation | None, what: str, wanted: Any, found: Any) -> Failure:
    """A failure of these steps; things are observed as `observed` does."""
    first, last = (expected.from_step, expected.after_step) if expected else (None, None)
    return Failure(case.id, first, last, what, tuple(map(observed, wanted)), tuple(map(observed, found)))


def observed(thing: Any) -> str:
    """An emission on one line: ``[0, 10) key=a value=[1, 2] early``."""
    if not isinstance(thing, dict) or not thing.keys() & {"window", "value", "values", "key"}:
        return str(thing)
    parts = [_interval(thing["window"])] if "window" in thing else []
    parts += [f"{name}={thing[name]}" for name in thing if name not in {"window", "kind"} | DOCUMENTATION]
    return " ".join([*parts, *([thing["kind"]] if "kind" in thing else [])])


def _interval(window: Sequence[Any]) -> str:
    return f"[{window[0]}, {window[1]})"
