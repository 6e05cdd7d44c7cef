"""The files of what an output operator emits, with the columns of buffers where it is an origin.

A task numbers the chunks of its own state partitions; see `tidestate.operators.engine.numbered_chunks`.
"""

from __future__ import annotations

import pyarrow as pa

from tidestate.operators.engine.output_files import OutputFiles
from tidestate.operators.plan.output_buffers import in_chunk, output_mark
from tidestate.operators.plan.plan import Plan
from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.storage.objects import Objects


class PaneFiles:
    """The files of the panes of a task, in a step that ends at this ``watermark``. ``emitted``: the number of the
    operator's last buffer; ``chunks``: how many state partitions have emitted rows of the next one.
    """

    def __init__(self, objects: Objects, plan: Plan, checkpoint_id: int, watermark: int, emitted: int) -> None:
        self._files = OutputFiles(objects, pane_folder(plan), checkpoint_id)
        self._origin, self._mark = plan.output_origin, None
        if self._origin is not None:
            self._mark = output_mark(plan, self._origin, watermark)
        self._sequence = emitted + 1
        self._held: pa.Table | None = None
        self.chunks = 0

    def add(self, panes: pa.Table) -> None:
        """The panes of the next state partition."""
        if self._origin is None or not panes.num_rows:
            self._files.add(panes)
            return
        self._write_held(last=False)
        self._held = panes

    def finish(self) -> tuple[FileRef, ...]:
        """The files of all panes; none without rows."""
        self._write_held(last=True)
        return self._files.finish()

    def _write_held(self, *, last: bool) -> None:
        """Write what is held back until it is known whether another chunk follows."""
        if self._origin is None or self._origin.origin is None or self._held is None:
            return
        rows = in_chunk(self._held, self._origin.origin, self._sequence, self.chunks, last=last, mark=self._mark)
        self._files.add(rows)
        self._held = None
        self.chunks += 1


def pane_folder(plan: Plan) -> str:
    """Where the files of an operator's panes are."""
    return f"panes/{plan.name}"
