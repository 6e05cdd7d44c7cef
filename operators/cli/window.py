"""The verb window. The list of verbs loads this module, so slow imports are inside functions."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidestate.recovery.cli.app import AsJson, Confirm, Force, Import, RootPath
from tidestate.recovery.cli.options import Operator, Side, WindowKey, in_options, keys_of
from tidestate.recovery.cli.progress_bar import bar
from tidestate.statestore.errors import UsageError

if TYPE_CHECKING:
    from tidestate.operators.inspect.query import Query
    from tidestate.operators.root.window_edits import Editable, EditPlan
    from tidestate.operators.windows.messages.edits import WindowContent

window_command = typer.Typer(add_completion=False)
WINDOW_OPTIONS = {
    "start": "--start",
    "end": "--end",
    "key": "--key COLUMN=VALUE",
    "events": "--events",
    "values": "--value NAME=VALUE",
    "offsets": "--offsets ORIGIN=FIRST:LAST",
    "side": "--side",
    "force": "--force",
}
"""The options of arguments of `Root.put_window` and the others."""


class WindowAction(StrEnum):
    """What is to be done with the window, or with all of a range."""

    get = "get"
    put = "put"
    delete = "delete"
    retire = "retire"


Offsets = Annotated[
    list[str] | None,
    typer.Option(
        "--offsets", metavar="ORIGIN=FIRST:LAST", help="First and last offset of an origin to put. Repeatable."
    ),
]


@window_command.command(
    "window",
    short_help="Read, put, delete or retire single windows.",
    epilog="Example: tidestate window /data/flights put --start 2013-01-01T10:00 --key origin=JFK --value n=12",
)
def edit_window(
    root: RootPath,
    action: Annotated[WindowAction, typer.Argument(metavar="ACTION", help="get, put, delete or retire.")],
    start: Annotated[
        str | None,
        typer.Option("--start", metavar="TIME", help="The start of the window, or of the range."),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option("--end", metavar="TIME", help="The end of the range, of a new session, or of a named window."),
    ] = None,
    key: WindowKey = None,
    events: Annotated[int | None, typer.Option("--events", metavar="N", help="How many events it has taken.")] = None,
    value: Annotated[
        list[str] | None,
        typer.Option("--value", metavar="NAME=VALUE", help="A result to put. Repeatable."),
    ] = None,
    offsets: Offsets = None,
    operator: Operator = None,
    side: Side = None,
    confirm: Confirm = False,
    force: Force = False,
    modules: Import = None,
    as_json: AsJson = False,
) -> None:
    """Print one window (get), replace what is stored of it (put), remove it (delete), or remove the windows of a
    range with their messages (retire).

    An edit appends a checkpoint of the kind edit, from which the job continues. Nothing is emitted or retracted. The
    job must not be running. Only counts, sums, minima and maxima can be put. A late event of a window that was
    removed begins it anew, while the window accepts any. Of a side of a join, delete and retire remove rows, which
    emit nothing more, and put takes another end of a session.
    """
    from tidestate.operators.inspect.query import query
    from tidestate.operators.root.window_edits import Editable
    from tidestate.operators.windows.messages.edits import WindowContent
    from tidestate.recovery.cli.plans import print_plan
    from tidestate.recovery.inspect.rows import typed_values
    from tidestate.recovery.log.checkpoint import Checkpoint

    if action is not WindowAction.put and (events is not None or value or offsets):
        raise UsageError("only put takes --events, --value and --offsets", code="window-value")
    with in_options(**WINDOW_OPTIONS):
        with bar() as progress:
            checkpoint = Checkpoint.open(root, progress)
            state = query(checkpoint, operator=operator)
            _check_side(state, side)
            window, keys = _places(state, start, end, side), typed_values(keys_of(key), state.row_key) or None
            if action is WindowAction.get:
                _print_row(state, window, keys, side, as_json)
                return
            editable = Editable.of(checkpoint, operator, side, force=force)
            content = WindowContent(events, _typed_results(state, value), _typed_offsets(state, offsets))
            plan = _plan(editable, action, window, keys, content)
            plan = plan.execute() if confirm else plan
        print_plan(plan, as_json)


def _check_side(source: Query, side: str | None) -> None:
    if side is not None and side not in source.sides:
        raise UsageError(
            "the operator has no such side: choose one of those listed, or remove side=",
            code="sides",
            sides=source.sides,
            found=side,
        )


def _plan(
    editable: Editable,
    action: WindowAction,
    window: tuple[int | None, int | None],
    key: dict[str, Any] | None,
    content: WindowContent,
) -> EditPlan:
    from tidestate.operators.root.window_edits import EditPlan

    if action is WindowAction.delete:
        return EditPlan.of_delete(editable, window, key)
    if action is WindowAction.retire:
        return EditPlan.of_retire(editable, window, key)
    return EditPlan.of_put(editable, window, key, content)


def _places(source: Query, start: str | None, end: str | None, side: str | None) -> tuple[int | None, int | None]:
    from tidestate.operators.inspect.history.bounds import BoundUnit

    unit = BoundUnit(source.timed(side))
    first, last = (None if text is None else unit.place(text) for text in (start, end))
    return first, last


def _typed_results(source: Query, options: list[str] | None) -> dict[str, Any]:
    """Results with values of their types; ``NAME=`` alone is null."""
    from tidestate.recovery.inspect.rows import typed_values

    texts = keys_of(options)
    typed = typed_values({name: text for name, text in texts.items() if text}, source.result_types)
    return {name: typed.get(name) for name in texts}


def _typed_offsets(source: Query, options: list[str] | None) -> dict[Any, tuple[int, int]] | None:
    if not options:
        return None
    offsets = {}
    for option in options:
        origin, sign, text = option.rpartition("=")
        first, colon, last = text.partition(":")
        if (sign and not origin) or not (colon and first.strip().isdecimal() and last.strip().isdecimal()):
            raise UsageError(
                "offsets must be given as ORIGIN=FIRST:LAST, or FIRST:LAST where messages have no origin",
                code="read-value",
                found=option[:100],
            )
        offsets[source.origin_of_text(origin)] = int(first), int(last)
    return offsets


def _print_row(
    source: Query, window: tuple[int | None, int | None], key: dict[str, Any] | None, side: str | None, as_json: bool
) -> None:
    """The window as a table of its columns; as JSON null where there is none."""
    from tidestate.operators.inspect.history.changes import plain_values
    from tidestate.recovery.cli.printing import key_value_table, print_json, print_out

    # Results of the user's own functions cannot be asked for without these.
    results = None if side is not None else [name for name in source.results if name not in source.own_functions]
    window_row = source.get_window(window[0], key=key, end=window[1], values=results, side=side)
    row = None if window_row is None else plain_values(window_row)[0]
    if as_json:
        print_json(row)
        return
    table = key_value_table()
    for name, value in (row or {"": "there is no such window"}).items():
        table.add_row(name, "-" if value is None else str(value))
    print_out(table)
