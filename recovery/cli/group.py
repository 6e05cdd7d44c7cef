"""The command group: which verbs there are. A verb is loaded when it is run or asked for its help, not before.

Our own stand here with a line each, those of other packages are entry points of the group ``tidestate.commands``: the
name of one is that of the verb, what it names is a `typer.Typer` with that one command.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from tidestate.statestore.errors import TidestateError, UsageError
from tidestate.statestore.plugins import loaded

GROUP = "tidestate.commands"
VERBS = {
    "list": ("list_show", "The newest checkpoints, a line each."),
    "show": ("list_show", "All about one checkpoint."),
    "state": ("rows", "Rows of the state, at any checkpoint."),
    "panes": ("rows", "What the job has shown."),
    "late": ("rows", "What the job has rejected, and why."),
    "diff": ("rows", "What differs in the state between two checkpoints."),
    "verify": ("verify", "Whether everything is as it was written."),
    "rewind": ("rewind_repair", "Go back to an older checkpoint."),
    "repair": ("rewind_repair", "Make a damaged root run again."),
    "fork": ("pin_fork_gc", "A new job that goes on from a checkpoint of this one."),
    "pin": ("pin_fork_gc", "Keep a checkpoint."),
    "unpin": ("pin_fork_gc", "Keep a pinned checkpoint no longer."),
    "gc": ("pin_fork_gc", "Delete old checkpoints, and files that nothing needs."),
    "rescale": ("rescale", "Give a job another number of state partitions."),
    "restore": ("restore", "A fire drill: how long recovery takes."),
}
"""Our own verbs: the module of `tidestate.recovery.cli` that has each, and what the list of all says of it."""


class Unloaded(TyperCommand):
    """One of our own verbs, which gives way to the real one as soon as it is more than a line in a list."""

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the real one."""
        return load_verb(str(self.name)).make_context(info_name, args, parent, **extra)


def load_verb(name: str) -> Any:
    """One of our own verbs, loaded."""
    module = import_module(f"tidestate.recovery.cli.{VERBS[name][0]}")
    return typer.main.get_group(module.verbs).commands[name]


class Verbs(TyperGroup):
    """Our own verbs, then those of others. One that cannot be loaded is said in a line and hinders no other."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: Unloaded(name, help=line) for name, (_, line) in VERBS.items()}

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of all that can be run."""
        names = super().list_commands(ctx)
        return [*names, *(name for name in _others() if name not in names and self._works(name))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A verb; None where nobody has it."""
        return super().get_command(ctx, cmd_name) or self._loaded(cmd_name)

    def _works(self, name: str) -> bool:
        try:
            return self._loaded(name) is not None
        except TidestateError as error:
            from tidestate.recovery.cli.printing import print_error

            print_error(error)
            return False

    def _loaded(self, name: str) -> Any:
        found = _others().get(name)
        if found is None:
            return None
        verb: Any = loaded(found, "verb", UsageError, typer.main.get_command, code="verb-broken", verb=name)
        verb.name = name
        self.commands[name] = verb
        return verb


def _others() -> dict[str, Any]:
    """Entry points by name."""
    from importlib.metadata import entry_points  # only help and strange verbs need it

    return {one.name: one for one in sorted(entry_points(group=GROUP), key=lambda one: one.name)}
