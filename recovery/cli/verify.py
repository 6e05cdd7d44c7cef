"""Verbs that say whether a checkpoint root is whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from tidestate.recovery.cli.app import AsJson, Root, verbs
from tidestate.recovery.cli.options import ReadData, ReadPercent
from tidestate.recovery.cli.printing import print_json, print_out
from tidestate.recovery.cli.progress_bar import bar
from tidestate.recovery.inspect.verify import Finding, VerifyReport, verify
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.summary import pluralize, size_text

EXIT_CODES = {"manifest": 10, "chain": 11, "file": 12, "bytes": 13, "spark": 14}
"""By the worst kind of what was found."""


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


def _print(found: VerifyReport) -> None:
    looked = (
        f"{pluralize(found.checkpoints, 'checkpoint')}, {pluralize(found.files, 'file')}, {size_text(found.bytes)}"
    )
    if not found.findings:
        print_out(Text(f"whole: {looked}"))
        return
    good = f"the newest whole one is {found.good}" if found.good is not None else "none is whole"
    print_out(findings_table(found.findings), Text(f"{len(found.findings):,} findings in {looked}; {good}"))


def findings_table(findings: Sequence[Finding]) -> Table:
    """What is wrong, a line each."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("kind", "checkpoint", "path", "why"):
        table.add_column(heading, justify="right" if heading == "checkpoint" else "left", overflow="fold")
    for one in findings:
        why = f"{one.why} (abandoned)" if one.abandoned else one.why
        table.add_row(one.kind, str(one.checkpoint), Text(one.path), Text(why))
    return table
