"""The command ``tidemark``: look into checkpoints, from any machine, without Java or Spark."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from statestore.errors import DataError, NotFoundError, TidemarkError

if TYPE_CHECKING:
    from recovery.commands.app import app as app

EXIT_DATA, EXIT_NOT_FOUND, EXIT_OTHER = 3, 4, 5
VERBS = {
    "checking": ("verify",),
    "history": ("history",),
    "keeping": ("fork", "pin", "unpin", "gc"),
    "looking": ("list", "show"),
    "reading": ("state", "panes", "late", "diff"),
    "reporting": ("report",),
    "rescaling": ("rescale",),
    "resetting": ("rewind", "repair"),
    "restoring": ("restore",),
}
"""Which module of `recovery.commands` has which verbs: only the one that is asked for is loaded."""


def main() -> None:
    """Entry point: run the command and turn errors into one line and an exit code."""
    given = next((one for one in sys.argv[1:] if not one.startswith("-")), "")
    asked = [module for module, verbs in VERBS.items() if given in verbs]
    try:
        _loaded(asked if asked and "_TIDEMARK_COMPLETE" not in os.environ else list(VERBS))()
    except TidemarkError as error:
        from recovery.printing import complain

        complain(error)
        sys.exit(_exit_code(error))


def _loaded(modules: list[str]) -> Any:
    """The command group, with the verbs of some modules."""
    for module in modules:
        import_module(f"recovery.commands.{module}")
    return import_module("recovery.commands.app").app


def __getattr__(name: str) -> Any:
    """``app``, whole, for whoever asks for it."""
    if name == "app":
        return _loaded(list(VERBS))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _exit_code(error: TidemarkError) -> int:
    if isinstance(error, DataError):
        return EXIT_DATA
    return EXIT_NOT_FOUND if isinstance(error, NotFoundError) else EXIT_OTHER


if __name__ == "__main__":
    main()
