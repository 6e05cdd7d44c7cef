"""The history of a window, printed: a table for people, rows or JSON for tools."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.text import Text

from tidestate.operators.inspect.history.events import Event, WindowHistory
from tidestate.recovery.cli.printing import (
    Format,
    data_table,
    json_of,
    print_json,
    print_out,
    print_rows,
    redirected_to,
    text,
)
from tidestate.recovery.log.ranges import ids_text
from tidestate.recovery.log.summary import as_iso, pluralize

PRINTED_ROWS = 50
LONG = 60
"""Longer values are cut in a table."""
_TEXTS = ("created", "kind", "what", "window_start", "window_end", "values", "facts", "input", "input_text")
SCHEMA = pa.schema(
    [
        ("checkpoint", pa.int64()),
        *((name, pa.string()) for name in (*_TEXTS, "watermark_before", "watermark")),
        ("events", pa.int64()),
        ("abandoned", pa.bool_()),
    ]
)


def print_history(found: WindowHistory, form: Format, output: Path | None, limit: int | None) -> None:
    """Print a history to the terminal, or to the file ``output``; at most ``limit`` events."""
    if form is Format.table:
        with redirected_to(output):
            _print(found, PRINTED_ROWS if limit is None else limit)
    elif form is Format.json:
        with redirected_to(output):
            print_json(_in_iso(found) | {"events": [_in_iso(one) for one in found.events[:limit]]})
    else:
        print_rows([rows_of(found)], form, output, limit)


def rows_of(found: WindowHistory) -> pa.Table:
    """The events as rows; nested values are JSON."""
    return pa.Table.from_pylist([_row(one) for one in found.events], SCHEMA)


def _in_iso(found: WindowHistory | Event) -> dict[str, Any]:
    """The fields, with times as programs read them."""
    return {
        name: as_iso(value)
        if isinstance(value, str)
        else tuple(map(as_iso, value))
        if name == "window" and value
        else value
        for name, value in asdict(found).items()
    }


def _row(one: Event) -> dict[str, object]:
    row = asdict(one)
    for name in ("values", "facts", "input"):
        row[name] = json_of(row[name])
    start, end = row.pop("window") or (None, None)
    return row | {"window_start": start, "window_end": end}


def _print(found: WindowHistory, limit: int) -> None:
    key = ", ".join(f"{name}={value}" for name, value in found.key.items())
    day = (found.start or "")[:11] if " " in (found.start or "") else ""
    head = f"window {found.start} to {_short(found.end, day)}{' of ' + key if key else ''}, operator {found.operator}"
    table = data_table(("id", "created", "event", "values", "input", "watermark"), ("id",))
    table.columns[0].no_wrap = True
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
    rows = found.result
    result = values_text(rows[0]) if len(rows) == 1 else f"{len(rows):,} rows" if rows else "none"
    more = len(found.events) - limit
    print_out(
        Text(head),
        Text(f"changes are known from checkpoint {found.known_from} on", style="dim"),
        *([Text(f"abandoned and not readable: {ids_text(found.unread)}", style="dim")] if found.unread else []),
        table,
        Text(f"result: {result}", style="bold"),
        *([Text(f"{more:,} more events: use --limit to print them", style="dim")] if more > 0 else []),
    )


def _count(events: int | None) -> str:
    return "" if events is None else f" ({pluralize(events, 'event')})"


def values_text(values: dict[str, Any] | None = None) -> str:
    """Values for people; long ones are cut."""
    texts = (
        (name, f"{value:g}" if isinstance(value, float) else text(value)) for name, value in (values or {}).items()
    )
    return " ".join(f"{name}={one if len(one) <= LONG else one[:LONG] + '…'}" for name, one in texts)


def _created(one: Event) -> str:
    return one.created[5:] if one.created else "-"


def _short(words: str | None, day: str) -> str:
    """Without the date, for times on the day on which the window starts."""
    return text(words).replace(day, "") if day else text(words)


def _watermark(one: Event, day: str, *, again: bool) -> str:
    if one.kind == "rejected":
        return f"at {_short(one.watermark, day)}"
    if again or one.watermark is None:
        return ""
    moved = "→ " if one.watermark != one.watermark_before else ""
    return moved + _short(one.watermark, day)
