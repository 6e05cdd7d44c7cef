"""Several streams passed on as one, as a manifest holds it."""

from __future__ import annotations

from typing import Annotated

from tidestate.operators.describe.runnable import Sided
from tidestate.operators.describe.sides import Sides
from tidestate.statestore.spec.added import Added


class Union(Sided, frozen=True, tag="union"):
    """Several streams with the same columns, passed on as one. ``in_order``: once the watermark passes the rows.
    ``signed``: whether rows take others back, by their column ``kind``, see `tidestate.operators.bind.signs`; None:
    where they have such a column.
    """

    sides: Sides
    delays_us: tuple[int, ...]
    offset: str | None = None
    origin: str | None = None
    in_order: Annotated[bool, Added("rows-in-order/1")] = False
    signed: Annotated[bool | None, Added("plain-rows/1")] = None

    def __post_init__(self) -> None:
        self.sides.check_each(self.delays_us, "watermark delays")

    def order_of(self, side: str) -> tuple[str, ...]:
        return tuple(name for name in (self.origin, self.offset) if name)
