"""What was found of one window, told in order: what came, what was shown, what was refused, when it was forgotten."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidestate.operators.inspect.history.bounds import BoundUnit, WindowBounds
from tidestate.operators.inspect.history.changes import END, START, StateChange
from tidestate.operators.inspect.history.emitted import Pane, Rejected
from tidestate.operators.inspect.history.events import ORDER, Event, EventKind, WindowHistory, WindowRecords
from tidestate.operators.inspect.history.steps import HistoryStep, HistorySteps, input_of, input_text
from tidestate.operators.inspect.stored_description import stored_windows
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
    """All of it in order."""
    teller = _Narrator(steps, window, measure, checkpoint)
    events = [
        *teller.folded(found),
        *teller.turns(),
        *teller.changes(found.changes),
        *teller.panes(found.panes, grows=any(one.form.grows for one in (*found.folded, *found.changes))),
        *teller.rejected(found.rejected),
        *teller.forgotten(found.panes),
    ]
    events.sort(key=lambda one: (one.checkpoint, ORDER.index(one.kind)))
    return WindowHistory(
        operator=steps.operator,
        key=dict(keys),
        start=measure.text(window.start),
        end=measure.text(window.end),
        known_from=teller.known_from(found),
        shown=_stands(events, apart=steps.newest.configuration.get("accumulation") == "discarding"),
        events=events,
        unread=steps.unread,
    )


@dataclass
class _Windows:
    """Windows there are at some checkpoint: end by start, and what was last put of each table and start."""

    bounds: dict[int, WindowBounds] = field(default_factory=dict)
    values: dict[tuple[str, int], tuple[Any, ...]] = field(default_factory=dict)

    def copy(self) -> _Windows:
        """As they are now."""
        return _Windows(dict(self.bounds), dict(self.values))

    def new(self, one: StateChange) -> bool:
        """Take in a change; false where it changes nothing to be seen: only the window's triggers have moved on."""
        if one.op != "put" or one.form.shape != "windows" or one.start is None or one.end is None:
            return True
        self.bounds[one.start] = WindowBounds(one.start, one.end)
        place, seen = (one.form.spec.name, one.start), (one.end, one.events, one.values)
        was, self.values[place] = self.values.get(place), seen
        return was != seen


