"""Aggregates of your own: an accumulation with a declared Arrow state, and a function of all rows of a window.

Your functions get Arrow tables of many rows, never one row at a time. The state has declared Arrow types, so files
contain no pickled objects; the manifest has the name and version that you give, not the functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidestate.operators.aggregates.aggregate import Aggregate, BoundAggregate, kept_type, singles, values_per_row
from tidestate.statestore.arrays import Flags, Values
from tidestate.statestore.errors import TidestateError, UsageError
from tidestate.statestore.spec.arrowtypes import parse_type, type_text
from tidestate.statestore.spec.combiners import Starts, register_combiner
from tidestate.statestore.spec.lists import flat
from tidestate.statestore.spec.tables import Column, Group

Lift = Callable[[pa.Table], pa.Table]
MergeFunction = Callable[[pa.Table, pa.Table], pa.Table]
ResultFunction = Callable[[pa.Table], Values]
Fields = tuple[tuple[str, pa.DataType], ...]


def name_of_function(function: Any) -> str:
    """What a function of a user's is called where it was defined."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


class Functions:
    """Functions of a user, by what each does. No manifest holds them: a name and a version stand for them, and are
    what is compared.
    """

    def __init__(self, **steps: Callable[..., Any]) -> None:
        self.steps = steps

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Functions)

    def __hash__(self) -> int:
        return hash(Functions)


class OwnAggregate(Aggregate, frozen=True, omit_defaults=False, kw_only=True):
    """An aggregate by functions of the user's; ``functions`` is None where it comes from a manifest."""

    name: str
    version: int
    reads: tuple[str, ...] = msgspec.field(name="columns")
    result_type: pa.DataType
    functions: Functions | None = None

    @property
    def named_columns(self) -> tuple[str, ...]:
        return self.reads

    def given(self) -> Functions:
        """The functions. Raises `UsageError` where they are not here."""
        if self.functions is None:
            raise UsageError(
                "only the job itself can compute this aggregate: give description= and schema=",
                code="query-description",
                aggregate=self.name,
                function=self.function,
            )
        return self.functions

    def step(self, name: str) -> Callable[..., Any]:
        """The function of this ``name``: ``lift``, ``merge``, ``result`` or ``apply``. Raises `UsageError` as
        `given`.
        """
        return self.given().steps[name]

    def call(self, step: str, *tables: pa.Table) -> Any:
        """What one of the functions returns. Raises `UsageError` (``own-function``) if it raises, or exits."""
        function = self.step(step)
        try:
            return function(*tables)
        except TidestateError:
            raise
        except (Exception, SystemExit) as error:
            raised = f"{type(error).__name__}: {error}"
            raise UsageError(
                f"the function {name_of_function(function)} of the aggregate {self.name} raised {raised}",
                code="own-function",
                aggregate=self.name,
                step=step,
            ) from error


class Accumulate(OwnAggregate, frozen=True, kw_only=True, tag="accumulate"):
    """The aggregate of `accumulate`. Creating or unpickling it registers its merge function in that process."""

    function: Literal["accumulate"]
    keeps: Fields = msgspec.field(name="state")

    def __post_init__(self) -> None:
        def combine(rows: pa.Table, starts: Starts) -> pa.Table:
            return _pairwise(self, rows, starts)

        if self.functions is not None and self.functions.steps:
            combine.__qualname__ = name_of_function(self.step("merge"))
            register_combiner(self.name, self.version)(combine)

    def bind(self, name: str, schema: pa.Schema, event_time: str) -> BoundAggregate:
        """Bind to any input: the types are up to the functions."""
        self.given()
        return BoundAccumulation(name, self, pa.null(), self)


