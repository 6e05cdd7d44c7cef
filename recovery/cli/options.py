"""Options of several verbs, also for verbs of other packages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from tidestate.recovery.cli.completion import checkpoint_ids, operator_names, table_names
from tidestate.recovery.cli.printing import Format
from tidestate.statestore.errors import UsageError

AtOption = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="ID/TIME",
        help="A checkpoint, or the newest one at a time. By default the newest of all.",
        autocompletion=checkpoint_ids,
    ),
]
First = Annotated[
    int | None,
    typer.Option("--from", metavar="ID", help="The first checkpoint.", autocompletion=checkpoint_ids),
]
FromTime = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="TIME", help="Start of the range: a time, or an offset where windows are of offsets."
    ),
]
ToTime = Annotated[str | None, typer.Option("--to", metavar="TIME", help="End of the range, inclusive.")]
Side = Annotated[str | None, typer.Option("--side", help="The side of a join.")]
Last = Annotated[
    int | None, typer.Option("--to", metavar="ID", help="The last checkpoint.", autocompletion=checkpoint_ids)
]
Operator = Annotated[
    str | None,
    typer.Option(
        "--operator", help="The operator. By default the last one of the job.", autocompletion=operator_names
    ),
]
TableName = Annotated[
    str | None, typer.Option("--table", help="The state table. By default the first one.", autocompletion=table_names)
]
KeyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--key", metavar="COLUMN=VALUE", help="Only rows with this value in this column, or in its list. Repeatable."
    ),
]
WindowKey = Annotated[
    list[str] | None,
    typer.Option("--key", metavar="COLUMN=VALUE", help="The key of the window; one option for each column."),
]
WindowOption = Annotated[
    str | None, typer.Option("--window", metavar="TIME", help="Only windows that start or end at this time.")
]
SinceOption = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="Only windows that end at this time or later.")
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only windows that end before this time.")]
FormatOption = Annotated[Format, typer.Option("--format", help="The output format.")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", metavar="FILE", help="Write to this file instead of standard output.")
]
Limit = Annotated[
    int | None,
    typer.Option("--limit", min=0, help="Print at most this many rows. By default 50 in a table, otherwise all."),
]
JobName = Annotated[
    str,
    typer.Argument(metavar="MODULE:JOB", help="The job, or a function that returns it; FILE.py:JOB works too."),
]
NewRoot = Annotated[
    str, typer.Argument(metavar="ROOT", help="The new root: a new folder, later the checkpoint= of the job.")
]
StreamFiles = Annotated[
    list[str] | None,
    typer.Option("--stream", metavar="NAME=FILES", help="The files of this stream, if there are several."),
]
ColumnsOfFiles = Annotated[
    str | None,
    typer.Option(
        "--schema",
        metavar="COLUMNS",
        help='The columns of the files, as Spark writes them, such as "t timestamp, k string".',
    ),
]
PartitionsOption = Annotated[
    int | None,
    typer.Option("--partitions", min=1, help="The number of state partitions. By default one for each core."),
]
ReadPercent = Annotated[
    float,
    typer.Option(
        "--read-data",
        metavar="[PERCENT]",
        min=0,
        max=100,
        help="Read and check every byte of all files, or of this percentage of them.",
    ),
]

Every = Annotated[str, typer.Option("--every", metavar="SPAN", help="How often to refresh it.")]
For = Annotated[
    str | None, typer.Option("--for", metavar="SPAN", help="Stop after this time. By default run until Ctrl-C.")
]


_ARGUMENT = re.compile(r"(?<![\w(.-])([a-z_]+)=(?:\[…\]|…|\.\.\.|True)?(?=[\s,;:]|$)")
"""An argument as errors name it; not one of a call, such as ``.messages(retention=…)``, which descriptions have."""
_NUMBER = re.compile(r"[+-]?\.?[0-9]")


class ReadData(TyperCommand):
    """``--read-data`` alone means all files."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put ``100`` after a ``--read-data`` that has no percentage, since an option of Click needs a value."""
        pairs = zip(args, [*args[1:], ""], strict=True)
        return super().parse_args(
            ctx, [f"{arg}=100" if arg == "--read-data" and not _NUMBER.match(after) else arg for arg, after in pairs]
        )


@contextmanager
def in_options(**options: str) -> Iterator[None]:
    """Errors of a reader in the words of the verb that calls it: where they name one of these arguments, as in
    ``leave side= out``, they name its option. What the verb has no option for stays as it is.
    """
    try:
        yield
    except UsageError as error:
        raise UsageError(named_as_options(error.message, options), code=error.code, **error.context) from None


def arguments_in(message: str) -> list[str]:
    """The names of the arguments that an error names."""
    return _ARGUMENT.findall(message)


def named_as_options(message: str, options: Mapping[str, str]) -> str:
    """``message`` with these ``options`` where it names arguments: ``leave side= out`` is ``leave --side out``."""
    return _ARGUMENT.sub(lambda match: options.get(match[1], match[0]), message)


def keys_of(options: list[str] | None) -> dict[str, str]:
    """Columns and their values. Raises `UsageError` for an option that is not COLUMN=VALUE."""
    pairs = [option.partition("=") for option in options or ()]
    if wrong := [name for name, sign, _ in pairs if not sign or not name]:
        raise UsageError("a key must be given as COLUMN=VALUE", code="read-value", found=wrong)
    return {name: value for name, _, value in pairs}
