"""What a job emits, as its sinks learn it before it starts. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from tidestate.operators.describe.sinks import Emitted
from tidestate.operators.plan.plan import Plan
from tidestate.operators.rows.deduplicate import DedupPlan
from tidestate.operators.windows.results import partial_panes
from tidestate.operators.windows.tables import GroupTables


def emitted_by(plan: Plan, plans: Iterable[Plan] = ()) -> Emitted:
    """The rows of the output operator of a job, and the late rows of all its ``plans``."""
    known = isinstance(plan, GroupTables | DedupPlan)  # rows of others, as of a join, may repeat a key
    key = tuple(plan.key_names) if known else None
    late = tuple(each.late_schema for each in plans)
    return Emitted(plan.name, plan.pane_schema, key, plan.retracts, partial_panes(plan), late)
