"""Whether the newest pane of a window is its result. Pure."""

from __future__ import annotations

from tidestate.operators.plan.plan import Plan
from tidestate.operators.windows.tables import GroupTables


def partial_panes(plan: Plan) -> str:
    """Why the newest pane of a window is not its result; empty where it is."""
    if not isinstance(plan, GroupTables) or not plan.repeats:
        return ""
    if plan.mode == "discarding":
        return 'with "discarding" the panes of a window are parts of its result, which have to be combined'
    if plan.sessions and not plan.retracts:
        return "sessions that grow do not retract their earlier panes unless the job is retracting"
    return ""
