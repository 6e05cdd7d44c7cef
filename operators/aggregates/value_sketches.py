"""Sketches whose bytes other tools read, and approximate quantiles: HLL, theta and KLL of Apache DataSketches.

A group starts as a list of its values, which stores append and unite a column at a time. Only one that has more than
`listed_at_most` values becomes a sketch. There the library is called once a group, value by value for HLL and theta,
which takes some 60 ns a value, and by array for KLL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.aggregates.aggregate import (
    Aggregate,
    BoundAggregate,
    canonical_zero,
    doubles,
    is_number,
    singles,
    unsupported_type,
    values_per_row,
)
from tidestate.operators.aggregates.library import datasketches, updated
from tidestate.statestore.arrays import Flags, Values
from tidestate.statestore.spec.combiners import Starts, append, register_combiner
from tidestate.statestore.spec.lists import by_value, flat, lengths_of, list_values, nested, union_lists, whole
from tidestate.statestore.spec.tables import Column, Group

ValueList = list[Any]
"""The values of a group: whole numbers, doubles or text."""
Sketching = Callable[[Sequence[bytes], ValueList, int], bytes]
"""The union of stored sketches and of values, as a sketch of a given size."""
SketchFunction = Literal["hll", "theta", "quantile_approx"]
SIZES: dict[SketchFunction, tuple[str, int]] = {
    "hll": ("precision", 12),
    "theta": ("lg_k", 12),
    "quantile_approx": ("k", 200),
}
"""What users call the size of a sketch, and its default."""
COMBINERS: dict[SketchFunction, str] = {
    "hll": "tidestate-hll-values",
    "theta": "tidestate-theta-values",
    "quantile_approx": "tidestate-kll-values",
}


def random_results(configuration: Mapping[str, Any]) -> frozenset[str]:
    """The results of a stored configuration that two runs over the same input may have differently."""
    aggregates = configuration.get("aggregates", {})
    return frozenset(name for name, stored in aggregates.items() if stored.get("function") == "quantile_approx")


class ValueSketch(Aggregate, frozen=True, tag="value_sketch"):
    """A sketch of the values of a column, or a quantile that is read from one."""

    function: SketchFunction
    size: int = 12
    """The logarithm of the number of registers (HLL) or of hashes (theta); k of KLL."""
    q: float | None = None

    def bind(self, name: str, schema: pa.Schema, event_time: str) -> BoundAggregate:
        """As in `Aggregate`. Raises `UsageError` if the library is not installed."""
        datasketches()
        kind = schema.field(self.input_column).type
        value_type = pa.float64() if self.q is not None and is_number(kind) else _hashed_type(kind)
        if value_type is None or (self.q is not None and not is_number(kind)):
            raise unsupported_type(name, self, self.column, kind, _why_not(self.q is not None))
        return BoundValueSketch(name, self, kind, value_type, self.size, self.q)


def _why_not(quantile: bool) -> str:
    if quantile:
        return "it is not numeric; agg.quantile(…, interpolation='lower') returns one of its values"
    return "sketches hash whole numbers, floating-point numbers, text, times and dates; cast it to one of these first"


@dataclass(frozen=True)
class BoundValueSketch(BoundAggregate):
    """State: a list of the values while they are few, then a sketch; never both."""

    listed: pa.DataType
    size: int
    q: float | None

    @property
    def needs(self) -> tuple[str, ...]:
        return ("value-sketches/1",)

    @property
    def state(self) -> tuple[Column, ...]:
        values = Column(f"{self.name}_values", str(pa.list_(self.listed)))
        return (values, Column(f"{self.name}_sketch", "binary", "sketch"))

    @property
    def groups(self) -> tuple[Group, ...]:
        return (Group(tuple(column.name for column in self.state), COMBINERS[self._function], limit=self.size),)

    @property
    def result_type(self) -> pa.DataType:
        return pa.binary() if self.q is None else pa.float64()

    def lift(self, events: pa.Table) -> list[Values]:
        """As in `BoundAggregate`: a list of one value; empty for what a sketch does not count."""
        column = events[self.aggregate.input_column]
        values = doubles(column) if self.q is not None else _hashed(column)
        counts = values.is_valid()
        if self.q is not None:
            counts = pc.and_(counts, pc.invert(pc.fill_null(pc.is_nan(values), True)))
        elif pa.types.is_string(self.listed):
            counts = pc.and_(counts, pc.not_equal(pc.fill_null(values, ""), ""))
        return [singles(values, counts), pa.nulls(events.num_rows, pa.binary())]

    def finish(self, partials: pa.Table) -> Values:
        lists, blobs = (whole(partials[column.name]) for column in self.state)
        if self.q is not None:
            return _quantiles(lists, blobs, self.q)
        # A stored sketch is the result; of values one is made now.
        sketches = blobs.to_pylist()
        for row, values in _values_of(lists, np.asarray(blobs.is_null())):
            sketches[row] = SKETCHING[self._function]((), values, self.size)
        return pa.array(sketches, pa.binary())

    @property
    def _function(self) -> SketchFunction:
        return self.aggregate.function  # type: ignore[return-value]


def _hashed_type(kind: pa.DataType) -> pa.DataType | None:
    """The type in which values are hashed; None if they are not."""
    if pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    return pa.string() if pa.types.is_string(kind) or pa.types.is_large_string(kind) else None


def _hashed(column: Values) -> Values:
    """Values in the type in which they are hashed; a uint64 is the int64 of the same bits, as for the library."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64())
    if pa.types.is_date32(kind):
        return column.cast(pa.int32()).cast(pa.int64())
    if pa.types.is_uint64(kind):
        return whole(column).view(pa.int64())
    if pa.types.is_floating(kind):
        return canonical_zero(column.cast(pa.float64()))
    return column.cast(pa.int64() if pa.types.is_integer(kind) else pa.string())


