"""Everything that ever happened to one window of one key: it answers "why is this number so".

Read-only, beside a running job too. What each checkpoint added is in its changelog segment; of what was folded before
the oldest manifest there is one value. What was shown and rejected is known as long as its files are kept.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidestate.operators.describe.windows import Sliding
from tidestate.operators.inspect.history.bounds import FEW_VALUES, BoundUnit, WindowBounds, meant_windows
from tidestate.operators.inspect.history.changes import form_of, forms_of, read_changes, read_folded
from tidestate.operators.inspect.history.emitted import emitted_panes, read_rejected
from tidestate.operators.inspect.history.events import WindowHistory, WindowRecords
from tidestate.operators.inspect.history.narrative import build_history
from tidestate.operators.inspect.history.steps import HistoryStep, HistorySteps, read_steps
from tidestate.operators.inspect.stored_description import stored_windows
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import OperatorState
from tidestate.statestore.errors import NotFoundError, UsageError

EVERYWHERE = WindowBounds(-(2**63), 2**63 - 1)


def window_history(
    checkpoint: Checkpoint, window: str, keys: Mapping[str, str], operator: str | None = None
) -> WindowHistory:
    """What happened to the window that ``window`` names: a time at which it begins, or ends, or that it alone holds.

    ``keys``: a value, as text, of each key column. Raises `UsageError` for a key or window that cannot be,
    `NotFoundError` for a window that nothing ever came to; it names those that are near.
    """
    steps = read_steps(checkpoint, operator)
    reader = _Reader(checkpoint, steps, _checked(steps.newest, keys))
    measure = reader.measure
    asked = measure.place(window)
    regular = reader.windows if isinstance(reader.windows, Sliding) else None
    meant = meant_windows(regular, asked) if regular else []
    if len(meant) > 1 and not any(asked in (one.start, one.end) for one in meant):
        raise UsageError(
            "several windows hold this time: give the one at which yours begins",
            code="history-window",
            asked=window,
            windows=measure.texts(sorted(meant)),
        )
    around = (
        WindowBounds(min(one.start for one in meant), max(one.end for one in meant))
        if meant
        else WindowBounds(asked, asked)
    )
    found = reader.read(around)
    chosen = next((one for one in meant if found.holds(one)), None) if regular else _held(found, asked)
    if chosen is None:
        raise _never(reader, regular, asked, window)
    if not regular:
        found = reader.read(chosen)
    return build_history(steps, found, chosen, measure, reader.keys, checkpoint)


class _Reader:
    """Reads what there is of one key."""

    def __init__(self, checkpoint: Checkpoint, steps: HistorySteps, keys: dict[str, str]) -> None:
        self.checkpoint, self.steps, self.keys = checkpoint, steps, keys
        self.windows = stored_windows(steps.newest)
        self.measure = BoundUnit.of(self.windows)

    def read(self, around: WindowBounds) -> WindowRecords:
        """Of windows that touch ``around``."""
        found = WindowRecords()
        for form in forms_of(self.steps.base).values():
            if form.shape == "panes":
                continue
            folded, newest = read_folded(self.checkpoint, form, self.steps.base, self.keys, around)
            found.folded += folded
            found.folded_up_to = max(found.folded_up_to, newest)
        for _, added in self.checkpoint.prefetch("changes", lambda step: self._added(step, around), self.steps.all):
            found.add(added())
        return found

    def _added(self, step: HistoryStep, around: WindowBounds) -> WindowRecords:
        """By one checkpoint."""
        found = WindowRecords()
        for spec, ref in step.segments:
            form = form_of(spec)
            if form is not None and not (form.shape == "panes" and self.steps.shows):
                found.changes += read_changes(self.checkpoint, form, ref, self.keys, around)
        for ref in step.panes:
            found.panes += emitted_panes(self.checkpoint, step.id, ref, self.keys, around)
        state = step.state or self.steps.newest
        for ref in step.late:
            found.rejected += read_rejected(self.checkpoint, step.id, ref, self.keys, state, self.measure)
        return found


def _checked(state: OperatorState, keys: Mapping[str, str]) -> dict[str, str]:
    """The keys given: all that there are, and no others. Raises `UsageError`."""
    told = any(state.configuration.get(name) for name in ("window", "windows"))
    if not told and all(form.shape == "messages" for form in forms_of(state).values()):
        raise UsageError("this operator has no windows: state, panes and late show its rows", code="history-window")
    columns = (column for spec in state.tables for column in spec.key if column.role == "key")
    known = list(dict.fromkeys(column.name for column in columns if not column.name.startswith("_")))
    if set(keys) != set(known):
        raise UsageError(
            "give a value of each key column: --key COLUMN=VALUE" if known else "there is no key here: leave it out",
            code="history-key",
            columns=known,
            found=list(keys),
        )
    return dict(keys)


def _held(found: WindowRecords, asked: int) -> WindowBounds | None:
    """Of windows of any length the newest: one that begins there, that holds the place, that ends there.

    One that grew out of others holds what they held, so of sessions that which holds the place comes first.
    """
    windows = found.windows()
    grow = any(one.form.grows for one in (*found.changes, *found.folded))
    choices = [
        [one for one in windows if one.start == asked and not grow],
        [one for one in windows if one.holds(asked)],
        [one for one in windows if one.end == asked],
    ]
    fitting = next((choice for choice in choices if choice), [])
    return max(fitting, key=lambda one: (windows[one], one.end - one.start), default=None)


def _never(reader: _Reader, regular: Sliding | None, asked: int, window: str) -> NotFoundError:
    """The error that names the windows of the key that are nearest."""
    found = reader.read(EVERYWHERE)
    windows = set(found.windows())
    if regular is not None:
        ends = {one.end for one in (*found.changes, *found.folded) if one.form.shape in ("slices", "panes")}
        windows |= {one for end in ends if end is not None for one in meant_windows(regular, end) if one.end == end}
    nearest = sorted(windows, key=lambda one: min(abs(one.start - asked), abs(one.end - asked)))[:FEW_VALUES]
    where = " and ".join(f"{name}={value}" for name, value in reader.keys.items())
    return NotFoundError(
        f"nothing ever came to such a window{' of ' + where if where else ''}: "
        + ("choose one of those near it" if nearest else "there is no window of this key at all"),
        code="no-such-window",
        asked=window,
        nearest=reader.measure.texts(sorted(nearest)) or "none",
    )
