"""The nodes of an expression, as a manifest holds them: columns, literals, and calls of functions of a closed table.

A literal is stored as text, with its type as tables of a manifest have it, and every value has one such text: equal
trees are equal bytes. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from tidestate.statestore.arrays import Values
from tidestate.statestore.decoding import prepare
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.arrowtypes import parse_type, type_text

MAX_DEPTH = 64
MAX_NODES = 2_000
MAX_LITERAL_BYTES = 65_536
"""Of all literals of a tree together."""
INSTANT = pa.timestamp("us", tz="UTC")
"""The type of literals that say their offset, and of what functions make of times."""
LOCAL = pa.timestamp("us")
"""The type of times without a zone: what a clock shows somewhere."""
SPAN = pa.duration("us")
_EPOCH, _EPOCH_CLOCK = datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_TEXT_OF_BOOL = {True: "true", False: "false"}


class ColumnNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="col"):
    """The value of a column of the same row."""

    name: str


class LiteralNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="lit"):
    """A value that was written down; ``value`` is None for null alone."""

    value: str | None
    type: str


class CallNode(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind", tag="call"
):
    """A function of its arguments, by the name under which it is stored for ever."""

    function: str
    args: tuple[ExprNode, ...]
    zone: str | None = None
    """The time zone of a function of times; UTC where there is none."""
    type: str | None = None
    """What ``cast`` makes."""


ExprNode = ColumnNode | LiteralNode | CallNode


class RowExpression(Protocol):
    """What computes a value of each row: it is bound to the columns of the rows, and is pickled to tasks."""

    @property
    def type(self) -> pa.DataType:
        """The type of what it computes."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads."""

    def evaluate(self, rows: pa.Table) -> Values:
        """One value for each row, of shape ``(rows,)``; it never raises."""


prepare(CallNode)
_CALL = msgspec.json.Encoder()


class OfTree:
    """What stands for a tree where users write one, and is printed as its text."""

    __slots__ = ("tree",)
    tree: ExprNode


def arguments_of(node: ExprNode) -> tuple[ExprNode, ...]:
    """The arguments of a call; a column and a literal have none."""
    return node.args if isinstance(node, CallNode) else ()


def nodes_of(tree: ExprNode) -> Iterator[ExprNode]:
    """This node and all below it, parents first, without recursion."""
    stack = [tree]
    while stack:
        node = stack.pop()
        yield node
        stack += reversed(arguments_of(node))


def columns_needed(tree: ExprNode) -> tuple[str, ...]:
    """The names of the columns that a tree reads, each once, in the order of the tree."""
    return tuple(dict.fromkeys(node.name for node in nodes_of(tree) if isinstance(node, ColumnNode)))


def stored_tree(tree: ExprNode) -> dict[str, Any]:
    """A tree as plain values, for a configuration."""
    plain: dict[str, Any] = msgspec.json.decode(_CALL.encode(tree))
    return plain


def tree_of(stored: Any) -> ExprNode:
    """The tree that `stored_tree` made. Raises `ValueError` for what it never makes, and for trees past the bounds,
    before anything of them is built. Whether there are such functions is asked when it is bound.
    """
    _check_plain(stored)
    tree: ExprNode = msgspec.convert(stored, ExprNode)  # type: ignore[call-overload]
    for node in nodes_of(tree):
        if isinstance(node, LiteralNode):
            _check_literal(node)
    return tree


def check_bounds(tree: ExprNode) -> None:
    """Raises `UsageError` (``expression-size``) for a tree that no manifest may hold."""
    level, depth, count, letters = [tree], 0, 0, 0
    while level:
        depth, count = depth + 1, count + len(level)
        letters += sum(len((node.value or "").encode()) for node in level if isinstance(node, LiteralNode))
        if depth > MAX_DEPTH or count > MAX_NODES or letters > MAX_LITERAL_BYTES:
            raise UsageError(
                f"an expression has at most {MAX_DEPTH} levels, {MAX_NODES} nodes and {MAX_LITERAL_BYTES} bytes of "
                "literals: compute parts of it as columns first, or join a table of the values",
                code="expression-size",
                levels=depth,
                nodes=count,
                literal_bytes=letters,
            )
        level = [part for node in level for part in arguments_of(node)]


def _check_plain(stored: Any) -> None:
    """The bounds, on what came out of a file: msgspec goes as deep as it is told to."""
    level, depth, count, letters = [stored], 0, 0, 0
    while level:
        depth, count = depth + 1, count + len(level)
        if depth > MAX_DEPTH or count > MAX_NODES:
            raise ValueError(f"an expression of more than {MAX_DEPTH} levels or {MAX_NODES} nodes")
        if not all(isinstance(node, Mapping) for node in level):
            raise ValueError("an expression is made of objects")
        values = [value for node in level if isinstance(value := node.get("value"), str)]
        letters += sum(len(value.encode("utf-8", "surrogatepass")) for value in values)
        parts = [node.get("args", ()) for node in level]
        level = [part for args in parts if isinstance(args, Sequence) and not isinstance(args, str) for part in args]
    if letters > MAX_LITERAL_BYTES:
        raise ValueError(f"an expression with {letters} bytes of literals")


