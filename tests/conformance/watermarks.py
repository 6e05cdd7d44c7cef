"""Cases of kind ``watermark``: events, reports and buffers through `operators.progress`, with no operator behind.

Inputs become sources of a tracker, and buffers go to origins. Where a case has ``end_batch`` steps a round is what
lies between two of them, else every step is one.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa

from tests.conformance.bench import Bench
from tests.conformance.case import Case, CaseError, Expectation, Step, Unsupported, steps_of
from tests.conformance.compare import Failure, failure
from tests.conformance.mapping import check_supported
from tests.conformance.units import Units, units_of
from tidestate.operators.progress.generators import MaxEventTime
from tidestate.operators.progress.origins import OriginsState, advance_origins, buffers, origins, restore, save
from tidestate.operators.progress.progress import Progress, SourceReport, begin, merged, observe, reset_sources
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US, LAST_US, sources

STATED = {"from_step", "after_step", "unasserted", "current", "watermark_out", "status_out", "bookkeeping"}
SEQUENCES = ("sequence_progress", "min_of_sequence_progress")
NONE_YET = Expectation(from_step=0, after_step=0)


@dataclass(frozen=True)
class Observed:
    """What can be seen after a step."""

    watermark_us: int
    idle: bool
    waiting: int


def watermark(case: Case, _bench: Bench) -> list[Failure]:
    """The watermark after the steps, what was answered of it on the way, and what is still kept."""
    check_supported(msgspec.structs.replace(case, generator=None))
    for expected in case.expect:
        for name in expected.__struct_fields__:
            if name not in STATED and getattr(expected, name) != getattr(NONE_YET, name):
                raise Unsupported(f"expectation {name}")
    made = Sequences(case) if (case.generator or {}).get("type") in SEQUENCES else Inputs(case)
    observed = [made.observed()]
    for step in steps_of(case):
        made.take(step)
        observed.append(made.observed())
    words = Words(case, made.units)
    return [
        one
        for expected in case.expect
        if not expected.unasserted
        for one in _compare(case, words, expected, observed)
    ]


def _compare(case: Case, words: Words, expected: Expectation, observed: list[Observed]) -> list[Failure]:
    """``observed`` begins before the first step."""
    covered = observed[expected.from_step : expected.after_step + 2]
    pairs = list(pairwise(covered))
    moves = [words.of(now.watermark_us) for was, now in pairs if now.watermark_us > was.watermark_us]
    changes = [("idle" if now.idle else "active") for was, now in pairs if now.idle != was.idle]
    last = covered[-1]
    wanted: list[tuple[str, Any, Any]] = []
    if expected.current is not msgspec.UNSET:
        wanted.append(("watermark", [words.wanted(expected.current)], [words.current(last.watermark_us)]))
    if expected.watermark_out is not None:
        wanted.append(("watermarks put out", [words.wanted(mark) for mark in expected.watermark_out], moves))
    if expected.status_out is not None:
        wanted.append(("statuses put out", _listed(expected.status_out), changes))
    if expected.bookkeeping == 0:
        wanted.append(("what is still kept", [0], [last.waiting]))
    return [failure(case, expected, what, asked, found) for what, asked, found in wanted if asked != found]


def _listed(statuses: Any) -> list[str]:
    return [status.lower() for status in ([statuses] if isinstance(statuses, str) else statuses)]


@dataclass(frozen=True)
class Words:
    """Watermarks as the case writes them: in its units, by its convention, ``-inf`` for none yet."""

    case: Case
    units: Units

    def of(self, watermark_us: int) -> Any:
        """One that there is."""
        if watermark_us in (BEGINNING_US, END_US):
            return "-inf" if watermark_us == BEGINNING_US else "+inf"
        return watermark_us // self.units.scale - self.units.shift - self._inclusive

    def current(self, watermark_us: int) -> Any:
        """With the initial value that a generator may have."""
        initial, found = (self.case.generator or {}).get("initial"), self.of(watermark_us)
        if initial is None or found == "+inf":
            return found
        return initial if found == "-inf" else max(initial, found)

    def wanted(self, value: Any) -> Any:
        """As the case has it: null is none yet."""
        return {None: "-inf", "inf": "+inf"}.get(value, value)

    @property
    def _inclusive(self) -> int:
        return int(self.case.watermark_convention == "inclusive")


@dataclass
class Round:
    """What came since the last round: event times and reports, by input."""

    times: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    reports: list[dict[str, SourceReport]] = field(default_factory=list)


class Inputs:
    """Sources of a tracker: each says its watermark, or it is generated from its events."""

    def __init__(self, case: Case) -> None:
        generator = case.generator or {}
        self.units = _units(case)
        self._names = _names(case)
        self._generators = {name: self._generator(name, generator) for name in self._names}
        if "idle_timeout" in generator:
            timeout = self.units.span(generator["idle_timeout"])
            self._settings = sources(*self._names, idle_timeout=timeout)
        else:
            self._settings = sources(*self._names)
        self._tracker = begin(self._settings)
        self._round, self._now_us = Round(), 0
        self._in_batches = any("end_batch" in body for body in case.steps)

    def take(self, step: Step) -> None:
        """One more step."""
        for event in step.events:
            if event.ts is not None:
                self._round.times[self._name(event.input)].append(self.units.us(event.ts))
        if step.action == "snapshot_restore":
            saved = msgspec.json.decode(msgspec.json.encode(self._tracker), type=Progress)
            self._tracker = reset_sources(saved)
        elif step.action == "processing_time":
            self._now_us = self.units.us(step.body["processing_time"])
        elif step.action in ("watermark", "status", "end_of_stream"):
            self._round.reports.append(self._answered(step))
        elif step.action not in ("event", "bundle", "end_batch"):
            raise Unsupported(f"step {step.action} in a watermark case")
        if not self._in_batches or step.action in ("end_batch", "end_of_stream", "status", "processing_time"):
            self._close()

    def observed(self) -> Observed:
        """After the steps so far."""
        return Observed(self._tracker.watermark_us, self._tracker.idle, 0)

    def _answered(self, step: Step) -> dict[str, SourceReport]:
        named = self._names if "input" not in step.body else [self._name(step.body["input"])]
        if step.action == "end_of_stream":
            return dict.fromkeys(named, SourceReport(END_US, ended=True))
        if step.action == "status":
            return dict.fromkeys(named, SourceReport(status=step.body["status"].lower()))
        if "wm_excl" not in step.body:
            raise CaseError("a watermark step needs wm_excl")
        mark = step.body["wm_excl"]
        ends = {"-inf": BEGINNING_US, "+inf": END_US, "inf": END_US}
        return dict.fromkeys(named, SourceReport(ends[mark] if isinstance(mark, str) else self.units.us(mark)))

    def _close(self) -> None:
        """The round ends: every input was asked."""
        read = [
            generator.read(pa.table({"time": pa.array(times, pa.int64())}), self._now_us, source=name).reports
            for name, times in self._round.times.items()
            if (generator := self._generators[name]) is not None
        ]
        quiet = {name: SourceReport() for name in self._names if name in self._tracker.sources}
        reports = merged([quiet, *read, *self._round.reports])
        self._tracker = observe(self._settings, self._tracker, reports, self._now_us)
        self._round = Round()

    def _generator(self, name: str, generator: dict[str, Any]) -> MaxEventTime | None:
        kind = generator.get("type")
        if kind == "min_of_inputs":
            own = generator.get("per_input")
            return self._generator(name, own[self._names.index(name)]) if own else None
        if kind == "max_event_time_minus" and set(generator) <= {"type", "delay", "initial", "idle_timeout"}:
            return MaxEventTime("time", generator["delay"] * self.units.scale)
        raise Unsupported(f"watermark generator {kind}")

    def _name(self, given: Any) -> str:
        return self._names[0] if given is None else str(given)


class Sequences:
    """Origins with their buffers. Chunks of a case count from 1, ours from 0."""

    def __init__(self, case: Case) -> None:
        self.units = Units(1)
        self._origins = origins((case.generator or {})["origins"])

    def take(self, step: Step) -> None:
        """One more step."""
        if step.action == "snapshot_restore":
            saved = msgspec.json.decode(msgspec.json.encode(save(self._origins)), type=OriginsState)
            self._origins = restore(saved)
        elif step.action == "seq":
            one = step.body["seq"]
            arrived = buffers(
                [one["origin"]],
                [one["seq"]],
                [one.get("chunk", 1) - 1],
                [one.get("last", True)],
                [one["value"]],
                [one.get("offset", 0)],
            )
            self._origins = advance_origins(self._origins, arrived).origins
        else:
            raise Unsupported(f"step {step.action} in a case of sequence numbers")

    def observed(self) -> Observed:
        """After the steps so far."""
        return Observed(self._origins.watermark_us, False, len(self._origins.pending))


def _names(case: Case) -> list[str]:
    """Inputs by number; without a number those that the steps name, or the one that they do not."""
    if case.inputs is not None:
        return (
            [str(number) for number in range(case.inputs)]
            if isinstance(case.inputs, int)
            else list(map(str, case.inputs))
        )
    found = {str(body["input"]) for body in case.steps if "input" in body}
    found |= {str(event.input) for step in steps_of(case) for event in step.events if event.input is not None}
    return sorted(found) or ["0"]


def _units(case: Case) -> Units:
    """As elsewhere, but moved to 1970 where a watermark would lie beyond the year 9999."""
    found = units_of(case)
    marks = [body["wm_excl"] for body in case.steps if isinstance(body.get("wm_excl"), int)]
    marks += [event.ts for step in steps_of(case) for event in step.events if event.ts is not None]
    if not marks or max(abs(found.us(mark)) for mark in marks) < LAST_US // 100:
        return found
    return Units(1, -min(marks))
