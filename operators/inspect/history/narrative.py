"""Turn the records of one window into events in order: additions, panes, rejections, expiry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidestate.operators.bind.stored_description import stored_windows
from tidestate.operators.describe.windows import Sessions
from tidestate.operators.inspect.history.bounds import BoundUnit, WindowBounds
from tidestate.operators.inspect.history.changes import END, START, StateChange
from tidestate.operators.inspect.history.emitted import Pane, Rejected
from tidestate.operators.inspect.history.events import ORDER, Event, EventKind, WindowHistory, WindowRecords
from tidestate.operators.inspect.history.steps import HistoryStep, HistorySteps, input_of, input_text
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import OperatorState


def build_history(
    steps: HistorySteps,
    found: WindowRecords,
    window: WindowBounds,
    measure: BoundUnit,
    keys: Mapping[str, str],
    checkpoint: Checkpoint,
) -> WindowHistory:
    """The history of a window from its records."""
    narrator = _Narrator(steps, window, measure, checkpoint)
    events = [
        *narrator.folded(found),
        *narrator.turns(),
        *narrator.changes(found.changes),
        *narrator.panes(found.panes, grows=any(one.form.grows for one in (*found.folded, *found.changes))),
        *narrator.rejected(found.rejected),
        *narrator.expired(found.panes),
    ]
    events.sort(key=lambda one: (one.checkpoint, ORDER.index(one.kind)))
    return WindowHistory(
        operator=steps.operator,
        key=dict(keys),
        start=measure.text(window.start),
        end=measure.text(window.end),
        known_from=narrator.known_from(found),
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

    def new(self, one: StateChange) -> bool:
        """Apply a change; false if it changes nothing visible, only the state of triggers."""
        if one.form.shape == "panes":
            before, self.newest_pane = self.newest_pane, int(one.values["pane"])
            return before != self.newest_pane
        if one.op != "put" or one.form.shape != "windows" or one.start is None or one.end is None:
            return True
        self.bounds[one.start] = WindowBounds(one.start, one.end)
        place, seen = (one.form.spec.name, one.start), (one.end, one.events, one.values)
        was, self.values[place] = self.values.get(place), seen
        return was != seen


class _Narrator:
    """Makes events from records."""

    def __init__(self, steps: HistorySteps, window: WindowBounds, measure: BoundUnit, checkpoint: Checkpoint) -> None:
        self._steps, self._window, self._measure, self._checkpoint = steps, window, measure, checkpoint
        self._marks = BoundUnit.of_watermark(stored_windows(steps.newest))
        self._by_id = {step.id: step for step in steps.all}
        self._inputs: dict[int, dict[str, Any] | None] = {}

    def known_from(self, found: WindowRecords) -> int:
        """The first checkpoint whose changes are known one by one."""
        return found.folded_up_to + 1 if found.folded_up_to else self._steps.all[0].id

    def folded(self, found: WindowRecords) -> Iterator[Event]:
        """The content of the window before the first known change."""
        for one in found.folded:
            if one.of(self._window):
                what = f"folded{self._part(one)}: everything up to checkpoint {found.folded_up_to}"
                yield Event(one.checkpoint, "folded", what, one.values, self._texts(one), one.events)

    def turns(self) -> Iterator[Event]:
        """Where the job was forked, where it was reset, and where windows were edited by hand."""
        first = self._steps.all[0]
        if first.manifest is not None and first.manifest.id > 1 and not first.manifest.parent:
            yield self._event(first, "fork", "the job begins as a fork: earlier changes are in the original root", {})
        for step in self._steps.all:
            if step.manifest is not None and step.manifest.kind == "reset":
                what = f"the job went back to checkpoint {step.manifest.follows}: those between no longer count"
                yield self._event(step, "reset", what, {})
            if step.manifest is not None and step.manifest.kind == "edit":
                yield self._event(step, "edit", "an edit by hand: windows were put or removed", {})

    def changes(self, changes: Sequence[StateChange]) -> Iterator[Event]:
        """Additions to the window, and how windows grew and merged."""
        line, windows = _Windows(), _Windows()
        for number in sorted({one.checkpoint for one in changes}):
            of_window = [one for one in changes if one.checkpoint == number and one.of(self._window)]
            if not self._step(number).abandoned:
                windows = line
            elif windows is line:
                windows = line.copy()  # abandoned changes do not affect later ones
            yield from self._changed(number, of_window, windows)

    def _changed(self, number: int, changes: Sequence[StateChange], windows: _Windows) -> Iterator[Event]:
        """What one checkpoint changed."""
        starts = [one.start for one in changes if one.op == "delete" and one.start is not None]
        parts = [windows.bounds.pop(start) for start in starts if start in windows.bounds]
        for one in changes:
            if one.op != "delete" and windows.new(one):
                yield self._change(one, parts)
        # A tumbling window that is not due is one slice, which only an edit deletes without a word of what it became.
        slices = [one for one in changes if one.op == "delete" and one.form.shape == "slices" and one.form.exact]
        gone = parts or [self._window for _ in slices[:1]]
        if gone and not any(one.op == "put" for one in changes):
            yield self._event(self._step(number), "gone", f"gone: {self._measure.texts(gone)}", {})

    def panes(self, panes: Sequence[Pane], *, grows: bool) -> Iterator[Event]:
        """Panes of the window, and of windows that became part of it."""
        for one in panes:
            if one.window == self._window or (grows and one.window.overlaps(self._window)):
                retracted = "retracted: " if one.facts.get("kind") == "retract" else ""
                number = f"pane {one.facts['pane']}" if "pane" in one.facts else "emitted"
                timing = f" {one.facts['timing']}".replace("_", " ") if "timing" in one.facts else ""
                what = f"{retracted}{number}{timing}"
                other = f" of {self._measure.texts([one.window])}" if one.window != self._window else ""
                yield self._event(
                    self._step(one.checkpoint), "pane", what + other, one.values, one.window, facts=one.facts
                )

    def rejected(self, rejected: Sequence[Rejected]) -> Iterator[Event]:
        """Events that would have been added to the window."""
        for one in rejected:
            if not one.of(self._window):
                continue
            what = f"rejected: {one.reason.replace('_', ' ')}"
            if one.reason == "very_late" and (fed := self._fed(one.checkpoint)) is not None:
                what += f"; reprocessed in checkpoint {fed}"
            step = self._step(one.checkpoint)
            met = self._marks.text(one.watermark)
            yield self._event(step, "rejected", what, one.values, one.window, facts={"reason": one.reason}, met=met)

    def expired(self, panes: Sequence[Pane]) -> Iterator[Event]:
        """When the state of the window expired."""
        for spec in self._steps.newest.tables:
            roles = {column.name: column.role for column in (*spec.key, *spec.values)}
            # Parts of a window go when it fires.
            role = roles.get(spec.expiry or "") if START in roles.values() else None
            bound = {END: self._window.end, START: self._window.start}.get(role or "")
            if bound is None:
                continue
            for step in self._steps.all:
                expired = None if step.abandoned else step.expired(spec.name)
                if expired is None or expired < bound:
                    continue
                what = "expired" if step.id != self._steps.base_id else "expired here or before"
                has_input = step.manifest is not None and step.manifest.kind in ("batch", "feed", "bootstrap")
                if has_input and any(one.checkpoint == step.id and one.window == self._window for one in panes):
                    what += "; the last events are in its panes only"
                yield self._event(step, "expired", what, {})
                return

    def _change(self, one: StateChange, parts: Sequence[WindowBounds]) -> Event:
        step = self._step(one.checkpoint)
        if one.form.shape == "messages":
            return self._event(step, "row", f"added to {one.form.spec.name}", one.values)
        if one.form.shape == "panes":
            values = {name: value for name, value in one.values.items() if name != "pane"}
            what = f"pane {one.values.get('pane')} to the next operators"
            return self._event(step, "pane", what, values, facts={"pane": one.values.get("pane")})
        if one.op == "merge":
            return self._event(step, "added", f"added{self._part(one)}", one.values, events=one.events)
        if one.start is None or one.end is None:
            return self._event(step, "became", f"put{self._part(one)}", one.values, events=one.events)
        window = WindowBounds(one.start, one.end)
        inside = [part for part in parts if part.overlaps(window) and part != window]
        words = {0: "is now", 1: "grew from "}.get(len(inside), "merged from ") + self._measure.texts(inside)
        other = f"{self._measure.texts([window])} " if window != self._window else ""
        return self._event(step, "became", other + words, one.values, window, events=one.events)

    def _part(self, one: StateChange) -> str:
        """The slice of the window, or the part of the session, in words."""
        if one.form.shape == "parts" and one.start is not None and one.end is not None:
            bounds = self._measure.texts([WindowBounds(one.start, one.end)])
            return f": {bounds}" + (", with what came before it" if self._carried(one.start, one.end) else "")
        sliced = one.form.shape == "slices" and not one.form.exact
        return f" to the slice up to {self._measure.text(one.end)}" if sliced else ""

    def _carried(self, start: int, end: int) -> bool:
        """Whether a part holds events of earlier cells: `tidestate.operators.windows.session_slices`."""
        kind = stored_windows(self._steps.newest)
        gap = kind.gap if isinstance(kind, Sessions) else 0
        return gap > 0 and (start + gap) // gap < end // gap

    def _fed(self, number: int) -> int | None:
        for step in self._steps.all:
            manifest = None if step.abandoned else step.manifest
            if manifest is not None and manifest.fed_up_to(self._steps.operator) >= number:
                return step.id
        return None

    def _step(self, number: int) -> HistoryStep:
        return self._by_id.get(number) or HistoryStep(number)

    def _texts(self, one: StateChange) -> tuple[str | None, str | None]:
        return self._measure.text(one.start), self._measure.text(one.end)

    def _event(
        self,
        step: HistoryStep,
        kind: EventKind,
        what: str,
        values: dict[str, Any],
        window: WindowBounds | None = None,
        *,
        events: int | None = None,
        facts: dict[str, Any] | None = None,
        met: str | None = None,
    ) -> Event:
        bounds = window or self._window
        state = step.state or OperatorState({}, "", (), ())
        if step.id not in self._inputs:
            self._inputs[step.id] = input_of(self._checkpoint, step)
        taken = self._inputs[step.id]
        other = {"feed": "the late ledger", "tick": "time"}.get(step.manifest.kind) if step.manifest else None
        return Event(
            step.id,
            kind,
            what,
            values,
            (self._measure.text(bounds.start), self._measure.text(bounds.end)),
            events,
            facts or {},
            step.created,
            taken,
            input_text(taken) or other,
            self._marks.text(state.watermark_before_us),
            met or self._marks.text(state.watermark_us),
            step.abandoned,
        )


def _result(events: Sequence[Event], *, discarding: bool) -> list[dict[str, Any]]:
    """Rows that were emitted and not retracted; of numbered panes the newest, unless panes are ``discarding``."""
    result: list[dict[str, Any]] = []
    for one in events:
        if one.kind != "pane" or one.abandoned:
            continue
        if one.facts.get("kind") == "retract":
            result = [values for values in result if not _repeats(one.values, values)]
        elif "pane" in one.facts and not discarding:
            result = [one.values]
        else:
            result.append(one.values)
    return result


def _repeats(retraction: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Whether it takes this row back: it has the columns of its own time."""
    return all(values.get(name) == value for name, value in retraction.items())
