"""What becomes of a batch of messages: each known one is passed over, the others are classified. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.embedded.plan import OperatorPlan
from tidestate.operators.plan.classify import Intake, classify, with_types
from tidestate.operators.plan.ledger import BEYOND_RETENTION, ledger
from tidestate.operators.progress.instants import LIMIT_US
from tidestate.operators.progress.rounds import Claims
from tidestate.statestore.errors import UsageError
from tidestate.statestore.messages.store import DUPLICATE, OUT_OF_RETENTION, STORED, add
from tidestate.statestore.messages.tables import MESSAGE_TIME, OFFSET, ORIGIN
from tidestate.statestore.spec.changes import ChangeSet
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.spec.tables import TIME


@dataclass(frozen=True)
class Accepted:
    """``changes`` remember who has been here; ``messages`` are the accepted ones, by (origin, offset)."""

    changes: ChangeSet
    messages: pa.Table
    arriving: pa.Table
    rejected: list[pa.Table]
    max_event_us: int | None
    counters: dict[str, int]
    origins: tuple[str, ...]
    claims: Claims


def accept(plan: OperatorPlan, view: StateView, batch: pa.Table, intake: Intake) -> Accepted:
    """Judge each row of ``batch``: duplicate, out of retention, rejected by its class, or accepted."""
    watermark_us = intake.watermark_us
    missing = [name for name in plan.input_schema.names if name not in batch.column_names]
    if missing:
        raise UsageError("a batch lacks columns of the input", code="column-missing", missing=missing)
    rows = with_types(batch.select(plan.input_schema.names), plan.input_schema)
    known = add(plan.identities, view, _identities(plan, rows, watermark_us))
    names = {plan.identities.seen.name, plan.identities.marks.name}
    changes = {name: change for name, change in known.changes.items() if name in names}
    fresh = rows.filter(pa.array(known.verdicts == STORED))
    fresh = fresh.sort_by([(plan.origin, "ascending"), (plan.offset, "ascending")])
    classified = classify(plan, fresh, intake, 1)
    rejected = [] if classified.rejected is None else [classified.rejected]
    gone = rows.filter(pa.array(known.verdicts == OUT_OF_RETENTION))
    counters = dict(classified.counters)
    if gone.num_rows:
        rejected.append(ledger(plan, gone, BEYOND_RETENTION, watermark_us))
        counters[BEYOND_RETENTION] = gone.num_rows
    if duplicates := int(np.count_nonzero(known.verdicts == DUPLICATE)):
        counters["duplicates"] = duplicates
    return Accepted(
        changes,
        classified.accepted,
        classified.partials[0],
        rejected,
        classified.max_event_us,
        counters,
        classified.origins,
        classified.claims,
    )


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
