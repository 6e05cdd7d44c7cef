"""The output and the state of a job as tables, for any program that reads Arrow: DuckDB, Polars, pandas, Spark.

Read-only: nothing is fenced or written, so it may be asked while the job runs. Making a scan reads manifests, one
footer of each run, and for the net of many panes a footer of each file. Rows are read when its dataset is: only the
columns and parts that the reader asks for, each file checked before a row of it is returned.
"""

from __future__ import annotations

import os
from functools import partial

from tidestate.operators.inspect.net import check_net, marks_retractions, net_scan
from tidestate.operators.inspect.plan_from_manifest import output_columns_of, plan_of
from tidestate.recovery.inspect.rows import operator_of, output_files, output_operator_of
from tidestate.recovery.inspect.scanned import (
    change_scan,
    checkpoint_scan,
    output_scan,
    state_scan,
)
from tidestate.recovery.inspect.scans import RowScan
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import OUTPUT_KINDS, Manifest, OutputKind
from tidestate.recovery.log.moments import CheckpointAt, checkpoint_at, head_at
from tidestate.statestore.durations import Moment
from tidestate.statestore.errors import UsageError

ScanRoot = str | os.PathLike[str] | Checkpoint


def panes_of_root(
    root: ScanRoot, checkpoint: CheckpointAt = None, *, net: bool = False, operator: str | None = None
) -> RowScan:
    """The panes that the job has emitted up to a checkpoint, in order, with the ``checkpoint`` of each as a column.

    ``checkpoint``: its id, or a time for the newest created by then; by default the newest. Its panes are those that
    counted then: of one that a reset has abandoned since, the panes before the reset. Columns that the job had at any
    time are there, null where it had them not. ``net``: only what counts, which is the last pane of each window and
    key unless it was retracted; of a join, rows that were not retracted. ``operator``: one of several outputs, by
    default the last.

    Filters on ``checkpoint`` open no other files, filters on other columns skip files by their statistics.

    Raises `NotFoundError` for a root or a checkpoint that is not there, and `UsageError` (``net-panes``) for the net
    of a job whose panes are parts of results.
    """
    folder, manifest = _at(root, checkpoint)
    name = output_operator_of(manifest, operator)
    columns = partial(output_columns_of, manifest, name, "panes")
    plan = plan_of(manifest, name) if net else None
    if plan is None or not marks_retractions(plan):
        return output_scan(folder, manifest, "panes", name, columns)
    check_net(plan)
    files = list(output_files(folder.outputs(of=manifest), "panes", name))
    return net_scan(folder, plan, files, manifest.operators[name])


def late_of_root(root: ScanRoot, checkpoint: CheckpointAt = None, operator: str | None = None) -> RowScan:
    """The late ledger of an operator, by default the last: rejected events, each with the reason, the watermark at
    that time, and the ``checkpoint``. Arguments and errors as of `panes_of_root`.
    """
    folder, manifest = _at(root, checkpoint)
    name, _ = operator_of(manifest, operator)
    return output_scan(folder, manifest, "late", name, partial(output_columns_of, manifest, name, "late"))


def state_of_root(
    root: ScanRoot, checkpoint: CheckpointAt = None, operator: str | None = None, table: str | None = None
) -> RowScan:
    """A state table as it is stored, by default the first one of the last operator: see ``query(root).tables``.

    By state partition, in key order within each. A filter on the first column of the key skips the ranges of large
    partitions, and whole partitions of a table that expires by that column. Memory: a range of keys, of several parts
    at a time, each about 32 MB or a partition that has less.
    """
    folder, manifest = _at(root, checkpoint)
    return state_scan(folder, manifest, operator, table)


def checkpoints_of_root(root: ScanRoot) -> RowScan:
    """A row for each checkpoint that was not collected, oldest first, those abandoned by a reset too: when and by
    which run it was made, its watermark, how many events, panes and late rows it has, how much state.

    Read when it is made: each manifest. Two columns have the watermark, one for times and one for offsets.
    """
    return checkpoint_scan(_folder(root))


def changes_of_root(
    root: ScanRoot,
    since: Moment,
    until: CheckpointAt = None,
    kind: OutputKind = "panes",
    operator: str | None = None,
) -> RowScan:
    """What happened to the output between two checkpoints: rows of ``until`` that ``since`` has not, in order.

    ``since`` is an id, which may have been collected, a time, or 0 for all output. The column ``change`` is
    ``added``; or ``removed`` for rows of checkpoints that a reset has abandoned in between, which come first.
    ``kind``: panes, of one of several outputs, or late for the ledger of an ``operator``. Raises as `panes_of_root`.
    """
    if kind not in OUTPUT_KINDS:
        raise UsageError(
            'changes can only be read of "panes" or of "late" rows',
            code="read-kind",
            found=kind,
        )
    folder, manifest = _at(root, until)
    name = output_operator_of(manifest, operator) if kind == "panes" else operator_of(manifest, operator)[0]
    first = checkpoint_at(folder, since)
    return change_scan(folder, first, manifest.id, kind, name, partial(output_columns_of, manifest, name, kind))


def _at(root: ScanRoot, checkpoint: CheckpointAt) -> tuple[Checkpoint, Manifest]:
    folder = _folder(root)
    return folder, head_at(folder, checkpoint).manifest


def _folder(root: ScanRoot) -> Checkpoint:
    return root if isinstance(root, Checkpoint) else Checkpoint.open(root)
