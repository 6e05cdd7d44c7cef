"""Running cases one after another, and printing their rows."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from tools.bench.cases import Case, Measured, Setting, failure
from tools.bench.sides import Sides

Row = dict[str, object]
ROOT = Path(__file__).resolve().parents[2]


def commit() -> str:
    """The commit of this checkout, with ``-dirty`` if files differ from it; empty outside of one."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def run(cases: Sequence[Case], *, small: bool, detail: bool) -> Iterator[Row]:
    """A row for each case as it ends. One that fails, or whose panes differ, has an ``error``."""
    at = commit()
    with Sides(fresh=not small) as sides:
        for number, case in enumerate(cases, 1):
            print(f"[{number}/{len(cases)}] {case.title} ...", end=" ", file=sys.stderr, flush=True)
            started = time.perf_counter()
            row = _row(case, sides, small=small, at=at, detail=detail)
            print(f"{time.perf_counter() - started:.0f} s {row.get('error', '')}", file=sys.stderr, flush=True)
            yield row


def _row(case: Case, sides: Sides, *, small: bool, at: str, detail: bool) -> Row:
    # Spark's state stores may still write when a side has answered.
    with tempfile.TemporaryDirectory(prefix="tidestate-bench-", ignore_cleanup_errors=True) as folder:
        try:
            found = case.measure(Setting(small, Path(folder), sides))
        except Exception as error:
            return _fields(case, None, at) | {"error": failure(error)}
    row = _fields(case, found, at)
    if not found.equal:
        row["error"] = "the results of the two sides differ"
    return row | (found.detail if detail else {})


def _fields(case: Case, found: Measured | None, at: str) -> Row:
    return {
        "name": case.title,
        "events_per_s": _figure(found.ours) if found else None,
        "peer": case.peer,
        "peer_events_per_s": _figure(found.theirs) if found else None,
        "ratio": round(found.ratio, 3) if found else None,
        "aim": case.aim,
        "commit": at,
    }


def _figure(value: float) -> float:
    return round(value) if value >= 100 else round(value, 2)


def as_json(row: Row) -> str:
    """A row of the table as a line of JSON."""
    return msgspec.json.encode(row).decode()


def show(rows: Sequence[Row]) -> None:
    """A table of figures: a column for each field that the rows have, for people."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    headings = list(dict.fromkeys(heading for row in rows for heading in row if heading != "commit"))
    for heading in headings:
        table.add_column("" if heading == "name" else heading, justify="left" if heading in _TEXT else "right")
    for row in rows:
        table.add_row(*(_text(row.get(heading)) for heading in headings))
    Console(width=None if Console().is_terminal else 160).print(table)


_TEXT = ("name", "peer", "error")


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def markdown(rows: Sequence[Row]) -> str:
    """The same as a table of a document."""
    headings = list(dict.fromkeys(heading for row in rows for heading in row if heading != "commit"))
    sides = ["---" if heading in _TEXT else "---:" for heading in headings]
    lines = [headings, sides, *([_text(row.get(heading)) for heading in headings] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def insert(page: Path, name: str, text: str) -> None:
    """Replace what a page has between the comments ``name`` and ``/name``."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, _, rest = page.read_text().partition(begin)
    after = rest.partition(end)[2]
    page.write_text(f"{before}{begin}{text}{end}{after}")
