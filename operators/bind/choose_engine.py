"""Which engine works on windows: the one whose tables are in the state. Pure."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from tidestate.operators.describe.windows import Sliding
from tidestate.operators.plan.plan import Plan
from tidestate.operators.windows.general.names import GROUPS
from tidestate.operators.windows.general.plan import GeneralPlan
from tidestate.operators.windows.slices.bridge import BridgePlan
from tidestate.operators.windows.slices.plan import SlicePlan
from tidestate.operators.windows.slices.tables import SLICES
from tidestate.recovery.log.manifest import OperatorState


def choose_engine(plan: Plan, stored: OperatorState) -> Plan:
    """The plan of the kind whose tables are there: the general one serves all settings, but its tables are others."""
    names = {spec.name for spec in stored.tables}
    if isinstance(plan, SlicePlan) and GROUPS in names:
        plan = GeneralPlan(**vars_of(plan))
    if isinstance(plan, GeneralPlan) and SLICES in names and isinstance(plan.kind, Sliding):
        plan = BridgePlan(**vars_of(plan), fresh=GROUPS not in names)
    return plan


def vars_of(plan: Plan) -> dict[str, Any]:
    """The fields that all plans have."""
    return {field.name: getattr(plan, field.name) for field in fields(Plan)}
