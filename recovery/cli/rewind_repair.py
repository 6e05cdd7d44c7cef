"""Verbs that go back to an older checkpoint: rewind and repair. They say what they would do, and do it when told."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from tidestate.recovery.cli.app import DRY, AsJson, Confirm, Force, Root, verbs
from tidestate.recovery.cli.printing import key_value_table, print_json, print_out, text
from tidestate.recovery.cli.progress_bar import bar
from tidestate.recovery.cli.verify import findings_table
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.ranges import ids_text
from tidestate.recovery.log.summary import pluralize
from tidestate.recovery.moves.repair import execute_repair, plan_repair, plan_resync
from tidestate.recovery.moves.reset import Reset, execute_reset
from tidestate.recovery.moves.rewind import Replay, checkpoint_at, plan_replay, plan_rewind
from tidestate.statestore.errors import UsageError

LISTED = 20
"""How many checkpoints with panes a table names."""


class RepairTarget(StrEnum):
    """Where a repair goes."""

    newest_good = "newest-good"


@verbs.command("rewind", epilog="Example: tidestate rewind /data/flights --to 2026-01-31T12:00 --confirm")
def rewind_root(
    root: Root,
    to: Annotated[str, typer.Option("--to", metavar="ID/TIME", help="A checkpoint, or the newest made by then.")],
    confirm: Confirm = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Back to an older checkpoint: state, watermark and place in the input together; the next start replays the rest.

    A new checkpoint has all of the older one; those in between stay and do not count any more. Spark's own checkpoint
    is written anew to fit; the old one is kept in spark-replaced.
    """
    with bar() as seen:
        checkpoint = Checkpoint.open(root, seen)
        chosen = checkpoint_at(checkpoint, to)
        planned = plan_rewind(checkpoint, chosen)
        done, replay = planned.reset, planned.replay
        undoes = done.id != chosen + 1
        if confirm and undoes:
            execute_reset(checkpoint, done, force=force)
    if not undoes:
        _say(as_json, {"done": False, "reset": None}, f"checkpoint {chosen} is the newest: there is nothing to undo")
        return
    if as_json:
        print_json({"done": confirm, "reset": done.id, "abandoned": done.abandoned, **asdict(replay)})
        return
    print_out(*_plan(done, replay, confirm))


@verbs.command("repair", epilog="Example: tidestate repair /data/flights --to newest-good --confirm")
def repair_root(
    root: Root,
    to: Annotated[
        RepairTarget | None, typer.Option("--to", help="Back to the newest checkpoint that is whole.")
    ] = None,
    resync_spark: Annotated[
        bool, typer.Option("--resync-spark", help="Write Spark's own checkpoint anew from our newest.")
    ] = False,
    confirm: Confirm = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Make a damaged checkpoint root run again: go back to what is whole, or write Spark's own checkpoint anew.

    What is replaced is kept: damaged checkpoints stay and do not count any more, the old spark folder goes to
    spark-replaced. Every byte that is needed is read first.
    """
    if (to is None) == (not resync_spark):
        raise UsageError("say which: --to newest-good or --resync-spark", code="repair-what")
    with bar() as seen:
        checkpoint = Checkpoint.open(root, seen)
        planned = plan_resync(checkpoint) if resync_spark else plan_repair(checkpoint)
        replay = plan_replay(checkpoint, planned.reset) if planned.reset is not None else None
        if confirm:
            execute_repair(checkpoint, planned, force=force)
    done = planned.reset
    if done is None or replay is None:
        _say(as_json, {"done": False, "findings": [], "reset": None}, "nothing to repair")
        return
    if as_json:
        found = [asdict(one) for one in planned.findings]
        print_json(
            {"done": confirm, "reset": done.id, "abandoned": done.abandoned, "findings": found, **asdict(replay)}
        )
        return
    print_out(findings_table(planned.findings), Text(""), *_plan(done, replay, confirm))


def _say(as_json: bool, values: dict[str, object], words: str) -> None:
    if as_json:
        print_json(values)
    else:
        print_out(Text(words))


def _plan(done: Reset, replay: Replay, confirmed: bool) -> list[RenderableType]:
    table = key_value_table()
    table.add_row("back to", f"checkpoint {replay.to}, made {replay.created} UTC")
    table.add_row("as checkpoint", f"{done.id}; abandoned: {ids_text(done.abandoned)}")
    table.add_row("watermark", text(replay.watermark))
    table.add_row("replayed", f"{pluralize(replay.events, 'event')} of {pluralize(replay.checkpoints, 'checkpoint')}")
    if replay.unreadable:
        ids = ", ".join(map(str, replay.unreadable))
        table.add_row("", f"and those of checkpoints that cannot be read: {ids}")
    if replay.batches:
        table.add_row("input", f"{replay.batches:,} batches")
    for one in replay.sources:
        files = "" if one.files is None else f" ({pluralize(len(one.files), 'file')})"
        table.add_row(f"source {one.source}", Text(f"{one.begin or 'its beginning'} to {one.end}{files}"))
        if one.starting_offsets is not None:
            table.add_row("", Text(f"startingOffsets {one.starting_offsets}"))
    for shown in replay.panes[:LISTED]:
        label = "panes again" if shown is replay.panes[0] else ""
        had = ", which the sink has had" if shown.delivered else ""
        table.add_row(label, f"{shown.rows:,} of checkpoint {shown.checkpoint}{had}")
    if len(replay.panes) > LISTED:
        table.add_row("", f"and of {pluralize(len(replay.panes) - LISTED, 'more checkpoint')}; --json has all")
    return [table, Text("done", style="green") if confirmed else DRY]
