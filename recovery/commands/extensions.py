"""Verbs of other packages: entry points of the group ``tidemark.commands``, loaded when they are asked for.

The name of an entry point is that of the verb; what it names is a `typer.Typer` with that one command.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from recovery.printing import complain
from statestore.errors import TidemarkError, UsageError

GROUP = "tidemark.commands"


class Verbs(TyperGroup):
    """Our own verbs, then those of others. One that cannot be loaded is said in a line and hinders no other."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of all that can be run."""
        own = super().list_commands(ctx)
        return [*own, *(name for name in _others() if name not in own and self._works(name))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A verb; None where nobody has it."""
        return super().get_command(ctx, cmd_name) or self._loaded(cmd_name)

    def _works(self, name: str) -> bool:
        try:
            return self._loaded(name) is not None
        except TidemarkError as error:
            complain(error)
            return False

    def _loaded(self, name: str) -> Any:
        found = _others().get(name)
        if found is None:
            return None
        try:
            verb: Any = typer.main.get_command(found.load())
        except Exception as error:
            raise UsageError(
                f"the package that brings this verb is broken ({type(error).__name__}: {error}): install it again",
                code="verb-broken",
                verb=name,
                package=found.dist.name if found.dist else found.value,
            ) from None
        verb.name = name
        self.commands[name] = verb
        return verb


def _others() -> dict[str, Any]:
    """Entry points by name."""
    from importlib.metadata import entry_points  # only help and strange verbs need it

    return {one.name: one for one in sorted(entry_points(group=GROUP), key=lambda one: one.name)}
