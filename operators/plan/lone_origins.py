"""The one origin of windows of offsets, or of each side of a join of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.plan.plan import Plan
from tidestate.statestore.errors import UsageError


def one_origin(plan: Plan, known: Iterable[str], seen: Iterable[str]) -> tuple[str, ...]:
    """The origins so far, of a plan that takes only one, or one of each side. Raises `UsageError` for a second."""
    origins = tuple(sorted({*known, *seen}))
    for front, column in plan.lone_origins.items():
        found = [origin.removeprefix(front) for origin in origins if origin.startswith(front)]
        if len(found) > 1:
            raise UsageError(
                "windows of offsets, and each side of a join, can read only one origin, as offsets of two origins "
                "cannot be compared: run a job for each origin, or count messages instead, count_windows(…)",
                code="several-origins",
                column=column,
                found=tuple(found[:2]),
            )
    return origins


def origins_in(plan: Plan, accepted: pa.Table) -> list[str]:
    """At most two origins for each column of ``accepted`` rows that may have only one."""
    return [
        f"{front}{origin}"
        for front, column in plan.lone_origins.items()
        for origin in pc.unique(accepted[column].drop_null()).slice(0, 2).to_pylist()
    ]
