"""The panes of a job as a stream: from which checkpoint to which, and what that means when the root is rewound.

A position is a checkpoint and the run that published it. From one position to another lie the panes of the
checkpoints in between, on the line of the later one: always the same rows, however often they are asked for, and
whatever is rewound or collected meanwhile. A root that was rewound to before a position has withdrawn panes that were
read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tidestate.operators.inspect.plan_from_manifest import output_columns_of, plan_of
from tidestate.recovery.inspect.rows import output_files, output_operator_of
from tidestate.recovery.inspect.scanned import output_changes, output_columns, scan_of_files
from tidestate.recovery.inspect.scans import RowScan
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest, panes_of
from tidestate.recovery.log.moments import checkpoint_at, counting
from tidestate.statestore.errors import IncompatibleError, UsageError

StreamOffset = Mapping[str, Any]
"""``checkpoint`` and ``run``, as Spark's log has them; a beginning has no run."""


@dataclass(frozen=True)
class PaneStream:
    """The panes of the job at ``root`` since a checkpoint, by default all that are left. ``again``: whether panes
    that come again after a rewind are read again; otherwise a rewind to before a position ends the stream.
    ``operator``: one of several outputs, by default the last.
    """

    root: str
    since: str | None = None
    again: bool = False
    operator: str | None = None

    def first(self) -> StreamOffset:
        """The offset before the first pane: the checkpoint that was asked for, else the last whose panes have been
        collected.
        """
        folder = Checkpoint.open(self.root)
        if self.since is not None:
            return {"checkpoint": checkpoint_at(folder, self.since), "run": ""}
        head = folder.head()
        name = output_operator_of(head.manifest, self.operator) if head is not None else ""
        return {"checkpoint": folder.boundary().gone("panes", name), "run": ""}

    def check_retractions(self) -> None:
        """Raise `UsageError` (``retractions``) if panes of this job may retract others."""
        manifest = Checkpoint.open(self.root).chosen(None).manifest
        name = output_operator_of(manifest, self.operator)
        if plan_of(manifest, name).retracts:
            raise UsageError(
                "some panes of this job retract others, and a query that counts the rows of the stream would "
                'count both: read them with the option retractions=keep, and use their column "kind"',
                code="retractions",
                root=self.root,
                operator=name,
            )

    def newest(self, position: StreamOffset | None = None) -> StreamOffset:
        """The newest checkpoint with panes. ``position``: what this has returned before; older ones are not read."""
        folder = Checkpoint.open(self.root)
        for entry in counting(folder, 0 if position is None else position["checkpoint"] + 1):
            manifest = entry if isinstance(entry, Manifest) else folder.load(entry).manifest
            if panes_of(manifest.panes, self.operator or manifest.output_names[-1]):
                return {"checkpoint": manifest.id, "run": manifest.writer}
        if position is not None:
            return position
        name = output_operator_of(folder.chosen(None).manifest, self.operator)
        outputs = [output for output in folder.outputs(last=folder.boundary().id) if output.panes_of(name)]
        return {"checkpoint": outputs[-1].id, "run": outputs[-1].run} if outputs else self.first()

    def between(self, start: StreamOffset, end: StreamOffset) -> RowScan:
        """The panes after ``start`` up to ``end``.

        Raises `IncompatibleError` if panes up to ``start`` were withdrawn, or are of another root than this;
        `NotFoundError` if panes in between have been deleted.
        """
        folder = Checkpoint.open(self.root)
        for position in (start, end):
            self._check(folder, position)
        manifest = folder.chosen(None).manifest
        name = output_operator_of(manifest, self.operator)
        withdrawals, new = output_changes(folder, start["checkpoint"], end["checkpoint"], "panes", name)
        withdrawn = [output.id for output in withdrawals if output.panes_of(name)]
        if withdrawn and not self.again:
            raise IncompatibleError(
                "the root was rewound to before panes that this stream has read: rewind its reader too, or read "
                "them again with the option rewound=again",
                code="stream-rewound",
                root=self.root,
                read_up_to=start["checkpoint"],
                withdrawn_from=min(withdrawn),
            )
        files = list(output_files(new, "panes", name))
        columns = output_columns(folder.objects, files, partial(output_columns_of, manifest, name, "panes"))
        return scan_of_files(folder, columns, [(file, {}) for file in files])

    def _check(self, folder: Checkpoint, position: StreamOffset) -> None:
        """Check that the checkpoint is the one that was meant, if it can still be seen."""
        number, run = position["checkpoint"], position["run"]
        head = folder.chosen(None).manifest
        output = next(iter(folder.outputs(number, number)), None) if run and not head.abandons(number) else None
        if (output is not None and output.run != run) or number > head.id:
            raise IncompatibleError(
                "this root is not the one that the stream has read, or an older copy of it: start a new stream",
                code="stream-root",
                root=self.root,
                checkpoint=number,
                newest=head.id,
                expected_run=run,
                found_run=output.run if output is not None else "",
            )


class NewestPanes:
    """The newest position of a stream, for who asks again and again: a listing, where nothing was published since."""

    def __init__(self, stream: PaneStream) -> None:
        self._stream, self._folder = stream, Checkpoint.open(stream.root)
        self._ids: list[int] = []
        self._position: StreamOffset | None = None

    def position(self) -> StreamOffset:
        """The offset of the newest pane; the root is read again only where its list of manifests has changed."""
        ids = self._folder.stored_ids()
        if self._position is None or ids != self._ids:
            self._position, self._ids = self._stream.newest(self._position), ids
        return self._position
