"""The lateness of a deduplication that has none of its own: what an operator behind it would take. Pure."""

from __future__ import annotations

from dataclasses import replace

from tidestate.operators.describe.altered import Altered
from tidestate.operators.describe.chain import Chain
from tidestate.operators.describe.deduplicate import Deduplicate
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.union import Union
from tidestate.operators.describe.windowed import UNLIMITED_US, Windowed
from tidestate.operators.describe.windows import Sessions, Sliding
from tidestate.operators.plan.plan import Plan
from tidestate.operators.rows.deduplicate import DedupPlan

LATENESS = "allowed_lateness_us"
"""Its name in the configuration of a deduplication, which has it unless it is 0."""


def following(plan: Plan, chain: Chain) -> Plan:
    """A deduplication without a lateness of its own with that of its readers; any other plan as it is."""
    if not isinstance(plan, DedupPlan) or not plan.follows:
        return plan
    return with_lateness(plan, lateness_of_readers(chain, plan.name))


def with_lateness(plan: DedupPlan, allowed_us: int) -> DedupPlan:
    """The plan with this lateness, in its configuration too."""
    others = {name: value for name, value in plan.configuration.items() if name != LATENESS}
    return replace(plan, allowed_us=allowed_us, configuration=others | ({LATENESS: allowed_us} if allowed_us else {}))


def lateness_of_readers(chain: Chain, name: str) -> int:
    """How far behind its watermark a row may be that some reader of an operator still accepts; 0 without readers."""
    readers = (one for one, origins in zip(chain.operators, chain.inputs, strict=True) if name in origins)
    return max((_accepted_us(chain, reader) for reader in readers), default=0)


def _accepted_us(chain: Chain, reader: Runnable) -> int:
    if isinstance(reader, Windowed):
        return _of_windows(reader)
    if isinstance(reader, Deduplicate) and reader.allowed_lateness_us is not None:
        return reader.allowed_lateness_us
    # What passes all rows on leaves it to its own readers; a join goes by what is in time.
    return lateness_of_readers(chain, reader.name) if isinstance(reader, Deduplicate | Union | Altered) else 0


def _of_windows(reader: Windowed) -> int:
    """By the rule ``window`` an event is accepted as long as its windows: their size more, of a session the gap."""
    windows, allowed_us = reader.windows, reader.lateness_us
    if allowed_us == UNLIMITED_US:
        return 0  # it goes by the number or size of messages, and ids would be remembered forever
    if reader.late_rule == "event":
        return allowed_us
    if isinstance(windows, Sliding):
        return allowed_us + windows.size
    return allowed_us + windows.gap if isinstance(windows, Sessions) else allowed_us
