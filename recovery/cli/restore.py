"""The verb that rehearses a restore."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from tidestate.recovery.cli.app import AsJson, Import, Root, verbs
from tidestate.recovery.cli.printing import print_json, print_out
from tidestate.recovery.cli.progress_bar import throughput_bar
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.summary import size_text
from tidestate.recovery.start.restore_drill import RestoreDrill, run_restore_drill
from tidestate.statestore.spec.store import Restored


class Store(StrEnum):
    """Those that hold the state themselves."""

    memory = "memory"
    rocksdb = "rocksdb"


@verbs.command("restore", epilog="Example: tidestate restore /data/flights --store rocksdb --parallel 4")
def rehearse_restore(
    root: Root,
    at: Annotated[int | None, typer.Option(metavar="ID", help="Which checkpoint; the newest by default.")] = None,
    store: Annotated[Store | None, typer.Option(help="Into which store; the job's by default.")] = None,
    parallel: Annotated[int, typer.Option(min=1, help="How many state partitions at once.")] = 1,
    modules: Import = None,
    as_json: AsJson = False,
) -> None:
    """A fire drill: restore the state of a checkpoint into a temporary folder, and see how long that takes.

    Nothing of the root is touched, and the folder is removed again. Predicted is what the size of the files and the
    speed measured at the job's last starts let expect; the budget is the `recovery_s` of the job's store.
    """
    checkpoint = Checkpoint.open(root)
    manifest = checkpoint.chosen(at).manifest
    with throughput_bar() as progress:
        task = progress.add_task("", total=None, what="")

        def tell(done: Restored, whole: Restored) -> None:
            what = f"{done.files:,} of {whole.files:,} files, {done.rows:,} rows"
            progress.update(task, completed=done.bytes, total=whole.bytes, what=what)

        found = run_restore_drill(checkpoint, manifest, store.value if store else None, parallel=parallel, tell=tell)
    if as_json:
        print_json(_plain(found))
    else:
        _print(found)


def _plain(found: RestoreDrill) -> dict[str, object]:
    operators = {name: {**msgspec.to_builtins(one), "rate": int(one.rate)} for name, one in found.operators.items()}
    whole = {**msgspec.to_builtins(found.whole), "rate": int(found.whole.rate)}
    return {
        "checkpoint": found.checkpoint,
        "store": found.store,
        "parallel": found.parallel,
        "operators": operators,
        "whole": whole,
        "predicted_s": found.predicted_s,
        "budget_s": found.budget_s,
    }


def _print(found: RestoreDrill) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("operator", overflow="fold")
    for heading in ("files", "bytes", "rows", "seconds", "a second"):
        table.add_column(heading, justify="right")
    for name, one in [*found.operators.items(), ("in all", found.whole)]:
        table.add_row(
            Text(name),
            f"{one.files:,}",
            size_text(one.bytes),
            f"{one.rows:,}",
            f"{one.seconds:.2f}",
            size_text(int(one.rate)),
        )
    budget = f"budget {found.budget_s} s" if found.budget_s is not None else "no budget known before the first batch"
    says = f"predicted {found.predicted_s:.2f} s, {budget}"
    at_once = f"{found.parallel} at once" if found.parallel > 1 else "one partition after the other"
    print_out(table, Text(f"checkpoint {found.checkpoint} into {found.store}, {at_once}\n{says}"))