@dataclass(frozen=True)
class BoundAccumulation(BoundAggregate):
    """State: the declared columns, with the aggregate's name as a prefix."""

    own: Accumulate

    @property
    def state(self) -> tuple[Column, ...]:
        return tuple(Column(f"{self.name}_{name}", type_text(kind)) for name, kind in self.own.keeps)

    @property
    def groups(self) -> tuple[Group, ...]:
        names = tuple(column.name for column in self.state)
        return (Group(names, self.own.name, version=self.own.version),)

    @property
    def result_type(self) -> pa.DataType:
        return self.own.result_type

    def lift(self, events: pa.Table) -> list[Values]:
        rows, valid = events.select(self.own.reads), np.ones(events.num_rows, bool)
        if not getattr(self.own.step("lift"), "takes_nulls", False):
            rows, valid = without_nulls(rows)
        if not rows.num_rows:
            return [pa.nulls(events.num_rows, kind) for _, kind in self.own.keeps]
        lifted = _checked(self.own, "lift", self.own.call("lift", rows), rows.num_rows)
        # A row without state keeps its place: what follows goes by the places of events.
        return list(lifted.columns if valid.all() else spread(lifted, valid).columns)

    def finish(self, partials: pa.Table) -> Values:
        if not partials.num_rows:
            return pa.array([], self.result_type)
        states = partials.select([column.name for column in self.state])
        there = _something(states)
        if not there.all():
            return _spread(self, partials, there)
        results = self.own.call("result", states.rename_columns([name for name, _ in self.own.keeps]))
        return _answer(self.own.name, results, partials.num_rows, self.result_type)


def without_nulls(rows: pa.Table) -> tuple[pa.Table, Flags]:
    """Rows that have a value in each column, and which those are."""
    valid: Flags = np.logical_and.reduce([np.asarray(column.is_valid()) for column in rows.columns])
    return rows if valid.all() else rows.filter(pa.array(valid)), valid


def spread(rows: Any, valid: Flags) -> Any:
    """Rows, or values, in the places that are ``valid``; null in the others."""
    return rows.take(pa.array(np.cumsum(valid) - 1, mask=~valid))


def _pairwise(own: Accumulate, rows: pa.Table, starts: Starts) -> pa.Table:
    """One row per key: adjacent rows are merged in pairs, repeatedly, so that few calls merge many rows."""
    names = rows.column_names
    rows = rows.rename_columns([name for name, _ in own.keeps])
    owners = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, rows.num_rows)))
    there = _something(rows)
    if not there.all():
        there[starts[np.add.reduceat(there.astype(np.int64), starts) == 0]] = True
        rows, owners = rows.filter(pa.array(there)), owners[there]
    while len(owners) > len(starts):
        even = (np.arange(len(owners)) - np.searchsorted(owners, owners)) % 2 == 0
        older = np.flatnonzero(even[:-1] & (owners[1:] == owners[:-1]))
        merged = own.call("merge", rows.take(pa.array(older)), rows.take(pa.array(older + 1)))
        places = np.arange(len(owners))
        places[older] = len(owners) + np.arange(len(older))
        both = pa.concat_tables([rows, _checked(own, "merge", merged, len(older)).cast(rows.schema)])
        rows, owners = both.take(pa.array(places[even])), owners[even]
    return rows.rename_columns(names)


def _something(states: pa.Table) -> npt.NDArray[np.bool_]:
    """Rows of state that are not only nulls: a window that is older than the aggregate has such a row."""
    present: npt.NDArray[np.bool_] = np.logical_or.reduce([np.asarray(c.is_valid()) for c in states.columns])
    return present


def _spread(bound: BoundAggregate, partials: pa.Table, there: npt.NDArray[np.bool_]) -> Values:
    """Results of the rows with a state, null for the others."""
    results: Values = spread(bound.finish(partials.filter(pa.array(there))), there)
    return results


def _checked(own: Accumulate, step: str, result: Any, rows: int) -> pa.Table:
    return checked_state(result, rows, own.keeps, accumulation=own.name, step=step)


def checked_state(result: Any, rows: int, state: Sequence[tuple[str, pa.DataType]], **facts: str) -> pa.Table:
    """The table that a function of the user's returned for so many ``rows``, as columns of the ``state``. ``facts``
    of the function are part of the errors. Raises `UsageError` (``own-function``) if it does not fit.
    """
    schema = pa.schema(state)
    if not isinstance(result, pa.Table) or result.num_rows != rows or set(schema.names) - set(result.column_names):
        is_table = isinstance(result, pa.Table)
        raise UsageError(
            "lift and merge must return an Arrow table with the columns of the state, and as many rows as they "
            "were given",
            code="own-function",
            expected=f"{rows} rows of {', '.join(schema.names)}",
            found=f"{result.num_rows} rows of {', '.join(result.column_names)}" if is_table else repr(result),
            **facts,
        )
    try:
        return result.select(schema.names).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise UsageError(
            f"the state does not have the declared types ({error})", code="own-function", **facts
        ) from None


