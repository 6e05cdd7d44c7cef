"""Verbs that print rows: of the state, of panes, of the late ledger, and what differs between two checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer

from tidestate.recovery.bars import Bar, bar
from tidestate.recovery.checkpoint import Checkpoint
from tidestate.recovery.commands.app import AsJson, Import, Root, chosen, verbs
from tidestate.recovery.outputs import Output as OutputOf
from tidestate.recovery.printing import Format, print_rows
from tidestate.recovery.reading import (
    Wanted,
    operator_of,
    output_rows,
    output_schema,
    state_difference,
    state_rows,
    table_of,
)
from tidestate.statestore.errors import UsageError

At = Annotated[int | None, typer.Option("--at", metavar="ID", help="Which checkpoint; the newest by default.")]
First = Annotated[int | None, typer.Option("--from", metavar="ID", help="The first checkpoint.")]
Last = Annotated[int | None, typer.Option("--to", metavar="ID", help="The last checkpoint.")]
Operator = Annotated[str | None, typer.Option("--operator", help="Which operator; the last of a chain by default.")]
TableName = Annotated[str | None, typer.Option("--table", help="Which state table; the first by default.")]
Keys = Annotated[list[str] | None, typer.Option("--key", metavar="COLUMN=VALUE", help="Only rows with this value.")]
Window = Annotated[str | None, typer.Option("--window", metavar="TIME", help="Only windows that begin or end then.")]
Since = Annotated[str | None, typer.Option("--since", metavar="TIME", help="Only windows that end then or later.")]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only windows that end before.")]
Form = Annotated[Format, typer.Option("--format", help="How to print.")]
Output = Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Into a file.")]
Limit = Annotated[int | None, typer.Option("--limit", min=0, help="How many rows; 50 in a table, else all.")]


@verbs.command("state", epilog="Example: tidestate state /data/flights --key origin=JFK --window 2013-01-01T10:00")
def print_state(
    root: Root,
    at: At = None,
    operator: Operator = None,
    table: TableName = None,
    key: Keys = None,
    window: Window = None,
    since: Since = None,
    until: Until = None,
    form: Form = Format.table,
    output: Output = None,
    limit: Limit = None,
    modules: Import = None,
    as_json: AsJson = False,
) -> None:
    """Rows of a state table at a checkpoint, by partition in the order of the key."""
    with bar() as seen:
        checkpoint = Checkpoint.open(root, seen)
        _, state = operator_of(chosen(checkpoint, at).manifest, operator)
        rows = state_rows(checkpoint, state, table_of(state, table), _wanted(key, window, since, until))
        _print(rows, form, output, limit, as_json, seen)


@verbs.command("panes", epilog="Example: tidestate panes /data/flights --from 40 --format csv > panes.csv")
def print_panes(
    root: Root,
    first: First = None,
    last: Last = None,
    key: Keys = None,
    window: Window = None,
    since: Since = None,
    until: Until = None,
    form: Form = Format.table,
    output: Output = None,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """What the job has shown, checkpoint by checkpoint."""
    _print_output(root, "panes", None, first, last, _wanted(key, window, since, until), form, output, limit, as_json)


@verbs.command("late", epilog="Example: tidestate late /data/flights --key reason=very_late")
def print_late(
    root: Root,
    first: First = None,
    last: Last = None,
    operator: Operator = None,
    key: Keys = None,
    window: Window = None,
    since: Since = None,
    until: Until = None,
    form: Form = Format.table,
    output: Output = None,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """The late ledger: events that were rejected, with the reason and the watermark they met."""
    _print_output(
        root, "late", operator, first, last, _wanted(key, window, since, until), form, output, limit, as_json
    )


@verbs.command("diff", epilog="Example: tidestate diff /data/flights 40 42 --key origin=JFK")
def print_difference(
    root: Root,
    before: Annotated[int, typer.Argument(metavar="ID")],
    after: Annotated[int, typer.Argument(metavar="ID")],
    operator: Operator = None,
    table: TableName = None,
    key: Keys = None,
    window: Window = None,
    since: Since = None,
    until: Until = None,
    form: Form = Format.table,
    output: Output = None,
    limit: Limit = None,
    modules: Import = None,
    as_json: AsJson = False,
) -> None:
    """What is different in a state table between two checkpoints, by its key."""
    wanted = _wanted(key, window, since, until)
    with bar() as seen:
        rows = state_difference(Checkpoint.open(root, seen), (before, after), operator, table, wanted)
        _print([rows], form, output, limit, as_json, seen)


def _print_output(
    root: str,
    kind: str,
    operator: str | None,
    first: int | None,
    last: int | None,
    wanted: Wanted,
    form: Format,
    output: Path | None,
    limit: int | None,
    as_json: bool,
) -> None:
    with bar() as seen:
        checkpoint = Checkpoint.open(root, seen)
        name, _ = operator_of(chosen(checkpoint, None).manifest, operator)

        def outputs() -> Iterable[OutputOf]:
            return checkpoint.outputs(first or 0, last)

        rows = output_rows(checkpoint, outputs(), kind, name, wanted)
        _print(rows, form, output, limit, as_json, seen, lambda: output_schema(checkpoint, outputs(), kind, name))


def _print(
    rows: Iterable[pa.Table],
    form: Format,
    output: Path | None,
    limit: int | None,
    as_json: bool,
    seen: Bar,
    columns: Callable[[], pa.Schema] | None = None,
) -> None:
    form = Format.json if as_json else form
    print_rows(rows, form, output, 50 if limit is None and form is Format.table else limit, columns, seen.clear)


def _wanted(key: list[str] | None, window: str | None, since: str | None, until: str | None) -> Wanted:
    return Wanted(keys_of(key), window, since, until)


def keys_of(given: list[str] | None) -> dict[str, str]:
    """Columns and their values. Raises `UsageError` where an option does not read COLUMN=VALUE."""
    pairs = [one.partition("=") for one in given or ()]
    if wrong := [name for name, sign, _ in pairs if not sign or not name]:
        raise UsageError("a key is COLUMN=VALUE", code="read-value", found=wrong)
    return {name: value for name, _, value in pairs}
