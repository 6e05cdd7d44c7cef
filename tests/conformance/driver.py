"""Taking a case's steps to a harness, and keeping what each step emitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.conformance.case import Case, Event, Step, Unsupported
from tests.conformance.compare import Emission
from tests.conformance.harness import Opener, emissions, rows_of
from tests.conformance.mapping import Setup

END_US = 2**63 - 1
"""The watermark at the end of time, after which there may still be late elements."""


class Driver:
    """One case on one harness. ``emitted`` has the emissions of each step taken.

    Each step with events is a batch, but where a trigger speaks of batches: then a batch is what lies between two
    ``end_batch`` steps. A periodic trigger of processing time is evaluated at ``end_batch`` too, if the case has such
    steps: the clock is moved there.
    """

    def __init__(self, case: Case, setup: Setup, open_: Opener, store: Any, folder: Path) -> None:
        self.case, self.setup, self.units = case, setup, setup.input.units
        self._open, self._store, self.folder = open_, store, folder
        self.harness = open_(setup.description, setup.input.schema, store, folder)
        self.emitted: list[list[Emission]] = []
        self.rows: list[list[int]] = []
        self._total = 0
        self._pending: list[tuple[int, Event]] = []
        self._clock, self._due, self._ended = 0, False, False
        self._batches = _uses(case, "end_of_batch")
        bounded = any("end_batch" in body for body in case.steps)
        self._clock_waits = bounded and _uses(case, "processing_time_every")
        self._firm: dict[tuple[str, str], int] = {}

    def take(self, step: Step) -> None:
        """One more step."""
        rows = list(range(self._total, self._total + len(step.events)))
        self._total += len(rows)
        self.rows.append(rows)
        self._pending += zip(rows, step.events, strict=True)
        panes: list[pa.Table] = []
        last = len(self.rows) == len(self.case.steps)
        if self._pending and (not self._batches or step.action == "end_batch" or last):
            panes.append(self._feed())
        panes += self._act(step)
        self.emitted.append([self._numbered(one) for table in panes for one in self.emissions(table)])

    def emissions(self, table: pa.Table) -> list[Emission]:
        """Panes as the case writes them."""
        return emissions(table, self.setup.input, self.setup.asked)

    def _act(self, step: Step) -> list[pa.Table]:
        if step.action == "watermark":
            if "input" in step.body or "wm_excl" not in step.body:
                raise Unsupported("several inputs")
            return self._watermark(step.body["wm_excl"])
        if step.action == "processing_time":
            self._clock, self._due = step.body["processing_time"], True
            return [] if self._clock_waits else self._tick()
        if step.action == "end_batch":
            return self._tick() if self._due else []
        if step.action == "snapshot_restore":
            # What is gathered for a batch is the input's still, not the operator's.
            self.harness = self.harness.restart() or self.harness
        elif step.action == "end_of_stream":
            return [*([self._feed()] if self._pending else []), *self._finish()]
        elif step.action not in ("event", "bundle"):
            raise Unsupported(f"step {step.action}")
        return []

    def _watermark(self, value: Any) -> list[pa.Table]:
        if value == "-inf":
            return []
        if not isinstance(value, str):
            return [self.harness.advance_watermark(self.units.us(value))]
        ends = len(self.rows) == len(self.case.steps)
        return self._finish() if ends else [self.harness.advance_watermark(END_US)]

    def _finish(self) -> list[pa.Table]:
        """The end of the input; there is one."""
        ended, self._ended = self._ended, True
        return [] if ended else [self.harness.finish()]

    def _tick(self) -> list[pa.Table]:
        self._due = False
        now = self.units.us(self._clock)
        return [self.harness.advance_processing_time(now)]

    def _feed(self) -> pa.Table:
        rows, events = zip(*self._pending, strict=True)
        self._pending = []
        return self.harness.feed(self.setup.input.table(events, rows, self._clock))

    def _numbered(self, emission: Emission) -> Emission:
        """With the number among the panes of its window that are not early ones; -1 for those."""
        if "kind" not in emission or emission["kind"] in ("early", "retract"):
            return emission | {"nonspeculative_index": -1}
        window = (repr(emission.get("window")), repr(emission.get("key")))
        self._firm[window] = self._firm.get(window, -1) + 1
        return emission | {"nonspeculative_index": self._firm[window]}

    def reopen(self, folder: Path) -> None:
        """A new instance on other durable files."""
        self.folder = folder
        self.harness = self._open(self.setup.description, self.setup.input.schema, self._store, folder)

    def refusals(self, ledger: list[dict[str, Any]]) -> list[list[Any]]:
        """The windows that refused elements, by the rows of a ledger: one, where it is named, else all there are.

        A session or a global window that refuses an element is one, whatever its bounds.
        """
        found: list[list[Any]] = []
        for entry in ledger:
            if entry.get("window_start") is not None:
                found.append(self.units.window(entry["window_start"], entry["window_end"]))
            else:
                time = self.units.instant(entry["time"], "-inf")
                found += windows_at(self.case.window or {}, time) if isinstance(time, int) else [["-inf", "+inf"]]
        return found

    def live(self) -> list[Emission]:
        """The windows there are now, with their values so far."""
        return emissions(self.harness.windows(), self.setup.input, self.setup.asked)

    def ledger(self) -> list[dict[str, Any]]:
        """Rows of refused elements, with ``row`` as `take` numbered them."""
        return rows_of(self.harness.ledger())


def windows_at(window: dict[str, Any], time: int) -> list[list[Any]]:
    """The windows of an element at ``time``, oldest first; of a session or a global window one without bounds."""
    if window.get("type") not in ("tumbling", "sliding"):
        return [[None, None]]
    size, offset = window["size"], window.get("offset", 0)
    slide = window.get("slide", size)
    newest = (time - offset) // slide * slide + offset
    starts = range(newest, time - size, -slide)
    return [[start, start + size] for start in reversed(starts)]


def _uses(case: Case, kind: str) -> bool:
    triggers = case.triggers or {}
    return any((triggers.get(name) or {}).get("type") == kind for name in ("early", "late"))
