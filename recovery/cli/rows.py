"""The verbs state, panes and late, which print rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa

from tidestate.recovery.cli.app import AsJson, Import, RootPath, verbs
from tidestate.recovery.cli.options import (
    AtOption,
    First,
    FormatOption,
    KeyOption,
    Last,
    Limit,
    Operator,
    OutputOption,
    SinceOption,
    TableName,
    Until,
    WindowOption,
    keys_of,
)
from tidestate.recovery.cli.printing import Format, print_rows
from tidestate.recovery.cli.progress_bar import bar
from tidestate.recovery.inspect.rows import (
    Wanted,
    operator_of,
    output_operator_of,
    output_rows,
    output_schema,
    state_rows,
    table_of,
)
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest, OutputKind
from tidestate.recovery.log.manifest import Output as OutputOf
from tidestate.recovery.log.moments import head_at


@verbs.command("state", epilog="Example: tidestate state /data/flights --key origin=JFK --window 2013-01-01T10:00")
def print_state(
    root: RootPath,
    at: AtOption = None,
    operator: Operator = None,
    table: TableName = None,
    key: KeyOption = None,
    window: WindowOption = None,
    since: SinceOption = None,
    until: Until = None,
    form: FormatOption = Format.table,
    output: OutputOption = None,
    limit: Limit = None,
    modules: Import = None,
    as_json: AsJson = False,
) -> None:
    """Print rows of a state table at a checkpoint, by partition and in key order within each."""
    with bar() as progress:
        checkpoint = Checkpoint.open(root, progress)
        _, state = operator_of(head_at(checkpoint, at).manifest, operator)
        rows = state_rows(checkpoint, state, table_of(state, table), Wanted(keys_of(key), window, since, until))
        print_rows(rows, Format.json if as_json else form, output, limit, clear=progress.clear)


def _verb_of(kind: OutputKind) -> Callable[..., None]:
    """The verb that prints what a job has put out of this kind."""

    def print_output(
        root: RootPath,
        first: First = None,
        last: Last = None,
        operator: Operator = None,
        key: KeyOption = None,
        window: WindowOption = None,
        since: SinceOption = None,
        until: Until = None,
        form: FormatOption = Format.table,
        output: OutputOption = None,
        limit: Limit = None,
        as_json: AsJson = False,
    ) -> None:
        selection = Wanted(keys_of(key), window, since, until)
        with bar() as progress:
            checkpoint = Checkpoint.open(root, progress)
            head = checkpoint.chosen(None).manifest
            name = output_operator_of(head, operator) if kind == "panes" else operator_of(head, operator)[0]

            def outputs() -> Iterable[OutputOf]:
                return checkpoint.outputs(first or 0, last)

            def columns() -> pa.Schema:
                return output_schema(checkpoint, outputs(), kind, name)

            rows = output_rows(checkpoint, outputs(), kind, name, selection)
            note = _other_ledgers(head, name, outputs()) if kind == "late" and operator is None else ""
            print_rows(rows, Format.json if as_json else form, output, limit, columns, progress.clear, note)

    return print_output


verbs.command(
    "panes",
    help="Print the panes that the job has emitted, checkpoint by checkpoint; of several outputs those of one.",
    epilog="Example: tidestate panes /data/flights --from 40 --format csv > panes.csv",
)(_verb_of("panes"))
verbs.command(
    "late",
    help="Print the late ledger: rejected events, each with the reason and the watermark at that time.",
    epilog="Example: tidestate late /data/flights --key reason=very_late",
)(_verb_of("late"))


def _other_ledgers(head: Manifest, name: str, outputs: Iterable[OutputOf]) -> str:
    """What the ledgers of other operators have; empty where they have nothing."""
    counts = dict.fromkeys((other for other in head.operators if other != name), 0)
    if not counts:
        return ""
    for output in outputs:
        for other in counts:
            counts[other] += sum(ref.rows for ref in output.late_of(other))
    there = ", ".join(f"{count:,} of {other}" for other, count in counts.items() if count)
    return f"the ledger of {name}; there are {there}: --operator" if there else ""
