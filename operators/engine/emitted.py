"""What a job emits, as its sinks learn it before it starts. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from tidestate.operators.describe.sinks import Emitted
from tidestate.operators.plan.plan import Plan


def emitted_by(plan: Plan, plans: Iterable[Plan] = ()) -> Emitted:
    """The rows of the output operator of a job, and the late rows of all its ``plans``."""
    late = tuple(each.late_schema for each in plans)
    return Emitted(plan.name, plan.delivered_schema, plan.pane_key, plan.retracts, plan.partial_panes, late)
