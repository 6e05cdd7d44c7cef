"""Rows of a checkpoint: state tables, panes and the late ledger. Read-only, and safe while the job runs.

A checkpoint describes its own tables, so the root is enough; only combiners of your own need the module that
registers them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import time
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.recovery.inspect.values import other_types
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest, OperatorState, Output
from tidestate.recovery.log.renames import columns_now
from tidestate.statestore.arrays import Numbers, padded
from tidestate.statestore.durations import moment_us
from tidestate.statestore.errors import NotFoundError, UsageError
from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.files.tails import read_file_rows, read_schema
from tidestate.statestore.missing_columns import missing_columns
from tidestate.statestore.spec.lists import flat, whole
from tidestate.statestore.spec.schema_evolution import project_columns, same_instants
from tidestate.statestore.spec.store import Parquet
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.storage.prefetch import prefetch
from tidestate.statestore.stores.opening import open_store
from tidestate.statestore.table.group_ids import group_ids
from tidestate.statestore.table.sorting import lasts, shared_ranks

STARTS, ENDS = ("window_start",), ("window_end", "slice_end")
"""Columns with the start and end of a window."""
FILES_AT_ONCE = 4
"""How many files are in memory at a time."""
AT = "checkpoint"
"""The column with the checkpoint of a pane or ledger row."""


NamesOfFile = Callable[[int], Mapping[str, str]]
"""What columns of files of a checkpoint are called now, as `names_now` says it."""


class OutputFile(NamedTuple):
    """A pane or ledger file, with its checkpoint and the run that published it."""

    checkpoint: int
    run: str
    ref: FileRef


@dataclass(frozen=True)
class Wanted:
    """A filter of rows, all as text: ``keys`` are columns and their values, of a column of lists a value that the
    list has; ``window`` is the start or end of the window; its end (or else the first time of the row) is at
    ``since`` or later and before ``until``.
    """

    keys: Mapping[str, str] = field(default_factory=dict)
    window: str | None = None
    since: str | None = None
    until: str | None = None

    def of(self, rows: pa.Table) -> pa.Table:
        """The matching ``rows``. Raises `UsageError` for a missing column or a value of another type."""
        for name, text in self.keys.items():
            rows = rows.filter(_having(_column(rows, name), text, name))
        if self.window is not None:
            bounds = [name for name in (*STARTS, *ENDS) if name in rows.column_names]
            if not bounds:
                raise UsageError(
                    "these rows have no window, so they cannot be filtered by window",
                    code="read-column",
                    columns=rows.column_names,
                )
            equal = [
                pc.equal(rows[name], value_of_text(self.window, rows.schema.field(name).type, name))
                for name in bounds
            ]
            rows = rows.filter(reduce(pc.or_, equal))
        for bound, test in ((self.since, pc.greater_equal), (self.until, pc.less)):
            if bound is not None:
                time = _time_column(rows)
                rows = rows.filter(test(rows[time], value_of_text(bound, rows.schema.field(time).type, time)))
        return rows


def _having(column: pa.ChunkedArray, text: str, name: str) -> pa.ChunkedArray | pa.Array:
    """Which rows have a value in a column, or in the list there. Raises `UsageError` for one of another type."""
    if not pa.types.is_list(column.type):
        return pc.equal(column, value_of_text(text, column.type, name))
    values, owners = flat(column)
    hits = owners[pc.fill_null(pc.equal(values, value_of_text(text, values.type, name)), False).to_numpy(False)]
    return pa.array(np.isin(np.arange(len(column)), hits))


def operator_of(manifest: Manifest, name: str | None) -> tuple[str, OperatorState]:
    """An operator of a checkpoint and its name; by default the last, whose panes are the job's."""
    if name is None:
        name = next(reversed(manifest.operators), "")
    if name not in manifest.operators:
        raise NotFoundError(
            "unknown operator: choose one of those listed",
            code="no-such-operator",
            found=name,
            there=list(manifest.operators),
        )
    return name, manifest.operators[name]


def output_operator_of(manifest: Manifest, name: str | None) -> str:
    """The name of an output of a checkpoint; by default the last operator, which always is one. Raises
    `NotFoundError` for another operator: its panes went to those that read it, and no file has them.
    """
    name, _ = operator_of(manifest, name)
    if name not in manifest.output_names:
        raise NotFoundError(
            "the panes of this operator go to the operators that read it, and are not kept: read an output, one of "
            "those listed, or make this one an output too, job(…)",
            code="no-such-output",
            found=name,
            there=list(manifest.output_names),
        )
    return name


