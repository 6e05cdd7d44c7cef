"""The verb windows. The list of verbs loads this module, so slow imports are inside functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from tidestate.recovery.cli.app import AsJson, Import, Roots
from tidestate.recovery.cli.options import (
    AtOption,
    FormatOption,
    FromTime,
    KeyOption,
    Limit,
    Operator,
    OutputOption,
    Side,
    ToTime,
    in_options,
    keys_of,
)
from tidestate.recovery.cli.printing import Format
from tidestate.recovery.cli.progress_bar import bar

if TYPE_CHECKING:
    import pyarrow as pa

    from tidestate.operators.inspect.query import Query

windows_command = typer.Typer(add_completion=False)
ValueOption = Annotated[
    list[str] | None,
    typer.Option("--value", metavar="NAME", help="Print only this result. Repeatable. By default all."),
]

WINDOW_ARGUMENTS = {"side": "--side", "key": "--key", "values": "--value"}
"""The options of arguments of `Query.get_windows`."""


@windows_command.command(
    "windows",
    short_help="Print the windows of any checkpoint, with their results.",
    epilog="Example: tidestate windows /data/flights --key origin=JFK --from 2013-01-01T10:00",
)
def print_windows(
    roots: Roots,
    at: AtOption = None,
    operator: Operator = None,
    start: FromTime = None,
    end: ToTime = None,
    key: KeyOption = None,
    value: ValueOption = None,
    side: Side = None,
    form: FormatOption = Format.table,
    output: OutputOption = None,
    limit: Limit = None,
    modules: Import = None,
    as_json: AsJson = False,
) -> None:
    """Print the windows that overlap the range from --from to --to, each with what a pane of it would contain now.

    With the results come the number of events, the number of emitted panes and, if messages have an identity,
    the offsets of each origin. A table shows the first windows by start and key. Results that are computed by
    functions of your own are left out.
    """
    from tidestate.operators.cli.answers import print_answers
    from tidestate.operators.inspect.query import query
    from tidestate.recovery.log.checkpoint import Checkpoint

    with bar() as progress, in_options(**WINDOW_ARGUMENTS):
        sources = {root: query(Checkpoint.open(root, progress), checkpoint=at, operator=operator) for root in roots}
        functions = sorted({name for source in sources.values() for name in source.own_functions if value is None})
        answers = {
            root: _windows(source, (start, end), keys_of(key), value, side) for root, source in sources.items()
        }
        order = [
            "window_start",
            *dict.fromkeys(name for source in sources.values() for name in source.key),
            "window_end",
        ]
        notes = [f"left out, as functions of yours compute it: {', '.join(functions)}"] if functions else []
        drained_roots = [root for root, source in sources.items() if source.drained]
        notes += [f"no windows, as the input has ended: {', '.join(drained_roots)}"] if drained_roots else []
        form = Format.json if as_json else form
        print_answers(answers, order, form, output, limit, progress.clear, "\n".join(notes))


def _windows(
    source: Query,
    between: tuple[str | None, str | None],
    key: dict[str, str],
    values: list[str] | None,
    side: str | None,
) -> Iterator[pa.Table]:
    """The windows that overlap these bounds, all of them text; the first table has no rows."""
    from tidestate.operators.inspect.history.bounds import BoundUnit
    from tidestate.recovery.inspect.rows import typed_values
    from tidestate.statestore.errors import UsageError

    unit = BoundUnit(source.timed(side))
    bounds = [None if text is None else unit.place(text) for text in between]
    key_values = typed_values(key, source.key)
    if side is not None and not source.sides:
        raise UsageError("only joins that keep messages have sides: remove side=", code="sides", found=side)
    if source.sides:
        names = source.message_key(side)["session"]
        if key_values and sorted(key_values) != sorted(names):
            raise UsageError(
                "sessions of a join are found by their whole key: give a value for each of its columns",
                code="window-key",
                key=names,
                given=sorted(key_values),
            )
        rows = source.get_windows(
            *bounds, key=tuple(key_values[name] for name in names) if key_values else None, side=side
        )
        yield rows.slice(0, 0)
        yield rows
        return
    result_names = (
        values if values is not None else [name for name in source.results if name not in source.own_functions]
    )
    yield from source.scan_windows(*bounds, key=key_values or None, values=result_names)
