"""Where verbs are registered, and what they share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from statestore.errors import NotFoundError

if TYPE_CHECKING:
    from recovery.checkpoint import Checkpoint, Head

verbs = typer.Typer()
"""Those that are loaded; `recovery.cli` has the command group."""

Root = Annotated[str, typer.Argument(help="The folder that the job was given as checkpoint=.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Confirm = Annotated[bool, typer.Option("--confirm", help="Do it; without this, only say what would be done.")]
Force = Annotated[bool, typer.Option("--force", help="Even beside a running driver, which is fenced.")]
DRY = Text("nothing was changed: --confirm does it", style="dim")


def chosen(checkpoint: Checkpoint, checkpoint_id: int | None) -> Head:
    """The checkpoint asked for, or the newest."""
    head = checkpoint.head() if checkpoint_id is None else checkpoint.read(checkpoint_id)
    if head is None:
        raise NotFoundError(
            "this root has no checkpoint yet: start the job", code="no-such-checkpoint", root=checkpoint.objects.root
        )
    return head
