"""What a node becomes once the columns are known: its type, and how it is computed of a batch of rows.

Literals stay open: the type of a number or a text that was written down is that of its neighbours, so that
``col("n") > 3`` compares in the type of ``n``. Calls of literals alone are computed when they are bound. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pyarrow as pa

from tidestate.operators.expressions.arrays import Datum, as_arrays
from tidestate.operators.expressions.tree import CallNode
from tidestate.operators.zones.rules import ZoneRules
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.arrowtypes import type_text

Kernel = Callable[..., pa.Array]
"""Makes a column of columns and values, at least one of which is a column."""


@dataclass
class ColumnBatch:
    """The rows that an expression is computed for; a column is looked up and brought into its plain type once."""

    table: pa.Table
    columns: dict[str, pa.Array] = field(default_factory=dict)


@dataclass(frozen=True)
class Operand:
    """A node with its type."""

    type: pa.DataType
    evaluate: Callable[[ColumnBatch], Datum]
    constant: pa.Scalar | None = None
    """The value, if it is the same in every row."""
    is_open: bool = False
    """A literal, which takes the type of its neighbours."""


def constant_operand(value: pa.Scalar, *, is_open: bool = False) -> Operand:
    """An operand with ``value`` in every row."""
    return Operand(value.type, lambda batch: value, value, is_open)


def apply_kernel(kind: pa.DataType, kernel: Kernel, *operands: Operand) -> Operand:
    """``kernel`` of what the operands are; computed now where they are all constant."""
    constants = [operand.constant for operand in operands if operand.constant is not None]
    if len(constants) == len(operands):
        return constant_operand(kernel(*as_arrays(*constants))[0])
    return Operand(kind, lambda batch: kernel(*(operand.evaluate(batch) for operand in operands)))


@dataclass(frozen=True)
class BoundCall:
    """A call whose arguments have their types; a function makes an operand of it."""

    node: CallNode
    operands: tuple[Operand, ...]
    text: Callable[[CallNode], str]
    """The text of a node for errors, which printing knows."""
    zone: ZoneRules
    """Of a function of times; UTC where none was named."""

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        """The types of the arguments."""
        return tuple(operand.type for operand in self.operands)

    def refuse(self, expected: str) -> NoReturn:
        """Raise `UsageError` (``expression-type``): what was expected, the types that were found, and the text."""
        raise UsageError(
            f"{self.node.function} takes {expected}",
            code="expression-type",
            found=[type_text(operand.type) for operand in self.operands],
            expression=self.text(self.node),
        )

    def decimal_error(self, message: str) -> UsageError:
        """The error that a result would have more digits than a decimal has."""
        return UsageError(
            f"{message}: cast a side to fewer digits, or to double",
            code="expression-decimal",
            found=[type_text(operand.type) for operand in self.operands],
            expression=self.text(self.node),
        )

    def constant(self, position: int, kind: type, expected: str) -> Any:
        """The value of an argument that must be written down, of a class of Python."""
        value = self.operands[position].constant
        plain = None if value is None else value.as_py()
        if not isinstance(plain, kind) or (isinstance(plain, bool) and kind is not bool):
            self.refuse(f"{expected}, which must be a literal, as argument {position + 1}")
        return plain

    def constant_whole(self, position: int, bounds: range) -> int:
        """The whole number that an argument is."""
        number: int = self.constant(position, int, "a whole number")
        if number not in bounds:
            self.refuse(f"a whole number from {bounds[0]} to {bounds[-1]} as argument {position + 1}")
        return number

    def constant_text(self, position: int) -> str:
        """The text that an argument is."""
        text: str = self.constant(position, str, "text")
        return text


Binders = dict[str, Callable[[BoundCall], Operand]]
"""What makes operands of calls, by the stored names of their functions."""
