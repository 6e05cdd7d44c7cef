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
from tidestate.recovery.log.manifest import Manifest, OperatorState, panes_of
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
    """Windows of one operator, by end. ``notes`` list what was left out; ``has_keys``: each window has its key."""

    operator: str
    offsets: bool
    windows: list[ReportedWindow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    has_keys: bool = False


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
    report = ReportedWindows(operator, offsets=counts_offsets(state))
    keys = list(dict.fromkeys(c.name for spec in state.tables for c in spec.key if c.role == "key"))
    tables: list[pa.Table] = []  # what was read before an error stays
    try:
        source = ask()
        keys = _session_key(source, keys) if source.sides else keys
        tables.extend(_sides(source, keys, report) if source.sides else _state(state, source, keys, report))
    except TidestateError as error:
        if error.code != "query-windows":
            report.notes.append(f"the windows in the state cannot be read ({error.code})")
    read = [*_panes(checkpoint, ids, state.renamed, operator, keys, report.notes), *tables]
    if not read:
        return report
    _by_key(report, pa.concat_tables(read, promote_options="permissive"), has_key=bool(keys))
    return report


def _by_key(report: ReportedWindows, rows: pa.Table, *, has_key: bool) -> None:
    """The windows of ``rows``: by key, where there are few."""
    distinct = pc.unique(rows["key"])
    report.has_keys = has_key and len(distinct) <= REPORTED_KEYS
    if not report.has_keys:
        for name, value in (("key", ""), ("results", None)):
            rows = rows.set_column(rows.column_names.index(name), name, _same(value, rows, pa.string()))
    _fill(report, rows)


def _fill(report: ReportedWindows, rows: pa.Table) -> None:
    """The newest of ``rows`` as windows."""
    windows = rows.group_by([END, START, "key"], use_threads=False).aggregate(list(_FACTS.items()))
    windows = windows.sort_by([(END, "descending"), ("key", "ascending")])
    if windows.num_rows > WINDOWS:
        report.notes.append(f"the newest {WINDOWS:,} of {windows.num_rows:,} windows")
    for row in windows.slice(0, WINDOWS).to_pylist():
        facts = {name: row[f"{name}_{function}"] for name, function in _FACTS.items()}
        report.windows.append(ReportedWindow(row[START], row[END], row["key"], **facts))
    report.windows.sort(key=lambda window: (window.end, window.key))


def _panes(
    checkpoint: Checkpoint,
    ids: list[int],
    renames: Sequence[Renamed],
    operator: str,
    keys: list[str],
    notes: list[str],
) -> Iterator[pa.Table]:
    """Panes of checkpoints, newest first, until there are enough."""
    ends: set[int] = set()
    left = READ_BYTES
    for number, read in checkpoint.load_each(ids[::-1]):
        try:
            refs = panes_of(read().manifest.panes, operator)
            left -= sum(ref.bytes for ref in refs)
            if left < 0 or len(ends) >= WINDOWS:
                notes.append(f"panes of checkpoint {number:,} and older ones were not read")
                return
            for ref in refs:
                rows = read_file_rows(checkpoint.objects, ref)
                if names_places(rows, START, END):
                    old_names = {new: old for old, new in names_now(records_of(keys, renames), number).items()}
                    table = _emitted(rows, [old_names.get(name, name) for name in keys], number)
                    ends.update(pc.unique(table[END]).to_pylist())
                    yield table
        except (DataError, NotFoundError):
            notes.append(f"panes of checkpoint {number:,} cannot be read")


def _emitted(rows: pa.Table, keys: list[str], number: int) -> pa.Table:
    """Pane rows of a checkpoint in the common columns."""
    retracts: Values = _same(False, rows, pa.bool_())
    if "kind" in rows.column_names:
        retracts = pc.equal(rows["kind"].cast(pa.string()), "retract")
    counts: dict[str, Values] = {
        "emitted": pc.invert(retracts).cast(pa.int64()),
        "retracted": retracts.cast(pa.int64()),
    }
    ids = _same(number, rows, pa.int64())
    return _common(rows, _key(rows, keys), {**counts, "first": ids, "last": ids}, fired=True, kept=False)


def _state(operator: OperatorState, source: _Asked, keys: list[str], report: ReportedWindows) -> Iterator[pa.Table]:
    """Windows in the state with their results, as ``tidestate windows`` prints them."""
    report.offsets, left = not source.timed(), READ_BYTES
    for number, partition in enumerate(operator.states):
        left -= sum(ref.bytes for ref in partition.files)
        if left < 0:
            report.notes.append(f"state of the first {number} of {source.partitions} partitions only")
            return
        yield from _with_results(source, number, keys)


def _session_key(source: _Asked, keys: list[str]) -> list[str]:
    """The key of a join's windows: of sessions theirs, else that of the join."""
    side = source.sides[0]
    return source.message_key(side)["session"] if source.layouts[side].by_session else keys


def _sides(source: _Asked, keys: list[str], report: ReportedWindows) -> list[pa.Table]:
    """Windows of the sides of a join in the state: sessions by their key, other windows by side."""
    rows = {side: source.get_windows(side=side) for side in source.sides}
    # A side without windows has one without bounds.
    rows = {side: side_rows.filter(side_rows[END].is_valid()) for side, side_rows in rows.items()}
    by_time = {side: source.timed(side) for side, side_rows in rows.items() if side_rows.num_rows}
    report.offsets = not any(by_time.values()) if by_time else not any(map(source.timed, rows))
    tables = []
    for side, side_rows in rows.items():
        if side in by_time and by_time[side] == report.offsets:
            report.notes.append(f"windows of the side {side} are of offsets: `tidestate windows --side {side}`")
            continue
        key = _key(side_rows, keys) if source.layouts[side].by_session else _same(side, side_rows, pa.string())
        tables.append(_common(side_rows, key, {"events": side_rows["events"]}, fired=False, kept=True))
    return tables


def _with_results(source: _Asked, partition: int, keys: list[str]) -> Iterator[pa.Table]:
    values = [name for name in source.results if name not in source.own_functions]
    for rows in source.scan_windows(values=values, partition=partition):
        # After bounds and key, whatever their names are: results, events, panes.
        first = 2 + len(source.key)
        results = rows.select(range(first, first + len(values)))
        events, panes = (rows.column(first + len(values) + index) for index in (0, 1))
        counts = {"events": events, "results": _as_text(results)}
        yield _common(rows, _key(rows, keys), counts, fired=pc.greater(panes, 0), kept=True)


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


def _common(rows: pa.Table, key: Values, counts: dict[str, Values], *, fired: bool | Values, kept: bool) -> pa.Table:
    """Rows in the common columns; ``fired`` for all of them, or for each."""
    kinds = {name: pa.string() if name == "results" else pa.int64() for name in _COUNTED}
    columns = {name: counts.get(name, pa.nulls(rows.num_rows, kind)) for name, kind in kinds.items()}
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
    texts = [pc.fill_null(column, "null") for column in columns]
    return pc.utf8_slice_codeunits(pc.binary_join_element_wise(*texts, ", "), 0, KEY_CHARACTERS)


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        return column.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # such as bytes that are not UTF-8
        return pa.chunked_array([[None if value is None else str(value) for value in values_of(column)]], pa.string())


def _same(value: object, rows: pa.Table, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), rows.num_rows)
