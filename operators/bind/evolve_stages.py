"""Which filters and computed columns of a job may change while its state stays. Pure.

They hold for rows from now on. What state was kept by stays as it is computed: keys, times and the order of rows.
`tidestate.operators.bind.evolve_readers` looks at operators behind, which get these columns handed on. Nor do stages
change on input that takes rows back: the retraction of an earlier row would be judged in another way than the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tidestate.operators.describe.stages import Decode, StoredStage, derivation
from tidestate.operators.plan.plan import Plan
from tidestate.operators.rows.passing import AlteredPlan

STAGES = "stages"
"""The setting of filters and computed columns, as it is stored and as it is written."""
_SIGNED = (
    "its input takes rows back, and the retraction of an earlier row would be judged in another way than the row was"
)


def stages_rule(was: Any, now: Any, plan: Plan) -> str:
    """Why stored stages cannot change from one list to another under a plan; empty where they can."""
    before, after = (computing(msgspec.convert(stored or [], list[StoredStage])) for stored in (was, now))
    if before == after:
        return ""
    if plan.input.signed or (isinstance(plan, AlteredPlan) and plan.retracts):
        return _SIGNED
    if column := next((name for name in kept_by(plan) if derivation(before, name) != derivation(after, name)), None):
        return f"state is kept by {column}, which would be computed in another way"
    return ""


def computing(stages: Sequence[StoredStage]) -> list[StoredStage]:
    """Without what decodes: types of decoded columns are compared as such."""
    return [stage for stage in stages if not isinstance(stage, Decode)]


def kept_by(plan: Plan) -> list[str]:
    """The columns of the input by which state is kept, or time advances."""
    spec = plan.input
    return list(dict.fromkeys([*spec.key_names, spec.event_time, *spec.order, *spec.watermarks.columns]))
