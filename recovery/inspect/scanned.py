"""Scans of what a checkpoint has without knowing of windows: its output as it lies, state tables, checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds

from tidestate.recovery.inspect.rows import (
    AT,
    NamesOfFile,
    OutputFile,
    file_schemas,
    operator_of,
    output_files,
    table_of,
    unified,
)
from tidestate.recovery.inspect.scans import FilePart, RowScan, between, computed_file, free_name, plain
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import END_OF_TIME_US, Manifest, Output, OutputKind, events_of, state_files
from tidestate.recovery.log.summary import goes_by_offset
from tidestate.statestore.errors import CorruptionError, IncompatibleError, NotFoundError
from tidestate.statestore.files.refs import PartitionState, count_files
from tidestate.statestore.spec.keyrange import EVERYTHING, Cut, KeyRange, as_scalar
from tidestate.statestore.spec.store import Parquet
from tidestate.statestore.spec.tables import TIME, TableSpec
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.stores.opening import open_store
from tidestate.statestore.stores.parquet import ParquetStore

CHANGE = "change"
"""The column of changes that says whether rows came or were withdrawn."""
UNCUT_BYTES = 32 << 20
"""State partitions up to this are one part each."""


Columns = Callable[[], pa.Schema]
"""The columns of an operator's output, where no file has them."""


def output_scan(checkpoint: Checkpoint, manifest: Manifest, kind: str, operator: str, otherwise: Columns) -> RowScan:
    """The panes or ledger rows of an operator, as they were at a checkpoint."""
    files = list(output_files(checkpoint.outputs(of=manifest), kind, operator))
    return scan_of_files(
        checkpoint, output_columns(checkpoint.objects, files, otherwise), [(file, {}) for file in files]
    )


def change_scan(
    checkpoint: Checkpoint, since: int, until: int, kind: OutputKind, operator: str, otherwise: Columns
) -> RowScan:
    """What makes of an operator's output at ``since`` (0: none) that at ``until``: rows that came, and rows of
    checkpoints that a reset has abandoned in between, which are withdrawn. Withdrawn ones first, of the youngest file
    first.

    Raises `NotFoundError` where one of the two is not there, or output after ``since`` has been deleted.
    """
    changes = output_changes(checkpoint, since, until, kind, operator)
    withdrawals, new = (list(output_files(outputs, kind, operator)) for outputs in changes)
    columns = output_columns(checkpoint.objects, [*withdrawals, *new], otherwise)
    change = free_name(CHANGE, columns.names)
    files = [
        *((file, {change: "removed"}) for file in reversed(withdrawals)),
        *((file, {change: "added"}) for file in new),
    ]
    return scan_of_files(checkpoint, columns, files, [change])


def output_changes(
    checkpoint: Checkpoint, since: int, until: int, kind: OutputKind, operator: str
) -> tuple[list[Output], list[Output]]:
    """Outputs that ``since`` has and ``until`` has not, and the other way round, both oldest first. Raises as
    `change_scan`, for an ``operator`` whose rows have been deleted.
    """
    head = checkpoint.chosen(None).manifest
    for number in (since, until):
        if not 0 <= number <= head.id:
            raise NotFoundError(
                "this checkpoint does not exist", code="no-such-checkpoint", id=number, newest=head.id
            )
    if not head.abandons(since) and not head.abandons(until):
        # Both are on one line, so that no manifest before them has to be read.
        between = list(checkpoint.outputs(min(since, until) + 1, max(since, until), of=head))
        withdrawals, new = ([], between) if since <= until else (between, [])
    else:
        before, after = (
            {(output.run, output.id): output for output in _line(checkpoint, head, end)} for end in (since, until)
        )
        withdrawals = [output for identity, output in before.items() if identity not in after]
        new = [output for identity, output in after.items() if identity not in before]
    last_deleted = checkpoint.boundary().gone(kind, operator)
    if since and min(_common(head, since), _common(head, until)) < last_deleted:
        raise NotFoundError(
            "the output between these checkpoints has been deleted: read everything that is left, and continue "
            "from there",
            code="collected",
            since=since,
            deleted=last_deleted,
        )
    return withdrawals, new


