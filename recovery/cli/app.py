"""Where verbs are registered, and what they share."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated

import typer
from rich.text import Text

from tidestate.statestore.errors import UsageError

verbs = typer.Typer()
"""Those that are loaded; `tidestate.recovery.cli.main` has the command group."""

Root = Annotated[str, typer.Argument(help="The folder that the job was given as checkpoint=.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Confirm = Annotated[bool, typer.Option("--confirm", help="Do it; without this, only say what would be done.")]


def _import(modules: list[str] | None) -> list[str] | None:
    """Import what the user names. Raises `UsageError` (``import-failed``)."""
    for name in modules or ():
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        try:
            import_module(name)
        except Exception as error:
            raise UsageError(
                f"the module cannot be imported ({type(error).__name__}: {error}): name one that Python finds here",
                code="import-failed",
                module=name,
            ) from None
    return modules


Import = Annotated[
    list[str] | None,
    typer.Option(
        "--import", metavar="MODULE", callback=_import, help="Import this first: it registers combiners of yours."
    ),
]
"""For verbs that fold state: no module is imported because a checkpoint names it."""
Force = Annotated[bool, typer.Option("--force", help="Even beside a running driver, which is fenced.")]
DRY = Text("nothing was changed: --confirm does it", style="dim")
