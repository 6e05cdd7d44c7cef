"""Cases of an aggregate alone (`accumulation`) and of durable state alone (`state`)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.conformance.aggregates import BY_TIME, asked, name_of
from tests.conformance.bench import Bench, fields_of, plainly
from tests.conformance.case import Case, CaseError, Event, Step, Unsupported, steps_of
from tests.conformance.compare import Emission, Failure, check_state, failure
from tests.conformance.driver import Driver
from tests.conformance.harness import emissions
from tests.conformance.mapping import input_of
from tests.conformance.values import same
from tidestate import trigger

SPAN = 1_000_000
"""A window that holds all of an accumulation, in units of the case."""


def accumulation(case: Case, bench: Bench) -> list[Failure]:
    """An aggregate over inputs, in a window that holds them all; merges are two sessions that become one."""
    if case.inputs is None and not case.merges and not case.more:
        raise Unsupported("accumulation without inputs")
    failures: list[Failure] = []
    for number, (inputs, output) in enumerate(_outputs(case)):
        events = _events(case, inputs)
        found = _answer(case, bench, events, f"output-{number}")
        failures += _compare(case, output, found, f"the answer after {len(events)} inputs")
    for number, (first, second, merged) in enumerate(case.merges):
        found = _merged(case, bench, first, second, f"merge-{number}")
        failures += _compare(case, {"output": merged}, found, f"{first} merged with {second}")
    return failures


def _outputs(case: Case) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Inputs, and what they come to."""
    for output in case.outputs or []:
        yield (case.inputs or [])[: output.get("after", len(case.inputs or []))], output
    for more in case.more:
        yield more["inputs"], more


def _events(case: Case, inputs: Sequence[Any]) -> list[Event]:
    pairs = name_of(case.aggregate) in BY_TIME and all(isinstance(one, list) and len(one) == 2 for one in inputs)
    if pairs:
        return [Event(ts=time, value=value) for value, time in inputs]
    return [Event(ts=number, value=value) for number, value in enumerate(inputs)]


def _compare(case: Case, output: dict[str, Any], found: Any, what: str) -> list[Failure]:
    if "output_size" in output:
        size = len(found) if isinstance(found, list | dict) else found
        return [] if size == output["output_size"] else [failure(case, None, what, [output["output_size"]], [size])]
    if "output" not in output:
        raise CaseError(f"{case.id}: an output needs an output or output_size")
    shape = asked(case.aggregate, input_of(case, []).value).shapes[0]
    if output.get("unordered"):
        shape = "values"
    equal = same(output["output"], found, shape)
    return [] if equal else [failure(case, None, what, [output["output"]], [found])]


def _answer(case: Case, bench: Bench, events: list[Event], name: str) -> Any:
    """What a window answers that was given ``events`` one by one."""
    window = {"type": "tumbling", "size": 2 * SPAN, "offset": -SPAN}
    if events:
        return _live(case, bench, window, events, name)
    # A window of nothing is seen where all it had was observed and discarded: its on-time pane is empty.
    return _of_nothing(msgspec.structs.replace(case, window=window, accumulation_mode="discarding"), bench, name)


def _of_nothing(case: Case, bench: Bench, name: str) -> Any:
    events = _events(case, _some_inputs(case))[:1]
    made = plainly(case, input_of(case, events), early=trigger.each_batch())
    driver = bench.driver(case, made, name)
    driver.take(Step("event", {}, tuple(events)))
    last: Emission = emissions(driver.harness.finish(), made.input, made.asked)[-1]
    return last["value"]


def _some_inputs(case: Case) -> list[Any]:
    given = [*(case.inputs or []), *(one for more in case.more for one in more["inputs"])]
    return given or [1]


def _live(case: Case, bench: Bench, window: dict[str, Any], events: list[Event], name: str) -> Any:
    placed = msgspec.structs.replace(case, window=window, keyed=False)
    driver = bench.driver(placed, plainly(placed, input_of(placed, events)), name)
    for event in events:
        driver.take(Step("event", {}, (event,)))
    live = driver.live()
    if len(live) != 1:
        raise AssertionError(f"one window was expected, found {[one['window'] for one in live]}")
    return live[0]["value"]


