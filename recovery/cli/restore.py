"""The verb restore: the state of a checkpoint in a temporary folder, and the time it takes."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
import typer
from rich.text import Text

from tidestate.recovery.cli.app import AsJson, Import, RootPath, verbs
from tidestate.recovery.cli.options import AtOption
from tidestate.recovery.cli.printing import data_table, print_json, print_out
from tidestate.recovery.cli.progress_bar import throughput_bar
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.moments import head_at
from tidestate.recovery.log.summary import size_text
from tidestate.recovery.start.restore_drill import RestoreDrill, run_restore_drill
from tidestate.statestore.spec.store import Restored


class Store(StrEnum):
    """Stores that keep a copy of the state."""

    memory = "memory"
    rocksdb = "rocksdb"


@verbs.command("restore", epilog="Example: tidestate restore /data/flights --store rocksdb --parallel 4")
def rehearse_restore(
    root: RootPath,
    at: AtOption = None,
    store: Annotated[Store | None, typer.Option(help="The store. By default the one of the job.")] = None,
    parallel: Annotated[int, typer.Option(min=1, help="How many state partitions to restore at a time.")] = 1,
    modules: Import = None,
    as_json: AsJson = False,
) -> None:
    """Restore the state of a checkpoint into a temporary folder, and measure how long it takes.

    The root is not changed, and the folder is removed afterwards. The prediction follows from the size of the files
    and the speed measured at the last starts of the job; the budget is `recovery_s` of the job's store.
    """
    checkpoint = Checkpoint.open(root)
    manifest = head_at(checkpoint, at).manifest
    with throughput_bar() as progress:
        task = progress.add_task("", total=None, what="")

        def report(part: Restored, total: Restored) -> None:
            text = f"{part.files:,} of {total.files:,} files, {part.rows:,} rows"
            progress.update(task, completed=part.bytes, total=total.bytes, what=text)

        drill = run_restore_drill(
            checkpoint, manifest, store.value if store else None, parallel=parallel, on_progress=report
        )
    if as_json:
        print_json(_plain(drill))
    else:
        _print(drill)


def _plain(drill: RestoreDrill) -> dict[str, object]:
    def plain(restore: Restored) -> dict[str, object]:
        return {**msgspec.to_builtins(restore), "rate": int(restore.rate)}

    return {
        "checkpoint": drill.checkpoint,
        "store": drill.store,
        "parallel": drill.parallel,
        "operators": {name: plain(restore) for name, restore in drill.operators.items()},
        "whole": plain(drill.whole),
        "predicted_s": drill.predicted_s,
        "budget_s": drill.budget_s,
    }


def _print(drill: RestoreDrill) -> None:
    headings = ("operator", "files", "bytes", "rows", "seconds", "per second")
    table = data_table(headings, headings[1:])
    for name, part in [*drill.operators.items(), ("total", drill.whole)]:
        size, rate = size_text(part.bytes), size_text(int(part.rate))
        table.add_row(Text(name), f"{part.files:,}", size, f"{part.rows:,}", f"{part.seconds:.2f}", rate)
    print_out(table, Text(drill.summary))
