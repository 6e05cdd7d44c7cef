"""Chunks of several tasks, numbered through before the commit: no task knows what the others have emitted."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from tidestate.operators.engine.micro_batch import TaskResult
from tidestate.operators.engine.tasks import pane_folder, write_outputs
from tidestate.operators.plan.output_buffers import numbered_from
from tidestate.operators.plan.plan import Plan
from tidestate.statestore.files.tails import read_file_rows
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.storage.prefetch import prefetch
from tidestate.statestore.storage.write_behind import WriteBehind

FILES_AHEAD = 4
"""Files that are read ahead."""


def numbered_through(
    objects: Objects, plan: Plan, checkpoint_id: int, results: Sequence[TaskResult]
) -> list[TaskResult]:
    """The answers of the tasks of the output operator, in the order of their state partitions, with chunks that are
    counted through all of them: new files, where that differs from what a task has written.
    """
    emitting = [task for task, result in enumerate(results) if result.chunks]
    if len(emitting) < 2:
        return list(results)
    numbered, first = list(results), 0
    with WriteBehind(objects.root, bases=objects.bases) as written:
        for task in emitting:
            result, ends = results[task], task == emitting[-1]
            # Of the first task only the file of its last chunk differs.
            kept, again = (result.panes[:-1], result.panes[-1:]) if not first else ((), result.panes)
            read = prefetch(partial(read_file_rows, objects), again, FILES_AHEAD)
            tables = (numbered_from(rows(), first, ends=ends) for _, rows in read)
            files = write_outputs(written, pane_folder(plan), checkpoint_id, tables)
            numbered[task] = msgspec.structs.replace(result, panes=(*kept, *files))
            first += result.chunks
    return numbered
