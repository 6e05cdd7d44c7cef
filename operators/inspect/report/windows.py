"""The newest windows of an operator, from its state and its panes. How much is read is bounded.

Columns are found by their roles in the manifest and by their names in pane files, without the operator's plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.inspect.history.changes import names_places
from tidestate.operators.inspect.report.points import counts_offsets
from tidestate.operators.windows.groups import int_bounds
from tidestate.operators.windows.sessions import merge_sessions
from tidestate.recovery.inspect.values import values_of
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest, OperatorState
from tidestate.statestore.arrays import Values
from tidestate.statestore.errors import DataError, NotFoundError, TidestateError, expect
from tidestate.statestore.files.refs import PartitionState
from tidestate.statestore.files.tails import read_file_rows
from tidestate.statestore.spec.store import Parquet
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.stores.opening import open_store

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
    "fired": "max",
    "kept": "max",
    "whole": "max",
}


@dataclass
class ReportedWindow:
    """A window of a key, or of all keys if there are many, in microseconds or offsets; ``start`` is None if unknown.
    ``first`` and ``last`` are the checkpoints of its panes. ``kept``: it is in the state; not ``whole``: a slice that
    several windows share.
    """

    end: int
    start: int | None = None
    key: str = ""
    kept: bool = False
    emitted: int = 0
    retracted: int = 0
    first: int | None = None
    last: int | None = None
    fired: bool = False
    whole: bool = True

    @property
    def standing(self) -> str:
        """Its standing, for people."""
        if not self.whole:
            return "slice"
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


def windows_of(checkpoint: Checkpoint, head: Manifest, ids: list[int], operator: str) -> ReportedWindows:
    """The newest windows of an operator at checkpoint ``head``; panes are those of ``ids``, read newest first."""
    state = head.operators[operator]
    found = ReportedWindows(operator, offsets=counts_offsets(state))
    keys = list(dict.fromkeys(c.name for spec in state.tables for c in spec.key if c.role == "key"))
    read = [*_panes(checkpoint, ids, operator, keys, found.notes), *_state(checkpoint, state, keys, found.notes)]
    if not read:
        return found
    rows = pa.concat_tables(read, promote_options="permissive")
    distinct = pc.unique(rows["key"])
    found.keyed = bool(keys) and len(distinct) <= REPORTED_KEYS
    if not found.keyed:
        rows = rows.set_column(rows.column_names.index("key"), "key", _same("", rows, pa.string()))
    _fill(found, rows)
    return found


def _fill(found: ReportedWindows, rows: pa.Table) -> None:
    """The newest of ``rows`` as windows; one that the state has by its end alone is matched with its panes."""
    lengths = set(pc.unique(pc.drop_null(pc.subtract(rows[END], rows[START]))).to_pylist())
    if len(lengths) == 1:  # all windows have the same length, so the start follows from the end
        lacking = pc.and_(pc.is_null(rows[START]), rows["whole"])
        starts = pc.if_else(lacking, pc.subtract(rows[END], lengths.pop()), rows[START])
        rows = rows.set_column(rows.column_names.index(START), START, starts)
    grouped = rows.group_by([END, START, "key"], use_threads=False).aggregate(list(_FACTS.items()))
    grouped = grouped.sort_by([(END, "descending"), ("key", "ascending")])
    if grouped.num_rows > WINDOWS:
        found.notes.append(f"the newest {WINDOWS:,} of {grouped.num_rows:,} windows")
    for row in grouped.slice(0, WINDOWS).to_pylist():
        facts = {name: row[f"{name}_{function}"] for name, function in _FACTS.items()}
        found.windows.append(ReportedWindow(row[END], row[START], row["key"], **facts))
    found.windows.sort(key=lambda window: (window.end, window.key))


def _panes(
    checkpoint: Checkpoint, ids: list[int], operator: str, keys: list[str], notes: list[str]
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
                    table = _emitted(rows, keys, number)
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
    return _common(rows, rows[START], rows[END], keys, {**counted, "first": at, "last": at}, fired=True, kept=False)


def _state(checkpoint: Checkpoint, operator: OperatorState, keys: list[str], notes: list[str]) -> Iterator[pa.Table]:
    """Windows in the state, or their slices."""
    specs = [spec for spec in operator.tables if _column(spec, "window_end") or _column(spec, "slice_end")]
    left = READ_BYTES
    for number, partition in enumerate(operator.states if specs else ()):
        left -= sum(ref.bytes for ref in partition.files)
        if left < 0:
            notes.append(f"state of the first {number} of {len(operator.partitions)} partitions only")
            return
        try:
            yield from _partition(checkpoint, operator, partition, specs, keys)
        except TidestateError:
            notes.append(f"the state of partition {number} cannot be read")


def _partition(
    checkpoint: Checkpoint, operator: OperatorState, base: PartitionState, specs: list[TableSpec], keys: list[str]
) -> Iterator[pa.Table]:
    with open_store(Parquet(), checkpoint.objects, "", operator.tables, base) as store:
        for spec in specs:
            start, end = _column(spec, "window_start"), _column(spec, "window_end")
            last = expect(end or _column(spec, "slice_end"), "a table of windows or slices", table=spec.name)
            found = store[spec.name].scan()
            if start is not None and start not in spec.key_names:
                whole = pa.concat_tables([spec.schema.empty_table(), *found])
                found = iter([_sessions(whole, operator.watermark_us)])
            for rows in found:
                starts = rows[start] if start else pa.nulls(rows.num_rows, pa.int64())
                ends = rows[last]
                fired = "_panes" in rows.column_names and pc.greater(rows["_panes"], 0)
                yield _common(rows, starts, ends, keys, {}, fired=fired, kept=True, whole=end is not None)


def _sessions(parts: pa.Table, watermark_us: int | None) -> pa.Table:
    """The sessions that rows of a table of parts form; those that end before the watermark are over."""
    if watermark_us is not None:
        parts = parts.filter(pc.greater(parts[END].cast(pa.int64()), watermark_us))
    kept = [field.name for field in parts.schema]
    keys = kept[1 : kept.index(START)]
    return merge_sessions(keys, int_bounds(parts.select([*keys, START, END]))).windows


def _common(
    rows: pa.Table,
    starts: Values,
    ends: Values,
    keys: list[str],
    counted: dict[str, Values],
    *,
    fired: bool | Values,
    kept: bool,
    whole: bool = True,
) -> pa.Table:
    """Rows in the common columns; ``fired`` for all of them, or for each."""
    none = pa.nulls(rows.num_rows, pa.int64())
    columns: dict[str, Values] = {name: counted.get(name, none) for name in ("emitted", "retracted", "first", "last")}
    flags = {"fired": fired, "kept": kept, "whole": whole}
    marks: dict[str, Values] = {
        name: _same(value, rows, pa.bool_()) if isinstance(value, bool) else value for name, value in flags.items()
    }
    table = {START: starts.cast(pa.int64()), END: ends.cast(pa.int64()), "key": _key(rows, keys), **columns, **marks}
    return pa.table(table)


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


def _column(spec: TableSpec, role: str) -> str | None:
    return next((column.name for column in (*spec.key, *spec.values) if column.role == role), None)
