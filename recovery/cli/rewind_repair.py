"""The verbs rewind and repair: they print their plan, and execute it with ``--confirm``."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from tidestate.recovery.cli.app import DRY, AsJson, Confirm, Force, RootPath, verbs
from tidestate.recovery.cli.completion import checkpoint_ids
from tidestate.recovery.cli.printing import key_value_table, print_json, print_out, text
from tidestate.recovery.cli.progress_bar import bar
from tidestate.recovery.cli.verify import findings_table
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.moments import checkpoint_at
from tidestate.recovery.log.ranges import ids_text
from tidestate.recovery.log.summary import pluralize, readable_time
from tidestate.recovery.moves.repair import execute_repair, plan_repair, plan_resync
from tidestate.recovery.moves.reset import Reset, execute_reset
from tidestate.recovery.moves.rewind import Replay, plan_replay, plan_rewind
from tidestate.statestore.errors import UsageError

LISTED = 20
"""At most this many checkpoints with panes are printed."""


class RepairTarget(StrEnum):
    """The checkpoint that a repair goes back to."""

    newest_good = "newest-good"


@verbs.command("rewind", epilog="Example: tidestate rewind /data/flights --to 2026-01-31T12:00 --confirm")
def rewind_root(
    root: RootPath,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="ID/TIME",
            help="A checkpoint, or the newest at a time.",
            autocompletion=checkpoint_ids,
        ),
    ],
    confirm: Confirm = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Go back to an older checkpoint: state, watermark and input position. The next start replays the input after it.

    A new checkpoint has the content of the older one; those in between stay but no longer count. Spark's own
    checkpoint is rewritten to match; the old one is kept in spark-replaced.
    """
    with bar() as progress:
        checkpoint = Checkpoint.open(root, progress)
        chosen = checkpoint_at(checkpoint, to)
        planned = plan_rewind(checkpoint, chosen)
        reset = planned.reset if planned.reset.id != chosen + 1 else None
        if confirm and reset is not None:
            execute_reset(checkpoint, reset, force=force)
    if reset is None:
        _print_nothing(as_json, {}, f"checkpoint {chosen} is the newest: there is nothing to undo")
    elif as_json:
        print_json(_plain(reset, planned.replay, confirm))
    else:
        print_out(*_plan(reset, planned.replay, confirm))


@verbs.command("repair", epilog="Example: tidestate repair /data/flights --to newest-good --confirm")
def repair_root(
    root: RootPath,
    to: Annotated[RepairTarget | None, typer.Option("--to", help="Go back to the newest intact checkpoint.")] = None,
    resync_spark: Annotated[
        bool, typer.Option("--resync-spark", help="Rewrite Spark's own checkpoint from our newest.")
    ] = False,
    confirm: Confirm = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Make a damaged root usable again: go back to an intact checkpoint, or rewrite Spark's own checkpoint.

    Nothing is deleted: damaged checkpoints stay but no longer count, the old spark folder is moved to spark-replaced.
    Every byte that is needed is read first.
    """
    if (to is None) == (not resync_spark):
        raise UsageError("choose one of --to newest-good and --resync-spark", code="repair-what")
    with bar() as progress:
        checkpoint = Checkpoint.open(root, progress)
        planned = plan_resync(checkpoint) if resync_spark else plan_repair(checkpoint)
        replay = plan_replay(checkpoint, planned.reset) if planned.reset is not None else None
        if confirm:
            execute_repair(checkpoint, planned, force=force)
    reset = planned.reset
    if reset is None or replay is None:
        _print_nothing(as_json, {"findings": []}, "nothing to repair")
    elif as_json:
        findings = [asdict(finding) for finding in planned.findings]
        print_json({**_plain(reset, replay, confirm), "findings": findings})
    else:
        print_out(findings_table(planned.findings), Text(""), *_plan(reset, replay, confirm))


def _print_nothing(as_json: bool, values: dict[str, object], message: str) -> None:
    if as_json:
        print_json({"done": False, "reset": None, **values})
    else:
        print_out(Text(message))


def _plain(reset: Reset, replay: Replay, confirmed: bool) -> dict[str, object]:
    return {"done": confirmed, "reset": reset.id, "abandoned": reset.abandoned, **asdict(replay)}


def _plan(reset: Reset, replay: Replay, confirmed: bool) -> list[RenderableType]:
    table = key_value_table()
    table.add_row("back to", f"checkpoint {replay.to}, created {readable_time(replay.created)} UTC")
    table.add_row("as checkpoint", f"{reset.id}; abandoned: {ids_text(reset.abandoned)}")
    table.add_row("watermark", text(readable_time(replay.watermark)))
    table.add_row("replayed", f"{pluralize(replay.events, 'event')} of {pluralize(replay.checkpoints, 'checkpoint')}")
    if replay.unreadable:
        ids = ", ".join(map(str, replay.unreadable))
        table.add_row("", f"and those of checkpoints that cannot be read: {ids}")
    if replay.batches:
        table.add_row("input", pluralize(replay.batches, "batch", "batches"))
    for span in replay.sources:
        files = "" if span.files is None else f" ({pluralize(len(span.files), 'file')})"
        table.add_row(f"source {span.source}", Text(f"{span.begin or 'the beginning'} to {span.end}{files}"))
        if span.starting_offsets is not None:
            table.add_row("", Text(f"startingOffsets {span.starting_offsets}"))
    for panes in replay.panes[:LISTED]:
        label = "repeats" if panes is replay.panes[0] else ""
        delivered = ", already delivered to the sink" if panes.delivered else ""
        table.add_row(label, f"{pluralize(panes.rows, 'pane')} of checkpoint {panes.checkpoint}{delivered}")
    if len(replay.panes) > LISTED:
        table.add_row("", f"and those of {pluralize(len(replay.panes) - LISTED, 'more checkpoint')}, see --json")
    if again := [late for late in replay.late if late.delivered]:
        rows, those = sum(late.rows for late in again), pluralize(len(again), "checkpoint")
        table.add_row("repeats", f"{pluralize(rows, 'late row')} of {those}, already delivered to the late sink")
    return [table, Text("done", style="green") if confirmed else DRY]
