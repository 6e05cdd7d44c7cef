"""What columns the targets of a sink can have, by names and types: a start asks before anything is written. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from tidestate.operators.sinks.stored_columns import quoted_in_spark
from tidestate.statestore.errors import UsageError

_OTHER_NAME = "give it another name there, columns={column: name in the target}, or rename the result"
_WITHOUT = "leave them out, columns=[…], cast what they are made of, or take another target"


@dataclass(frozen=True)
class TargetColumns:
    """``ignores_case``: two names that differ in case alone are one there. ``longest``: the bytes that a name may
    have, 0 for any number. ``taken``: names that it has for columns of its own. ``lacks``: whether it has no such
    type; asked for each type inside of lists, structs and maps too. ``in_spark``: statements of Spark's name them.
    """

    ignores_case: bool = False
    longest: int = 0
    taken: Collection[str] = ()
    lacks: Callable[[pa.DataType], bool] = lambda _kind: False
    in_spark: bool = False

    def check(self, columns: pa.Schema, sink: str) -> None:
        """Raise `UsageError` (``sink-columns``) where no target can have these ``columns`` of plain types."""
        if self.in_spark:
            for name in columns.names:
                quoted_in_spark(name)
        if self.ignores_case and (same := same_but_for_case(columns.names)):
            raise _wrong(f"the target takes these columns for one: of one of them {_OTHER_NAME}", sink, same)
        if taken := [name for name in columns.names if name in self.taken]:
            raise _wrong(f"the target has a column of this name for itself: {_OTHER_NAME}", sink, taken)
        if self.longest and (long := [name for name in columns.names if len(name.encode()) > self.longest]):
            raise _wrong(f"a name in the target has up to {self.longest} bytes: {_OTHER_NAME}", sink, long)
        if lacking := [field for field in columns if any(map(self.lacks, _types(field.type)))]:
            names, types = [field.name for field in lacking], [str(field.type) for field in lacking]
            raise _wrong(f"the target has no such types: {_WITHOUT}", sink, names, types=types)


def same_but_for_case(names: Sequence[str]) -> list[str]:
    """Those that are equal to another one but for case."""
    folded = Counter(name.lower() for name in names)
    return [name for name in names if folded[name.lower()] > 1]


def _types(kind: pa.DataType) -> Iterator[pa.DataType]:
    """A type, and those inside of it."""
    yield kind
    for place in range(kind.num_fields):
        yield from _types(kind.field(place).type)


def not_of_delta(kind: pa.DataType) -> bool:
    """A time of day, a span, a half float, or more than 38 digits; fields whose names differ in case alone."""
    if pt.is_struct(kind):
        return bool(same_but_for_case([field.name for field in kind]))
    return bool(pt.is_time(kind) or pt.is_duration(kind) or kind == pa.float16() or pt.is_decimal256(kind))


def not_of_iceberg(kind: pa.DataType) -> bool:
    """A span, a null, or more than 38 digits."""
    return bool(pt.is_duration(kind) or pt.is_null(kind) or pt.is_decimal256(kind))


def not_of_parquet(kind: pa.DataType) -> bool:
    """Whether Parquet has no such column: a struct without fields."""
    return bool(pt.is_struct(kind) and not kind.num_fields)


def not_of_postgres(kind: pa.DataType) -> bool:
    """What is made of several values, but a list of single ones."""
    nested = pt.is_nested(kind) and not pt.is_map(kind) and not pt.is_struct(kind)
    inside = nested and pt.is_nested(kind.field(0).type)
    return bool(pt.is_struct(kind) or pt.is_map(kind) or inside)


def _wrong(message: str, sink: str, columns: Sequence[str], **facts: object) -> UsageError:
    return UsageError(message, code="sink-columns", sink=sink, columns=list(columns), **facts)
