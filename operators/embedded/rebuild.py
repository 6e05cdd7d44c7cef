"""The message store is lost: what a replay from `replay_from` puts back. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.embedded.plan import OperatorPlan
from tidestate.operators.embedded.window_metadata import get_sessions
from tidestate.statestore.errors import UsageError
from tidestate.statestore.messages.tables import MESSAGE_TIME, OFFSET, ORIGIN, MessageTables
from tidestate.statestore.spec.changes import ChangeSet, TableChanges
from tidestate.statestore.spec.store import StateView


def rebuildable(plan: OperatorPlan) -> MessageTables:
    """The tables of messages. Raises `UsageError` where a replay cannot tell what stood there."""
    if plan.messages is None or plan.by_number:
        raise UsageError(
            "there are no messages to rebuild"
            if plan.messages is None
            else "messages of counted windows have their numbers by arrival, which a replay does not know",
            code="no-messages",
        )
    return plan.messages


def put_back(plan: OperatorPlan, view: StateView, replay: pa.Table, rejected: pa.Table) -> ChangeSet:
    """Messages of ``replay`` that had been accepted: known by their identity, not ``rejected`` (origin, offset)."""
    tables = rebuildable(plan)
    rows = plan.as_messages(replay.select(plan.input_schema.names).cast(plan.input_schema))
    seen = view[tables.seen.name].lookup(tables.seen.conform_keys(rows))
    rows = _once(rows.filter(seen.found), rejected)
    rows = tables.conform(rows)
    if plan.sessions and rows.num_rows:
        rows = _of_sessions(plan, view, rows)
    return {tables.messages.name: TableChanges(put=tables.messages.conform(rows))}


def _once(rows: pa.Table, rejected: pa.Table) -> pa.Table:
    numbered = rows.select([ORIGIN, OFFSET]).append_column("__row", pa.array(np.arange(rows.num_rows)))
    firsts = numbered.group_by([ORIGIN, OFFSET], use_threads=False).aggregate([("__row", "min")])
    left = firsts.join(rejected.cast(firsts.select([ORIGIN, OFFSET]).schema), [ORIGIN, OFFSET], join_type="left anti")
    return rows.take(pa.array(np.sort(left["__row_min"].to_numpy())))


def _of_sessions(plan: OperatorPlan, view: StateView, rows: pa.Table) -> pa.Table:
    """Those of sessions that are kept: the others' messages have been retired."""
    times = rows[MESSAGE_TIME].cast(pa.int64())
    keys = plan.group_keys if plan.messages and plan.messages.layout.by_session else plan.key_names
    requests = rows.select(keys)
    for name in plan.group_keys[len(keys) :]:
        requests = requests.append_column(name, pa.array(np.zeros(rows.num_rows, np.int8)))
    requests = requests.append_column("start", times).append_column("end", pc.add(times, 1))
    return rows.take(pa.array(np.unique(np.asarray(get_sessions(plan.metadata, view, requests).request_index))))
