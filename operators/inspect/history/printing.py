"""The history of a window, printed: a table for people, rows or JSON for tools."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.text import Text

from tidestate.operators.inspect.history.events import HISTORY_COLUMNS, Event, WindowHistory
from tidestate.recovery.cli.printing import (
    TABLE_ROWS,
    Format,
    data_table,
    json_of,
    print_json,
    print_out,
    print_rows,
    redirected_to,
)
from tidestate.recovery.log.summary import as_iso

_TEXTS = ("created", "kind", "what", "window_start", "window_end", "values", "facts", "input", "input_text")
SCHEMA = pa.schema(
    [
        ("checkpoint", pa.int64()),
        *((name, pa.string()) for name in (*_TEXTS, "watermark_before", "watermark")),
        ("events", pa.int64()),
        ("abandoned", pa.bool_()),
    ]
)


def print_history(history: WindowHistory, form: Format, output: Path | None, limit: int | None) -> None:
    """Print a history to the terminal, or to the file ``output``; at most ``limit`` events."""
    if form is Format.table:
        with redirected_to(output):
            _print(history, TABLE_ROWS if limit is None else limit)
    elif form is Format.json:
        with redirected_to(output):
            print_json(_in_iso(history) | {"events": [_in_iso(event) for event in history.events[:limit]]})
    else:
        print_rows([rows_of(history)], form, output, limit)


def rows_of(history: WindowHistory) -> pa.Table:
    """The events as rows; nested values are JSON."""
    return pa.Table.from_pylist([_row(event) for event in history.events], SCHEMA)


def _in_iso(record: WindowHistory | Event) -> dict[str, Any]:
    """The fields, with times as programs read them."""
    return {
        name: as_iso(value)
        if isinstance(value, str)
        else tuple(map(as_iso, value))
        if name == "window" and value
        else value
        for name, value in asdict(record).items()
    }


def _row(event: Event) -> dict[str, object]:
    row = asdict(event)
    for name in ("values", "facts", "input"):
        row[name] = json_of(row[name])
    start, end = row.pop("window") or (None, None)
    return row | {"window_start": start, "window_end": end}


def _print(history: WindowHistory, limit: int) -> None:
    table = data_table(HISTORY_COLUMNS, ("id",))
    table.columns[0].no_wrap = True
    for cells in history.cells(limit):
        table.add_row(*map(Text, cells))
    left_out = len(history.events) - limit
    print_out(
        Text(history.heading),
        *(Text(line, style="dim") for line in history.notes),
        table,
        Text(history.outcome, style="bold"),
        *([Text(f"{left_out:,} more events: use --limit to print them", style="dim")] if left_out > 0 else []),
    )
