"""What every aggregate is: asked for by name and column, then bound to the types of its input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.statestore.arrays import Values
from tidestate.statestore.errors import UsageError, expect
from tidestate.statestore.spec.arrowtypes import is_comparable, parse_type, type_text
from tidestate.statestore.spec.lists import flat, nested
from tidestate.statestore.spec.tables import Column, Group

KIND, RETRACT = "kind", "retract"
"""The column of rows of which some take others back, and what it says of those."""


class Aggregate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", omit_defaults=True):
    """A function over columns of the input (``column`` is None for a count of events)."""

    function: str
    column: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The input columns it reads, besides the event time."""
        by = getattr(self, "by", None)
        return tuple(name for name in (self.column, by) if name is not None)

    @property
    def input_column(self) -> str:
        """The column, of an aggregate that is bound to one."""
        return expect(self.column, "this aggregate reads a column", function=self.function)

    def bind(self, name: str, schema: pa.Schema, event_time: str) -> BoundAggregate:
        """Under this name, over an input of these columns and types. Raises `UsageError`."""
        raise NotImplementedError


@dataclass(frozen=True)
class BoundAggregate(ABC):
    """An aggregate with its name and the Arrow type of its column (null type for a count of events)."""

    name: str
    aggregate: Aggregate
    input_type: pa.DataType

    @property
    @abstractmethod
    def state(self) -> tuple[Column, ...]:
        """Its state columns."""

    @property
    def groups(self) -> tuple[Group, ...]:
        """Which of its state columns combine together."""
        return ()

    @property
    @abstractmethod
    def result_type(self) -> pa.DataType:
        """The Arrow type of its result."""

    @property
    def invertible(self) -> bool:
        """Whether `subtract` can take events back without reading the others again."""
        return False

    @abstractmethod
    def lift(self, events: pa.Table) -> list[Values]:
        """Each event as a partial of its own, one array per state column."""

    @abstractmethod
    def finish(self, partials: pa.Table) -> Values:
        """The result of each folded row."""

    def subtract(self, wholes: pa.Table, parts: pa.Table) -> list[Values]:
        """State columns of each of ``wholes`` without the events of the row beside it in ``parts``.

        Raises `UsageError` where the aggregate is not `invertible`.
        """
        raise UsageError(
            "this aggregate cannot take events back: compute it anew from what is left",
            code="not-invertible",
            aggregate=self.name,
            function=self.aggregate.function,
        )


def bind(name: str, aggregate: Aggregate, schema: pa.Schema, event_time: str = "") -> BoundAggregate:
    """Check an aggregate against the input's schema. Raises `UsageError` naming the column."""
    return aggregate.bind(name, schema, event_time)


def inputs(aggregates: Iterable[Aggregate]) -> list[str]:
    """The input columns the aggregates need, each once, in order."""
    return list(dict.fromkeys(column for aggregate in aggregates for column in aggregate.columns))


def unsupported_type(name: str, aggregate: Aggregate, column: str | None, kind: pa.DataType, why: str) -> UsageError:
    """The error of a column whose type an aggregate does not take."""
    return UsageError(
        f"{aggregate.function} cannot be taken of this column: {why}",
        code="aggregate-type",
        aggregate=name,
        column=column,
        type=str(kind),
    )


def kept_type(name: str, aggregate: Aggregate, column: str, schema: pa.Schema, *, sorts: bool = False) -> pa.DataType:
    """The type of a column whose values are kept as they are. Raises `UsageError` where no store can hold it.

    With ``sorts``, also where values of the type have no order.
    """
    kind = schema.field(column).type
    try:
        parse_type(type_text(kind))
    except UsageError:
        raise unsupported_type(
            name, aggregate, column, kind, "no state column can have this type, cast it first"
        ) from None
    if sorts and not is_comparable(kind):
        raise unsupported_type(name, aggregate, column, kind, "its values have no order, cast it first")
    return kind


def is_number(kind: pa.DataType) -> bool:
    """Whether values of the type can be added up."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal128(kind))


def ones(values: pa.ChunkedArray | None, rows: int) -> Values:
    """1 for each event, or for each that has a value."""
    if values is None or values.null_count == 0:
        return pa.array(np.ones(rows, np.int64))
    return values.is_valid().cast(pa.int64())


def doubles(values: Values) -> Values:
    """Numbers as double, rounded where they are too long for it."""
    if pa.types.is_integer(values.type) or pa.types.is_decimal(values.type):
        return values.cast(pa.float64(), safe=False)
    return values.cast(pa.float64())


def canonical_zero(values: Values) -> Values:
    """Values as sets tell them apart: there is one zero."""
    return pc.add(values, pa.scalar(0.0, values.type)) if pa.types.is_floating(values.type) else values


def singles(values: Values, keep: Values) -> pa.Array:
    """Each event's value as a list of one, or of none where it is not to be kept."""
    wanted = np.asarray(keep)
    kept = values if wanted.all() else values.filter(pa.array(wanted))
    return nested(kept, wanted.astype(np.int64), pa.list_(values.type))


def filled(lists: Values) -> pa.Array:
    """Lists with an empty one for each null."""
    values, owners = flat(lists)
    return nested(values, values_per_row(owners, len(lists)), lists.type)


def values_per_row(owners: npt.NDArray[np.int64], rows: int) -> npt.NDArray[np.int64]:
    """How many values each row owns."""
    return np.bincount(owners, minlength=rows).astype(np.int64)
