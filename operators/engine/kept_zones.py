"""The rules of time zones that a root has, for a start on a host whose tzdata lacks a zone of the job."""

from __future__ import annotations

import logging
from functools import cache
from os import PathLike

from tidestate.operators.bind.stored_description import zones_of_job
from tidestate.operators.zones.rules import KeptRules, ZoneRules
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.moves.repair import plan_repair
from tidestate.recovery.start.policy import Policy
from tidestate.statestore.errors import NotFoundError

log = logging.getLogger("tidestate")


def kept_rules(root: str | PathLike[str], policy: Policy | None = None) -> KeptRules:
    """The rules in the checkpoint that a start at ``root`` goes on from. The root is read when they are asked for,
    which a host that knows all zones never does; a root that is not there has none. Each zone is logged once.
    """

    @cache
    def rules_by_name() -> dict[str, ZoneRules]:
        try:
            checkpoint = Checkpoint.open(root)
        except NotFoundError:
            return {}
        head, _ = resumed(checkpoint, policy or Policy())
        # A new operator takes the rules of the others, so also those of one that the job no longer has.
        return {} if head is None else zones_of_job(head.operators, head.operators)

    @cache
    def rules(name: str) -> ZoneRules | None:
        rules_of_zone = rules_by_name().get(name)
        if rules_of_zone is not None:
            log.warning(unknown_zone_line(name))
        return rules_of_zone

    return rules


def unknown_zone_line(name: str) -> str:
    """What is written of a zone that this installation does not know."""
    return (
        f"time zone {name}: this installation does not know it, and the job goes on by the rules in its checkpoint: "
        "install tzdata"
    )


def resumed(checkpoint: Checkpoint, policy: Policy) -> tuple[Manifest | None, int | None]:
    """The checkpoint that a start goes on from, None where there is none; and to which number a reset would go back
    for it, None without one.
    """
    reset = plan_repair(checkpoint).reset if policy.damaged == "reset" else None
    if reset is not None:
        return reset.manifest, reset.to
    head = checkpoint.head(search=True)
    return None if head is None else head.manifest, None
