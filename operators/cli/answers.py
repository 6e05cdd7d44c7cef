"""Answers of one job or several, as the verbs windows and messages print them.

The list of verbs loads this module, so slow imports are inside functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from tidestate.recovery.cli.printing import TABLE_ROWS, Format, print_rows

if TYPE_CHECKING:
    import pyarrow as pa

JOB = "job"
"""The column with the root of each row, where several are asked."""


def print_answers(
    answers: dict[str, Iterator[pa.Table]],
    order: list[str],
    form: Format,
    output: Path | None,
    limit: int | None,
    clear: Callable[[], None],
    note: str = "",
    readable: Callable[[pa.Table], pa.Table] | None = None,
) -> None:
    """Print the ``answers`` by root; the first table of each has the columns. ``readable`` makes rows those of a
    table for people.

    With a limit the first rows in the ``order`` of these columns are printed, and how many were left out; all of them
    are read. Without one they are printed as they come, a table at a time.
    """
    import pyarrow as pa  # slow to import

    firsts = {root: next(parts) for root, parts in answers.items()}
    tables = chain.from_iterable(
        _named(root, chain([firsts[root]], parts), several=len(answers) > 1) for root, parts in answers.items()
    )
    limit = TABLE_ROWS if limit is None and form is Format.table else limit
    if limit is None:
        schemas = [
            pa.schema([(JOB, pa.string()), *first.schema]) if len(answers) > 1 else first.schema
            for first in firsts.values()
        ]
        print_rows(tables, form, output, None, lambda: pa.unify_schemas(schemas, promote_options="permissive"), clear)
        return
    rows, left_out = first_in_order(tables, [*order, JOB], limit)
    if left_out:
        note = "\n".join(filter(None, [f"{left_out:,} more: narrow the question, or use --limit", note]))
    if form is Format.table:
        rows = (readable or _short)(rows)
    print_rows([rows], form, output, limit, clear=clear, note=note)


def first_in_order(parts: Iterable[pa.Table], order: list[str], limit: int) -> tuple[pa.Table, int]:
    """The first rows of all parts, by these columns as far as they are there; and how many others there are.

    Memory: ``limit`` rows and a part.
    """
    import pyarrow as pa

    from tidestate.recovery.inspect.values import other_types

    rows, total = pa.table({}), 0
    for part in parts:
        total += part.num_rows
        try:
            rows = pa.concat_tables([rows, part], promote_options="permissive")
        except pa.ArrowException as error:
            raise other_types(error, [rows.column_names, part.column_names]) from None
        keys = [(name, "ascending") for name in order if name in rows.column_names]
        rows = rows.sort_by(keys).slice(0, limit)
    return rows, total - rows.num_rows


def _named(root: str, parts: Iterable[pa.Table], *, several: bool) -> Iterator[pa.Table]:
    import pyarrow as pa

    for part in parts:
        yield part.add_column(0, JOB, pa.array([root] * part.num_rows, pa.string())) if several else part


def _short(rows: pa.Table) -> pa.Table:
    """Offsets as people read them."""
    from tidestate.operators.windows.offsets import OFFSETS

    if OFFSETS not in rows.column_names:
        return rows
    return rows.set_column(rows.column_names.index(OFFSETS), OFFSETS, readable_offsets(rows[OFFSETS]))


def readable_offsets(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """First and last offsets of origins as people read them, ``x 3-17, y 4``; any other column as it is."""
    import pyarrow as pa

    kind = column.type
    inner = kind.value_type if pa.types.is_list(kind) else kind
    if not pa.types.is_struct(inner) or [field.name for field in inner] != ["origin", "start_offset", "last_offset"]:
        return column
    texts = [
        None if origin_offsets is None else ", ".join(map(_offsets, origin_offsets))
        for origin_offsets in column.to_pylist()
    ]
    return pa.chunked_array([pa.array(texts, pa.string())])


def _offsets(origin_offsets: dict[str, object]) -> str:
    origin, first, last = origin_offsets.values()
    return f"{origin} {first}" if first == last else f"{origin} {first}-{last}"
