"""The verb withdraw.

The list of verbs loads this module, so slow imports are inside functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from tidestate.recovery.cli.app import DRY, AsJson, Confirm, RootPath
from tidestate.recovery.cli.printing import key_value_table, print_json, print_out
from tidestate.recovery.cli.progress_bar import bar

if TYPE_CHECKING:
    from tidestate.operators.sinks.withdrawal import Withdrawal, WithdrawnDelivery

withdraw_command = typer.Typer(add_completion=False)


@withdraw_command.command(
    "withdraw",
    short_help="Remove what a target has of abandoned checkpoints.",
    epilog="Example: tidestate withdraw /data/flights flights:sink --confirm",
)
def withdraw(
    root: RootPath,
    sink: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:SINK", help="A sink as the job has it, or a function that makes it; or FILE.py:SINK."
        ),
    ],
    confirm: Confirm = False,
    as_json: AsJson = False,
) -> None:
    """Remove what the target of a sink has of checkpoints that a rewind or a repair has abandoned.

    In a folder of Parquet files those of abandoned checkpoints go. In tables of Delta, Iceberg and PostgreSQL, with
    append or changelog, their rows go in one transaction: the sink needs delivery_column=. An upsert and messages of
    Kafka are refused, with what to do instead. The job must not run.
    """
    from tidestate.operators.sinks.withdrawal import execute_withdrawal, plan_withdrawal
    from tidestate.recovery.log.checkpoint import Checkpoint

    target = _sink(sink)
    with bar() as progress:
        checkpoint = Checkpoint.open(root, progress)
        planned = plan_withdrawal(checkpoint, target)
        if confirm:
            execute_withdrawal(checkpoint, target, planned)
    if as_json:
        print_json({**_plain(planned), "done": confirm})
    else:
        _print(planned, done=confirm)


def _sink(name: str) -> Any:
    """The sink of this name, or what a function of this name makes."""
    from tidestate.operators.local.bootstrap import load_object
    from tidestate.operators.sinks.included import IncludedSink
    from tidestate.statestore.errors import UsageError

    given = load_object(name)
    if isinstance(given, IncludedSink) or not callable(given):
        return given
    try:
        return given()
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"this makes no sink ({type(error).__name__}: {error}): give a sink, or a function without arguments",
            code="withdraw-sink",
            found=name,
        ) from None


def _plain(planned: Withdrawal) -> dict[str, object]:
    facts = asdict(planned)
    return {name: facts[name] for name in ("sink", "abandoned", "deliveries", "stays", "unknown", "without_id")}


def _print(planned: Withdrawal, *, done: bool) -> None:
    from tidestate.recovery.log.ranges import ids_text
    from tidestate.recovery.log.summary import pluralize

    table = key_value_table()
    table.add_row("target", Text(planned.sink))
    table.add_row("abandoned", ids_text(planned.abandoned))
    table.add_row("removed" if done else "to remove", _deliveries(planned.deliveries))
    table.add_row("stays", pluralize(planned.stays, "delivery", "deliveries"))
    if planned.unknown:
        table.add_row("", f"{planned.unknown:,} of them are of no run that this root has a record of")
    if planned.without_id:
        table.add_row("", f"{pluralize(planned.without_id, 'row')} without an id")
    print_out(table, Text("done", style="green") if done else DRY)


def _deliveries(removed: Sequence[WithdrawnDelivery]) -> str:
    """How many of them, of which checkpoints, with how many rows."""
    from tidestate.recovery.log.ranges import ids_text, merged_ranges
    from tidestate.recovery.log.summary import pluralize

    if not removed:
        return "nothing"
    count, rows = pluralize(len(removed), "delivery", "deliveries"), [delivery.rows for delivery in removed]
    ids = {delivery.checkpoint for delivery in removed}
    checkpoints = f"checkpoint{'s' * (len(ids) > 1)} {ids_text(merged_ranges((number, number) for number in ids))}"
    total = "" if None in rows else f", {pluralize(sum(filter(None, rows)), 'row')}"
    return f"{count} of {checkpoints}{total}"