def _answer(name: str, result: Any, rows: int, kind: pa.DataType) -> Values:
    if not isinstance(result, (pa.Array, pa.ChunkedArray)) or len(result) != rows:
        raise UsageError(
            "the result must be an Arrow array with one value for each window",
            code="own-function",
            name=name,
            expected=rows,
            found=len(result) if isinstance(result, (pa.Array, pa.ChunkedArray)) else repr(result),
        )
    try:
        return result.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise UsageError(
            f"the result does not have the declared type ({error})", code="own-function", name=name
        ) from None


def _values(own: ApplyRows, results: list[Any]) -> Values:
    """Results of one group each, as an array. Raises `UsageError` at one that is not of the declared type."""
    try:
        return pa.array(results, own.result_type)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise UsageError(
            f"the function must return one value of the declared type for each group ({error})",
            code="own-function",
            name=own.name,
            expected=own.result_type,
            found=repr(next((value for value in results if not _is_of_type(value, own.result_type)), None)),
        ) from None


def _is_of_type(value: Any, kind: pa.DataType) -> bool:
    try:
        pa.scalar(value, kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return False
    return True


class ApplyRows(OwnAggregate, frozen=True, kw_only=True, tag="apply_rows"):
    """The aggregate of `apply_rows`: it keeps rows, and calls a function of the user's when windows fire."""

    function: Literal["apply_rows"]
    per_group: bool

    def bind(self, name: str, schema: pa.Schema, event_time: str) -> BoundAggregate:
        """Check that the columns can be kept."""
        self.given()
        kinds = tuple(kept_type(name, self, column, schema) for column in self.reads)
        return BoundRows(name, self, pa.null(), self, kinds)


@dataclass(frozen=True)
class BoundRows(BoundAggregate):
    """State: a list for each column."""

    own: ApplyRows
    kinds: tuple[pa.DataType, ...]

    @property
    def state(self) -> tuple[Column, ...]:
        pairs = zip(self.own.reads, self.kinds, strict=True)
        return tuple(Column(f"{self.name}_{name}", type_text(pa.list_(kind)), "", "append") for name, kind in pairs)

    @property
    def result_type(self) -> pa.DataType:
        return self.own.result_type

    def lift(self, events: pa.Table) -> list[Values]:
        everything = pa.array(np.ones(events.num_rows, bool))
        return [singles(events[name], everything) for name in self.own.reads]

    def finish(self, partials: pa.Table) -> Values:
        """As in `BoundAggregate`; the function is called once for all groups, or once per group."""
        if not partials.num_rows:
            return pa.array([], self.result_type)
        owners = flat(partials[self.state[0].name])[1]
        there = values_per_row(owners, partials.num_rows) > 0
        if not there.all():
            return _spread(self, partials, there)
        columns = [flat(partials[column.name])[0] for column in self.state]
        rows = pa.table(columns, names=list(self.own.reads))
        if not self.own.per_group:
            results = self.own.call("apply", rows.add_column(0, "group", pa.array(owners)))
            return _answer(self.own.name, results, partials.num_rows, self.result_type)
        lengths = values_per_row(owners, partials.num_rows)
        pairs = zip((np.cumsum(lengths) - lengths).tolist(), lengths.tolist(), strict=True)
        return _values(self.own, [self.own.call("apply", rows.slice(first, count)) for first, count in pairs])


def declared_type(kind: pa.DataType | str) -> pa.DataType:
    """A type that a user declares for state. Raises `UsageError` for one that no state column can have."""
    return parse_type(kind if isinstance(kind, str) else type_text(kind))


def result_type_of(kind: pa.DataType | str) -> pa.DataType:
    """The type that is declared for results. Raises `UsageError` where files of panes cannot hold its values."""
    declared = declared_type(kind)
    if _counts_hundreds(declared):
        raise UsageError(
            "a decimal of results needs a scale of 0 or more: give it more digits instead",
            code="aggregate-option",
            type=str(declared),
        )
    return declared


def _counts_hundreds(kind: pa.DataType) -> bool:
    """Whether it is, or has inside, a decimal of a negative scale, which Parquet has not."""
    if pa.types.is_decimal(kind):
        return kind.scale < 0
    return any(_counts_hundreds(kind.field(place).type) for place in range(kind.num_fields))
