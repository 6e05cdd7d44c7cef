"""Conditions that rows are expected to meet, bound to the columns of a stream: `Expect`. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from tidestate.operators.describe.stages import Expect
from tidestate.operators.expressions.binding import BoundExpression, Zones, bind_condition
from tidestate.operators.plan.reasons import EXPECTATION
from tidestate.operators.plan.stages import StageResult
from tidestate.statestore.arrays import Flags


@dataclass(frozen=True)
class BoundExpectations:
    """Expectations that are written one after the other, over columns of this ``schema``, to which they are bound
    again in each process, by these rules of zones. Each sees every row, so that a row has the names of all that it
    does not meet.
    """

    expectations: tuple[Expect, ...]
    schema: pa.Schema
    zones: Zones

    def __reduce__(self) -> tuple[Any, ...]:
        return BoundExpectations, (self.expectations, self.schema, self.zones)

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns that the conditions name."""
        return tuple(dict.fromkeys(name for expectation in self.expectations for name in expectation.reads))

    @property
    def makes(self) -> tuple[str, ...]:
        """None: rows stay as they are."""
        return ()

    @cached_property
    def conditions(self) -> list[BoundExpression]:
        """What is true of a row that meets each of them."""
        return [bind_condition(expectation.condition, self.schema, self.zones) for expectation in self.expectations]

    def run(self, rows: pa.Table, passes: Flags | None = None) -> StageResult:
        """Rows without those that are refused, and which do not meet each expectation: its condition is false or
        null. A row that a condition has left out before is asked for nothing: it goes on, as it moves the watermark.
        """
        violations, is_refused = dict[str, Flags](), np.zeros(rows.num_rows, bool)
        for expectation, condition in zip(self.expectations, self.conditions, strict=True):
            is_violated = ~condition.evaluate(rows).cast(pa.bool_()).fill_null(False).to_numpy(zero_copy_only=False)
            if passes is not None:
                is_violated &= passes
            if is_violated.any():
                violations[expectation.name] = is_violated
                if expectation.otherwise != "count":
                    is_refused |= is_violated
        if not is_refused.any():
            return StageResult(rows, violations=violations)
        return StageResult(rows.filter(pa.array(~is_refused)), ~is_refused, EXPECTATION, violations=violations)
