"""The base of all aggregates: a function of columns, then bound to the types of its input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.expressions.tree import ExprNode, columns_needed
from tidestate.statestore.arrays import Values
from tidestate.statestore.errors import UsageError, expect
from tidestate.statestore.spec.added import Added
from tidestate.statestore.spec.arrowtypes import is_comparable, parse_type, type_text
from tidestate.statestore.spec.lists import flat, nested
from tidestate.statestore.spec.quotients import doubles_of
from tidestate.statestore.spec.tables import Column, Group

KIND, RETRACT = "kind", "retract"
"""The column that marks retractions, and its value in those."""
OF_EXPRESSIONS = "aggregates-of-expressions/1"
"""What a reader of a stored aggregate with expressions needs to know."""


class OfExpressions(msgspec.Struct, frozen=True, kw_only=True):
    """What any aggregate may have: the rows that it is of, and values that are computed of them.

    ``condition``: only rows for which it is true take part. ``expression``: what is aggregated, in the place of
    ``column``; ``expression_by``: what orders it, in the place of ``by``.
    """

    condition: Annotated[ExprNode | None, Added(OF_EXPRESSIONS)] = msgspec.field(default=None, name="where")
    expression: Annotated[ExprNode | None, Added(OF_EXPRESSIONS)] = None
    expression_by: Annotated[ExprNode | None, Added(OF_EXPRESSIONS)] = None


class Aggregate(OfExpressions, frozen=True, forbid_unknown_fields=True, tag_field="kind", omit_defaults=True):
    """An aggregate as the user describes it; ``column`` is None for a count of events."""

    function: str
    column: str | None = None

    @property
    def named_columns(self) -> tuple[str, ...]:
        """The input columns that it takes by their names."""
        by = getattr(self, "by", None)
        return tuple(name for name in (self.column, by) if name is not None)

    @property
    def trees(self) -> tuple[ExprNode, ...]:
        """Its condition and what is computed for it, as far as it has them."""
        return tuple(tree for tree in (self.condition, self.expression, self.expression_by) if tree is not None)

    @property
    def columns(self) -> tuple[str, ...]:
        """The input columns that it reads, each once, without the event time."""
        read_names = (name for tree in self.trees for name in columns_needed(tree))
        return tuple(dict.fromkeys([*self.named_columns, *read_names]))

    @property
    def counts_rows(self) -> bool:
        """Whether it is the number of all rows of a window."""
        return self.function == "count" and self.column is None and not self.trees

    @property
    def input_column(self) -> str:
        """``column``, for an aggregate that needs one."""
        return expect(self.column, "this aggregate reads a column", function=self.function)

    def bind(self, name: str, schema: pa.Schema, event_time: str) -> BoundAggregate:
        """Bind to an input of this schema; ``name`` is the column of results. Raises `UsageError` for a type it does
        not take.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Partial:
    """A state column of an aggregate, as a function of a column of the input. Nulls are ignored, and a sum or an
    extreme of nothing is null.
    """

    name: str
    """The state column."""
    function: Literal["count", "sum", "min", "max"]
    column: str | None
    """What it is of; None: of rows, which are counted."""
    tree: ExprNode | None = None
    """What computes ``column`` of each row, where the input has no such column."""
    condition: ExprNode | None = None
    """It is of those rows alone for which this is true; of no row it is null, also as a count. None: of all rows."""


@dataclass(frozen=True)
class BoundAggregate(ABC):
    """An aggregate bound to its input: the name of its results, and the type of its column (null for a count of
    events).

    ``lift`` makes partials, stores combine them as `state` and `groups` declare, ``finish`` makes results.
    """

    name: str
    aggregate: Aggregate
    input_type: pa.DataType

    @property
    def needs(self) -> tuple[str, ...]:
        """The capabilities that a reader of its state needs, see `tidestate.recovery.log.manifest_file`."""
        return ()

    @property
    @abstractmethod
    def state(self) -> tuple[Column, ...]:
        """The state columns of a partial."""

    @property
    def groups(self) -> tuple[Group, ...]:
        """State columns that are combined together."""
        return ()

    @property
    @abstractmethod
    def result_type(self) -> pa.DataType:
        """The Arrow type of results."""

    @property
    def stores_result(self) -> bool:
        """Whether its one state column is the result itself, and no more than that is known of the events."""
        return False

    @property
    def partials(self) -> tuple[Partial, ...] | None:
        """Each state column as a function of a column of the input; None where a partial is more than that."""
        return None

    @property
    def invertible(self) -> bool:
        """Whether `subtract` can remove events without reading the others again."""
        return False

    @abstractmethod
    def lift(self, events: pa.Table) -> list[Values]:
        """One partial per event: an array of shape ``(events,)`` for each state column."""

    @abstractmethod
    def finish(self, partials: pa.Table) -> Values:
        """One result per combined partial, of shape ``(partials,)``."""

    def subtract(self, wholes: pa.Table, parts: pa.Table) -> list[Values]:
        """The partials ``wholes`` without the events in the partials of the same row of ``parts``.

        Raises `UsageError` if the aggregate is not `invertible`.
        """
        raise UsageError(
            "this aggregate cannot remove events: recompute it from the events that are left",
            code="not-invertible",
            aggregate=self.name,
            function=self.aggregate.function,
        )


