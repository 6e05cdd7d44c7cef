"""Options that several verbs have, those of other packages too."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from tidestate.recovery.cli.printing import Format
from tidestate.statestore.errors import UsageError

AtOption = Annotated[int | None, typer.Option("--at", metavar="ID", help="Which checkpoint; the newest by default.")]
First = Annotated[int | None, typer.Option("--from", metavar="ID", help="The first checkpoint.")]
Last = Annotated[int | None, typer.Option("--to", metavar="ID", help="The last checkpoint.")]
Operator = Annotated[str | None, typer.Option("--operator", help="Which operator; the last of a chain by default.")]
TableName = Annotated[str | None, typer.Option("--table", help="Which state table; the first by default.")]
KeyOption = Annotated[
    list[str] | None, typer.Option("--key", metavar="COLUMN=VALUE", help="Only rows with this value.")
]
WindowOption = Annotated[
    str | None, typer.Option("--window", metavar="TIME", help="Only windows that begin or end then.")
]
SinceOption = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="Only windows that end then or later.")
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only windows that end before.")]
FormatOption = Annotated[Format, typer.Option("--format", help="How to print.")]
OutputOption = Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Into a file.")]
Limit = Annotated[int | None, typer.Option("--limit", min=0, help="How many rows; 50 in a table, else all.")]
ReadPercent = Annotated[
    float,
    typer.Option(
        "--read-data", metavar="[PERCENT]", min=0, max=100, help="Read every byte, of all files or of so many."
    ),
]


class ReadData(TyperCommand):
    """``--read-data`` alone means all files."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give it the value that it lacks."""
        following = [*args[1:], ""]
        bare = [arg == "--read-data" and not _is_number(after) for arg, after in zip(args, following, strict=True)]
        return super().parse_args(
            ctx, ["--read-data=100" if alone else arg for arg, alone in zip(args, bare, strict=True)]
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def keys_of(given: list[str] | None) -> dict[str, str]:
    """Columns and their values. Raises `UsageError` where an option does not read COLUMN=VALUE."""
    pairs = [one.partition("=") for one in given or ()]
    if wrong := [name for name, sign, _ in pairs if not sign or not name]:
        raise UsageError("a key is COLUMN=VALUE", code="read-value", found=wrong)
    return {name: value for name, _, value in pairs}
