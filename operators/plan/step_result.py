"""The result of a step of an embedded operator."""

from __future__ import annotations

from dataclasses import dataclass

from tidestate.operators.plan.transition import Transition


@dataclass(frozen=True)
class StepResult:
    """What a step did, its changes applied already, and whether it must be durable before the call returns.

    ``purged``: a window or row was dropped. ``newest`` grows when a later window is opened.
    """

    moved: Transition
    purged: bool = False
    newest: int | None = None
