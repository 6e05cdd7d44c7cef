"""The history of one window of one key, which explains its result.

Read-only, and safe while the job runs. The changelog segment of a checkpoint has what it added; what was folded
before the oldest manifest is a single value. Panes and rejected events are known as long as their files are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tidestate.operators.bind.stored_description import stored_windows
from tidestate.operators.describe.windows import Rolling, Sliding
from tidestate.operators.inspect.history.bounds import FEW_VALUES, BoundUnit, WindowBounds, meant_windows
from tidestate.operators.inspect.history.changes import (
    StateChange,
    form_of,
    forms_of,
    last_panes,
    read_changes,
    read_folded,
)
from tidestate.operators.inspect.history.emitted import emitted_panes, read_rejected
from tidestate.operators.inspect.history.events import WindowHistory, WindowRecords
from tidestate.operators.inspect.history.names import (
    names_of_panes,
    names_of_table,
    results_of_table,
    under_names,
)
from tidestate.operators.inspect.history.narrative import build_history
from tidestate.operators.inspect.history.steps import HistoryStep, HistorySteps, read_steps
from tidestate.operators.windows.names import NO_KEY
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import OperatorState
from tidestate.recovery.log.renames import names_now, records_of
from tidestate.statestore.durations import Moment
from tidestate.statestore.errors import NotFoundError, UsageError
from tidestate.statestore.spec.tables import TableSpec

EVERYWHERE = WindowBounds(-(2**63), 2**63 - 1)


def window_history(
    checkpoint: Checkpoint, window: Moment, keys: Mapping[str, str], operator: str | None = None
) -> WindowHistory:
    """The history of the window with this start or end, or of the only window that contains this time.

    ``keys``: a value, as text, for each key column. Raises `UsageError` for a key or window that is not possible, and
    `NotFoundError`, which suggests other windows, for one without events.
    """
    steps = read_steps(checkpoint, operator)
    reader = _Reader(checkpoint, steps, _checked(steps.newest, keys))
    measure = reader.measure
    position = measure.place(window)
    regular = reader.windows if isinstance(reader.windows, Sliding) else None
    candidates = meant_windows(regular, position) if regular else []
    if len(candidates) > 1 and not any(position in (candidate.start, candidate.end) for candidate in candidates):
        raise UsageError(
            "several windows contain this time: give the start of the one you mean",
            code="history-window",
            asked=str(window),
            windows=measure.texts(sorted(candidates)),
        )
    around = (
        WindowBounds(min(candidate.start for candidate in candidates), max(candidate.end for candidate in candidates))
        if candidates
        else WindowBounds(position, position)
    )
    records = reader.read(around)
    rolling = isinstance(reader.windows, Rolling)
    match = (
        next((candidate for candidate in candidates if records.holds(candidate)), None)
        if regular
        else _held(records, position, rolling=rolling)
    )
    if match is None:
        raise _never(reader, regular, position, window)
    if not regular:
        records = reader.read(match)
    return build_history(steps, records, match, measure, reader.keys, checkpoint)


class _Reader:
    """Reads the records of one key."""

    def __init__(self, checkpoint: Checkpoint, steps: HistorySteps, keys: dict[str, str]) -> None:
        self.checkpoint, self.steps, self.keys = checkpoint, steps, keys
        self.windows = stored_windows(steps.newest)
        self.measure = BoundUnit.of(self.windows)

    def read(self, around: WindowBounds) -> WindowRecords:
        """Records of windows that touch ``around``."""
        records = WindowRecords()
        for form in forms_of(self.steps.base).values():
            keys = self._keys_in(form.spec)
            changes, newest = read_folded(self.checkpoint, form, self.steps.base, keys, around)
            records.folded_changes += self._named(form.spec, changes)
            records.folded_up_to = max(records.folded_up_to, newest)
        for _, load in self.checkpoint.prefetch("changes", lambda step: self._added(step, around), self.steps.steps):
            records.add(load())
        return records

    def _added(self, step: HistoryStep, around: WindowBounds) -> WindowRecords:
        """The records of one checkpoint."""
        records = WindowRecords()
        for spec, ref in step.segments:
            form = form_of(spec)
            if form is None:
                continue
            changes = self._named(spec, read_changes(self.checkpoint, form, ref, self._keys_in(spec), around))
            records.changes += changes if self.steps.emits else [*changes, *last_panes(changes)]
        names = names_of_panes(self.steps.newest, self.keys, step.id)
        for ref in step.panes:
            panes = emitted_panes(self.checkpoint, step.id, ref, self._keys_then(step), around)
            records.panes += [replace(pane, values=under_names(pane.values, names)) for pane in panes]
        names = names_now(self.steps.newest.renamed, step.id)
        for ref in step.late:
            state, keys = step.state or self.steps.newest, self._keys_then(step)
            rejections = read_rejected(self.checkpoint, step.id, ref, keys, state, self.measure)
            records.rejections += [
                replace(rejection, values=under_names(rejection.values, names)) for rejection in rejections
            ]
        return records

    def _named(self, spec: TableSpec, changes: Sequence[StateChange]) -> list[StateChange]:
        """Changes of a table, as it was, with what its columns are called now."""
        names = names_of_table(spec, self.steps.newest)
        results = results_of_table(names)
        return [
            replace(change, values=under_names(change.values, names), last=under_names(change.last, results))
            for change in changes
        ]

    def _keys_then(self, step: HistoryStep) -> dict[str, str]:
        """The keys as files of a checkpoint call them."""
        names = names_now(records_of(self.keys, self.steps.newest.renamed), step.id)
        old_names = {new: old for old, new in names.items()}
        return {old_names.get(name, name): text for name, text in self.keys.items()}

    def _keys_in(self, spec: TableSpec) -> dict[str, str]:
        """The keys as a table called them: it may be that of an earlier checkpoint."""
        old_names = {now: old for old, now in names_of_table(spec, self.steps.newest).items()}
        return {old_names.get(name, name): text for name, text in self.keys.items()}


def _checked(state: OperatorState, keys: Mapping[str, str]) -> dict[str, str]:
    """The given keys. Raises `UsageError` unless they are exactly the key columns."""
    has_windows = any(state.configuration.get(name) for name in ("window", "windows"))
    if not has_windows and all(form.shape == "messages" for form in forms_of(state).values()):
        raise UsageError(
            "this operator has no windows: read its state, panes and late rows instead", code="history-window"
        )
    columns = key_columns(state)
    if set(keys) != set(columns):
        raise UsageError(
            "give one value for each key column: key=…" if columns else "the windows have no key: remove key=",
            code="history-key",
            columns=columns,
            found=list(keys),
        )
    return dict(keys)


def key_columns(state: OperatorState) -> list[str]:
    """The columns of an operator's key."""
    columns = (column for spec in state.tables for column in spec.key if column.role == "key")
    return list(dict.fromkeys(column.name for column in columns if column.name != NO_KEY))


