"""The verb that says why a number is so."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import pyarrow as pa
import typer
from rich.table import Table
from rich.text import Text

from tidestate.recovery.bars import bar
from tidestate.recovery.checkpoint import Checkpoint
from tidestate.recovery.commands.app import AsJson, Import, Root, verbs
from tidestate.recovery.commands.reading import Form, Limit, Operator, Output, keys_of
from tidestate.recovery.history import history
from tidestate.recovery.history.happenings import Event, History
from tidestate.recovery.printing import Format, emit, into, print_document, print_rows, text
from tidestate.recovery.ranges import ids_text

TABLE_ROWS = 50
LONG = 60
"""Characters of a value after which it is cut in a table."""
_TEXTS = ("created", "kind", "what", "window_start", "window_end", "values", "facts", "input", "input_text")
SCHEMA = pa.schema(
    [
        ("checkpoint", pa.int64()),
        *((name, pa.string()) for name in (*_TEXTS, "watermark_before", "watermark")),
        ("events", pa.int64()),
        ("abandoned", pa.bool_()),
    ]
)
Keys = Annotated[list[str] | None, typer.Option("--key", metavar="COLUMN=VALUE", help="The key of the window.")]
Window = Annotated[
    str, typer.Option("--window", metavar="TIME", help="When it begins or ends; or a time that it alone holds.")
]


@verbs.command(
    "history", epilog="Example: tidestate history /data/flights --key origin=JFK --window 2013-01-01T10:00"
)
def print_history(
    root: Root,
    window: Window,
    key: Keys = None,
    operator: Operator = None,
    form: Form = Format.table,
    output: Output = None,
    limit: Limit = None,
    modules: Import = None,
    as_json: AsJson = False,
) -> None:
    """Why a number is so: what came to one window, what was shown of it, refused by it, and when it was forgotten."""
    with bar() as seen:
        found = history(Checkpoint.open(root, seen), window, keys_of(key), operator)
    form = Format.json if as_json else form
    if form is Format.table:
        with into(output):
            _print(found, TABLE_ROWS if limit is None else limit)
    elif form is Format.json:
        whole = asdict(found) | {"events": [asdict(one) for one in found.events[:limit]]}
        print_document(json.dumps(whole, indent=2, default=str), output)
    else:
        print_rows([rows_of(found)], form, output, limit)


def rows_of(found: History) -> pa.Table:
    """The events as rows; what has parts is JSON."""
    return pa.Table.from_pylist([_row(one) for one in found.events], SCHEMA)


def _row(one: Event) -> dict[str, object]:
    row = asdict(one)
    for name in ("values", "facts", "input"):
        row[name] = json.dumps(row[name], default=str)
    start, end = row.pop("window") or (None, None)
    return row | {"window_start": start, "window_end": end}


def _print(found: History, limit: int) -> None:
    key = ", ".join(f"{name}={value}" for name, value in found.key.items())
    day = (found.start or "")[:11] if " " in (found.start or "") else ""
    head = f"window {found.start} to {_short(found.end, day)}{' of ' + key if key else ''}, operator {found.operator}"
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("id", justify="right", no_wrap=True)
    for heading in ("made", "what", "values", "input", "watermark"):
        table.add_column(heading, overflow="fold")
    last: int | None = None
    for one in found.events[:limit]:
        again, last = one.checkpoint == last, one.checkpoint
        table.add_row(
            "" if again else str(one.checkpoint),
            "" if again else _created(one),
            Text(_short(one.what, day) + (" (abandoned)" if one.abandoned else "")),
            Text(_short(values_text(one.values), day) + _count(one.events)),
            Text("" if again else text(one.input_text)),
            Text(_watermark(one, day, again=again)),
        )
    stands = f"{len(found.shown):,} rows" if len(found.shown) > 1 else "nothing"
    stands = values_text(found.shown[0]) if len(found.shown) == 1 else stands
    more = len(found.events) - limit
    emit(
        Text(head),
        Text(f"changes are known from checkpoint {found.known_from} on", style="dim"),
        *([Text(f"abandoned and not readable: {ids_text(found.unread)}", style="dim")] if found.unread else []),
        table,
        Text(f"shown now: {stands}", style="bold"),
        *([Text(f"{more:,} more: --limit says how many are shown", style="dim")] if more > 0 else []),
    )


def _count(events: int | None) -> str:
    return "" if events is None else f" ({events:,} event{'s' if events != 1 else ''})"


def values_text(values: dict[str, Any] | None = None) -> str:
    """Values for people, long ones cut."""
    texts = (
        (name, f"{value:g}" if isinstance(value, float) else text(value)) for name, value in (values or {}).items()
    )
    return " ".join(f"{name}={one if len(one) <= LONG else one[:LONG] + '…'}" for name, one in texts)


def _created(one: Event) -> str:
    return one.created[5:] if one.created else "-"


def _short(words: str | None, day: str) -> str:
    """Times of the day at which the window begins, without the day."""
    return text(words).replace(day, "") if day else text(words)


def _watermark(one: Event, day: str, *, again: bool) -> str:
    if one.kind == "rejected":
        return f"met {_short(one.watermark, day)}"
    if again or one.watermark is None:
        return ""
    moved = "→ " if one.watermark != one.watermark_before else ""
    return moved + _short(one.watermark, day)
