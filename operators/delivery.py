"""Delivering panes: every unacknowledged checkpoint in ascending id, stopping at the first refusal.

At least once, in order. The key of a delivery is (job id, checkpoint id); the rows under one key are
always the same, so a sink that remembers the last id it took in has every pane exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from recovery.checkpoint import Checkpoint
from recovery.manifest import Manifest
from recovery.outputs import Output, output_of
from statestore.files.segments import FileRef, read_verified

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from operators.plan import Plan

ArrowSink = Callable[[pa.Table, int], None]
"""Called with the panes of one checkpoint and its id."""
SparkSink = Callable[["DataFrame", int], None]
"""Called with a DataFrame of the panes of one checkpoint and its id."""


class Delivery:
    """Hands checkpoints with panes to ``send``, once each per run, oldest first."""

    def __init__(self, checkpoint: Checkpoint, send: Callable[[Output], None] | None, delivered: int) -> None:
        self._checkpoint = checkpoint
        self._send = send
        self.delivered = delivered

    def up_to(self, head: Manifest) -> None:
        """Deliver what is outstanding up to ``head``. An error of the sink passes through; the rest stays due.

        Without a sink nothing is acknowledged: one that is added later gets everything from the beginning.
        """
        if self._send is None:
            return
        if self.delivered < head.id - 1:
            for output in self._checkpoint.outputs(self.delivered + 1, head.id - 1):
                self._hand_over(output)
        if self.delivered < head.id:
            self._hand_over(output_of(head))

    def _hand_over(self, output: Output) -> None:
        if output.panes and self._send is not None:
            self._send(output)
        self.delivered = output.id


def read_panes(checkpoint: Checkpoint, output: Output, plan: Plan) -> pa.Table:
    """The panes of a checkpoint: of ``plan``, or as they are where another operator was then the last of the job, or
    the same one with other columns.
    """
    tables = as_written(checkpoint, output.panes)
    own = all(ref.path.startswith(f"panes/{plan.name}/") for ref in output.panes)
    if own and all(_columns(table.schema) == _columns(plan.pane_schema) for table in tables):
        tables = [plan.pane_schema.empty_table(), *(table.cast(plan.pane_schema) for table in tables)]
    return pa.concat_tables(tables)


def _columns(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    """Names and types, whether columns are written as dictionaries or not."""
    kinds = [field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in schema]
    return list(zip(schema.names, kinds, strict=True))


def read_rows(checkpoint: Checkpoint, files: tuple[FileRef, ...], schema: pa.Schema) -> pa.Table:
    """The rows of pane or ledger files, checked against their checksums."""
    tables = [rows.cast(schema) for rows in as_written(checkpoint, files)]
    return pa.concat_tables([schema.empty_table(), *tables])


def as_written(checkpoint: Checkpoint, files: tuple[FileRef, ...]) -> list[pa.Table]:
    """The rows of each pane or ledger file."""
    return [_read(checkpoint, ref) for ref in files]


def _read(checkpoint: Checkpoint, ref: FileRef) -> pa.Table:
    return pq.read_table(pa.BufferReader(read_verified(checkpoint.objects, ref)))