def _common(head: Manifest, end: int) -> int:
    """A checkpoint up to which the line of ``end`` is that of the head."""
    return min((first - 1 for first, last in head.abandoned if first <= end <= last), default=end)


def _line(checkpoint: Checkpoint, head: Manifest, end: int) -> Iterator[Output]:
    """Outputs as they were at a checkpoint."""
    if not head.abandons(end):
        return checkpoint.outputs(last=end, of=head)
    return checkpoint.outputs(of=checkpoint.read(end).manifest)


def scan_of_files(
    checkpoint: Checkpoint,
    columns: pa.Schema,
    files: Iterable[tuple[OutputFile, dict[str, str]]],
    extra_columns: Sequence[str] = (),
) -> RowScan:
    """These files in the columns of `output_columns`, each with its values of ``extra_columns`` in front."""
    parts = tuple(FilePart(file.ref, {columns.names[0]: file.checkpoint, **facts}) for file, facts in files)
    schema = pa.schema([*(pa.field(name, pa.string()) for name in extra_columns), *columns])
    return RowScan(checkpoint.objects.root, checkpoint.objects.bases, schema, parts)


def output_columns(
    objects: Objects, files: Sequence[OutputFile], otherwise: Columns, names: NamesOfFile = lambda _: {}
) -> pa.Schema:
    """The columns of all these files together, by their present ``names``; before them, at the first place, one for
    the checkpoint.
    """
    columns = plain(unified(file_schemas(objects, files, names) or [otherwise()])).remove_metadata()
    return pa.schema([pa.field(free_name(AT, columns.names), pa.int64()), *columns])


@dataclass(frozen=True)
class StatePart:
    """Rows of a table in one state partition, with keys in a range."""

    name: str
    specs: tuple[TableSpec, ...]
    base: PartitionState
    table: str
    keys: KeyRange = EVERYTHING

    @property
    def spec(self) -> TableSpec:
        """The description of the state table that this part is of."""
        return next(spec for spec in self.specs if spec.name == self.table)

    @property
    def size(self) -> int:
        """The bytes of its files, though others may read some of them too."""
        return sum(ref.bytes for ref in self.base.files)

    def where(self, schema: pa.Schema) -> ds.Expression | None:
        """The range of the first column of the key; of a table that expires by it also what its files say."""
        column, low, high = self.spec.key[0], _first(self.keys.lower), _first(self.keys.upper)
        if self.spec.expires_in_order and self.base.files:
            lows, highs = ([getattr(ref, end) for ref in self.base.files] for end in ("expiry_min", "expiry_max"))
            expiry = self.base.expired.get(self.table)
            low = max((value for value in (low, _extreme(min, lows), expiry) if value is not None), default=None)
            high = min((value for value in (high, _extreme(max, highs)) if value is not None), default=None)
        bounds = [None if bound is None else as_scalar(bound, column.arrow) for bound in (low, high)]
        return between(schema, column.name, *bounds)

    def open(self, objects: Objects, schema: pa.Schema) -> pa.Buffer:
        """The newest row of each key in this part, as a file of Arrow in memory."""
        with open_store(Parquet(), objects, "", self.specs, self.base) as store:
            return computed_file(schema, store[self.table].scan(self.keys))


def _first(cut: Cut | None) -> Any:
    return None if cut is None else cut.values[0]


def _extreme(choose: Any, values: list[int | None]) -> int | None:
    numbers = [value for value in values if value is not None]
    return choose(numbers) if len(numbers) == len(values) else None


