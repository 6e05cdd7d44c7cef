"""How the command line prints: tables that fit the terminal, JSON, and rows in the formats of other tools."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from tidestate.recovery.inspect.values import other_types, values_of
from tidestate.statestore.errors import TidestateError, UsageError, error_page

if TYPE_CHECKING:
    import pyarrow as pa


TABLE_ROWS = 50
"""How many rows a table has by default."""
_UNLIMITED = 100_000
"""The width of a pipe or file, where nothing is wrapped."""
_MOST_ROWS = 2**62
"""The largest limit; Arrow rejects larger ones."""


class Format(StrEnum):
    """An output format of rows."""

    table = "table"
    json = "json"
    csv = "csv"
    parquet = "parquet"
    arrow = "arrow"


def key_value_table() -> Table:
    """A table of names and values."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def data_table(headings: Iterable[str], right: Collection[str] = ()) -> Table:
    """A table with these headings; the columns in ``right`` have numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(Text(heading), justify="right" if heading in right else "left", overflow="fold")
    return table


def text(value: object) -> str:
    """A value for people; ``-`` for None."""
    return "-" if value is None else str(value)


def print_json(*values: Any) -> None:
    """JSON, a line each; with escapes where standard output cannot write UTF-8."""
    is_utf8 = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "").startswith("utf8")
    for value in values:
        line = json_of(value)
        print_out(Text(line if is_utf8 else _BEYOND_ASCII.sub(lambda part: json.dumps(part[0])[1:-1], line)))


def json_of(value: Any) -> str:
    """Times are ISO 8601 with their zone, bytes hexadecimal, NaN and infinities null, decimals text; those without a
    point are whole numbers, as the sums in the state.
    """
    return msgspec.json.encode(_encodable(value), enc_hook=str).decode()


def _encodable(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _encodable(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encodable(item) for item in value]
    if isinstance(value, Decimal) and isinstance(power := value.as_tuple().exponent, int) and power >= 0:
        return msgspec.Raw(b"%d" % int(value))  # of any length
    return value.hex() if isinstance(value, bytes) else value


@contextmanager
def redirected_to(output: Path | None) -> Iterator[None]:
    """Redirect standard output to a file, if there is one."""
    if output is None:
        yield
        return
    with output.open("w", encoding="utf-8", errors="backslashreplace") as file, redirect_stdout(file):
        yield


def fitted(table: Table, spare: Sequence[str]) -> Table:
    """``table`` without as many of its ``spare`` columns, the first ones first, as are too many for the terminal."""
    console = _console()
    for heading in spare:
        if Measurement.get(console, console.options.update(max_width=_UNLIMITED), table).maximum <= console.width:
            break
        table = _without(table, heading)
    return table


def _without(table: Table, heading: str) -> Table:
    left = [column for column in table.columns if str(column.header) != heading]
    headings = [str(column.header) for column in left]
    narrower = data_table(headings, [str(column.header) for column in left if column.justify == "right"])
    narrower.padding = table.padding
    for cells in zip(*(column.cells for column in left), strict=True):
        narrower.add_row(*cells)
    return narrower


def print_out(*parts: RenderableType) -> None:
    """Print to standard output. A ``str`` may have markup; a `Text` and the cells of tables are printed verbatim."""
    console = _console()
    for part in parts:
        if isinstance(part, Table) and part.show_header and _breaks_words(part, console):
            part = _records(part)
        console.print(Text.from_markup(part) if isinstance(part, str) else part, soft_wrap=isinstance(part, Text))


def _breaks_words(table: Table, console: Console) -> bool:
    return Measurement.get(console, console.options.update(max_width=_UNLIMITED), table).minimum > console.width


def _records(table: Table) -> Group:
    """The rows of a table that is too wide for the terminal, each as names and values."""
    names = [column.header for column in table.columns]
    records: list[RenderableType] = []
    for number, cells in enumerate(zip(*(column.cells for column in table.columns), strict=True), 1):
        record = key_value_table()
        for name, cell in zip(names, cells, strict=True):
            record.add_row(name, cell)
        records += [Text(f"row {number}", style="bold"), record]
    return Group(*records)


def print_error(error: object) -> None:
    """Print one line to standard error; where that is a terminal, below it the address that explains its code."""
    console = _Console(stderr=True, soft_wrap=True)
    console.print(Text(f"tidestate: {error}".replace("\n", " ")))
    if isinstance(error, TidestateError) and sys.stderr.isatty():
        console.print(Text(f"see {error_page(error.code)}", style="dim"))


_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]+")
_CONTROL = dict.fromkeys([*(code for code in range(32) if chr(code) != "\n"), *range(127, 160)], "?")
"""Control characters, by which text from data could control the terminal."""


class _Console(Console):
    """A console for text from data: without markup and without control characters. A closed pipe is not an error."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Without control characters, except those of styles."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else text.translate(_CONTROL), style, control)

    def on_broken_pipe(self) -> None:
        exit_quietly()


def _console() -> _Console:
    """The console of standard output."""
    console = _Console()
    if not console.is_terminal:
        console.width = _UNLIMITED
    return console


