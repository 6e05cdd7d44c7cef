"""Turn the records of one window into events in order: additions, panes, rejections, expiry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidestate.operators.bind.stored_description import stored_windows
from tidestate.operators.describe.windows import Sessions
from tidestate.operators.expressions.printing import expression_text
from tidestate.operators.expressions.tree import tree_of
from tidestate.operators.inspect.history.bounds import BoundUnit, WindowBounds
from tidestate.operators.inspect.history.changes import END, START, StateChange
from tidestate.operators.inspect.history.emitted import Pane, Rejected
from tidestate.operators.inspect.history.events import ORDER, Event, EventKind, WindowHistory, WindowRecords
from tidestate.operators.inspect.history.steps import HistoryStep, HistorySteps, input_of, input_text
from tidestate.operators.plan.reasons import VERY_LATE
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import OperatorState


def build_history(
    steps: HistorySteps,
    records: WindowRecords,
    window: WindowBounds,
    measure: BoundUnit,
    keys: Mapping[str, str],
    checkpoint: Checkpoint,
) -> WindowHistory:
    """The history of a window from its records."""
    narrator = _Narrator(steps, window, measure, checkpoint)
    events = [
        *narrator.folded(records),
        *narrator.turns(),
        *narrator.changes(records.changes),
        *narrator.panes(
            records.panes, grows=any(change.form.grows for change in (*records.folded_changes, *records.changes))
        ),
        *narrator.hidden(records.changes),
        *narrator.rejected(records.rejections),
        *narrator.expired(records.panes),
    ]
    events.sort(key=lambda event: (event.checkpoint, ORDER.index(event.kind)))
    return WindowHistory(
        operator=steps.operator,
        key=dict(keys),
        start=measure.text(window.start),
        end=measure.text(window.end),
        known_from=narrator.known_from(records),
        result=_result(events, discarding=steps.newest.configuration.get("accumulation") == "discarding"),
        events=events,
        unread=steps.unread,
    )


@dataclass
class _Windows:
    """The windows at some checkpoint: bounds by start, and the last values of each table and start."""

    bounds: dict[int, WindowBounds] = field(default_factory=dict)
    values: dict[tuple[str, int], tuple[Any, ...]] = field(default_factory=dict)
    newest_pane: int = -1
    """The number of the last pane."""

    def copy(self) -> _Windows:
        """An independent copy."""
        return _Windows(dict(self.bounds), dict(self.values), self.newest_pane)

    def new(self, change: StateChange) -> bool:
        """Apply a change; false if it changes nothing visible, only the state of triggers."""
        if change.form.shape == "panes":
            before, self.newest_pane = self.newest_pane, int(change.values["pane"])
            return before != self.newest_pane
        if change.op != "put" or change.form.shape != "windows" or change.start is None or change.end is None:
            return True
        self.bounds[change.start] = WindowBounds(change.start, change.end)
        identity, content = (change.form.spec.name, change.start), (change.end, change.events, change.values)
        was, self.values[identity] = self.values.get(identity), content
        return was != content


class _Narrator:
    """Makes events from records."""

    def __init__(self, steps: HistorySteps, window: WindowBounds, measure: BoundUnit, checkpoint: Checkpoint) -> None:
        self._steps, self._window, self._measure, self._checkpoint = steps, window, measure, checkpoint
        self._marks = BoundUnit.of_watermark(stored_windows(steps.newest))
        self._by_id = {step.id: step for step in steps.steps}
        self._inputs: dict[int, dict[str, Any] | None] = {}

    def known_from(self, records: WindowRecords) -> int:
        """The first checkpoint whose changes are known one by one."""
        return records.folded_up_to + 1 if records.folded_up_to else self._steps.steps[0].id

    def folded(self, records: WindowRecords) -> Iterator[Event]:
        """The content of the window before the first known change."""
        for change in records.folded_changes:
            if change.of(self._window):
                summary = f"folded{self._part(change)}: everything up to checkpoint {records.folded_up_to}"
                yield Event(change.checkpoint, "folded", summary, change.values, self._texts(change), change.events)

    def turns(self) -> Iterator[Event]:
        """Where the job was forked, where it was reset, and where windows were edited by hand."""
        first = self._steps.steps[0]
        if first.manifest is not None and first.manifest.id > 1 and not first.manifest.parent:
            yield self._event(first, "fork", "the job begins as a fork: earlier changes are in the original root", {})
        for step in self._steps.steps:
            if step.manifest is not None and step.manifest.kind == "reset":
                summary = f"the job went back to checkpoint {step.manifest.follows}: those between no longer count"
                yield self._event(step, "reset", summary, {})
            if step.manifest is not None and step.manifest.kind == "edit":
                yield self._event(step, "edit", "an edit by hand: windows were put or removed", {})

    def changes(self, changes: Sequence[StateChange]) -> Iterator[Event]:
        """Additions to the window, and how windows grew and merged."""
        line, windows = _Windows(), _Windows()
        for number in sorted({change.checkpoint for change in changes}):
            of_window = [change for change in changes if change.checkpoint == number and change.of(self._window)]
            if not self._step(number).abandoned:
                windows = line
            elif windows is line:
                windows = line.copy()  # abandoned changes do not affect later ones
            yield from self._changed(number, of_window, windows)

    def _changed(self, number: int, changes: Sequence[StateChange], windows: _Windows) -> Iterator[Event]:
        """What one checkpoint changed."""
        starts = [change.start for change in changes if change.op == "delete" and change.start is not None]
        parts = [windows.bounds.pop(start) for start in starts if start in windows.bounds]
        for change in changes:
            if change.op != "delete" and windows.new(change):
                yield self._change(change, parts)
        # A tumbling window that is not due is one slice, which only an edit deletes without a word of what it became.
        slices = [
            change
            for change in changes
            if change.op == "delete" and change.form.shape == "slices" and change.form.exact
        ]
        removed_windows = parts or [self._window for _ in slices[:1]]
        if removed_windows and not any(change.op == "put" for change in changes):
            yield self._event(self._step(number), "gone", f"gone: {self._measure.texts(removed_windows)}", {})

    def panes(self, panes: Sequence[Pane], *, grows: bool) -> Iterator[Event]:
        """Panes of the window, and of windows that became part of it."""
        for pane in panes:
            if pane.window == self._window or (grows and pane.window.overlaps(self._window)):
                prefix = "retracted: " if pane.facts.get("kind") == "retract" else ""
                number = f"pane {pane.facts['pane']}" if "pane" in pane.facts else "emitted"
                timing = f" {pane.facts['timing']}".replace("_", " ") if "timing" in pane.facts else ""
                summary = f"{prefix}{number}{timing}"
                suffix = f" of {self._measure.texts([pane.window])}" if pane.window != self._window else ""
                yield self._event(
                    self._step(pane.checkpoint), "pane", summary + suffix, pane.values, pane.window, facts=pane.facts
                )

    def hidden(self, changes: Sequence[StateChange]) -> Iterator[Event]:
        """Where a pane was due that did not meet the condition of panes."""
        for change in changes:
            step = self._step(change.checkpoint)
            stored = step.state.configuration.get("having") if step.state is not None else None
            if stored is not None and change.is_hidden and change.op == "put" and change.of(self._window):
                yield self._event(step, "hidden", f"hidden: having {expression_text(tree_of(stored))}", change.values)

    def rejected(self, rejections: Sequence[Rejected]) -> Iterator[Event]:
        """Events that would have been added to the window."""
        for rejection in rejections:
            if not rejection.of(self._window):
                continue
            summary = f"rejected: {rejection.reason.replace('_', ' ')}"
            if rejection.reason == VERY_LATE and (feed_id := self._fed(rejection.checkpoint)) is not None:
                summary += f"; reprocessed in checkpoint {feed_id}"
            step = self._step(rejection.checkpoint)
            watermark = self._marks.text(rejection.watermark)
            yield self._event(
                step,
                "rejected",
                summary,
                rejection.values,
                rejection.window,
                facts={"reason": rejection.reason},
                watermark=watermark,
            )

    def expired(self, panes: Sequence[Pane]) -> Iterator[Event]:
        """When the state of the window expired."""
        for spec in self._steps.newest.tables:
            roles = {column.name: column.role for column in (*spec.key, *spec.values)}
            # Parts of a window go when it fires.
            role = roles.get(spec.expiry or "") if START in roles.values() else None
            bound = {END: self._window.end, START: self._window.start}.get(role or "")
            if bound is None:
                continue
            for step in self._steps.steps:
                expiry = None if step.abandoned else step.expired(spec.name)
                if expiry is None or expiry < bound:
                    continue
                summary = "expired" if step.id != self._steps.base_id else "expired here or before"
                has_input = step.manifest is not None and step.manifest.kind in ("batch", "feed", "bootstrap")
                if has_input and any(pane.checkpoint == step.id and pane.window == self._window for pane in panes):
                    summary += "; the last events are in its panes only"
                yield self._event(step, "expired", summary, {})
                return

    def _change(self, change: StateChange, parts: Sequence[WindowBounds]) -> Event:
        step = self._step(change.checkpoint)
        if change.form.shape == "messages":
            return self._event(step, "row", f"added to {change.form.spec.name}", change.values)
        if change.form.shape == "panes":
            values = {name: value for name, value in change.values.items() if name != "pane"}
            summary = f"pane {change.values.get('pane')} to the next operators"
            return self._event(step, "pane", summary, values, facts={"pane": change.values.get("pane")})
        if change.op == "merge":
            return self._event(step, "added", f"added{self._part(change)}", change.values, events=change.events)
        if change.start is None or change.end is None:
            return self._event(step, "became", f"put{self._part(change)}", change.values, events=change.events)
        window = WindowBounds(change.start, change.end)
        inside = [part for part in parts if part.overlaps(window) and part != window]
        words = {0: "is now", 1: "grew from "}.get(len(inside), "merged from ") + self._measure.texts(inside)
        prefix = f"{self._measure.texts([window])} " if window != self._window else ""
        return self._event(step, "became", prefix + words, change.values, window, events=change.events)

    def _part(self, change: StateChange) -> str:
        """The slice of the window, or the part of the session, in words."""
        if change.form.shape == "parts" and change.start is not None and change.end is not None:
            bounds = self._measure.texts([WindowBounds(change.start, change.end)])
            return f": {bounds}" + (", with what came before it" if self._carried(change.start, change.end) else "")
        is_slice = change.form.shape == "slices" and not change.form.exact
        return f" to the slice up to {self._measure.text(change.end)}" if is_slice else ""

    def _carried(self, start: int, end: int) -> bool:
        """Whether a part holds events of earlier cells: `tidestate.operators.windows.session_slices`."""
        kind = stored_windows(self._steps.newest)
        gap = kind.gap if isinstance(kind, Sessions) else 0
        return gap > 0 and (start + gap) // gap < end // gap

    def _fed(self, number: int) -> int | None:
        for step in self._steps.steps:
            manifest = None if step.abandoned else step.manifest
            if manifest is not None and manifest.put_back_up_to(self._steps.operator, VERY_LATE) >= number:
                return step.id
        return None

    def _step(self, number: int) -> HistoryStep:
        return self._by_id.get(number) or HistoryStep(number)

    def _texts(self, change: StateChange) -> tuple[str | None, str | None]:
        return self._measure.text(change.start), self._measure.text(change.end)

    def _event(
        self,
        step: HistoryStep,
        kind: EventKind,
        summary: str,
        values: dict[str, Any],
        window: WindowBounds | None = None,
        *,
        events: int | None = None,
        facts: dict[str, Any] | None = None,
        watermark: str | None = None,
    ) -> Event:
        bounds = window or self._window
        state = step.state or OperatorState({}, "", (), ())
        if step.id not in self._inputs:
            self._inputs[step.id] = input_of(self._checkpoint, step)
        input_values = self._inputs[step.id]
        origin = {"feed": "the late ledger", "tick": "time"}.get(step.manifest.kind) if step.manifest else None
        return Event(
            step.id,
            kind,
            summary,
            values,
            (self._measure.text(bounds.start), self._measure.text(bounds.end)),
            events,
            facts or {},
            step.created,
            input_values,
            input_text(input_values) or origin,
            self._marks.text(state.watermark_before_us),
            watermark or self._marks.text(state.watermark_us),
            step.abandoned,
        )


def _result(events: Sequence[Event], *, discarding: bool) -> list[dict[str, Any]]:
    """Rows that were emitted and not retracted; of numbered panes the newest, unless panes are ``discarding``."""
    result: list[dict[str, Any]] = []
    for event in events:
        if event.kind != "pane" or event.abandoned:
            continue
        if event.facts.get("kind") == "retract":
            result = [values for values in result if not _repeats(event.values, values)]
        elif "pane" in event.facts and not discarding:
            result = [event.values]
        else:
            result.append(event.values)
    return result


def _repeats(retraction: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Whether it takes this row back: it has the columns of its own time."""
    return all(values.get(name) == value for name, value in retraction.items())