def table_of(operator: OperatorState, name: str | None) -> TableSpec:
    """A table of an operator; by default the first."""
    specs = {spec.name: spec for spec in operator.tables}
    if name is None and operator.tables:
        return operator.tables[0]
    if name not in specs:
        raise NotFoundError(
            "unknown state table: choose one of those listed", code="no-such-table", found=name, there=list(specs)
        )
    return specs[name]


def state_rows(
    checkpoint: Checkpoint, operator: OperatorState, spec: TableSpec, selection: Wanted
) -> Iterator[pa.Table]:
    """Rows of a state table by partition, in key order within each."""
    yield spec.schema.empty_table()
    for number, base in enumerate(operator.states):
        checkpoint.on_progress("partitions", number, len(operator.partitions))
        with open_store(Parquet(), checkpoint.objects, "", operator.tables, base) as store:
            for rows in store[spec.name].scan():
                yield selection.of(rows)


def output_files(outputs: Iterable[Output], kind: str, operator: str) -> Iterator[OutputFile]:
    """The pane files (``kind`` is panes) or ledger files (late) of an operator, oldest first."""
    for output in outputs:
        for ref in output.late_of(operator) if kind == "late" else output.panes_of(operator):
            yield OutputFile(output.id, output.run, ref)


def output_rows(
    checkpoint: Checkpoint, outputs: Iterable[Output], kind: str, operator: str, selection: Wanted
) -> Iterator[pa.Table]:
    """Pane rows (``kind`` is panes) or ledger rows (late) of checkpoints, with the checkpoint id as first column."""

    def rows_of(file: OutputFile) -> pa.Table:
        rows = read_file_rows(checkpoint.objects, file.ref)
        ids = pa.array([file.checkpoint], pa.int64()).take(pa.array([0] * rows.num_rows, pa.int64()))
        return selection.of(rows.add_column(0, AT, ids))

    for _, read in prefetch(rows_of, output_files(outputs, kind, operator), FILES_AT_ONCE):
        yield read()


def output_schema(checkpoint: Checkpoint, outputs: Iterable[Output], kind: str, operator: str) -> pa.Schema:
    """The columns of all rows that `output_rows` gives; they change when the job does.

    Raises `UsageError` if a column has had incompatible types.
    """
    schemas = file_schemas(checkpoint.objects, output_files(outputs, kind, operator))
    return pa.schema([pa.field(AT, pa.int64()), *unified(schemas)]) if schemas else pa.schema([])


def file_schemas(objects: Objects, files: Iterable[OutputFile], names: NamesOfFile = lambda _: {}) -> list[pa.Schema]:
    """The columns of pane or ledger files by their present ``names``, each once. A run keeps its columns, so one file
    of each is looked at.
    """
    of_runs = {file.run: file for file in reversed(list(files))}

    def columns_of(file: OutputFile) -> pa.Schema:
        schema = read_schema(objects, file.ref)
        left = columns_now(schema.names, names(file.checkpoint))
        return pa.schema([schema.field(old).with_name(now) for old, now in left.items()], schema.metadata)

    schemas = [read() for _, read in prefetch(columns_of, of_runs.values())]
    return list(dict.fromkeys(reversed(schemas)))


