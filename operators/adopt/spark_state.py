"""The state of a stateful operator of Spark's, as its state reader returns it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import pyarrow as pa

from tidestate.statestore.errors import UsageError

Kind = Literal["windows", "sessions", "identities"]
Half = Literal["key", "value"]
"""The two halves of a row of Spark's state."""
OPERATORS: dict[str, Kind] = {
    "stateStoreSave": "windows",
    "sessionWindowStateStoreSaveExec": "sessions",
    "dedupeWithinWatermark": "identities",
}
"""Spark's names of the operators whose state can be taken over."""
SESSION_START, EXPIRES = "sessionStartTime", "expiresAtMicros"
"""Spark's names of columns of its state."""
BOUNDS = ["start", "end"]


@dataclass(frozen=True)
class SparkState:
    """``key`` and ``value`` are Spark's columns, whose names may repeat; ``rows`` has them in this order, named by
    `column_of`. ``operator`` is Spark's name of the operator, empty for a checkpoint of Spark 3. ``delay_us``: that
    of the watermark, None where no column of the state names it.
    """

    operator: str
    key: tuple[pa.Field, ...]
    value: tuple[pa.Field, ...]
    delay_us: int | None
    rows: pa.Table

    @cached_property
    def kind(self) -> Kind:
        """What the state is of. Raises `UsageError` (``adopt-operator``) for one that cannot be taken over."""
        kind = self._by_columns()
        if kind is None or (self.operator and OPERATORS.get(self.operator) != kind):
            raise refused_operator(self.operator or "unknown", columns=[field.name for field in self.key])
        return kind

    def _by_columns(self) -> Kind | None:
        names = [field.name for field in self.key]
        if [field.name for field in self.value] == [EXPIRES]:
            return "identities"
        if names and names[-1] == SESSION_START and sum(map(is_window, self.value)) == 1:
            return "sessions"
        return "windows" if sum(map(is_window, self.key)) == 1 else None


def refused_operator(operator: str, **context: object) -> UsageError:
    """The error for an operator of Spark's whose state cannot be taken over."""
    return UsageError(
        "the state of this operator cannot be taken over: it is not that of groupBy(window), "
        "groupBy(session_window) or dropDuplicatesWithinWatermark; nothing was written "
        "(docs/how-to/adopt-a-spark-query.md)",
        code="adopt-operator",
        operator=operator,
        **context,
    )


def is_window(field: pa.Field) -> bool:
    """Whether a column of Spark's state is a window."""
    kind = field.type
    return bool(pa.types.is_struct(kind)) and [kind.field(n).name for n in range(kind.num_fields)] == BOUNDS


def column_of(part: Half, index: int) -> str:
    """The column of `SparkState.rows` that has a column of the key or value."""
    return f"{part}_{index}"
