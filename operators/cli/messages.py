"""The verb messages. The list of verbs loads this module, so slow imports are inside functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

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

messages_command = typer.Typer(add_completion=False)
FromOffset = Annotated[
    int | None,
    typer.Option("--from-offset", metavar="OFFSET", help="The first offset: of those at the time --from, or of all."),
]
ToOffset = Annotated[int | None, typer.Option("--to-offset", metavar="OFFSET", help="The last offset, inclusive.")]

_Bounds = tuple[tuple[str | None, int | None], tuple[str | None, int | None]]
MESSAGE_ARGUMENTS = {
    "side": "--side",
    "session": "--key",
    "equal": "--key",
    "start_time": "--from",
    "start_offset": "--from-offset",
    "end_time": "--to",
    "end_offset": "--to-offset",
}
"""The options of arguments of `Query.scan_messages`."""


@messages_command.command(
    "messages",
    short_help="Print the messages that a job stores, at any checkpoint.",
    epilog="Example: tidestate messages /data/orders --key id=7 --from 2013-01-01T10:00 --to 2013-01-01T11:00",
)
def print_messages(
    roots: Roots,
    at: AtOption = None,
    operator: Operator = None,
    start: FromTime = None,
    start_offset: FromOffset = None,
    end: ToTime = None,
    end_offset: ToOffset = None,
    key: KeyOption = None,
    side: Side = None,
    form: FormatOption = Format.table,
    output: OutputOption = None,
    limit: Limit = None,
    modules: Import = None,
    as_json: AsJson = False,
) -> None:
    """Print the messages that an operator stores, from (--from, --from-offset) to (--to, --to-offset), both
    inclusive.

    A table shows the first messages by time, offset and origin. If --key gives all columns of a key that messages are
    stored by, such as the key of the windows or of the join, only messages of that key are read.
    """
    from tidestate.operators.cli.answers import print_answers
    from tidestate.operators.inspect.query import query
    from tidestate.recovery.log.checkpoint import Checkpoint

    with bar() as progress, in_options(**MESSAGE_ARGUMENTS):
        sources = {root: query(Checkpoint.open(root, progress), checkpoint=at, operator=operator) for root in roots}
        bounds = ((start, start_offset), (end, end_offset))
        answers = {root: _messages_between(source, bounds, keys_of(key), side) for root, source in sources.items()}
        layouts = [layout for source in sources.values() for layout in source.layouts.values()]
        order = ["time"] if all(layout.by_time for layout in layouts) else []
        if len(kinds := {layout.ordered for layout in layouts}) < 2:
            order += ["offset", "origin"] if kinds != {False} else ["identity"]
        print_answers(answers, order, Format.json if as_json else form, output, limit, progress.clear)


def _messages_between(source: Query, bounds: _Bounds, key: dict[str, str], side: str | None) -> Iterator[pa.Table]:
    from tidestate.operators.inspect.history.bounds import BoundUnit
    from tidestate.recovery.inspect.rows import Wanted, value_of_text

    if side is None and source.sides:
        raise typer.BadParameter(
            f"a join keeps messages of each side: {' or '.join(source.sides)}", param_hint="--side"
        )
    unit, columns = BoundUnit(is_time=True), next(source.scan_messages(side=side)).schema
    positions = [bound for time, offset in bounds for bound in (None if time is None else unit.place(time), offset)]
    forms = {form: names for form, names in source.message_key(side).items() if names and set(names) <= set(key)}
    keys: dict[str, Any] = {
        form: tuple(value_of_text(key[name], columns.field(name).type, name).as_py() for name in names)
        for form, names in forms.items()
    }
    key_names = {name for names in forms.values() for name in names}
    selection = Wanted({name: text for name, text in key.items() if name not in key_names})
    for rows in source.scan_messages(*positions, side=side, **keys):
        yield selection.of(rows)
