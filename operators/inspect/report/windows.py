"""The newest windows of an operator, from its state and its panes. How much is read is bounded.

Windows in the state are those of a `Query`; columns of pane files are found by their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.inspect.history.changes import names_places
from tidestate.operators.inspect.report.points import counts_offsets
from tidestate.recovery.inspect.values import values_of
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest, OperatorState
from tidestate.recovery.log.renames import Renamed, names_now, records_of
from tidestate.statestore.arrays import Values
from tidestate.statestore.errors import DataError, NotFoundError, TidestateError
from tidestate.statestore.files.tails import read_file_rows
from tidestate.statestore.messages.keys import Layout

WINDOWS = 300
"""The largest number of windows of an operator: the newest."""
REPORTED_KEYS = 12
"""The largest number of keys with lines of their own."""
READ_BYTES = 64 << 20
"""How much is read of pane files, and how much of state files."""
START, END = "window_start", "window_end"
KEY_CHARACTERS = 60
_FACTS = {
    "emitted": "sum",
    "retracted": "sum",
    "first": "min",
    "last": "max",
    "events": "sum",
    "results": "max",
    "fired": "max",
    "kept": "max",
}
_COUNTED = list(_FACTS)[:6]


@dataclass
class ReportedWindow:
    """A window of a key, or of all keys if there are many, in microseconds or offsets. ``first`` and ``last`` are the
    checkpoints of its panes. ``kept``: it is in the state, with ``events`` and ``results``.
    """

    start: int
    end: int
    key: str = ""
    kept: bool = False
    emitted: int = 0
    retracted: int = 0
    first: int | None = None
    last: int | None = None
    events: int | None = None
    results: str | None = None
    fired: bool = False

    @property
    def standing(self) -> str:
        """Whether the window is open, has emitted and is retained, or is closed; in words."""
        if not self.fired:
            return "open"
        return "emitted, retained" if self.kept else "closed"


@dataclass
class ReportedWindows:
    """Windows of one operator, by end. ``notes`` list what was left out; ``keyed``: each window has its key."""

    operator: str
    offsets: bool
    windows: list[ReportedWindow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    keyed: bool = False


class _Asked(Protocol):
    """What is asked of a `Query`."""

    @property
    def partitions(self) -> int: ...
    @property
    def sides(self) -> list[str]: ...
    @property
    def key(self) -> dict[str, pa.DataType]: ...
    @property
    def results(self) -> list[str]: ...
    @property
    def own_functions(self) -> list[str]: ...
    @property
    def layouts(self) -> Mapping[str, Layout]: ...
    def timed(self, side: str | None = None) -> bool: ...
    def message_key(self, side: str | None = None) -> dict[str, list[str]]: ...
    def get_windows(self, *, side: str | None = None) -> pa.Table: ...
    def scan_windows(
        self, *, values: Sequence[str] | None = None, partition: int | None = None
    ) -> Iterator[pa.Table]: ...


def windows_of(
    checkpoint: Checkpoint, head: Manifest, ids: list[int], operator: str, ask: Callable[[], _Asked]
) -> ReportedWindows:
    """The newest windows of an operator at checkpoint ``head``, which ``ask`` opens; panes are those of ``ids``, read
    newest first.
    """
    state = head.operators[operator]
    found = ReportedWindows(operator, offsets=counts_offsets(state))
    keys = list(dict.fromkeys(c.name for spec in state.tables for c in spec.key if c.role == "key"))
    kept: list[pa.Table] = []  # what was read before an error stays
    try:
        asked = ask()
        keys = _session_key(asked, keys) if asked.sides else keys
        kept.extend(_sides(asked, keys, found) if asked.sides else _state(state, asked, keys, found))
    except TidestateError as error:
        if error.code != "query-windows":
            found.notes.append(f"the windows in the state cannot be read ({error.code})")
    read = [*_panes(checkpoint, ids, state.renamed, operator, keys, found.notes), *kept]
    if not read:
        return found
    _by_key(found, pa.concat_tables(read, promote_options="permissive"), keyed=bool(keys))
    return found


def _by_key(found: ReportedWindows, rows: pa.Table, *, keyed: bool) -> None:
    """The windows of ``rows``: by key, where there are few."""
    distinct = pc.unique(rows["key"])
    found.keyed = keyed and len(distinct) <= REPORTED_KEYS
    if not found.keyed:
        for name, same in (("key", ""), ("results", None)):
            rows = rows.set_column(rows.column_names.index(name), name, _same(same, rows, pa.string()))
    _fill(found, rows)


def _fill(found: ReportedWindows, rows: pa.Table) -> None:
    """The newest of ``rows`` as windows."""
    grouped = rows.group_by([END, START, "key"], use_threads=False).aggregate(list(_FACTS.items()))
    grouped = grouped.sort_by([(END, "descending"), ("key", "ascending")])
    if grouped.num_rows > WINDOWS:
        found.notes.append(f"the newest {WINDOWS:,} of {grouped.num_rows:,} windows")
    for row in grouped.slice(0, WINDOWS).to_pylist():
        facts = {name: row[f"{name}_{function}"] for name, function in _FACTS.items()}
        found.windows.append(ReportedWindow(row[START], row[END], row["key"], **facts))
    found.windows.sort(key=lambda window: (window.end, window.key))


def _panes(
    checkpoint: Checkpoint,
    ids: list[int],
    renamed: Sequence[Renamed],
    operator: str,
    keys: list[str],
    notes: list[str],
) -> Iterator[pa.Table]:
    """Panes of checkpoints, newest first, until there are enough."""
    ends: set[int] = set()
    left = READ_BYTES
    for number, read in checkpoint.load_each(ids[::-1]):
        try:
            refs = [r for r in read().manifest.panes if r.path.startswith(f"panes/{operator}/")]
            left -= sum(ref.bytes for ref in refs)
            if left < 0 or len(ends) >= WINDOWS:
                notes.append(f"panes of checkpoint {number:,} and older ones were not read")
                return
            for ref in refs:
                rows = read_file_rows(checkpoint.objects, ref)
                if names_places(rows, START, END):
                    then = {new: old for old, new in names_now(records_of(keys, renamed), number).items()}
                    table = _emitted(rows, [then.get(name, name) for name in keys], number)
                    ends.update(pc.unique(table[END]).to_pylist())
                    yield table
        except (DataError, NotFoundError):
            notes.append(f"panes of checkpoint {number:,} cannot be read")


def _emitted(rows: pa.Table, keys: list[str], number: int) -> pa.Table:
    """Pane rows of a checkpoint in the common columns."""
    retracts: Values = _same(False, rows, pa.bool_())
    if "kind" in rows.column_names:
        retracts = pc.equal(rows["kind"].cast(pa.string()), "retract")
    counted: dict[str, Values] = {
        "emitted": pc.invert(retracts).cast(pa.int64()),
        "retracted": retracts.cast(pa.int64()),
    }
    at = _same(number, rows, pa.int64())
    return _common(rows, _key(rows, keys), {**counted, "first": at, "last": at}, fired=True, kept=False)


def _state(operator: OperatorState, asked: _Asked, keys: list[str], found: ReportedWindows) -> Iterator[pa.Table]:
    """Windows in the state with their results, as ``tidestate windows`` prints them."""
    found.offsets, left = not asked.timed(), READ_BYTES
    for number, partition in enumerate(operator.states):
        left -= sum(ref.bytes for ref in partition.files)
        if left < 0:
            found.notes.append(f"state of the first {number} of {asked.partitions} partitions only")
            return
        yield from _with_results(asked, number, keys)


def _session_key(asked: _Asked, keys: list[str]) -> list[str]:
    """The key of a join's windows: of sessions theirs, else that of the join."""
    side = asked.sides[0]
    return asked.message_key(side)["session"] if asked.layouts[side].by_session else keys


