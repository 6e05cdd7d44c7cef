"""The verb history: how the result of one window came about."""

from __future__ import annotations

from typing import Annotated

import typer

from tidestate.recovery.cli.app import AsJson, Import, RootPath
from tidestate.recovery.cli.options import FormatOption, Limit, Operator, OutputOption, WindowKey, in_options, keys_of
from tidestate.recovery.cli.printing import Format
from tidestate.recovery.cli.progress_bar import bar

history_command = typer.Typer(add_completion=False)
HistoryWindow = Annotated[
    str,
    typer.Option(
        "--window", metavar="TIME", help="The start or end of the window, or a time in it and in no other window."
    ),
]


@history_command.command(
    "history",
    short_help="Explain the result of one window.",
    epilog="Example: tidestate history /data/flights --key origin=JFK --window 2013-01-01T10:00",
)
def history_of_window(
    root: RootPath,
    window: HistoryWindow,
    key: WindowKey = None,
    operator: Operator = None,
    form: FormatOption = Format.table,
    output: OutputOption = None,
    limit: Limit = None,
    modules: Import = None,
    as_json: AsJson = False,
) -> None:
    """Explain the result of one window: events added, emitted and rejected, and when it expired."""
    from tidestate.operators.inspect.history.printing import print_history
    from tidestate.operators.inspect.history.window_history import window_history
    from tidestate.recovery.log.checkpoint import Checkpoint

    with bar() as progress, in_options(key="--key COLUMN=VALUE"):
        history = window_history(Checkpoint.open(root, progress), window, keys_of(key), operator)
    print_history(history, Format.json if as_json else form, output, limit)
