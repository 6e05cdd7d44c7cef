"""Identities that Spark's dropDuplicatesWithinWatermark remembers, as those of a deduplication. Pure."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.adopt.spark_keys import spark_keys
from tidestate.operators.adopt.spark_state import SparkState, column_of
from tidestate.operators.plan.plan import Plan
from tidestate.operators.plan.transition import Transition
from tidestate.operators.progress.progress import Context
from tidestate.operators.rows.deduplicate import DedupPlan
from tidestate.statestore.durations import text_of
from tidestate.statestore.errors import UsageError, of_type
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.store import StateView


def spark_identities(plan: DedupPlan, state: SparkState, delay_us: int, newest_us: int) -> pa.Table:
    """Rows of the table of identities. ``newest_us``: no event time so far is larger."""
    if plan.within_us != delay_us:
        raise UsageError(
            "dropDuplicatesWithinWatermark remembers a row for the delay of the watermark: give within= and "
            "watermark_delay= the same span; it may be changed later",
            code="adopt-watermark",
            within=None if plan.within_us is None else text_of(plan.within_us),
            watermark_delay=text_of(delay_us),
        )
    keys = spark_keys(plan, dict(enumerate(state.key)), state.rows, "key")
    until = state.rows[column_of("value", 0)]
    last = pc.max(until).as_py()
    # Spark's watermark, and with it the newest time, is cut to milliseconds.
    if last is not None and last >= newest_us + delay_us + 1000:
        raise UsageError(
            "the query remembers rows for longer than the watermark delay of the job: give the job the same delay",
            code="adopt-watermark",
            watermark_delay=text_of(delay_us),
        )
    return pa.table([*keys, until], schema=plan.seen.schema)


def remember_identities(plan: Plan, view: StateView, rows: pa.Table, context: Context) -> Transition:
    """Put the identities into the table; nothing is passed on."""
    dedup = of_type(plan, DedupPlan)
    return Transition({dedup.seen.name: TableChanges(put=rows)}, plan.pane_schema.empty_table())
