"""A time shift, as a manifest holds it."""

from __future__ import annotations

from typing import Annotated

from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.expressions.tree import ColumnNode, ExprNode, columns_needed
from tidestate.statestore.spec.added import Added


class Altered(Runnable, frozen=True, tag="altered"):
    """Passes rows on with other times: ``shift_us`` later, and ending ``duration_us`` after their start. A column or
    an expression may say it of each row instead: then none is shifted by less than ``shift_us``. ``in_order``: once
    the watermark has passed the rows. ``signed``: as of `tidestate.operators.describe.union.Union`.
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
    shift_expression: Annotated[ExprNode | None, Added("altered-by-expressions/1")] = None
    duration_expression: Annotated[ExprNode | None, Added("altered-by-expressions/1")] = None
    signed: Annotated[bool | None, Added("plain-rows/1")] = None

    @property
    def shift_tree(self) -> ExprNode | None:
        """What says of each row how far it is shifted; None where all are by as much."""
        return self.shift_expression if self.shift_column is None else ColumnNode(self.shift_column)

    @property
    def duration_tree(self) -> ExprNode | None:
        """What says of each row how long it lasts; None where all last as long, or keep their ends."""
        return self.duration_expression if self.duration_column is None else ColumnNode(self.duration_column)

    @property
    def sets_end(self) -> bool:
        """Whether the end of a row is a duration after its start, and not its own end, shifted."""
        return self.duration_us is not None or self.duration_tree is not None

    @property
    def spans(self) -> tuple[str, ...]:
        """The columns that say of each row how far it is shifted, and how long it lasts."""
        trees = [tree for tree in (self.shift_tree, self.duration_tree) if tree is not None]
        return tuple(dict.fromkeys(name for tree in trees for name in columns_needed(tree)))
