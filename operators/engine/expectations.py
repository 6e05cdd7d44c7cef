"""Whether a batch may be published: expectations that fail it. The tasks count, the driver decides, so that one error
names the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.engine.delivery import read_rows
from tidestate.operators.engine.micro_batch import TaskResult
from tidestate.operators.plan.plan import Plan
from tidestate.operators.plan.reasons import EXPECTATION
from tidestate.operators.plan.stages import COMPUTED, MISSED_EXPECTATIONS, Expectation
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.lists import flat

FAILS_FROM = 100
"""So many rows have to miss an expectation with a share before the batch fails: a share of a few rows says little."""
EXAMPLES = 5
"""So many rows are in the error."""


def check_expectation(
    checkpoint: Checkpoint, plan: Plan, expectation: Expectation, results: Sequence[TaskResult]
) -> None:
    """Raise `UsageError` (``expectation``) if the rows that an operator got in a batch fail it, before anything of
    the batch is published.
    """
    missed = sum(result.counters.get(f"{EXPECTATION}:{expectation.name}", 0) for result in results)
    events = sum(result.counters.get("events", 0) for result in results)
    if why := _why_it_fails(expectation, missed, events):
        raise _failure(checkpoint, plan, results, expectation, why)


def _why_it_fails(expectation: Expectation, missed: int, events: int) -> str:
    """What fails the batch; empty where nothing does. Rows that are put back are no events, and have no share."""
    if expectation.fails and missed:
        return f'{missed:,} of {events or missed:,} rows do not meet it, and otherwise= is "fail"'
    at_most = expectation.at_most
    if at_most is None or missed < FAILS_FROM or not events or missed <= at_most * events:
        return ""
    return f"{missed:,} of {events:,} rows do not meet it, which is more than at_most={at_most:g} of them"


def _failure(
    checkpoint: Checkpoint, plan: Plan, results: Sequence[TaskResult], expectation: Expectation, why: str
) -> UsageError:
    rows = read_rows(checkpoint, tuple(ref for result in results for ref in result.late), plan.late_schema)
    names, owners = flat(rows[MISSED_EXPECTATIONS])
    of_this = owners[pc.equal(names, expectation.name).to_numpy(zero_copy_only=False)][:EXAMPLES]
    columns = [name for name in rows.column_names if name not in (MISSED_EXPECTATIONS, COMPUTED, "reason")]
    examples = rows.take(pa.array(of_this)).select(columns).to_pylist()
    return UsageError(
        f"the batch fails an expectation, and nothing of it was published: {why}. Mend the input or the condition, "
        'or take these rows out with otherwise="ledger" and no at_most=, and start again: the batch is read again',
        code="expectation",
        operator=plan.name,
        expectation=expectation.name,
        condition=expectation.condition,
        examples=[
            ", ".join(f"{name}={value}" for name, value in row.items() if value is not None) for row in examples
        ],
    )
