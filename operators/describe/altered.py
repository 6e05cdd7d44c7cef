"""A time shift, as a manifest holds it."""

from __future__ import annotations

from tidestate.operators.describe.runnable import Runnable


class Altered(Runnable, frozen=True, tag="altered"):
    """Passes rows on with other times: ``shift_us`` later, and ending ``duration_us`` after their start."""

    event_time: str
    shift_us: int
    end: str | None
    duration_us: int | None
    watermark_delay_us: int
    offset: str | None = None
    origin: str | None = None
