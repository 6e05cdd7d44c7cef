"""Aggregates of rows with retractions: a row of the kind ``retract`` is the same row, counted −1.

Counts, and sums and means of whole numbers and decimals, are subtracted: exactly, in any order. The other aggregates
store the partial of each row with its sign, and are computed from the rows that are left. So are sums of doubles: a
difference of rounded numbers has the rounding error of the largest, and nothing subtracts an infinity.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.aggregates.aggregate import KIND, RETRACT, BoundAggregate, BoundOver, ones
from tidestate.operators.aggregates.custom import Accumulate, ApplyRows
from tidestate.operators.aggregates.derived_results import BoundDerived
from tidestate.statestore.arrays import Flags, Numbers, Values, flags_at
from tidestate.statestore.spec.combiners import Starts, register_combiner
from tidestate.statestore.spec.lists import flat, nested, struct_fields, whole
from tidestate.statestore.spec.tables import Column, Group, TableSpec
from tidestate.statestore.table.fold import combine_values
from tidestate.statestore.table.group_ids import group_ids
from tidestate.statestore.table.sorting import sorting

CANCEL = "tidestate-cancel"
ROW = "_row"


def signs(events: pa.Table) -> Numbers:
    """−1 for each retraction, 1 for any other row. Shape ``(rows,)``."""
    back = pc.fill_null(pc.equal(events[KIND].cast(pa.string()), RETRACT), False)
    return np.where(np.asarray(back), -1, 1)


def signed(bound: BoundAggregate, *, adds_up: bool = False) -> BoundAggregate:
    """The aggregate of rows with signs. ``adds_up``: its results are differences, which the reader adds up."""
    if not bound.state:
        return bound
    exact = bound.invertible and not any(pa.types.is_floating(column.arrow) for column in bound.state)
    parts = (bound.name, bound.aggregate, bound.input_type, bound)
    return BoundDifference(*parts, adds_up) if exact else BoundNet(*parts)


def linear(bound: BoundAggregate) -> bool:
    """Whether the results of two parts of the rows can be added up."""
    if isinstance(bound, BoundDerived):
        return False
    return not bound.state or (isinstance(bound, BoundDifference) and bound.aggregate.function in ("count", "sum"))


@dataclass(frozen=True)
class BoundDifference(BoundOver):
    """State: that of the aggregate, which can be subtracted from; for a sum also the number of its values."""

    adds_up: bool

    @property
    def state(self) -> tuple[Column, ...]:
        number = Column(f"{self.name}_count", "int64", "count", "sum")
        return (*self.inner.state, number) if self._counts else self.inner.state

    def lift(self, events: pa.Table) -> list[Values]:
        sign = pa.array(signs(events))
        pairs = zip(self.inner.lift(events), self.inner.state, strict=True)
        columns = [self._times(column.cast(state.arrow), sign) for column, state in pairs]
        if self._counts:
            columns.append(self._times(ones(events[self.aggregate.input_column], events.num_rows), sign))
        return columns

    def finish(self, partials: pa.Table) -> Values:
        """As in `BoundAggregate`; a sum without values left is null."""
        results = self.inner.finish(partials)
        if not self._counts:
            return results
        none = pc.equal(pc.fill_null(partials[self.state[-1].name], 0), 0)
        return pc.if_else(none, pa.scalar(None, results.type), results)

    @property
    def _counts(self) -> bool:
        # A difference of sums is never null, whatever the number of values.
        return self.aggregate.function == "sum" and not self.adds_up

    def _times(self, column: Values, sign: pa.Array) -> Values:
        if pa.types.is_decimal(column.type):
            return pc.if_else(pc.less(sign, 0), pc.negate(column), column)
        return pc.multiply(column, sign)


@dataclass(frozen=True)
class BoundNet(BoundOver):
    """State: the partial of each row, with its sign, in the order of arrival; without retracted rows."""

    @property
    def state(self) -> tuple[Column, ...]:
        return (Column(f"{self.name}_rows", str(pa.list_(self._entry))),)

    @property
    def groups(self) -> tuple[Group, ...]:
        return (Group((self.state[0].name,), CANCEL),)

    def lift(self, events: pa.Table) -> list[Values]:
        columns = [pa.array(signs(events), pa.int8()), *(whole(column) for column in self.inner.lift(events))]
        pairs = zip(columns, self._entry, strict=True)
        rows = pa.StructArray.from_arrays([column.cast(field.type) for column, field in pairs], fields=[*self._entry])
        return [nested(rows, np.ones(events.num_rows, np.int64), pa.list_(self._entry))]

    def finish(self, partials: pa.Table) -> Values:
        rows, owners = _left(partials[self.state[0].name])
        there = np.bincount(owners, minlength=partials.num_rows) > 0
        places = np.cumsum(there) - 1
        indices = pa.array(places, mask=~there)
        folded = self._folded(rows, places[owners], int(there.sum()))
        if isinstance(self.aggregate, Accumulate | ApplyRows):
            # A function of the user never gets an empty group.
            return whole(self.inner.finish(folded)).take(indices)
        return self.inner.finish(folded.take(indices))

    def _folded(self, rows: pa.Array, owners: Numbers, count: int) -> pa.Table:
        spec = TableSpec("net", (Column(ROW, "int64"),), self.inner.state, None, self.inner.groups)
        values = pa.schema([pa.field(column.name, column.arrow) for column in self.inner.state])
        if not count:
            return values.empty_table()
        return combine_values(spec, pa.table(struct_fields(rows)[1:], schema=values), owners, count).cast(values)

    @property
    def _entry(self) -> pa.StructType:
        """The type of a row: its sign, and its partial by number."""
        partial = [pa.field(f"_{number}", column.arrow) for number, column in enumerate(self.inner.state)]
        return pa.struct([pa.field("sign", pa.int8()), *partial])


@register_combiner(CANCEL)
def cancel(rows: pa.Table, starts: Starts) -> pa.Table:
    """The rows of each key in order, without retracted ones: a retraction removes the newest equal row before it.

    A retraction without such a row is kept, and removes no later one. Rows match like brackets, so the result does
    not depend on the grouping.
    """
    values, owners = flat(rows.column(0))
    owners = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, rows.num_rows)))[owners]
    keep = _unmatched(values, owners)
    if not keep.all():
        values, owners = values.filter(pa.array(keep)), owners[keep]
    lengths = np.bincount(owners, minlength=len(starts))
    return pa.table([nested(values, lengths, rows.schema.types[0])], schema=rows.schema)


def _left(column: Values) -> tuple[pa.Array, Numbers]:
    """The rows that count, and the index of their owner: a row after its own retraction does not."""
    values, owners = flat(column)
    keep = _unmatched(values, owners)
    values, owners = values.filter(pa.array(keep)), owners[keep]
    found = _Runs.of(values, owners)
    if found is None:
        return values, owners
    # Unmatched −1 are first in each run; as many of the rows after them are retracted.
    back = np.add.reduceat(found.sign < 0, found.heads)[found.run]
    stays = np.ones(len(values), bool)
    stays[found.rows] = np.arange(len(found.run)) - found.heads[found.run] >= 2 * back
    return values.filter(pa.array(stays)), owners[stays]


def _unmatched(values: pa.Array, owners: Numbers) -> Flags:
    """Which rows neither retract an earlier row nor are retracted by a later one."""
    found = _Runs.of(values, owners)
    keep = np.ones(len(values), bool)
    if found is not None:
        keep[found.rows] = found.unmatched()
    return keep


@dataclass(frozen=True)
class _Runs:
    """Equal rows of an owner as runs, in their order: ``rows`` are their indices, ``heads`` the starts of runs."""

    rows: Numbers
    run: Numbers
    heads: Numbers
    sign: Numbers

    @classmethod
    def of(cls, values: pa.Array, owners: Numbers) -> _Runs | None:
        """The rows of owners that have a −1; None if none has."""
        first_field, *columns = struct_fields(values)
        sign: Numbers = first_field.to_numpy().astype(np.int64)
        if not (sign < 0).any():
            return None
        some = np.flatnonzero(flags_at(int(owners.max()) + 1, owners[sign < 0])[owners])
        ids = group_ids([column.take(pa.array(some)) for column in columns], owners[some])
        by_id = sorting(ids)
        ids = ids[by_id]
        first = np.append(True, ids[1:] != ids[:-1])
        rows = some[by_id]
        return cls(rows, np.cumsum(first) - 1, np.flatnonzero(first), sign[rows])

    def unmatched(self) -> Flags:
        """Brackets without a partner: a +1 opens, a −1 closes."""
        apart = self.run * (2 * len(self.run) + 2)
        through = np.cumsum(self.sign)
        sums = through - (through - self.sign)[self.heads][self.run]
        lowest_after = np.minimum.accumulate((sums + apart)[::-1])[::-1] - apart
        lowest = np.minimum(np.minimum.accumulate(sums - apart) + apart, 0)
        before = np.append(0, lowest[:-1])
        before[self.heads] = 0
        alone: Flags = np.where(self.sign > 0, lowest_after >= sums, sums < before)
        return alone
