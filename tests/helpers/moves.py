"""A fork, a rewind, a repair and a resync at once: their plans, executed."""

from __future__ import annotations

from typing import Any

from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.lease import check_idle
from tidestate.recovery.moves.fork import Forked, execute_fork, plan_fork
from tidestate.recovery.moves.repair import Repair, plan_repair, plan_resync
from tidestate.recovery.moves.reset import Reset, execute_reset, plan_reset


def fork(*arguments: Any, **settings: Any) -> Forked:
    return execute_fork(plan_fork(*arguments, **settings))


def rewind(checkpoint: Checkpoint, to: int, *, force: bool = False) -> Reset:
    check_idle(checkpoint, force)
    return reset_to(checkpoint, to, force=force)


def reset_to(checkpoint: Checkpoint, to: int, *, force: bool = True, **settings: Any) -> Reset:
    reset = plan_reset(checkpoint, to)
    execute_reset(checkpoint, reset, force=force, **settings)
    return reset


def repair(checkpoint: Checkpoint, *, force: bool = False) -> Repair:
    check_idle(checkpoint, force)
    return execute_repair(checkpoint, plan_repair(checkpoint), force=force)


def resync(checkpoint: Checkpoint, *, force: bool = False) -> Repair:
    check_idle(checkpoint, force)
    return execute_repair(checkpoint, plan_resync(checkpoint), force=force)


def execute_repair(checkpoint: Checkpoint, plan: Repair, *, force: bool = False) -> Repair:
    if plan.reset is not None:
        execute_reset(checkpoint, plan.reset, force=force)
    return plan