@dataclass(frozen=True)
class BoundOver(BoundAggregate):
    """An aggregate around another, ``inner``: it needs the same of readers, and has results of the same type."""

    inner: BoundAggregate

    @property
    def needs(self) -> tuple[str, ...]:
        return self.inner.needs

    @property
    def result_type(self) -> pa.DataType:
        return self.inner.result_type


def bind(name: str, aggregate: Aggregate, schema: pa.Schema, event_time: str = "") -> BoundAggregate:
    """Bind an aggregate to the input's schema. Raises `UsageError` with the column."""
    return aggregate.bind(name, schema, event_time)


def inputs(aggregates: Iterable[Aggregate]) -> list[str]:
    """The input columns that the aggregates read, each once, in order."""
    return list(dict.fromkeys(column for aggregate in aggregates for column in aggregate.columns))


def unsupported_type(name: str, aggregate: Aggregate, column: str | None, kind: pa.DataType, why: str) -> UsageError:
    """The error for a column whose type an aggregate does not take."""
    return UsageError(
        f"{aggregate.function} does not support this column: {why}",
        code="aggregate-type",
        aggregate=name,
        column=column,
        type=str(kind),
    )


def kept_type(name: str, aggregate: Aggregate, column: str, schema: pa.Schema, *, sorts: bool = False) -> pa.DataType:
    """The type of a column whose values are stored as they are. Raises `UsageError` if no store can store it, with
    ``sorts`` also if values of the type have no order.
    """
    kind = schema.field(column).type
    try:
        parse_type(type_text(kind))
    except UsageError:
        raise unsupported_type(
            name, aggregate, column, kind, "a state column cannot have its type; cast it first"
        ) from None
    if sorts and not is_comparable(comparable_type(kind)):
        raise unsupported_type(name, aggregate, column, kind, "its values cannot be compared; cast it first")
    return kind


def comparable_type(kind: pa.DataType) -> pa.DataType:
    """The type of what stands for values where they are compared: Arrow has no order of durations by group, so
    these are whole numbers there.
    """
    return pa.int64() if pa.types.is_duration(kind) else kind


def comparables(values: Values) -> Values:
    """What stands for values where they are compared."""
    return values.cast(pa.int64()) if pa.types.is_duration(values.type) else values


def needs_to_compare(*kinds: pa.DataType) -> tuple[str, ...]:
    """The capabilities of a reader of state in which values of these types are compared."""
    return ("duration-extremes/1",) if any(pa.types.is_duration(kind) for kind in kinds) else ()


def is_number(kind: pa.DataType) -> bool:
    """Whether values of the type can be added up."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal128(kind))


KEPT_ONES = 1 << 20
"""From so many on they are made anew: the others are memory that a process keeps."""


@cache
def _ones_up_to(rows: int) -> pa.Array:
    return pa.array(np.ones(rows, np.int64))


def ones(values: pa.ChunkedArray | None, rows: int) -> Values:
    """1 for each event, or for each that has a value: in the same memory for all that count every event."""
    if values is not None and values.null_count:
        return values.is_valid().cast(pa.int64())
    if rows > KEPT_ONES:
        return pa.array(np.ones(rows, np.int64))
    return _ones_up_to(1 << (rows - 1).bit_length() if rows else 1).slice(0, rows)


def doubles(values: Values) -> Values:
    """Numbers as double, rounded to the nearest if necessary."""
    if pa.types.is_decimal(values.type):
        return doubles_of(values)
    if pa.types.is_integer(values.type):
        return values.cast(pa.float64(), safe=False)
    return values.cast(pa.float64())


def canonical_zero(values: Values) -> Values:
    """Values with -0.0 replaced by 0.0, so that sets have one zero."""
    return pc.add(values, pa.scalar(0.0, values.type)) if pa.types.is_floating(values.type) else values


def singles(values: Values, keep: Values) -> pa.Array:
    """Each event's value as a list of one; empty unless ``keep``."""
    wanted = np.asarray(keep)
    kept = values if wanted.all() else values.filter(pa.array(wanted))
    return nested(kept, wanted.astype(np.int64), pa.list_(values.type))


def filled(lists: Values) -> pa.Array:
    """Lists with each null replaced by an empty list."""
    values, owners = flat(lists)
    return nested(values, values_per_row(owners, len(lists)), lists.type)


def values_per_row(owners: npt.NDArray[np.int64], rows: int) -> npt.NDArray[np.int64]:
    """The number of values of each row."""
    return np.bincount(owners, minlength=rows).astype(np.int64)