class _Narrator:
    """Puts what was found into words."""

    def __init__(self, steps: HistorySteps, window: WindowBounds, measure: BoundUnit, checkpoint: Checkpoint) -> None:
        self._steps, self._window, self._measure, self._checkpoint = steps, window, measure, checkpoint
        self._marks = BoundUnit.of_watermark(stored_windows(steps.newest))
        self._by_id = {step.id: step for step in steps.all}
        self._inputs: dict[int, dict[str, Any] | None] = {}

    def known_from(self, found: WindowRecords) -> int:
        """The first checkpoint whose changes are known one by one."""
        return found.folded_up_to + 1 if found.folded_up_to else self._steps.all[0].id

    def folded(self, found: WindowRecords) -> Iterator[Event]:
        """What had come before changes are known."""
        for one in found.folded:
            if one.of(self._window):
                what = f"folded{self._part(one)}: all that came up to checkpoint {found.folded_up_to}"
                yield Event(one.checkpoint, "folded", what, one.values, self._texts(one), one.events)

    def turns(self) -> Iterator[Event]:
        """Where the job became a fork, and where it went back."""
        first = self._steps.all[0]
        if first.manifest is not None and first.manifest.id > 1 and not first.manifest.parent:
            yield self._event(first, "fork", "the job begins as a fork: what came before is in the root it is of", {})
        for step in self._steps.all:
            if step.manifest is not None and step.manifest.kind == "reset":
                what = f"the job went back to checkpoint {step.manifest.follows}: those between count no more"
                yield self._event(step, "reset", what, {})

    def changes(self, changes: Sequence[StateChange]) -> Iterator[Event]:
        """What came, and which windows grew out of which."""
        now, aside = _Windows(), _Windows()
        for number in sorted({one.checkpoint for one in changes}):
            own = [one for one in changes if one.checkpoint == number and one.of(self._window)]
            if not self._step(number).abandoned:
                aside = now
            elif aside is now:
                aside = now.copy()  # what was abandoned leads nowhere
            yield from self._changed(number, own, aside)

    def _changed(self, number: int, own: Sequence[StateChange], known: _Windows) -> Iterator[Event]:
        """What one checkpoint changed of the windows that are ``known``."""
        starts = [one.start for one in own if one.op == "delete" and one.start is not None]
        parts = [known.bounds.pop(start) for start in starts if start in known.bounds]
        for one in own:
            if one.op == "delete" or not known.new(one):
                continue
            yield self._came(one, parts)
        if parts and not any(one.op == "put" for one in own):
            yield self._event(self._step(number), "gone", f"gone: {self._measure.texts(parts)}", {})

    def panes(self, panes: Sequence[Pane], *, grows: bool) -> Iterator[Event]:
        """What was shown of the window, and of those that became part of it."""
        for one in panes:
            if one.window == self._window or (grows and one.window.overlaps(self._window)):
                words = [str(one.facts[name]).replace("_", " ") for name in ("timing",) if name in one.facts]
                number = [f"pane {one.facts['pane']}"] if "pane" in one.facts else ["shown"]
                back = ["taken back:"] if one.facts.get("kind") == "retract" else []
                what = " ".join([*back, *number, *words])
                other = f" of {self._measure.texts([one.window])}" if one.window != self._window else ""
                yield self._event(
                    self._step(one.checkpoint), "pane", what + other, one.values, one.window, facts=one.facts
                )

    def rejected(self, rejected: Sequence[Rejected]) -> Iterator[Event]:
        """Events that would have come to it."""
        for one in rejected:
            if not one.of(self._window):
                continue
            what = f"rejected: {one.reason.replace('_', ' ')}"
            if one.reason == "very_late" and (fed := self._fed(one.checkpoint)) is not None:
                what += f"; fed back in checkpoint {fed}"
            step = self._step(one.checkpoint)
            met = self._marks.text(one.watermark)
            yield self._event(step, "rejected", what, one.values, one.window, facts={"reason": one.reason}, met=met)

    def forgotten(self, panes: Sequence[Pane]) -> Iterator[Event]:
        """When its state was let go."""
        columns = {c.name: c.role for spec in self._steps.newest.tables for c in (*spec.key, *spec.values)}
        for spec in self._steps.newest.tables:
            role = columns.get(spec.expiry or "")
            bound = {END: self._window.end, START: self._window.start}.get(role or "")
            if bound is None:
                continue
            for step in self._steps.all:
                expired = None if step.abandoned else step.expired(spec.name)
                if expired is None or expired < bound:
                    continue
                what = "forgotten" if step.id != self._steps.base_id else "forgotten here or before"
                took = step.manifest is not None and step.manifest.kind in ("batch", "feed", "bootstrap")
                if took and any(one.checkpoint == step.id and one.window == self._window for one in panes):
                    what += "; what came last is in its panes only"
                yield self._event(step, "forgotten", what, {})
                return

    def _came(self, one: StateChange, parts: Sequence[WindowBounds]) -> Event:
        step = self._step(one.checkpoint)
        if one.form.shape == "messages":
            return self._event(step, "row", f"came to {one.form.spec.name}", one.values)
        if one.form.shape == "panes":
            values = {name: value for name, value in one.values.items() if name != "pane"}
            what = f"pane {one.values.get('pane')} to the operators behind"
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
        """Which slice of the window."""
        sliced = one.form.shape == "slices" and not one.form.exact
        return f" to the slice up to {self._measure.text(one.end)}" if sliced else ""

    def _fed(self, number: int) -> int | None:
        for step in self._steps.all:
            if step.manifest is not None and not step.abandoned and step.manifest.fed >= number:
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


def _stands(events: Sequence[Event], *, apart: bool) -> list[dict[str, Any]]:
    """Rows that were shown and not taken back; of panes with a number the newest, unless each stands ``apart``."""
    standing: list[dict[str, Any]] = []
    for one in events:
        if one.kind != "pane" or one.abandoned:
            continue
        if one.facts.get("kind") == "retract":
            standing = [values for values in standing if values != one.values]
        elif "pane" in one.facts and not apart:
            standing = [one.values]
        else:
            standing.append(one.values)
    return standing
