"""The net of a job's panes: what counts of them. Of windows the last pane of each window and key, unless it was
retracted; of joins the rows that were not retracted.

Panes are read in bands of time, so that memory holds those of a band: all panes of a window, or of a pair, are in one
of them. The bands come from the statistics of the files, whose footers are read for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tidestate.operators.describe.sides import AT as TIME_OF_PAIR
from tidestate.operators.engine.delivery import names_of_output
from tidestate.operators.inspect.history.emitted import statistic
from tidestate.operators.plan.plan import PANE_KIND, Plan
from tidestate.operators.windows.names import END, START
from tidestate.operators.windows.tables import GroupTables
from tidestate.recovery.inspect.rows import FILES_AT_ONCE, NamesOfFile, OutputFile, in_columns
from tidestate.recovery.inspect.scanned import output_columns
from tidestate.recovery.inspect.scans import RowScan, between, computed_file
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import OperatorState
from tidestate.statestore.arrays import Numbers
from tidestate.statestore.errors import UsageError
from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.files.tails import read_file_rows, read_metadata
from tidestate.statestore.spec.lists import whole
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.storage.prefetch import prefetch
from tidestate.statestore.table.group_ids import group_ids

NET_ROWS = 1_000_000
"""About how many panes are folded at once."""

NetSpan = tuple[int | None, int | None]
"""The least and the largest time or offset, inclusive; None: not known."""


@dataclass(frozen=True)
class NetFile:
    """A pane file that a band reads; ``names``: those of today of columns that were renamed, by their name in it."""

    checkpoint: int
    ref: FileRef
    names: Mapping[str, str]


@dataclass(frozen=True)
class NetPart:
    """What counts of the panes whose ``time_column`` lies in ``span``. ``identity``: the columns that name a window
    and key where they are ``by_window``; else those of a row that a retraction repeats.
    """

    name: str
    files: tuple[NetFile, ...]
    identity: tuple[str, ...]
    by_window: bool
    time_column: str | None = None
    span: NetSpan = (None, None)

    @property
    def size(self) -> int:
        """The bytes of its files."""
        return sum(file.ref.bytes for file in self.files)

    def where(self, schema: pa.Schema) -> ds.Expression | None:
        """The filter of the rows whose ``time_column`` lies in the span of this part; None where it is all rows."""
        if self.time_column is None:
            return None
        return between(
            schema, self.time_column, *(None if end is None else pa.scalar(end, pa.int64()) for end in self.span)
        )

    def open(self, objects: Objects, schema: pa.Schema) -> pa.Buffer:
        """Read all its files, and leave what counts."""
        within = self.where(schema)

        def rows_of(file: NetFile) -> pa.Table:
            rows = in_columns(read_file_rows(objects, file.ref), schema, file.names)
            ids = pa.array(np.full(rows.num_rows, file.checkpoint))
            rows = rows.set_column(0, schema.field(0), ids)
            return rows if within is None else rows.filter(within)

        tables = [read() for _, read in prefetch(rows_of, self.files, FILES_AT_ONCE)]
        rows = pa.concat_tables([schema.empty_table(), *tables])
        left = (last_of_each if self.by_window else not_retracted)(rows, self.identity)
        return computed_file(schema, [left])


def last_of_each(rows: pa.Table, identity: Sequence[str]) -> pa.Table:
    """The last row of each window and key, where that is no retraction."""
    ids = _ids(rows, identity)
    _, from_the_end = np.unique(ids[::-1], return_index=True)
    last = rows.take(pa.array(np.sort(len(ids) - 1 - from_the_end)))
    return last.filter(pc.equal(last[PANE_KIND], "emit"))


def not_retracted(rows: pa.Table, identity: Sequence[str]) -> pa.Table:
    """Rows without as many of the oldest equal ones as were retracted."""
    ids = _ids(rows, identity)
    is_emitted = np.asarray(pc.equal(rows[PANE_KIND], "emit"))
    left = np.bincount(ids, np.where(is_emitted, 1, -1), minlength=1).astype(np.int64)
    # The rank of a row among the equal ones, youngest first, says whether it is one of those that are left.
    youngest = np.flatnonzero(is_emitted)[::-1]
    youngest = youngest[np.argsort(ids[youngest], kind="stable")]
    group_ids = ids[youngest]
    indices = youngest[np.arange(len(group_ids)) - np.searchsorted(group_ids, group_ids) < left[group_ids]]
    return rows.take(pa.array(np.sort(indices)))


def _ids(rows: pa.Table, names: Iterable[str]) -> Numbers:
    return group_ids([whole(rows[name]) for name in names], np.zeros(rows.num_rows, np.int64))


def marks_retractions(plan: Plan) -> bool:
    """Whether panes may be retracted, or replaced by others. Rows that only pass may have a column of that name; that
    which panes of windows have is theirs, and so has their input in a chain.
    """
    kind_is_ours = isinstance(plan, GroupTables) or PANE_KIND not in plan.input.schema.names
    return kind_is_ours and PANE_KIND in plan.pane_schema.names


def check_net(plan: Plan) -> None:
    """Raise `UsageError` (``net-panes``) where the last panes of windows are not their results."""
    if reason := plan.partial_panes:
        raise UsageError(f"{reason}: read the panes without net", code="net-panes", operator=plan.name)


def net_scan(checkpoint: Checkpoint, plan: Plan, files: Sequence[OutputFile], state: OperatorState) -> RowScan:
    """The net of pane files, oldest first, of a ``plan`` whose panes may be retracted, under today's names. Reads
    their footers.
    """
    objects, root, by_window = checkpoint.objects, checkpoint.objects.root, isinstance(plan, GroupTables)
    names = pane_names(plan, state)
    schema = output_columns(objects, files, lambda: plan.delivered_schema, names)
    identity = (START, END, *plan.input.key_names) if by_window else _repeated(plan, schema)
    read = tuple(NetFile(file.checkpoint, file.ref, names(file.checkpoint)) for file in files)
    time_column = next((name for name in (END, TIME_OF_PAIR) if name in schema.names), None)
    parts: tuple[NetPart, ...] = (NetPart("0", read, identity, by_window),) if read else ()
    if time_column is not None and sum(file.ref.rows for file in read) > NET_ROWS:
        spans = [span() for _, span in prefetch(partial(_span, checkpoint, time_column), read)]
        parts = tuple(
            NetPart(str(number), tuple(_within(read, spans, band)), identity, by_window, time_column, band)
            for number, band in enumerate(_bands(read, spans))
        )
    return RowScan(root, objects.bases, schema, parts, is_computed=True)


def pane_names(plan: Plan, state: OperatorState) -> NamesOfFile:
    """What columns of panes of a checkpoint are called now."""
    return partial(names_of_output, "panes", plan, state)


def _repeated(plan: Plan, schema: pa.Schema) -> tuple[str, ...]:
    """The columns that a retraction repeats: those of today, as the state has lost the others."""
    return tuple(name for name in schema.names[1:] if name in plan.pane_schema.names and name != PANE_KIND)


def _span(checkpoint: Checkpoint, time_column: str, file: NetFile) -> NetSpan:
    metadata = read_metadata(checkpoint.objects, file.ref)
    return statistic(metadata, time_column, "min"), statistic(metadata, time_column, "max")


def _bands(files: Sequence[NetFile], spans: Sequence[NetSpan]) -> list[NetSpan]:
    """All of time, cut so that about `NET_ROWS` panes are in each band."""
    ends = sorted((high, file.ref.rows) for file, (_, high) in zip(files, spans, strict=True) if high is not None)
    cuts: list[int] = []
    band_rows = 0
    # A file counts for the band in which it ends. The last end is no cut: the last band is open.
    for high, rows in ends[:-1]:
        band_rows += rows
        if band_rows >= NET_ROWS and high not in cuts[-1:]:
            cuts.append(high)
            band_rows = 0
    return [(None if low is None else low + 1, high) for low, high in pairwise([None, *cuts, None])]


def _within(files: Sequence[NetFile], spans: Sequence[NetSpan], band: NetSpan) -> Iterable[NetFile]:
    """The files that may have panes in a band."""
    first, last = band
    for file, (low, high) in zip(files, spans, strict=True):
        below = high is not None and first is not None and high < first
        above = low is not None and last is not None and low > last
        if not (below or above):
            yield file
