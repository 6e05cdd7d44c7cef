"""The verb verify: whether all that is stored is there and right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from tidestate.recovery.cli.app import AsJson, RootPath, verbs
from tidestate.recovery.cli.options import ReadData, ReadPercent
from tidestate.recovery.cli.printing import data_table, print_json, print_out
from tidestate.recovery.cli.progress_bar import bar
from tidestate.recovery.inspect.verify import Finding, verify
from tidestate.recovery.log.checkpoint import Checkpoint

EXIT_CODES = {"manifest": 10, "chain": 11, "file": 12, "bytes": 13, "spark": 14}
"""By the worst kind of finding."""


@verbs.command(
    "verify", cls=ReadData, epilog="Example: tidestate verify /data/flights --read-data --spark-checkpoint"
)
def verify_root(
    root: RootPath,
    read_data: ReadPercent = 0.0,
    spark: Annotated[
        bool, typer.Option("--spark-checkpoint", help="Also check that Spark's own checkpoint matches.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check that all checkpoints and their files are there and, with --read-data, that every byte is right.

    Exit codes: 0 intact; 10 a manifest is damaged, or the newest ones are missing; 11 the chain of manifests is
    broken; 12 files are missing or truncated; 13 bytes are wrong; 14 Spark's checkpoint does not match.
    """
    with bar() as progress:
        report = verify(Checkpoint.open(root, progress), read_percent=read_data, spark=spark)
    if as_json:
        print_json(asdict(report))
    else:
        table = [findings_table(report.findings)] if report.findings else []
        print_out(*table, Text(report.summary))
    if report.worst is not None:
        raise typer.Exit(EXIT_CODES[report.worst.kind])


def findings_table(findings: Sequence[Finding]) -> Table:
    """A row for each finding."""
    table = data_table(("kind", "checkpoint", "path", "problem"), ("checkpoint",))
    for finding in findings:
        reason = f"{finding.why} (abandoned)" if finding.abandoned else finding.why
        table.add_row(finding.kind, str(finding.checkpoint), Text(finding.path), Text(reason))
    return table
