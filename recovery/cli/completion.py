"""What a shell completes of the root that stands in the command: checkpoint ids, pins, operators, tables.

A completion never fails and never prints: where nothing can be read there is nothing to complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from tidestate.recovery.log.checkpoint import Checkpoint
    from tidestate.recovery.log.manifest import Manifest

IDS = 100
"""How many of the newest checkpoints are offered."""


def checkpoint_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """The newest ids, and pinned ones, newest first."""

    def found(checkpoint: Checkpoint) -> Iterable[str]:
        from tidestate.recovery.log.records import read_pins

        ids = {*checkpoint.ids()[-IDS:], *(pin.checkpoint for pin in read_pins(checkpoint.objects))}
        return map(str, sorted(ids, reverse=True))

    return _of_root(ctx, incomplete, found)


def pin_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names of the root's pins, to complete an argument."""

    def found(checkpoint: Checkpoint) -> Iterable[str]:
        from tidestate.recovery.log.records import read_pins

        return sorted(pin.name for pin in read_pins(checkpoint.objects))

    return _of_root(ctx, incomplete, found)


def operator_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The operators of the newest checkpoint."""
    return _of_root(ctx, incomplete, lambda checkpoint: _newest(checkpoint).operators)


def table_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The tables of the operator that was chosen, by default of the last one."""

    def found(checkpoint: Checkpoint) -> Iterable[str]:
        operators = _newest(checkpoint).operators
        return [spec.name for spec in operators[ctx.params.get("operator") or list(operators)[-1]].tables]

    return _of_root(ctx, incomplete, found)


def _of_root(ctx: typer.Context, incomplete: str, names_of: Callable[[Checkpoint], Iterable[str]]) -> list[str]:
    root = ctx.params.get("root") or next(iter(ctx.params.get("roots") or ()), None)
    names: list[str] = []
    if root:
        from tidestate.recovery.log.checkpoint import Checkpoint

        with suppress(Exception):
            names = [name for name in names_of(Checkpoint.open(root)) if name.startswith(incomplete)]
    return names


def _newest(checkpoint: Checkpoint) -> Manifest:
    return checkpoint.chosen(None).manifest