def exit_quietly() -> None:
    """Exit without an error: the reader of the output, such as ``head``, has closed the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(0)


def print_rows(
    parts: Iterable[pa.Table],
    form: Format,
    output: Path | None,
    limit: int | None,
    columns: Callable[[], pa.Schema] | None = None,
    clear: Callable[[], None] = lambda: None,
    note: str = "",
) -> None:
    """Rows, as many as ``limit`` says, in a format; by default all, in a table `TABLE_ROWS`. Parquet and Arrow go to
    a file or a pipe, never to a terminal.

    ``columns`` says which columns all parts have together; they are asked for where a format needs them in advance.
    ``clear`` is called before anything is written to a terminal. ``note`` stands below a table.
    """
    if form is Format.table:
        limit = min(TABLE_ROWS if limit is None else limit, _MOST_ROWS)
        tables = list(_first(parts, limit + 1))  # one more row shows that there are more
        clear()
        with redirected_to(output):
            _print_table(tables, limit, note)
        return
    parts = _first(parts, None if limit is None else min(limit, _MOST_ROWS))
    on_terminal = output is None and sys.stdout.isatty()
    if form in (Format.parquet, Format.arrow) and on_terminal:
        raise UsageError(
            "this format is binary and cannot be printed to a terminal: use --output FILE or a pipe",
            code="read-output",
        )
    schema = columns() if columns is not None and form is not Format.json else None
    try:
        with output.open("wb") if output is not None else os.fdopen(os.dup(sys.stdout.fileno()), "wb") as sink:
            _write(_in_turn(parts, sink, clear) if on_terminal else parts, form, sink, schema)
            sink.flush()
    except BrokenPipeError:
        exit_quietly()


def _in_turn(parts: Iterable[pa.Table], sink: Any, clear: Callable[[], None]) -> Iterator[pa.Table]:
    """Remove the progress bar before each part is printed."""
    for part in parts:
        clear()
        yield part
        sink.flush()


def _first(parts: Iterable[pa.Table], limit: int | None) -> Iterator[pa.Table]:
    """The first rows, up to the limit."""
    left = limit
    for part in parts:
        if left is None:
            yield part
        else:
            yield part.slice(0, left)
            left -= min(left, part.num_rows)
            if not left:
                return


def _write(parts: Iterable[pa.Table], form: Format, sink: Any, schema: pa.Schema | None) -> None:
    import pyarrow as pa  # slow to import
    import pyarrow.csv as pc_csv
    import pyarrow.parquet as pq

    writer: Any = None
    for part in parts:
        if form is Format.json:
            for row in _rows(part):
                sink.write(json_of(row).encode() + b"\n")
            continue
        rows = (
            part if schema is None else pa.concat_tables([schema.empty_table(), part], promote_options="permissive")
        )
        if form is Format.csv:
            rows = _plain(rows)
        if writer is None:
            writers: dict[Format, Callable[[Any, pa.Schema], Any]] = {
                Format.csv: pc_csv.CSVWriter,
                Format.parquet: pq.ParquetWriter,
                Format.arrow: pa.ipc.new_stream,
            }
            writer = writers[form](sink, rows.schema)
        writer.write_table(rows)
    if writer is not None:
        writer.close()


def _plain(rows: pa.Table) -> pa.Table:
    """Times and nested values as text, dictionary values decoded."""
    import pyarrow as pa

    columns = []
    for column in rows.columns:
        kind = column.type
        if pa.types.is_dictionary(kind):
            column = column.cast(kind.value_type)
        elif pa.types.is_timestamp(kind):
            column = pa.chunked_array([pa.array([cell_text(value) for value in values_of(column)], pa.string())])
        elif pa.types.is_nested(kind) or pa.types.is_binary(kind):
            column = pa.chunked_array([pa.array([_nested(value) for value in values_of(column)], pa.string())])
        columns.append(column)
    return pa.table(columns, names=rows.column_names)


def _rows(rows: pa.Table) -> Iterator[dict[str, Any]]:
    names = rows.column_names
    for values in zip(*map(values_of, rows.columns), strict=True):
        yield dict(zip(names, values, strict=True))


def _nested(value: Any) -> str | None:
    return None if value is None else value.hex() if isinstance(value, bytes) else json_of(value)


def _print_table(tables: list[pa.Table], limit: int, note: str) -> None:
    import pyarrow as pa

    # The columns change when the job does.
    try:
        rows = pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})
    except pa.ArrowException as error:
        raise other_types(error, [table.column_names for table in tables]) from None
    is_cut = rows.num_rows > limit
    rows = rows.slice(0, limit)
    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    right = {field.name for field in rows.schema if any(test(field.type) for test in numbers)}
    table = data_table(rows.column_names, right)
    for row in _rows(rows):
        table.add_row(*(Text(cell_text(value) or "-") for value in row.values()))
    note = f"more than {limit:,} rows: use --limit to print more" if is_cut else note
    print_out(table, *([Text(note, style="dim")] if note else []))


def cell_text(value: Any) -> str | None:
    """A value as a table has it; None for null."""
    if value is None:
        return None
    if hasattr(value, "tzinfo") and hasattr(value, "year"):  # a time of day has no day
        return str(value.isoformat(sep=" ")).removesuffix("+00:00")
    if isinstance(value, (list, dict, bytes)):
        return _nested(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
