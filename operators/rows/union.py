"""A union: rows of all sides are passed on as they come. There is no state."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from tidestate.operators.describe.sides import AT
from tidestate.operators.plan.plan import Arrival, Plan
from tidestate.operators.plan.transition import StepTimes, Transition
from tidestate.statestore.arrays import Flags, Times
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.arrowtypes import type_text
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.spec.tables import Column, TableSpec


@dataclass(frozen=True)
class UnionPlan(Plan):
    """Rows go to state partitions by their time, the one column that all have: so evenly, and equal rows together."""

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """None."""
        return ()

    @cached_property
    def exchanged(self) -> TableSpec:
        """Rows as they are."""
        rest = [field for field in self.input_schema if field.name != AT]
        return TableSpec("rows", self.key_specs, tuple(Column(field.name, type_text(field.type)) for field in rest))

    @property
    def pane_schema(self) -> pa.Schema:  # type: ignore[override]
        """Rows as they came."""
        return self.input_schema

    def too_late(self, events: pa.Table, times: Times, watermark: int, *, reprocessing: bool) -> Flags:
        """None: who reads the rows says what is too late there."""
        return np.zeros(len(times), bool)

    def arrive(self, accepted: pa.Table, times: Times, arrival: Arrival) -> pa.Table:
        """Rows as they are, in order."""
        return self.exchanged.conform(accepted)

    def step(self, view: StateView, arriving: pa.Table, at: StepTimes) -> Transition:
        """Pass everything on."""
        counters = {"passed": arriving.num_rows} if arriving.num_rows else {}
        return Transition({}, arriving.select(self.input_schema.names), counters)

    def output_watermark(self, watermark: int, column: str = AT) -> int:
        """No row to come has an earlier time, but for those that are behind ``watermark`` as they come."""
        if column != AT:
            raise UsageError("a union goes by the times of its rows", code="chain-time", column=column, use=AT)
        return watermark
