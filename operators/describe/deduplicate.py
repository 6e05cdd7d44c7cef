"""What the user writes: a stream without its repetitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Self

from msgspec.structs import replace

from tidestate.operators.describe.runnable import Runnable, checked_name
from tidestate.statestore.arguments import checked
from tidestate.statestore.durations import Span, span_us
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.added import Added


class Deduplicate(Runnable, frozen=True, tag="deduplicated"):
    """Passes on the first row with each value of ``on``, for as long as values are remembered.

    ``allowed_lateness_us``: how far behind the watermark a row is still accepted; None: as the operators need that
    read it. Not stored where it is 0.
    """

    event_time: str
    on: tuple[str, ...]
    within_us: int | None
    watermark_delay_us: int
    in_order: bool = False
    allowed_lateness_us: Annotated[int | None, Added("deduplication-lateness/1")] = None

    def late(self, allowed: Span) -> Self:
        """Accept rows up to ``allowed`` behind the watermark, and remember values for that much longer; later rows go
        to the late ledger. The default is what the operators accept that read it: the most of them, 0 without any.
        """
        allowed_us = span_us(allowed)
        if allowed_us < 0:
            raise UsageError("lateness cannot be negative", code="lateness", allowed=allowed)
        return replace(self, allowed_lateness_us=allowed_us)


@checked
def deduplicated(
    *,
    event_time: str,
    on: str | Sequence[str],
    within: Span | None = None,
    watermark_delay: Span = "0 seconds",
    name: str = "deduplicated",
    in_order: bool = False,
) -> Deduplicate:
    """Pass on the first row with each value of the columns ``on``. Rows behind the watermark are late, see
    `Deduplicate.late`.

    A value expires once the watermark, less the allowed lateness, has passed its row's time by ``within``; without
    ``within``, once it has passed the row's time: then put the event time into ``on`` too, or repetitions with a
    later time pass. With ``in_order`` rows are held until the watermark passes them and judged in order of time, so
    the result does not depend on the cut.
    """
    columns = (on,) if isinstance(on, str) else tuple(on)
    if not columns or len(set(columns)) != len(columns):
        raise UsageError("name the columns that identify a row, each once", code="key-columns", found=list(columns))
    within_us, delay_us = None if within is None else span_us(within), span_us(watermark_delay)
    if delay_us < 0 or (within_us is not None and within_us < 0):
        raise UsageError("a watermark delay or a time to remember cannot be negative", code="watermark-delay")
    return Deduplicate(event_time, columns, within_us, delay_us, in_order, name=checked_name(name))
