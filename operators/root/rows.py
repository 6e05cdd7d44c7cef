"""The answer to a question to a root, not read yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from tidestate.statestore.html_tables import rows_html


@dataclass(frozen=True, repr=False)
class AnsweredRows:
    """Rows of a checkpoint, read each time that they are asked for: as one table, in order, or by state partition,
    not in order, in batches of bounded size. It exports Arrow data: DuckDB, Polars and pandas take it as it is.
    """

    title: str
    """What the rows are."""
    _table: Callable[[], pa.Table]
    _parts: Callable[[], Iterable[pa.Table]]

    @property
    def schema(self) -> pa.Schema:
        """The columns of the answer; the first part of it is read for them."""
        return next(iter(self._parts())).schema

    def to_table(self) -> pa.Table:
        """All rows of the answer in memory, in order."""
        return self._table()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, by state partition, as they are read."""
        parts = iter(self._parts())
        first = next(parts)
        yield from first.to_batches()
        for part in parts:
            yield from part.cast(first.schema).to_batches()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = pa.RecordBatchReader.from_batches(self.schema, self.batches())
        return reader.__arrow_c_stream__(requested_schema)

    def _repr_html_(self) -> str:
        """What the rows are, and their columns, for a notebook."""
        return rows_html(repr(self), ("column", "type"), [(field.name, field.type) for field in self.schema])

    def __repr__(self) -> str:
        return f"{self.title}, not read yet: .to_table(), .batches()"
