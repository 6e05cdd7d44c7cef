"""A message's identity: (origin, offset), or a value without an order, from one or several columns. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.statestore.arrays import Values
from tidestate.statestore.errors import UsageError
from tidestate.statestore.messages.tables import IDENTITY, OFFSET, ORIGIN
from tidestate.statestore.spec.arrowtypes import type_text


@dataclass(frozen=True)
class Identity:
    """The ``origins``, columns of these types, and the ``offset``, a column of whole numbers; without one the origins
    are all there is, and have no order.

    Tables have one origin: 0 without a column; the column; or text of several with a slash between them
    (``orders/0``), in which a slash within a value is ``\\/`` and a backslash two; bytes where one of them is bytes.
    """

    origins: tuple[pa.Field, ...]
    offset: str | None

    @property
    def columns(self) -> list[str]:
        """All columns, in the order by which messages of one time are sorted."""
        return [*(field.name for field in self.origins), *([self.offset] if self.offset is not None else [])]

    @property
    def ordered(self) -> bool:
        """Whether messages have offsets, and not only ids without an order."""
        return self.offset is not None

    @property
    def stored_as(self) -> str:
        """The column of tables that has the origin, or all of it."""
        return ORIGIN if self.ordered else IDENTITY

    @cached_property
    def origin(self) -> str | None:
        """The column that is the origin as it is."""
        return self.origins[0].name if len(self.origins) == 1 else None

    @cached_property
    def origin_type(self) -> str:
        """The type of origins in tables."""
        if len(self.origins) == 1:
            return type_text(self.origins[0].type)
        return str(self._text) if self.origins else "int8"

    @property
    def _text(self) -> pa.DataType:
        """The type of the texts that stand for several origin columns."""
        return pa.binary() if any(pa.types.is_binary(field.type) for field in self.origins) else pa.string()

    def origin_of(self, rows: pa.Table) -> Values:
        """The origin of each row."""
        if self.origin is not None:
            return rows[self.origin]
        if not self.origins:
            return pa.array(np.zeros(rows.num_rows, np.int8))
        parts = [rows[field.name] for field in self.origins]
        texts = [part if pa.types.is_binary(part.type) else part.cast(pa.string()) for part in parts]
        escaped = [_escaped(text.cast(self._text)) for text in texts]
        return pc.binary_join_element_wise(*escaped, pa.scalar("/", self._text))

    def check_known(self, rows: pa.Table, also: Sequence[str] = ()) -> None:
        """Raise `UsageError` for a row without an identity, or with a null in one of these columns."""
        if nulls := [name for name in (*self.columns, *also) if rows[name].null_count]:
            raise UsageError(
                "the columns of an identity, and those of equal=, must not be null: drop such rows",
                code="message-null",
                columns=nulls,
            )

    def of(self, rows: pa.Table) -> pa.Table:
        """Origin and offset of each row, or all of its identity, as tables have them."""
        if self.offset is None:
            return pa.table({IDENTITY: self.origin_of(rows)})
        return pa.table({ORIGIN: self.origin_of(rows), OFFSET: rows[self.offset].cast(pa.int64())})


def _escaped(text: pa.ChunkedArray) -> pa.ChunkedArray:
    for special in ("\\", "/"):
        text = pc.replace_substring(text, special, "\\" + special)
    return text