def _merged(case: Case, bench: Bench, first: Any, second: Any, name: str) -> Any:
    """Two sessions, the second of which reaches into the first: the answer of the one they become.

    What is merged is a value, or a list of values where the aggregate answers with lists.
    """
    shape = asked(case.aggregate, input_of(case, []).value).shapes[0]
    lists = shape in ("values", "ordered")
    older, newer = (one if lists and isinstance(one, list) else [one] for one in (first, second))
    events = [Event(ts=0, value=value) for value in older] + [Event(ts=SPAN // 2, value=value) for value in newer]
    return _live(case, bench, {"type": "session", "gap": SPAN}, events, name)


def state(case: Case, bench: Bench) -> list[Failure]:
    """Values put into windows, a batch an epoch; checkpoints, and a new instance from an older one of them."""
    steps = steps_of(case)
    puts = [step.body["put"] for step in steps if step.action == "put"]
    case = msgspec.structs.replace(
        case, window=_window_of(case, puts), aggregate="last", keyed=any("key" in put for put in puts)
    )
    made = plainly(case, input_of(case, [_put(put) for put in puts]))
    keeper = _Keeper(case, bench, bench.driver(case, made, "put"))
    fields, failures = fields_of(case, made.asked), []
    for index, step in enumerate(steps):
        keeper.take(step)
        for expected in case.expect:
            if expected.after_step == index:
                keeper.flush()
                failures += check_state(case, fields, expected, keeper.driver.live())
    return failures


def _put(put: dict[str, Any]) -> Event:
    start, end = put["window"]
    return Event(ts=start, key=put.get("key"), value=put["value"], gap=end - start)


def _window_of(case: Case, puts: list[dict[str, Any]]) -> dict[str, Any]:
    """Windows side by side where all are of one size and place; else each put brings its own, as a session."""
    if case.window is not None:
        return case.window
    sizes = {put["window"][1] - put["window"][0] for put in puts}
    size = min(sizes, default=1)
    phases = {put["window"][0] % size for put in puts}
    if len(sizes) == 1 and len(phases) == 1:
        return {"type": "tumbling", "size": size, "offset": phases.pop()}
    return {"type": "session", "gap": "per_event"}


class _Keeper:
    """The puts of an epoch, and the durable files as each checkpoint saw them."""

    def __init__(self, case: Case, bench: Bench, driver: Driver) -> None:
        self.case, self.bench, self.driver = case, bench, driver
        self.pending: list[Event] = []
        self.checkpoints: dict[Any, Path] = {}

    def take(self, step: Step) -> None:
        if step.action == "put":
            self.pending.append(_put(step.body["put"]))
        elif step.action == "end_epoch":
            self.flush()
        elif step.action == "checkpoint":
            self.checkpoints[step.body["checkpoint"]] = self._copy(step.body["checkpoint"])
        elif step.action == "restore":
            self._restore(step.body["restore"])
        elif step.action == "snapshot_restore":
            self.pending = []
            self.driver.harness = self.driver.harness.restart() or self.driver.harness
        else:
            raise Unsupported(f"step {step.action} in a case of state")

    def flush(self) -> None:
        """What was put is a batch."""
        if self.pending:
            self.driver.take(Step("bundle", {}, tuple(self.pending)))
            self.pending = []

    def _copy(self, name: Any) -> Path:
        copy = self.bench.room(f"checkpoint-{name}")
        shutil.copytree(self.driver.folder, copy)
        return copy

    def _restore(self, name: Any) -> None:
        """A new instance on the files of that checkpoint; what was done since is as if it had never been."""
        if name not in self.checkpoints:
            raise CaseError(f"{self.case.id}: restores checkpoint {name}, which was never taken")
        self.pending = []
        room = self.bench.room(f"restored-{name}-{len(self.driver.rows)}")
        shutil.copytree(self.checkpoints[name], room)
        self.driver.reopen(room)