def unified(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The columns of all these together. Raises `UsageError` (``read-columns``) if one has incompatible types."""
    try:
        return pa.unify_schemas(in_newest_zones(schemas), promote_options="permissive")
    except pa.ArrowException as error:
        raise other_types(error, [schema.names for schema in schemas]) from None


def in_newest_zones(schemas: Sequence[pa.Schema]) -> list[pa.Schema]:
    """Columns of instants, oldest first, with the zones of the newest schema that has each: zones do not change
    values.
    """
    newest = {field.name: field.type for schema in schemas for field in schema}
    return [
        pa.schema(
            [
                field.with_type(newest[field.name]) if same_instants(field.type, newest[field.name]) else field
                for field in schema
            ]
        )
        for schema in schemas
    ]


def in_columns(rows: pa.Table, schema: pa.Schema, names: Mapping[str, str]) -> pa.Table:
    """Old rows in today's columns: by their old ``names`` the new ones of columns that were renamed; missing ones are
    null.
    """
    left = columns_now(rows.column_names, names)
    rows = rows.select(list(left)).rename_columns(list(left.values()))
    return padded(rows, schema).select(schema.names).cast(schema)


def state_difference(
    checkpoint: Checkpoint, between: tuple[int, int], operator: str | None, table: str | None, selection: Wanted
) -> pa.Table:
    """The `difference` of a state table between two checkpoints, in the columns of the newer one."""
    tables = {}
    for number in between:
        _, state = operator_of(checkpoint.read(number).manifest, operator)
        spec = table_of(state, table)
        tables[number] = spec, pa.concat_tables(state_rows(checkpoint, state, spec, selection))
    newest, _ = tables[max(between)]
    before, after = (project_columns(spec, newest, rows) for spec, rows in (tables[number] for number in between))
    return difference(before, after, newest.key_names)


def difference(before: pa.Table, after: pa.Table, key: list[str]) -> pa.Table:
    """Rows that differ between two tables, by key. The column ``change`` is added or removed, or was and is for the
    two values of a key.
    """
    if before.schema != after.schema:
        raise UsageError(
            "the columns changed between the two checkpoints: compare two from before the change, or two from "
            "after it",
            code="read-column",
            before=before.column_names,
            after=after.column_names,
        )
    indices = rows_by_key(before, after, key)
    in_old, in_new = indices >= 0
    was, now = (
        rows.take(pa.array(index[in_old & in_new])) for rows, index in zip((before, after), indices, strict=True)
    )
    differs = pa.array(differing(was, now))
    parts = [
        ("removed", before.take(pa.array(indices[0, ~in_new]))),
        ("added", after.take(pa.array(indices[1, ~in_old]))),
        ("was", was.filter(differs)),
        ("is", now.filter(differs)),
    ]
    tables = [rows.add_column(0, "change", pa.array([change] * rows.num_rows, pa.string())) for change, rows in parts]
    return pa.concat_tables(tables).sort_by([*((name, "ascending") for name in key), ("change", "descending")])


def rows_by_key(before: pa.Table, after: pa.Table, key: Sequence[str]) -> Numbers:
    """For each key that one of two tables has, once at most, the row with it in either, shape (2, keys); -1 where
    there is none.
    """
    ranks, count = shared_ranks([before.select(key), after.select(key)])
    return np.stack([lasts(rank, count) for rank in ranks])


def differing(was: pa.Table, now: pa.Table) -> npt.NDArray[np.bool_]:
    """Which rows differ from the row at the same place in the other table, for columns of any type."""
    rows = pa.concat_tables([was, now])
    numbers = group_ids([whole(column) for column in rows.columns], np.zeros(rows.num_rows, np.int64))
    is_different: npt.NDArray[np.bool_] = numbers[: was.num_rows] != numbers[was.num_rows :]
    return is_different


def _column(rows: pa.Table, name: str) -> pa.ChunkedArray:
    if name not in rows.column_names:
        raise missing_columns("unknown column", [name], rows.column_names, code="read-column")
    column = rows[name]
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def value_of_text(text: str, kind: pa.DataType, name: str) -> pa.Scalar:
    """Text as a value of the column's type. Raises `UsageError` (``read-value``)."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    try:
        if pa.types.is_timestamp(kind):
            return _instant(text, kind)
        if pa.types.is_time(kind):
            return pa.scalar(time.fromisoformat(text), kind)
        if pa.types.is_binary(kind) and text.startswith("0x"):
            return pa.scalar(bytes.fromhex(text[2:]), kind)
        return pa.scalar(text).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        reason = error.message if isinstance(error, UsageError) else error
        raise UsageError(
            f"this value does not fit the type of the column ({reason})",
            code="read-value",
            column=name,
            type=str(kind),
            found=text[:100],
        ) from None


def typed_values(texts: Mapping[str, str], kinds: Mapping[str, pa.DataType]) -> dict[str, Any]:
    """Values of columns by their names, each of the type of its column; of a column that is not there the text."""
    return {
        name: value_of_text(text, kinds[name], name).as_py() if name in kinds else text
        for name, text in texts.items()
    }


def _instant(text: str, kind: pa.DataType) -> pa.Scalar:
    return pa.scalar(moment_us(text), pa.timestamp("us", tz="UTC")).cast(kind)


def _time_column(rows: pa.Table) -> str:
    """The column of window ends, or else the first column of times."""
    for name in ENDS:
        if name in rows.column_names:
            return name
    for column in rows.schema:
        if pa.types.is_timestamp(column.type):
            return str(column.name)
    raise UsageError(
        "these rows have no time, so they cannot be filtered by time", code="read-column", columns=rows.column_names
    )