def _check_literal(node: LiteralNode) -> None:
    try:
        canonical = literal_node(literal_value(node)) == node
    except (ArithmeticError, ValueError, TypeError):
        canonical = False
    if not canonical:
        raise ValueError(f"no literal is stored so: {node.value!r:.100} of type {node.type!r:.100}")


def literal_node(value: object) -> LiteralNode:
    """The node of a plain value of Python or NumPy. Raises `UsageError` (``expression-type``) for another one."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is None:
        return LiteralNode(None, "null")
    for kind, name, text in _LITERALS:
        if isinstance(value, kind) and (value_text := text(value)) is not None:
            return LiteralNode(value_text, name if name is not None else _exact_type(value))
    raise UsageError(
        "a literal is text, bytes, True or False, a whole number of 64 bits, a float, a Decimal of up to 38 digits, "
        "a date, a datetime, a timedelta or None",
        code="expression-type",
        found=f"{value!r:.100} ({type(value).__name__})",
    )


def _whole_text(value: int) -> str | None:
    return str(value) if -(2**63) <= value < 2**63 else None


def _float_text(value: float) -> str:
    return "nan" if math.isnan(value) else repr(value)


def _decimal_text(value: Decimal) -> str | None:
    """Plain digits, with as many after the point as were written; None for what no decimal of 38 digits holds."""
    if not value.is_finite():
        return None
    _, digits, exponent = value.as_tuple()
    scale = -exponent if isinstance(exponent, int) else 0
    is_short = len(digits) <= 38 and -38 <= scale <= 38 and len(digits) - min(scale, 0) <= 38
    return format(value, "f") if is_short else None


def _time_text(value: datetime) -> str | None:
    if value.tzinfo is None:
        return value.isoformat()
    try:
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    except OverflowError:
        return None  # in UTC it is before the year 1 or after 9999


def _utf8_text(value: str) -> str | None:
    return value if value.encode("utf-8", "ignore").decode() == value else None


def _exact_type(value: object) -> str:
    """The type of a literal that depends on the value."""
    if isinstance(value, Decimal):
        _, digits, exponent = Decimal(format(value, "f")).as_tuple()
        scale = -exponent if isinstance(exponent, int) else 0
        return type_text(pa.decimal128(max(len(digits), scale, 1), scale))
    return type_text(INSTANT if isinstance(value, datetime) and value.tzinfo is not None else LOCAL)


_LITERALS: tuple[tuple[type, str | None, Any], ...] = (
    (bool, "bool", _TEXT_OF_BOOL.get),
    (int, "int64", _whole_text),
    (float, "double", _float_text),
    (str, "string", _utf8_text),
    (bytes, "binary", bytes.hex),
    (Decimal, None, _decimal_text),
    (datetime, None, _time_text),
    (date, "date32[day]", date.isoformat),
    (timedelta, "duration[us]", lambda span: _whole_text(span // _MICROSECOND)),
)
"""By class, in this order: the type that is stored, and the text; None as a type where the value decides it."""


def literal_value(node: LiteralNode) -> object:
    """The value of a literal, as Python has it. Raises `ValueError` for text that is none of its type."""
    text, kind = node.value, node.type
    if text is None:
        return None
    try:
        return _value_of(text, kind)
    except (InvalidOperation, OverflowError) as error:
        raise ValueError(f"no {kind}: {text!r:.100}") from error


def _value_of(text: str, kind: str) -> object:
    if kind.startswith("timestamp"):
        return datetime.fromisoformat(text)
    if kind.startswith("decimal"):
        return Decimal(text)
    makers: dict[str, Callable[[str], object]] = {
        "bool": {"true": True, "false": False}.get,
        "int64": int,
        "double": float,
        "string": str,
        "binary": bytes.fromhex,
        "date32[day]": date.fromisoformat,
        "duration[us]": lambda micros: int(micros) * _MICROSECOND,
    }
    if kind not in makers:
        raise ValueError(f"no literal has the type {kind!r:.100}")
    return makers[kind](text)


def literal_scalar(node: LiteralNode) -> pa.Scalar:
    """A literal as Arrow has it, of its own type."""
    value = literal_value(node)
    if isinstance(value, datetime):
        epoch = _EPOCH if value.tzinfo is not None else _EPOCH_CLOCK
        return pa.scalar((value - epoch) // _MICROSECOND, pa.int64()).cast(parse_type(node.type))
    return pa.scalar(value, parse_type(node.type))
