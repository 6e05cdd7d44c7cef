"""Cases of kind `dedup`: rows that were seen before are not passed on."""

from __future__ import annotations

from typing import Any

import tidestate as ts
from tests.conformance.aggregates import Asked
from tests.conformance.bench import Bench
from tests.conformance.case import Case, CaseError, steps_of
from tests.conformance.compare import Emission, Failure, Fields, check_emissions
from tests.conformance.driver import Driver
from tests.conformance.harness import rows_of
from tests.conformance.mapping import Input, Setup, input_of
from tests.conformance.panes import refused
from tidestate import OperatorStream

COLUMNS = {"key": "key", "value": "value", "ts": "time"}


def dedup(case: Case, bench: Bench) -> list[Failure]:
    """Each row that is passed on, and each that is late."""
    made = input_of(case)
    driver = Rows(case, Setup(made, Asked({}, (), False), _description(case, made)), bench)
    for step in steps_of(case):
        driver.take(step)
    return check_emissions(case, Fields(("value",), False), driver.emitted) + refused(case, driver)


def _description(case: Case, made: Input) -> OperatorStream:
    """Rows are distinguished by columns; within the watermark an id is forgotten ``delay`` after its row's time."""
    spec = case.dedup or {}
    names = [COLUMNS.get(name) for name in str(spec.get("on", "")).split("+")]
    if None in names:
        raise CaseError(f"{case.id}: dedup on {spec.get('on')!r} names no columns of events")
    within = made.units.span(spec["delay"]) if spec.get("within_watermark") else None
    return ts.stream(event_time="time").deduplicate(tuple(map(str, names)), within=within, name="case")


class Rows(Driver):
    """A driver whose harness answers with rows of the input."""

    def __init__(self, case: Case, setup: Setup, bench: Bench) -> None:
        super().__init__(case, setup, bench.open, bench.store, bench.room("dedup"))

    def emissions(self, table: Any) -> list[Emission]:
        """Rows as the case writes them."""
        made = self.setup.input
        return [
            {
                "key": None if row["key"] is None else made.key.decode(row["key"]),
                "value": None if row["value"] is None else made.value.decode(row["value"]),
                "timestamp": self.units.instant(row["time"], "-inf"),
                "kind": "ontime",
            }
            for row in rows_of(table)
        ]