def listed_at_most(function: SketchFunction, size: int) -> int:
    """So many values of a group are kept as a list.

    A HyperLogLog sketch of few values stores them in the order of their arrival. From an eighth of its registers on
    it has none, so that the bytes do not depend on how values were ordered and grouped.
    """
    return 1 << (size - 3) if function == "hll" else 256


@register_combiner(COMBINERS["hll"])
def collect_for_hll(rows: pa.Table, starts: Starts, size: int) -> pa.Table:
    """The distinct values of each key, or their HyperLogLog sketch."""
    return _collected("hll", union_lists(rows.select([0]), starts).column(0), rows, starts, size)


@register_combiner(COMBINERS["theta"])
def collect_for_theta(rows: pa.Table, starts: Starts, size: int) -> pa.Table:
    """The distinct values of each key, or their theta sketch."""
    return _collected("theta", union_lists(rows.select([0]), starts).column(0), rows, starts, size)


@register_combiner(COMBINERS["quantile_approx"])
def collect_for_kll(rows: pa.Table, starts: Starts, size: int) -> pa.Table:
    """All values of each key, or their KLL sketch."""
    return _collected("quantile_approx", append(whole(rows.column(0)), starts), rows, starts, size)


def _collected(function: SketchFunction, values: Values, rows: pa.Table, starts: Starts, size: int) -> pa.Table:
    """One row a key. A key with a sketch, or with many values, has a sketch of everything, and no list: so its state
    does not depend on how rows were grouped.
    """
    lists, blobs = whole(values), whole(rows.column(1))
    present = np.asarray(blobs.is_valid())
    number = np.add.reduceat(present.astype(np.int64), starts)
    # Where there is one sketch, the largest row number of any is its own.
    newest = np.maximum.reduceat(np.where(present, np.arange(len(present)), -1), starts)
    lengths = lengths_of(lists)
    # A single sketch without values beside it stays as it is.
    is_sketch = (number > 1) | ((number == 1) & (lengths > 0)) | (lengths > listed_at_most(function, size))
    old_sketches = blobs.take(pa.array(np.maximum(newest, 0), mask=(newest < 0) | is_sketch))
    if not is_sketch.any():
        return pa.table([lists, old_sketches], schema=rows.schema)
    stops = np.append(starts[1:], rows.num_rows)
    blobs_of_rows = [blobs.slice(starts[row], stops[row] - starts[row]) for row in np.flatnonzero(is_sketch)]
    sketches = [
        SKETCHING[function](parts.drop_null().to_pylist(), row_values, size)
        for parts, (_, row_values) in zip(blobs_of_rows, _values_of(lists, is_sketch), strict=True)
    ]
    listed_values, owners = flat(lists)
    listed_owners = listed_values.filter(pa.array(~is_sketch[owners]))
    lists = nested(listed_owners, np.where(is_sketch, 0, lengths), lists.type)
    return pa.table(
        [lists, pc.replace_with_mask(old_sketches, pa.array(is_sketch), pa.array(sketches, pa.binary()))],
        schema=rows.schema,
    )