def _held(records: WindowRecords, position: int, *, rolling: bool) -> WindowBounds | None:
    """The newest window that starts at a position, contains it, or ends there, for windows that are on no grid.

    A session contains the sessions that it grew from, so the start of a session is not preferred. Of ``rolling``
    windows many contain a position, and one ends with the event there: this is preferred.
    """
    windows = records.windows()
    grow = any(change.form.grows for change in (*records.changes, *records.folded_changes))
    choices = [
        [window for window in windows if window.start == position and not grow],
        [window for window in windows if window.holds(position)],
        [window for window in windows if window.end == position],
    ]
    if rolling:
        choices.insert(0, [window for window in windows if window.end - 1 == position])
    fitting = next((choice for choice in choices if choice), [])
    return max(fitting, key=lambda window: (windows[window], window.end - window.start), default=None)


def _never(reader: _Reader, regular: Sliding | None, position: int, window: Moment) -> NotFoundError:
    """The error, which suggests the nearest windows of the key."""
    records = reader.read(EVERYWHERE)
    windows = set(records.windows())
    if regular is not None:
        ends = {change.end for change in (*records.changes, *records.folded_changes) if change.form.shape == "slices"}
        windows |= {
            candidate
            for end in ends
            if end is not None
            for candidate in meant_windows(regular, end)
            if candidate.end == end
        }
    nearest = sorted(
        windows, key=lambda candidate: min(abs(candidate.start - position), abs(candidate.end - position))
    )[:FEW_VALUES]
    where = " and ".join(f"{name}={value}" for name, value in reader.keys.items())
    return NotFoundError(
        f"no such window{' of ' + where if where else ''}: "
        + ("choose one of the nearest" if nearest else "this key has no windows at all"),
        code="no-such-window",
        asked=str(window),
        nearest=reader.measure.texts(sorted(nearest)) or "none",
    )
