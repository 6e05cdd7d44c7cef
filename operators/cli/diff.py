"""The verb diff. The list of verbs loads this module, so slow imports are inside functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tidestate.recovery.cli.app import AsJson, Import, RootPath
from tidestate.recovery.cli.completion import checkpoint_ids, table_names
from tidestate.recovery.cli.options import (
    FormatOption,
    KeyOption,
    Limit,
    Operator,
    OutputOption,
    SinceOption,
    Until,
    WindowOption,
    keys_of,
)
from tidestate.recovery.cli.printing import Format, print_rows
from tidestate.recovery.cli.progress_bar import bar

if TYPE_CHECKING:
    import pyarrow as pa

    from tidestate.operators.inspect.query import Query

diff_command = typer.Typer(add_completion=False)
TableOption = Annotated[
    str | None,
    typer.Option("--table", help="Compare the stored rows of this state table.", autocompletion=table_names),
]


@diff_command.command(
    "diff",
    short_help="Compare the windows at two checkpoints.",
    epilog="Example: tidestate diff /data/flights 40 42 --key origin=JFK",
)
def print_difference(
    root: RootPath,
    before: Annotated[int, typer.Argument(metavar="ID", help="The first checkpoint.", autocompletion=checkpoint_ids)],
    after: Annotated[
        int, typer.Argument(metavar="ID", help="The one to compare it with.", autocompletion=checkpoint_ids)
    ],
    operator: Operator = None,
    table: TableOption = None,
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
    """Compare the windows at two checkpoints: bounds, key, and each value before and after.

    Windows that are no longer kept count as removed, and a session that has grown is another window. With --table,
    and for an operator without windows, rows of a state table are compared by key: added, removed, or was and is.
    """
    from tidestate.operators.cli.answers import print_answers
    from tidestate.operators.inspect.window_changes import difference_of
    from tidestate.recovery.inspect.rows import Wanted
    from tidestate.recovery.log.checkpoint import Checkpoint

    form, selection = Format.json if as_json else form, Wanted(keys_of(key), window, since, until)
    with bar() as progress:
        difference = difference_of(Checkpoint.open(root, progress), before, after, selection, operator, table)
        if queries := difference.queries:
            answers, order, note = {root: difference.parts()}, list(difference.order), _notes(queries)
            print_answers(answers, order, form, output, limit, progress.clear, note, _readable)
            return
        no_windows = f"the rows of state table {difference.table}, as the operator has no windows"
        print_rows([difference.whole()], form, output, limit, clear=progress.clear, note="" if table else no_windows)


def _notes(queries: Sequence[Query]) -> str:
    """What a person has to know of windows that are not among those that are compared."""
    functions = sorted({name for query_at in queries for name in query_at.own_functions})
    notes = [f"left out, as functions of yours compute it: {', '.join(functions)}"] if functions else []
    notes += [
        f"no windows at checkpoint {query_at.checkpoint}, as the input has ended"
        for query_at in queries
        if query_at.drained
    ]
    return "\n".join(notes)


def _readable(rows: pa.Table) -> pa.Table:
    """The two values of each window as one text, ``3 -> 5``, or as one value if they are the same."""
    import pyarrow as pa

    from tidestate.operators.cli.answers import readable_offsets
    from tidestate.operators.inspect.window_changes import BEFORE
    from tidestate.recovery.cli.printing import cell_text
    from tidestate.recovery.inspect.values import values_of

    names = rows.column_names
    first = next((index for index, name in enumerate(names) if name.rstrip("_").endswith(BEFORE)), len(names))
    columns: dict[str, pa.Array | pa.ChunkedArray] = {name: rows[name] for name in names[:first]}
    for index in range(first, len(names), 2):
        pair = [readable_offsets(rows[name]) for name in names[index : index + 2]]
        texts = ([cell_text(value) or "-" for value in values_of(column)] for column in pair)
        name = names[index].rstrip("_").removesuffix(BEFORE)
        columns[name] = pa.array([was if was == now else f"{was} -> {now}" for was, now in zip(*texts, strict=True)])
    return pa.table(columns)
