"""The command group. A verb is loaded only when it is run or its help is printed.

The verbs of this package are listed here. Those of other packages are entry points of the group
``tidestate.commands``: the name of an entry point is the verb, its object a `typer.Typer` with that one command.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from tidestate.statestore.errors import TidestateError, UsageError
from tidestate.statestore.plugins import loaded

GROUP = "tidestate.commands"
VERBS = {
    "list": ("list_show", "List the newest checkpoints."),
    "show": ("list_show", "Show all details of one checkpoint."),
    "watch": ("watch", "Follow a running job."),
    "state": ("rows", "Print rows of the state at any checkpoint."),
    "panes": ("rows", "Print the panes that the job has emitted."),
    "late": ("rows", "Print rejected events, with the reasons."),
    "check": ("check", "Check the health of a job against limits, for orchestrators."),
    "verify": ("verify", "Check that all files are intact."),
    "rewind": ("rewind_repair", "Go back to an older checkpoint."),
    "repair": ("rewind_repair", "Make a damaged root usable again."),
    "fork": ("pin_fork_gc", "Start a new job from a checkpoint of this one."),
    "pin": ("pin_fork_gc", "Protect a checkpoint from being deleted."),
    "unpin": ("pin_fork_gc", "Remove a pin."),
    "gc": ("pin_fork_gc", "Delete old checkpoints, and files that are no longer needed."),
    "stop": ("stop", "End a job that runs elsewhere."),
    "rescale": ("rescale", "Change the number of state partitions."),
    "restore": ("restore", "Measure how long a restore takes."),
}
"""The verbs of this package: the module in `tidestate.recovery.cli`, and the line in the list of verbs."""


class Unloaded(TyperCommand):
    """A verb that is loaded when it is run or its help is printed."""

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the loaded verb."""
        return load_verb(str(self.name)).make_context(info_name, args, parent, **extra)


@cache
def load_verb(name: str) -> Any:
    """Load a verb of this package."""
    module = import_module(f"tidestate.recovery.cli.{VERBS[name][0]}")
    return _flowing(typer.main.get_group(module.verbs).commands[name])


def _flowing(verb: Any) -> Any:
    """``verb`` with each paragraph of its help on one line: Typer keeps the line ends of all but the first, so at
    another width than that of the source lines would be ragged.
    """
    verb.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in (verb.help or "").split("\n\n"))
    return verb


class Verbs(TyperGroup):
    """The verbs of this package, then those of others. One that cannot be loaded is reported and left out."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: Unloaded(name, help=line) for name, (_, line) in VERBS.items()}

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all verbs."""
        names = super().list_commands(ctx)
        return [*names, *(name for name in _others() if name not in names and self._works(name))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A verb by name, or None."""
        return super().get_command(ctx, cmd_name) or self._loaded(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As Click does. A shell completes the value of an option that has none yet, and Click would stop reading
        there and find no root: it is left out.
        """
        name, verb, arguments = super().resolve_command(ctx, args)
        is_unfinished = ctx.resilient_parsing and arguments and arguments[-1].startswith("--")
        return name, verb, arguments[:-1] if is_unfinished else arguments

    def _works(self, name: str) -> bool:
        try:
            return self._loaded(name) is not None
        except TidestateError as error:
            from tidestate.recovery.cli.printing import print_error

            print_error(error)
            return False

    def _loaded(self, name: str) -> Any:
        entry = _others().get(name)
        if entry is None:
            return None
        verb: Any = loaded(entry, "verb", UsageError, typer.main.get_command, code="verb-broken", verb=name)
        verb.name = name
        self.commands[name] = _flowing(verb)
        return verb


def _others() -> dict[str, Any]:
    """Entry points by name."""
    from importlib.metadata import entry_points  # needed for help and verbs of other packages only

    return {entry.name: entry for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)}
