"""Verbs that say whether a checkpoint root is whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand

from tidestate.recovery.bars import bar
from tidestate.recovery.checkpoint import Checkpoint
from tidestate.recovery.commands.app import AsJson, Root, verbs
from tidestate.recovery.printing import emit, print_json
from tidestate.recovery.summary import counted, size_text
from tidestate.recovery.verify import Finding, Report, verify

EXIT_CODES = {"manifest": 10, "chain": 11, "file": 12, "bytes": 13, "spark": 14}
"""By the worst kind of what was found."""


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


@verbs.command(
    "verify", cls=ReadData, epilog="Example: tidestate verify /data/flights --read-data --spark-checkpoint"
)
def verify_root(
    root: Root,
    read_data: ReadPercent = 0.0,
    spark: Annotated[bool, typer.Option("--spark-checkpoint", help="Whether Spark's own log agrees, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Whether all checkpoints, their files and, if asked, every byte are as they were written.

    Exit codes: 0 whole, 10 a manifest is damaged or the newest are gone, 11 the chain is broken, 12 files are gone or
    cut, 13 bytes are wrong, 14 Spark disagrees.
    """
    with bar() as seen:
        found = verify(Checkpoint.open(root, seen), read_percent=read_data, spark=spark)
    if as_json:
        print_json(asdict(found))
    else:
        _print(found)
    if found.worst is not None:
        raise typer.Exit(EXIT_CODES[found.worst.kind])


def _print(found: Report) -> None:
    looked = f"{counted(found.checkpoints, 'checkpoint')}, {counted(found.files, 'file')}, {size_text(found.bytes)}"
    if not found.findings:
        emit(Text(f"whole: {looked}"))
        return
    good = f"the newest whole one is {found.good}" if found.good is not None else "none is whole"
    emit(findings_table(found.findings), Text(f"{len(found.findings):,} findings in {looked}; {good}"))


def findings_table(findings: Sequence[Finding]) -> Table:
    """What is wrong, a line each."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("kind", "checkpoint", "path", "why"):
        table.add_column(heading, justify="right" if heading == "checkpoint" else "left", overflow="fold")
    for one in findings:
        why = f"{one.why} (abandoned)" if one.abandoned else one.why
        table.add_row(one.kind, str(one.checkpoint), Text(one.path), Text(why))
    return table
