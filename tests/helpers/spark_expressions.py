"""Trees as SQL of Spark, in its forms that give null where a value does not fit (``try_…``), with ANSI on.

Types are written down at each place, by the rules of the twin, so that Spark's own coercions have nothing to decide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tests.twins.expressions import BOOL, CLOCK, DATE, DOUBLE, INSTANT, TEXT, evaluate, is_float, is_whole, together
from tidestate.operators.expressions.tree import CallNode, ColumnNode, ExprNode, LiteralNode
from tidestate.statestore.spec.arrowtypes import parse_type

SPARK_TYPES: dict[pa.DataType, str] = {
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    DOUBLE: "DOUBLE",
    TEXT: "STRING",
    BOOL: "BOOLEAN",
    DATE: "DATE",
    INSTANT: "TIMESTAMP",
    CLOCK: "TIMESTAMP_NTZ",
}


class Unlike(Exception):
    """A tree that Spark gives another meaning, by a named exception."""


def type_name(kind: pa.DataType) -> str:
    if pa.types.is_decimal256(kind):
        raise Unlike("decimals of more than 38 digits are compared")
    return f"DECIMAL({kind.precision},{kind.scale})" if pa.types.is_decimal(kind) else SPARK_TYPES[kind]


def quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


class SparkText:
    """The SQL of trees over a schema; each node is put into parentheses or a call."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema, self._nulls = schema, dict.fromkeys(schema.names)

    def type_of(self, node: ExprNode) -> pa.DataType:
        return evaluate(node, self._nulls, self._schema)[0]

    def text(self, node: ExprNode) -> str:
        if isinstance(node, ColumnNode):
            return node.name
        if isinstance(node, LiteralNode):
            return self.literal(node)
        writer: Callable[[CallNode], str] | None = getattr(self, f"on_{node.function}", None)
        return writer(node) if writer is not None else self.called(node)

    def literal(self, node: LiteralNode) -> str:
        kind = self.type_of(node)
        if node.value is None:
            return "CAST(NULL AS BOOLEAN)"
        if kind == TEXT:
            return quoted(node.value)
        if kind == pa.duration("us"):
            return f"make_dt_interval(0, 0, 0, CAST('{int(node.value) / 10**6:.6f}' AS DECIMAL(18,6)))"
        return f"CAST('{node.value}' AS {type_name(kind)})"

    def to(self, kind: pa.DataType, node: ExprNode) -> str:
        """A node as another type that holds its values."""
        if isinstance(node, LiteralNode) and node.value is None:
            return f"CAST(NULL AS {type_name(kind)})"
        return self.text(node) if self.type_of(node) == kind else f"CAST({self.text(node)} AS {type_name(kind)})"

    def together(self, *nodes: ExprNode) -> list[str]:
        kind = together(nodes, [evaluate(node, self._nulls, self._schema) for node in nodes])
        return [self.to(kind, node) for node in nodes]

    def called(self, node: CallNode) -> str:
        """A function of the same name and arguments."""
        return f"{node.function}({', '.join(map(self.text, node.args))})"

    def infix(self, node: CallNode, sign: str) -> str:
        return f"({f' {sign} '.join(self.together(*node.args))})"

    def on_eq(self, node: CallNode) -> str:
        return self.infix(node, "=")

    def on_ne(self, node: CallNode) -> str:
        return f"(NOT {self.infix(node, '=')})"

    def on_lt(self, node: CallNode) -> str:
        return self.infix(node, "<")

    def on_le(self, node: CallNode) -> str:
        return self.infix(node, "<=")

    def on_gt(self, node: CallNode) -> str:
        return self.infix(node, ">")

    def on_ge(self, node: CallNode) -> str:
        return self.infix(node, ">=")

    def on_eq_null_safe(self, node: CallNode) -> str:
        return self.infix(node, "<=>")

    def on_between(self, node: CallNode) -> str:
        value, low, high = self.together(*node.args)
        return f"({value} BETWEEN {low} AND {high})"

    def on_isin(self, node: CallNode) -> str:
        value, *choices = self.together(*node.args)
        return f"({value} IN ({', '.join(choices)}))"

    def on_and(self, node: CallNode) -> str:
        return f"({' AND '.join(self.to(BOOL, arg) for arg in node.args)})"

    def on_or(self, node: CallNode) -> str:
        return f"({' OR '.join(self.to(BOOL, arg) for arg in node.args)})"

    def on_not(self, node: CallNode) -> str:
        return f"(NOT {self.to(BOOL, node.args[0])})"

    def on_is_null(self, node: CallNode) -> str:
        return f"({self.text(node.args[0])} IS NULL)"

    def on_is_nan(self, node: CallNode) -> str:
        return f"isnan({self.text(node.args[0])})"

    def alike(self, node: CallNode) -> str:
        return f"{node.function}({', '.join(self.together(*node.args))})"

    on_greatest = on_least = on_coalesce = alike

    def on_nullif(self, node: CallNode) -> str:
        left, right = self.together(*node.args)
        value = self.to(self.type_of(node), node.args[0])
        return f"CASE WHEN {left} = {right} THEN NULL ELSE {value} END"

    def on_when(self, node: CallNode) -> str:
        kind, args = self.type_of(node), node.args
        pairs = zip(args[0::2], args[1::2], strict=False)
        parts = [f"WHEN {self.to(BOOL, test)} THEN {self.to(kind, value)}" for test, value in pairs]
        last = f" ELSE {self.to(kind, args[-1])}" if len(args) % 2 else ""
        return f"CASE {' '.join(parts)}{last} END"

    def pair(self, node: CallNode) -> tuple[pa.DataType, list[str]]:
        """The arguments of arithmetic: in one type, but decimals each in its own."""
        kind = self.type_of(node)
        if not pa.types.is_decimal(kind):
            return kind, [self.to(kind, arg) for arg in node.args]
        return kind, [self.as_decimal(arg) for arg in node.args]

    def as_decimal(self, node: ExprNode) -> str:
        if isinstance(node, LiteralNode) and is_whole(self.type_of(node)):
            return f"CAST('{node.value}' AS DECIMAL({len((node.value or '').lstrip('-'))},0))"
        kind = self.type_of(node)
        digits = {8: 3, 16: 5, 32: 10, 64: 20}
        return self.to(pa.decimal128(digits[kind.bit_width], 0) if is_whole(kind) else kind, node)

    def tried(self, node: CallNode, name: str) -> str:
        if self.type_of(node) == INSTANT:
            left, right = map(self.text, node.args)
            return f"({left} {'+' if name == 'try_add' else '-'} {right})"
        kind, texts = self.pair(node)
        return f"CAST({name}({', '.join(texts)}) AS {type_name(kind)})"

    def on_add(self, node: CallNode) -> str:
        return self.tried(node, "try_add")

    def on_sub(self, node: CallNode) -> str:
        return self.tried(node, "try_subtract")

    def on_mul(self, node: CallNode) -> str:
        return self.tried(node, "try_multiply")

    def on_div(self, node: CallNode) -> str:
        return self.tried(node, "try_divide")

    def divided(self, node: CallNode, form: str) -> str:
        """No function that tries: rows that would raise are named."""
        kind, (left, right) = self.pair(node)
        least = f"CAST('{-(2**63)}' AS BIGINT)"
        guard = f"WHEN {left} = {least} AND {right} = -1 THEN NULL " if "DIV" in form and kind == pa.int64() else ""
        value = f"try_cast({form.format(left, right)} AS {type_name(kind)})"
        return f"CASE WHEN {right} = 0 THEN NULL {guard}ELSE {value} END"

    def on_int_div(self, node: CallNode) -> str:
        return self.divided(node, "({} DIV {})")

    def on_mod(self, node: CallNode) -> str:
        return self.divided(node, "({} % {})")

    def on_pmod(self, node: CallNode) -> str:
        return self.divided(node, "pmod({}, {})")

    def of_sign(self, node: CallNode, form: str) -> str:
        kind, value = self.type_of(node), self.text(node.args[0])
        if not is_whole(kind):
            return form.format(value)
        least = f"CAST('{-(2 ** (kind.bit_width - 1))}' AS {type_name(kind)})"
        return f"CASE WHEN {value} = {least} THEN NULL ELSE {form.format(value)} END"

    def on_neg(self, node: CallNode) -> str:
        return self.of_sign(node, "(- {})")

    def on_abs(self, node: CallNode) -> str:
        return self.of_sign(node, "abs({})")

    def whole(self, node: CallNode) -> str:
        source, value = self.type_of(node.args[0]), self.text(node.args[0])
        if is_whole(source):
            return value
        if not is_float(source):
            return f"{node.function}({value})"
        value = f"CAST({value} AS DOUBLE)"
        return (
            f"CASE WHEN isnan({value}) OR {value} >= 9.223372036854775807E18D OR {value} < -9.223372036854775808E18D"
            + (f" THEN NULL ELSE CAST({node.function}({value}) AS BIGINT) END")
        )

    on_floor = on_ceil = whole

    def on_round(self, node: CallNode) -> str:
        digits = node.args[1].value if len(node.args) > 1 else "0"  # type: ignore[union-attr]
        if is_whole(self.type_of(node.args[0])):
            return self.text(node.args[0])
        return f"round({self.text(node.args[0])}, {digits})"

    def on_sqrt(self, node: CallNode) -> str:
        return f"sqrt({self.to(DOUBLE, node.args[0])})"

    def on_like(self, node: CallNode) -> str:
        return f"({self.text(node.args[0])} LIKE {self.text(node.args[1])})"

    def on_rlike(self, node: CallNode) -> str:
        return f"({self.text(node.args[0])} RLIKE {self.text(node.args[1])})"

    def places(self, node: CallNode) -> str:
        """Literal whole numbers as they are written, since Spark takes an INT there."""
        texts = [
            arg.value if isinstance(arg, LiteralNode) and arg.type == "int64" else self.text(arg) for arg in node.args
        ]
        return f"{node.function}({', '.join(map(str, texts))})"

    on_substring = on_split_part = on_lpad = on_date_add = places

    def on_cast(self, node: CallNode) -> str:
        kind, source = parse_type(node.type or ""), self.type_of(node.args[0])
        value = self.text(node.args[0])
        if source == kind:
            return value
        if source == TEXT and kind == BOOL:
            return f"try_cast({value} AS BOOLEAN)"
        if is_float(source) and kind == pa.int64():
            # Spark makes the largest number of this double, which is one more.
            return f"CASE WHEN {value} = 9223372036854775808D THEN NULL ELSE try_cast({value} AS BIGINT) END"
        return f"try_cast({value} AS {type_name(kind)})"

    def local(self, node: CallNode, place: int = 0) -> str:
        """A time as a clock in the zone shows it: the session is in UTC."""
        arg = node.args[place]
        kind, value = self.type_of(arg), self.text(arg)
        if kind == INSTANT and node.zone not in (None, "UTC"):
            return f"from_utc_timestamp({value}, '{node.zone}')"
        return value if kind == INSTANT else f"CAST({value} AS TIMESTAMP)"

    def part(self, node: CallNode) -> str:
        names = {"day_of_week": "dayofweek", "day_of_year": "dayofyear", "week": "weekofyear"}
        return f"{names.get(node.function, node.function)}({self.local(node)})"

    on_year = on_quarter = on_month = on_day = on_day_of_week = on_day_of_year = on_week = part
    on_hour = on_minute = on_second = part

    def on_to_date(self, node: CallNode) -> str:
        return f"CAST({self.local(node)} AS DATE)"

    def on_from_utc(self, node: CallNode) -> str:
        return f"CAST({self.local(node)} AS TIMESTAMP_NTZ)"

    def on_date_format(self, node: CallNode) -> str:
        return f"date_format({self.local(node)}, {self.text(node.args[1])})"

    def on_date_trunc(self, node: CallNode) -> str:
        unit: Any = node.args[0]
        kind = self.type_of(node)
        if kind == DATE:
            return f"CAST(date_trunc('{unit.value}', CAST({self.text(node.args[1])} AS TIMESTAMP)) AS DATE)"
        local = f"date_trunc('{unit.value}', {self.local(node, 1)})"
        if kind == CLOCK:
            return f"CAST({local} AS TIMESTAMP_NTZ)"
        if node.zone in (None, "UTC"):
            return local
        if unit.value in ("hour", "minute", "second"):
            raise Unlike("an hour that a clock shows twice: Spark has no way to name it from outside of the zone")
        return f"to_utc_timestamp({local}, '{node.zone}')"

    def on_date_diff(self, node: CallNode) -> str:
        return f"datediff({', '.join(map(self.text, node.args))})"

    def on_crc32(self, node: CallNode) -> str:
        return f"crc32(CAST({self.text(node.args[0])} AS BINARY))"


def plain_text(text: str, kind: pa.DataType) -> str:
    """SQL that gives a value as the twin has it."""
    if kind == INSTANT:
        return f"unix_micros({text})"
    if kind == CLOCK:
        return f"unix_micros(CAST({text} AS TIMESTAMP))"
    return f"unix_date({text})" if kind == DATE else text
