"""The Typer application of the verbs, and the arguments that most of them share."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated

import typer
from rich.text import Text

from tidestate.statestore.errors import UsageError

verbs = typer.Typer()
"""The verbs that are loaded; `tidestate.recovery.cli.main` has the command group."""

RootPath = Annotated[
    str,
    typer.Argument(metavar="ROOT", help="The root of the job, its checkpoint=: a folder or URL.", show_default=False),
]
Roots = Annotated[
    list[str],
    typer.Argument(
        metavar="ROOT...", help="The root of a job, its checkpoint=; several are allowed.", show_default=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Confirm = Annotated[
    bool, typer.Option("--confirm", help="Make the change. Without this option, only print what would be done.")
]


def _import(modules: list[str] | None) -> list[str] | None:
    """Import the modules that the user names. Raises `UsageError` (``import-failed``)."""
    from tidestate.statestore.storage.local import local_path  # pyarrow takes a while to import

    for name in modules or ():
        if (folder := local_path("")) not in sys.path:
            sys.path.append(folder)
        try:
            import_module(name)
        except Exception as error:
            raise UsageError(
                f"the module cannot be imported ({type(error).__name__}: {error}): give a module on Python's path, "
                "or one in this folder",
                code="import-failed",
                module=name,
            ) from None
    return modules


Import = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        callback=_import,
        help="Import this module first, to register your own combiners.",
    ),
]
"""For verbs that fold state: a checkpoint alone never causes an import."""
Force = Annotated[
    bool, typer.Option("--force", help="Go ahead even if a driver is running. That driver is fenced and stops.")
]
DRY = Text("dry run, nothing was changed: use --confirm to do it", style="dim")
