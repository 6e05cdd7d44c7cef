"""Which messages of a batch are new, and what they are classified as. Pure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.embedded.plan import OperatorPlan
from tidestate.operators.plan.classify import Classified, Intake, classify, with_types
from tidestate.operators.plan.ledger import BEYOND_RETENTION, ledger
from tidestate.operators.progress.instants import LIMIT_US
from tidestate.statestore.errors import UsageError
from tidestate.statestore.messages.store import DUPLICATE, OUT_OF_RETENTION, STORED, add
from tidestate.statestore.messages.tables import MESSAGE_TIME, OFFSET, ORIGIN
from tidestate.statestore.spec.plain import with_fields
from tidestate.statestore.spec.tables import TIME
from tidestate.statestore.table.overlay import OverlayView


def admit_messages(plan: OperatorPlan, state: OverlayView, batch: pa.Table, intake: Intake) -> Classified:
    """Classify each row of ``batch``: duplicate, out of retention, rejected, or accepted. All are known from now on.

    Accepted messages are in the order of (origin, offset).
    """
    batch = with_fields(batch, plan.input_schema.names)
    missing = [name for name in plan.input_schema.names if name not in batch.column_names]
    if missing:
        raise UsageError("a batch lacks columns of the input", code="column-missing", missing=missing)
    rows = with_types(batch.select(plan.input_schema.names), plan.input_schema)
    known = add(plan.identities, state, _identities(plan, rows, intake.watermark_us))
    fresh = rows.filter(pa.array(known.verdicts == STORED))
    fresh = fresh.sort_by([(plan.origin, "ascending"), (plan.offset, "ascending")])
    classified = classify(plan, fresh, intake, 1)
    names = {plan.identities.seen.name, plan.identities.marks.name}
    state.apply({name: change for name, change in known.changes.items() if name in names})
    rejected = [] if classified.rejected is None else [classified.rejected]
    counters = dict(classified.counters)
    gone = rows.filter(pa.array(known.verdicts == OUT_OF_RETENTION))
    if gone.num_rows:
        rejected.append(ledger(plan, gone, BEYOND_RETENTION, intake.watermark_us))
        counters[BEYOND_RETENTION] = gone.num_rows
    if duplicates := int(np.count_nonzero(known.verdicts == DUPLICATE)):
        counters["duplicates"] = duplicates
    return replace(classified, rejected=pa.concat_tables(rejected) if rejected else None, counters=counters)


def _identities(plan: OperatorPlan, rows: pa.Table, watermark_us: int | None) -> pa.Table:
    """Who each row is, with a time by which it is forgotten: its own, or now where that is no real time."""
    times, usable = _times(rows[plan.event_time])
    now = max([int(times[usable].max())] if usable.any() else [0])
    now = now if watermark_us is None else max(now, watermark_us)
    stamped = pa.array(np.where(usable, times, now)).cast(TIME)
    try:
        offsets = rows[plan.offset].cast(pa.int64())
    except (pa.ArrowException, ValueError) as error:
        raise UsageError(f"offsets are whole numbers ({error})", code="batch-type", column=plan.offset) from None
    return pa.table({ORIGIN: rows[plan.origin], OFFSET: offsets, MESSAGE_TIME: stamped})


def _times(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    times = pc.fill_null(column.cast(TIME).cast(pa.int64()), 2**63 - 1).to_numpy()
    return times, (times <= LIMIT_US) & (times >= -LIMIT_US)
