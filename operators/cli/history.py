"""The verb that says why a number is so."""

from __future__ import annotations

from typing import Annotated

import typer

from tidestate.recovery.cli.app import AsJson, Import, Root
from tidestate.recovery.cli.options import FormatOption, Limit, Operator, OutputOption, keys_of
from tidestate.recovery.cli.printing import Format
from tidestate.recovery.cli.progress_bar import bar

history_command = typer.Typer(add_completion=False)
HistoryKeys = Annotated[
    list[str] | None, typer.Option("--key", metavar="COLUMN=VALUE", help="The key of the window.")
]
HistoryWindow = Annotated[
    str, typer.Option("--window", metavar="TIME", help="When it begins or ends; or a time that it alone holds.")
]


@history_command.command(
    "history", epilog="Example: tidestate history /data/flights --key origin=JFK --window 2013-01-01T10:00"
)
def history_of_window(
    root: Root,
    window: HistoryWindow,
    key: HistoryKeys = None,
    operator: Operator = None,
    form: FormatOption = Format.table,
    output: OutputOption = None,
    limit: Limit = None,
    modules: Import = None,
    as_json: AsJson = False,
) -> None:
    """Why a number is so: what came to one window, what was shown of it, refused by it, and when it was forgotten."""
    from tidestate.operators.inspect.history.printing import print_history
    from tidestate.operators.inspect.history.window_history import window_history
    from tidestate.recovery.log.checkpoint import Checkpoint

    with bar() as progress:
        found = window_history(Checkpoint.open(root, progress), window, keys_of(key), operator)
    print_history(found, Format.json if as_json else form, output, limit)
