"""A time shift, as a manifest holds it."""

from __future__ import annotations

from typing import Annotated

from tidestate.operators.describe.runnable import Runnable
from tidestate.statestore.spec.added import Added


class Altered(Runnable, frozen=True, tag="altered"):
    """Passes rows on with other times: ``shift_us`` later, and ending ``duration_us`` after their start. A column may
    say it of each row instead: then none is shifted by less than ``shift_us``. ``in_order``: once the watermark has
    passed the rows. ``signed``: as of `tidestate.operators.describe.union.Union`.
    """

    event_time: str
    shift_us: int
    end: str | None
    duration_us: int | None
    watermark_delay_us: int
    offset: str | None = None
    origin: str | None = None
    shift_column: Annotated[str | None, Added("altered-by-columns/1")] = None
    duration_column: Annotated[str | None, Added("altered-by-columns/1")] = None
    in_order: Annotated[bool, Added("rows-in-order/1")] = False
    signed: Annotated[bool | None, Added("plain-rows/1")] = None

    @property
    def sets_end(self) -> bool:
        """Whether the end of a row is a duration after its start, and not its own end, shifted."""
        return self.duration_us is not None or self.duration_column is not None

    @property
    def spans(self) -> tuple[str, ...]:
        """The columns with spans of their own for each row."""
        return tuple(name for name in (self.shift_column, self.duration_column) if name is not None)