def state_scan(checkpoint: Checkpoint, manifest: Manifest, operator: str | None, table: str | None) -> RowScan:
    """A state table at a checkpoint, by default the first one of the last operator."""
    name, state = operator_of(manifest, operator)
    spec = table_of(state, table)
    parts: list[StatePart] = []
    for number, base in enumerate(state.states):
        refs = tuple(ref for ref in base.files if ref.table == spec.name)
        base = msgspec.structs.replace(base, files=refs)
        ranges = [EVERYTHING]
        if sum(ref.bytes for ref in refs) > UNCUT_BYTES:
            store = ParquetStore(state.tables, checkpoint.objects, base)
            ranges = store[spec.name].bands()
        parts += [
            StatePart(f"{name}/{spec.name}/{number}-{index}", state.tables, base, spec.name, keys)
            for index, keys in enumerate(ranges)
            if refs
        ]
    objects = checkpoint.objects
    return RowScan(objects.root, objects.bases, plain(spec.schema), tuple(parts), is_computed=True)


CHECKPOINTS = pa.schema(
    [
        ("checkpoint", pa.int64()),
        ("kind", pa.string()),
        ("abandoned", pa.bool_()),
        ("drained", pa.bool_()),
        ("created", TIME),
        ("run", pa.string()),
        ("watermark", TIME),
        ("watermark_offset", pa.int64()),
        ("spark_batch", pa.int64()),
        ("events", pa.int64()),
        ("panes", pa.int64()),
        ("late", pa.int64()),
        ("state_files", pa.int64()),
        ("state_bytes", pa.int64()),
    ]
)
"""The columns of checkpoints. Neither watermark is set before the first one, nor in a drained checkpoint."""


@dataclass(frozen=True)
class RowsPart:
    """Rows that were read when the scan was made."""

    rows: pa.Table
    name: str = "rows"

    @property
    def size(self) -> int:
        """How much memory the rows take, in bytes."""
        return int(self.rows.nbytes)

    def where(self, schema: pa.Schema) -> ds.Expression | None:
        """None, so no filter leaves this part out: its rows are few."""
        return None

    def open(self, objects: Objects, schema: pa.Schema) -> pa.Buffer:
        """The rows, as a file of Arrow in memory."""
        return computed_file(schema, [self.rows])


def checkpoint_scan(checkpoint: Checkpoint) -> RowScan:
    """The checkpoints that were not collected, oldest first; those that a reset has abandoned if they can be read."""
    head = checkpoint.head()
    rows = list(_checkpoint_rows(checkpoint, head.manifest)) if head is not None else []
    table = pa.Table.from_pylist(rows, schema=CHECKPOINTS)
    return RowScan(
        checkpoint.objects.root, checkpoint.objects.bases, CHECKPOINTS, (RowsPart(table),), is_computed=True
    )


def _checkpoint_rows(checkpoint: Checkpoint, head: Manifest) -> Iterator[dict[str, Any]]:
    for number, read in checkpoint.load_each(checkpoint.ids(last=head.id)):
        try:
            manifest = read().manifest
        except (CorruptionError, IncompatibleError):
            if not head.abandons(number):
                raise
            continue
        files, mark = state_files(manifest), manifest.watermark_us
        operators = list(manifest.operators.values())
        by_offset = bool(operators) and goes_by_offset(operators[-1])
        finite_mark = mark if mark != END_OF_TIME_US else None
        yield {
            "checkpoint": manifest.id,
            "kind": manifest.kind,
            "abandoned": head.abandons(number),
            "drained": manifest.drained,
            "created": manifest.created_us,
            "run": manifest.writer,
            "watermark": None if by_offset else finite_mark,
            "watermark_offset": finite_mark if by_offset else None,
            "spark_batch": manifest.spark.batch_id if manifest.spark else None,
            "events": events_of(manifest, manifest.counters),
            "panes": sum(ref.rows for ref in manifest.panes),
            "late": sum(ref.rows for ref in manifest.late),
            "state_files": count_files(files),
            "state_bytes": sum(ref.bytes for ref in files),
        }
