"""Approximate counts of distinct values in a few kilobytes: HyperLogLog sketches of Apache DataSketches.

A partial is a sketch in the format of that library (HLL_8), which its other languages and Spark's
``hll_sketch_estimate`` read too. The library updates and merges sketches one by one, in C++: the only loop over rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.aggregates.aggregate import Aggregate, BoundAggregate, kept_type, needs_to_compare
from tidestate.operators.aggregates.library import datasketches, updated
from tidestate.statestore.arrays import Values
from tidestate.statestore.spec.combiners import Starts, register_combiner
from tidestate.statestore.spec.lists import whole
from tidestate.statestore.spec.tables import Column, Group

UNITE = "tidestate-hll"


class Sketch(Aggregate, frozen=True, tag="sketch"):
    """An approximate count of distinct values."""

    function: Literal["count_distinct_approx"]
    precision: int = 12

    def bind(self, name: str, schema: pa.Schema, event_time: str) -> BoundAggregate:
        """As in `Aggregate`. Raises `UsageError` if the library is not installed."""
        datasketches()
        return BoundSketch(name, self, kept_type(name, self, self.input_column, schema, sorts=True), self.precision)


@dataclass(frozen=True)
class BoundSketch(BoundAggregate):
    """State: a sketch; null without values."""

    precision: int

    @property
    def needs(self) -> tuple[str, ...]:
        return needs_to_compare(self.input_type)

    @property
    def state(self) -> tuple[Column, ...]:
        return (Column(f"{self.name}_sketch", "binary", "sketch"),)

    @property
    def groups(self) -> tuple[Group, ...]:
        return (Group((self.state[0].name,), UNITE),)

    @property
    def result_type(self) -> pa.DataType:
        return pa.int64()

    def lift(self, events: pa.Table) -> list[Values]:
        """As in `BoundAggregate`: one sketch for all events with the same value."""
        library = datasketches()
        encoded_values = whole(events[self.aggregate.input_column]).dictionary_encode()

        def sketch(value: int | float | str) -> bytes:
            new_sketch = library.hll_sketch(self.precision, library.HLL_8)
            new_sketch.update(value)
            return new_sketch.serialize_compact()  # type: ignore[no-any-return]

        sketches = pa.array([sketch(value) for value in _updates(encoded_values.dictionary)], pa.binary())
        return [sketches.take(encoded_values.indices)]

    def finish(self, partials: pa.Table) -> Values:
        sketches = partials[self.state[0].name]
        return pa.array([0 if blob is None else _estimate(blob) for blob in sketches.to_pylist()], pa.int64())


@register_combiner(UNITE)
def unite(rows: pa.Table, starts: Starts) -> pa.Table:
    """The union of the sketches of each key."""
    column = rows.column(0)
    present = np.asarray(column.is_valid())
    several = np.add.reduceat(present.astype(np.int64), starts) > 1
    stops = np.append(starts[1:], len(column))
    # A single sketch of a key, or its null, stays as it is.
    row_numbers = np.maximum.reduceat(np.where(present, np.arange(len(column)), -1), starts)
    single_sketches = column.take(pa.array(np.maximum(row_numbers, 0), mask=(row_numbers < 0) | several))
    if not several.any():
        return pa.table([single_sketches], schema=rows.schema)
    groups = zip(starts[several].tolist(), stops[several].tolist(), strict=True)
    unions = pa.array([_united(column.slice(first, stop - first).to_pylist()) for first, stop in groups], pa.binary())
    return pa.table([pc.replace_with_mask(whole(single_sketches), pa.array(several), unions)], schema=rows.schema)


def _united(blobs: Sequence[bytes | None]) -> bytes:
    library = datasketches()
    sketches = [library.hll_sketch.deserialize(blob) for blob in blobs if blob is not None]
    union = updated(library.hll_union(sketches[0].lg_config_k), sketches)
    return union.get_result(library.HLL_8).serialize_compact()  # type: ignore[no-any-return]


def _estimate(blob: bytes) -> int:
    """The estimate of a sketch united with itself: it depends only on the values, not on the order of merges."""
    library = datasketches()
    sketch = library.hll_sketch.deserialize(blob)
    estimate: float = updated(library.hll_union(sketch.lg_config_k), (sketch, sketch)).get_estimate()
    return round(estimate)


def _updates(values: pa.Array) -> list[Any]:
    """Distinct values in types of the library: 64-bit integers, doubles or text."""
    kind = values.type
    if pa.types.is_floating(kind):
        return values.cast(pa.float64()).to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        values = values.cast(pa.int64())
    elif pa.types.is_date32(kind):
        values = values.cast(pa.int32())
    elif pa.types.is_uint64(kind):
        values = pa.array(values.to_numpy().view(np.int64))
    elif pa.types.is_binary(kind):
        values = pa.array([value.hex() for value in values.to_pylist()], pa.string())
    elif pa.types.is_boolean(kind):
        values = values.cast(pa.int8())
    elif pa.types.is_decimal(kind):
        values = values.cast(pa.string())
    # The library ignores empty text, so it becomes a number, which no other text does.
    return [0 if value == "" else value for value in values.to_pylist()]