def _values_of(lists: pa.Array, flags: Flags) -> Iterator[tuple[int, ValueList]]:
    """The row and the values of each list whose flag is set."""
    ends = np.append(0, np.cumsum(lengths_of(lists))).tolist()
    # Slices of a list of Python are a tenth of the time of those of an array of Arrow.
    values = list_values(lists).to_pylist()
    for row in np.flatnonzero(flags).tolist():
        yield row, values[ends[row] : ends[row + 1]]


def _hll(sketches: Sequence[bytes], values: ValueList, size: int) -> bytes:
    """The union of sketches and values. It is united with itself twice: then it has the same bytes in any order."""
    library = datasketches()
    value_sketch = updated(library.hll_sketch(size, library.HLL_8), values)
    others = map(library.hll_sketch.deserialize, sketches)
    result = updated(library.hll_union(size), (value_sketch, *others)).get_result(library.HLL_8)
    second_union = updated(library.hll_union(size), (result, result))
    return second_union.get_result(library.HLL_8).serialize_compact()  # type: ignore[no-any-return]


def _theta(sketches: Sequence[bytes], values: ValueList, size: int) -> bytes:
    """The union of sketches and values, trimmed to its size: the same bytes in any order."""
    library = datasketches()
    value_sketch = updated(library.update_theta_sketch(size), values)
    if not sketches and not value_sketch.is_estimation_mode():
        return value_sketch.compact().serialize()  # type: ignore[no-any-return]
    others = map(library.compact_theta_sketch.deserialize, sketches)
    union = updated(library.theta_union(size), (value_sketch, *others))
    return union.get_result().serialize()  # type: ignore[no-any-return]


def _kll(sketches: Sequence[bytes], values: ValueList, size: int) -> bytes:
    library = datasketches()
    sketch = library.kll_doubles_sketch(size)
    for other_sketch in map(library.kll_doubles_sketch.deserialize, sketches):
        sketch.merge(other_sketch)
    if values:
        sketch.update(np.array(values, np.float64))
    return sketch.serialize()  # type: ignore[no-any-return]


SKETCHING: dict[SketchFunction, Sketching] = {"hll": _hll, "theta": _theta, "quantile_approx": _kll}


def _quantiles(lists: pa.Array, blobs: pa.Array, q: float) -> pa.Array:
    """The quantile of each list, the least value with at least that share at or below it; or of its sketch."""
    values, owners = flat(lists)
    lengths = values_per_row(owners, len(lists))
    sorted_values = values.take(pa.array(by_value(values, owners)))
    firsts = np.append(0, np.cumsum(lengths))[:-1]
    # Values are sorted within each list, and lists lie one after the other: a quantile is a place in all of them.
    ranks = np.maximum(np.ceil(q * lengths).astype(np.int64) - 1, 0)
    exact = sorted_values.take(pa.array(firsts + ranks, mask=lengths == 0))
    is_sketch = blobs.is_valid()
    if not pc.any(is_sketch).as_py():
        return exact
    sketches = map(datasketches().kll_doubles_sketch.deserialize, blobs.drop_null().to_pylist())
    read = pa.array([_quantile_of(sketch, q) for sketch in sketches], pa.float64())
    return pc.replace_with_mask(exact, is_sketch, read)


def _quantile_of(sketch: Any, q: float) -> float:
    # A sketch knows its extremes, but its quantiles are of the values that it has kept.
    if q in (0.0, 1.0):
        return sketch.get_max_value() if q else sketch.get_min_value()  # type: ignore[no-any-return]
    return sketch.get_quantile(q, True)  # type: ignore[no-any-return]
