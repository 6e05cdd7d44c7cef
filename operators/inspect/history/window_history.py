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
    asked = measure.place(window)
    regular = reader.windows if isinstance(reader.windows, Sliding) else None
    meant = meant_windows(regular, asked) if regular else []
    if len(meant) > 1 and not any(asked in (one.start, one.end) for one in meant):
        raise UsageError(
            "several windows contain this time: give the start of the one you mean",
            code="history-window",
            asked=str(window),
            windows=measure.texts(sorted(meant)),
        )
    around = (
        WindowBounds(min(one.start for one in meant), max(one.end for one in meant))
        if meant
        else WindowBounds(asked, asked)
    )
    found = reader.read(around)
    rolling = isinstance(reader.windows, Rolling)
    chosen = (
        next((one for one in meant if found.holds(one)), None) if regular else _held(found, asked, rolling=rolling)
    )
    if chosen is None:
        raise _never(reader, regular, asked, window)
    if not regular:
        found = reader.read(chosen)
    return build_history(steps, found, chosen, measure, reader.keys, checkpoint)


class _Reader:
    """Reads the records of one key."""

    def __init__(self, checkpoint: Checkpoint, steps: HistorySteps, keys: dict[str, str]) -> None:
        self.checkpoint, self.steps, self.keys = checkpoint, steps, keys
        self.windows = stored_windows(steps.newest)
        self.measure = BoundUnit.of(self.windows)

    def read(self, around: WindowBounds) -> WindowRecords:
        """Records of windows that touch ``around``."""
        found = WindowRecords()
        for form in forms_of(self.steps.base).values():
            keys = self._keys_in(form.spec)
            folded, newest = read_folded(self.checkpoint, form, self.steps.base, keys, around)
            found.folded += self._named(form.spec, folded)
            found.folded_up_to = max(found.folded_up_to, newest)
        for _, added in self.checkpoint.prefetch("changes", lambda step: self._added(step, around), self.steps.all):
            found.add(added())
        return found

    def _added(self, step: HistoryStep, around: WindowBounds) -> WindowRecords:
        """The records of one checkpoint."""
        found = WindowRecords()
        for spec, ref in step.segments:
            form = form_of(spec)
            if form is None:
                continue
            changes = self._named(spec, read_changes(self.checkpoint, form, ref, self._keys_in(spec), around))
            found.changes += changes if self.steps.emits else [*changes, *last_panes(changes)]
        names = names_of_panes(self.steps.newest, self.keys, step.id)
        for ref in step.panes:
            panes = emitted_panes(self.checkpoint, step.id, ref, self._keys_then(step), around)
            found.panes += [replace(one, values=under_names(one.values, names)) for one in panes]
        names = names_now(self.steps.newest.renamed, step.id)
        for ref in step.late:
            state, keys = step.state or self.steps.newest, self._keys_then(step)
            rejected = read_rejected(self.checkpoint, step.id, ref, keys, state, self.measure)
            found.rejected += [replace(one, values=under_names(one.values, names)) for one in rejected]
        return found

    def _named(self, spec: TableSpec, changes: Sequence[StateChange]) -> list[StateChange]:
        """Changes of a table, as it was, with what its columns are called now."""
        names = names_of_table(spec, self.steps.newest)
        results = results_of_table(names)
        return [
            replace(one, values=under_names(one.values, names), last=under_names(one.last, results))
            for one in changes
        ]

    def _keys_then(self, step: HistoryStep) -> dict[str, str]:
        """The keys as files of a checkpoint call them."""
        names = names_now(records_of(self.keys, self.steps.newest.renamed), step.id)
        then = {new: old for old, new in names.items()}
        return {then.get(name, name): text for name, text in self.keys.items()}

    def _keys_in(self, spec: TableSpec) -> dict[str, str]:
        """The keys as a table called them: it may be that of an earlier checkpoint."""
        now = next((one for one in self.steps.newest.tables if one.name == spec.name), spec)
        lasting = {column.lasting: column.name for column in now.key}
        names = {lasting.get(column.lasting, ""): column.name for column in spec.key}
        return {names.get(name, name): text for name, text in self.keys.items()}


def _checked(state: OperatorState, keys: Mapping[str, str]) -> dict[str, str]:
    """The given keys. Raises `UsageError` unless they are exactly the key columns."""
    has_windows = any(state.configuration.get(name) for name in ("window", "windows"))
    if not has_windows and all(form.shape == "messages" for form in forms_of(state).values()):
        raise UsageError(
            "this operator has no windows: read its state, panes and late rows instead", code="history-window"
        )
    known = key_columns(state)
    if set(keys) != set(known):
        raise UsageError(
            "give one value for each key column: key=…" if known else "the windows have no key: remove key=",
            code="history-key",
            columns=known,
            found=list(keys),
        )
    return dict(keys)


def key_columns(state: OperatorState) -> list[str]:
    """The columns of an operator's key."""
    columns = (column for spec in state.tables for column in spec.key if column.role == "key")
    return list(dict.fromkeys(column.name for column in columns if column.name != NO_KEY))


def _held(found: WindowRecords, asked: int, *, rolling: bool) -> WindowBounds | None:
    """The newest window that starts at a place, contains it, or ends there, for windows that are on no grid.

    A session contains the sessions that it grew from, so the start of a session is not preferred. Of ``rolling``
    windows many contain a place, and one ends with the event there: this is preferred.
    """
    windows = found.windows()
    grow = any(one.form.grows for one in (*found.changes, *found.folded))
    choices = [
        [one for one in windows if one.start == asked and not grow],
        [one for one in windows if one.holds(asked)],
        [one for one in windows if one.end == asked],
    ]
    if rolling:
        choices.insert(0, [one for one in windows if one.end - 1 == asked])
    fitting = next((choice for choice in choices if choice), [])
    return max(fitting, key=lambda one: (windows[one], one.end - one.start), default=None)


def _never(reader: _Reader, regular: Sliding | None, asked: int, window: Moment) -> NotFoundError:
    """The error, which suggests the nearest windows of the key."""
    found = reader.read(EVERYWHERE)
    windows = set(found.windows())
    if regular is not None:
        ends = {one.end for one in (*found.changes, *found.folded) if one.form.shape == "slices"}
        windows |= {one for end in ends if end is not None for one in meant_windows(regular, end) if one.end == end}
    nearest = sorted(windows, key=lambda one: min(abs(one.start - asked), abs(one.end - asked)))[:FEW_VALUES]
    where = " and ".join(f"{name}={value}" for name, value in reader.keys.items())
    return NotFoundError(
        f"no such window{' of ' + where if where else ''}: "
        + ("choose one of the nearest" if nearest else "this key has no windows at all"),
        code="no-such-window",
        asked=str(window),
        nearest=reader.measure.texts(sorted(nearest)) or "none",
    )
