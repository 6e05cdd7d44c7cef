"""A tree bound to columns: its types are fixed once, and what computes it takes whole tables. Pure.

Nothing raises once a tree is bound: what has no value is null.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from tidestate.operators.expressions.arithmetic import ARITHMETIC_BINDERS
from tidestate.operators.expressions.arrays import Datum, repeat_value
from tidestate.operators.expressions.coercion import function_type
from tidestate.operators.expressions.comparisons import COMPARISON_BINDERS
from tidestate.operators.expressions.logic import LOGIC_BINDERS
from tidestate.operators.expressions.names import SIGNATURES
from tidestate.operators.expressions.nested import NESTED_BINDERS, plain_column
from tidestate.operators.expressions.operands import Binders, BoundCall, ColumnBatch, Operand, constant_operand
from tidestate.operators.expressions.printing import expression_text
from tidestate.operators.expressions.texts import TEXT_BINDERS
from tidestate.operators.expressions.times import TIME_BINDERS
from tidestate.operators.expressions.tree import (
    CallNode,
    ColumnNode,
    ExprNode,
    LiteralNode,
    check_bounds,
    columns_needed,
    literal_scalar,
)
from tidestate.operators.zones.rules import UTC, ZoneRules
from tidestate.statestore.arrays import Values
from tidestate.statestore.errors import UsageError
from tidestate.statestore.missing_columns import missing_columns

BINDERS: Binders = {
    **COMPARISON_BINDERS,
    **LOGIC_BINDERS,
    **ARITHMETIC_BINDERS,
    **TEXT_BINDERS,
    **TIME_BINDERS,
    **NESTED_BINDERS,
}
"""What makes an operand of a call, by the stored name of its function."""
_MOST_ROWS, _MOST_BYTES = 2**20, 2**28
"""Of a piece that is computed at once: a column of text holds 2 GiB, and a function may make more of it."""
Zones = Mapping[str, ZoneRules]


@dataclass(frozen=True)
class BoundExpression:
    """A tree with the type of its results."""

    tree: ExprNode
    type: pa.DataType
    columns: tuple[str, ...]
    """What it reads."""
    operand: Operand

    def evaluate(self, rows: pa.Table) -> Values:
        """One result for each row, of shape ``(rows,)``; it never raises."""
        if isinstance(self.tree, ColumnNode):
            return rows[self.tree.name]  # as it is, of its own type
        if len(rows) <= _MOST_ROWS and sum(rows[name].nbytes for name in self.columns) <= _MOST_BYTES:
            return self._evaluate(rows)
        half = len(rows) // 2
        if not half:
            return self._evaluate(rows)
        pieces = [self.evaluate(piece) for piece in (rows.slice(0, half), rows.slice(half))]
        chunks = [
            chunk for piece in pieces for chunk in (piece.chunks if isinstance(piece, pa.ChunkedArray) else [piece])
        ]
        return pa.chunked_array(chunks, self.type)

    def _evaluate(self, rows: pa.Table) -> pa.Array:
        result: Datum = self.operand.evaluate(ColumnBatch(rows))
        return result if isinstance(result, pa.Array) else repeat_value(result, len(rows))


def bind_expression(tree: ExprNode, schema: pa.Schema, zones: Zones | None = None) -> BoundExpression:
    """Bind a tree to an input of this schema; ``zones`` has the rules of those that it names.

    Raises `UsageError`: ``expression-name`` for a column that is not there, ``expression-function`` for a function or
    a number of arguments, ``expression-type``, ``expression-decimal`` and ``expression-size``.
    """
    check_bounds(tree)
    operand = _bound(tree, schema, zones or {})
    kind = schema.field(tree.name).type if isinstance(tree, ColumnNode) else operand.type
    return BoundExpression(tree, kind, columns_needed(tree), operand)


def bind_condition(tree: ExprNode, schema: pa.Schema, zones: Zones | None = None) -> BoundExpression:
    """As `bind_expression`, of a tree that must be a condition: true, false or null for each row."""
    bound = bind_expression(tree, schema, zones)
    if not (pa.types.is_boolean(bound.type) or pa.types.is_null(bound.type)):
        raise UsageError(
            "a condition is true or false for each row, such as a comparison",
            code="expression-type",
            found=str(bound.type),
            expression=expression_text(tree)[:500],
        )
    return bound


def _bound(node: ExprNode, schema: pa.Schema, zones: Zones) -> Operand:
    if isinstance(node, ColumnNode):
        return _column(node, schema)
    if isinstance(node, LiteralNode):
        return constant_operand(literal_scalar(node), is_open=True)
    _check_call(node)
    operands = tuple(_bound(arg, schema, zones) for arg in node.args)
    zone = UTC if node.zone in (None, UTC.name) else zones.get(node.zone or "")
    if zone is None:
        raise UsageError(
            "the rules of this zone are not at hand", code="time-zone", found=node.zone, zones=sorted(zones)
        )
    return BINDERS[node.function](BoundCall(node, operands, _text, zone))


def _column(node: ColumnNode, schema: pa.Schema) -> Operand:
    if len(schema.get_all_field_indices(node.name)) != 1:
        raise missing_columns(
            "an expression reads a column that is not in the input", [node.name], schema.names, code="expression-name"
        )
    kind = function_type(schema.field(node.name).type)
    return Operand(kind, partial(_look_up, name=node.name))


def _look_up(batch: ColumnBatch, name: str) -> pa.Array:
    if name not in batch.columns:
        batch.columns[name] = plain_column(batch.table[name].combine_chunks())
    return batch.columns[name]


def _check_call(node: CallNode) -> None:
    signature = SIGNATURES.get(node.function)
    if signature is None:
        raise UsageError("there is no such function", code="expression-function", found=node.function)
    count, maximum = len(node.args), signature.maximum
    text = (
        str(signature.minimum)
        if maximum == signature.minimum
        else f"{signature.minimum} to {maximum or 'any number'}"
    )
    if count < signature.minimum or (maximum is not None and count > maximum):
        raise UsageError(
            f"{node.function} takes {text} arguments", code="expression-function", found=count, expression=_text(node)
        )
    if node.zone is not None and not signature.takes_zone:
        raise UsageError(f"{node.function} takes no zone=", code="expression-function", expression=_text(node))


def _text(node: CallNode) -> str:
    return expression_text(node)[:500]