def _sides(asked: _Asked, keys: list[str], found: ReportedWindows) -> list[pa.Table]:
    """Windows of the sides of a join in the state: sessions by their key, other windows by side."""
    rows = {side: asked.get_windows(side=side) for side in asked.sides}
    # A side without windows has one without bounds.
    rows = {side: own.filter(own[END].is_valid()) for side, own in rows.items()}
    timed = {side: asked.timed(side) for side, own in rows.items() if own.num_rows}
    found.offsets = not any(timed.values()) if timed else not any(map(asked.timed, rows))
    made = []
    for side, own in rows.items():
        if side in timed and timed[side] == found.offsets:
            found.notes.append(f"windows of the side {side} are of offsets: `tidestate windows --side {side}`")
            continue
        key = _key(own, keys) if asked.layouts[side].by_session else _same(side, own, pa.string())
        made.append(_common(own, key, {"events": own["events"]}, fired=False, kept=True))
    return made


def _with_results(asked: _Asked, partition: int, keys: list[str]) -> Iterator[pa.Table]:
    values = [name for name in asked.results if name not in asked.own_functions]
    for rows in asked.scan_windows(values=values, partition=partition):
        # After bounds and key, whatever their names are: results, events, panes.
        first = 2 + len(asked.key)
        results = rows.select(range(first, first + len(values)))
        events, panes = (rows.column(first + len(values) + place) for place in (0, 1))
        counted = {"events": events, "results": _as_text(results)}
        yield _common(rows, _key(rows, keys), counted, fired=pc.greater(panes, 0), kept=True)


def _as_text(results: pa.Table) -> Values:
    """``n 3, total 6``: of a list the number of its values."""
    texts = []
    for name, column in zip(results.column_names, results.columns, strict=True):
        value = pc.list_value_length(column) if pa.types.is_list(column.type) else column
        text = pc.utf8_slice_codeunits(pc.fill_null(_text(value), "null"), 0, KEY_CHARACTERS)
        texts.append(pc.binary_join_element_wise(name, text, *(["values"] if value is not column else []), " "))
    if not texts:
        return _same(None, results, pa.string())
    return pc.binary_join_element_wise(*texts, ", ")


def _common(rows: pa.Table, key: Values, counted: dict[str, Values], *, fired: bool | Values, kept: bool) -> pa.Table:
    """Rows in the common columns; ``fired`` for all of them, or for each."""
    kinds = {name: pa.string() if name == "results" else pa.int64() for name in _COUNTED}
    columns = {name: counted.get(name, pa.nulls(rows.num_rows, kind)) for name, kind in kinds.items()}
    marks = {
        name: _same(value, rows, pa.bool_()) if isinstance(value, bool) else value
        for name, value in {"fired": fired, "kept": kept}.items()
    }
    bounds = {name: rows[name].cast(pa.int64()) for name in (START, END)}
    return pa.table({**bounds, "key": key, **columns, **marks})


def _key(rows: pa.Table, names: list[str]) -> pa.Array | pa.ChunkedArray:
    """The key as text, cut where it is long."""
    columns = [_text(rows[name]) for name in names if name in rows.column_names]
    if not columns:
        return _same("", rows, pa.string())
    filled = [pc.fill_null(column, "null") for column in columns]
    return pc.utf8_slice_codeunits(pc.binary_join_element_wise(*filled, ", "), 0, KEY_CHARACTERS)


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        return column.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # such as bytes that are not UTF-8
        return pa.chunked_array([[None if value is None else str(value) for value in values_of(column)]], pa.string())


def _same(value: object, rows: pa.Table, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), rows.num_rows)
