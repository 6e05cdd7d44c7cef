"""A stream without its repetitions, as a manifest holds it."""

from __future__ import annotations

from typing import Annotated

from tidestate.operators.describe.runnable import Runnable
from tidestate.statestore.spec.added import Added


class Deduplicate(Runnable, frozen=True, tag="deduplicated"):
    """Passes on the first row with each value of ``on``, for as long as values are remembered.

    ``allowed_lateness_us``: how far behind the watermark a row is still accepted; None: as the operators need that
    read it. Not stored where it is 0. ``signed``: as of `tidestate.operators.describe.union.Union`, where None stands
    for rows of which operators behind this one get no columns that are called as those of panes.
    """

    event_time: str
    on: tuple[str, ...]
    within_us: int | None
    watermark_delay_us: int
    in_order: bool = False
    allowed_lateness_us: Annotated[int | None, Added("deduplication-lateness/1")] = None
    signed: Annotated[bool | None, Added("plain-rows/1")] = None
