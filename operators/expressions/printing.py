"""The text of an expression, in words of SQL; `tidestate.operators.expressions.parsing` reads it back, to an
equal tree.

Pure.
"""

from __future__ import annotations

import re

from tidestate.operators.expressions.sql_types import quoted, sql_name
from tidestate.operators.expressions.tree import CallNode, ColumnNode, ExprNode, LiteralNode
from tidestate.statestore.spec.arrowtypes import parse_type

OR, AND, NOT, COMPARISON, SUM, PRODUCT, NEGATION, POSTFIX = range(1, 9)
"""How tightly an operator binds; what binds less than its place asks for gets parentheses."""
INFIX: dict[str, tuple[str, int]] = {
    "eq": ("=", COMPARISON),
    "ne": ("!=", COMPARISON),
    "lt": ("<", COMPARISON),
    "le": ("<=", COMPARISON),
    "gt": (">", COMPARISON),
    "ge": (">=", COMPARISON),
    "eq_null_safe": ("<=>", COMPARISON),
    "like": ("like", COMPARISON),
    "rlike": ("rlike", COMPARISON),
    "add": ("+", SUM),
    "sub": ("-", SUM),
    "mul": ("*", PRODUCT),
    "div": ("/", PRODUCT),
    "mod": ("%", PRODUCT),
    "int_div": ("div", PRODUCT),
}
"""Functions of two arguments that stand between them; each chain of them is read from the left."""
RESERVED_WORDS = frozenset(
    [
        *("and", "or", "not", "is", "null", "in", "between", "like", "rlike", "div", "true", "false"),
        *("case", "when", "then", "else", "end", "cast", "as", "interval"),
    ]
)
"""Words that are no names of columns unless in backquotes."""
PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
INTERVAL_UNITS_US = {
    "week": 604_800_000_000,
    "day": 86_400_000_000,
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
    "millisecond": 1_000,
    "microsecond": 1,
}


def expression_text(tree: ExprNode) -> str:
    """The text of a tree, such as ``price > 0 and country in ('nl', 'de')``."""
    return _text(tree, 0)


def name_text(name: str) -> str:
    """The name of a column or field, in backquotes if it needs them."""
    plain = PLAIN_NAME.fullmatch(name) and name.lower() not in RESERVED_WORDS
    return name if plain else quoted(name)


def quoted_text(value: str) -> str:
    """Text in quotes; quotes in it are doubled, and nothing else means something else."""
    return "'" + value.replace("'", "''") + "'"


def _text(node: ExprNode, level: int) -> str:
    """The text of a node where ``level`` binds: what binds less is in parentheses."""
    if isinstance(node, ColumnNode):
        return name_text(node.name)
    if isinstance(node, LiteralNode):
        return _literal_text(node)
    text, own_level = _special_text(node) or (_call_text(node), POSTFIX)
    return f"({text})" if own_level < level else text


def _special_text(node: CallNode) -> tuple[str, int] | None:
    """The text of a call that has a form of its own, and how tightly it binds."""
    args, function = node.args, node.function
    if node.zone is not None or (node.type is not None) != (function == "cast"):
        return None
    if function in INFIX and len(args) == 2:
        word, level = INFIX[function]
        return f"{_text(args[0], level)} {word} {_text(args[1], level + 1)}", level
    if function in ("and", "or") and len(args) > 1:
        level = AND if function == "and" else OR
        return f" {function} ".join(_text(arg, level + 1) for arg in args), level
    if function == "when" and len(args) > 1:
        return _case_text(args), POSTFIX
    if function == "isin" and len(args) > 1:
        values = ", ".join(_text(arg, 0) for arg in args[1:])
        return f"{_text(args[0], COMPARISON)} in ({values})", COMPARISON
    if function == "between" and len(args) == 3:
        value, *bounds = args
        texts = " and ".join(_text(bound, COMPARISON + 1) for bound in bounds)
        return f"{_text(value, COMPARISON)} between {texts}", COMPARISON
    if function == "field" and len(args) == 2:
        return _field_text(*args)
    return _unary_text(node) if len(args) == 1 else None


def _unary_text(node: CallNode) -> tuple[str, int] | None:
    argument = node.args[0]
    if node.function == "not":
        return f"not {_text(argument, NOT)}", NOT
    if node.function == "is_null":
        return f"{_text(argument, COMPARISON)} is null", COMPARISON
    if node.function == "neg":
        # A minus in front of a number is a part of the number.
        text = _text(argument, POSTFIX)
        return f"-({text})" if isinstance(argument, LiteralNode) else f"-{text}", NEGATION
    if node.function == "cast" and (name := sql_name(parse_type(node.type or ""))) is not None:
        return f"cast({_text(argument, 0)} as {name})", POSTFIX
    return None


def _field_text(value: ExprNode, name: ExprNode) -> tuple[str, int] | None:
    if not isinstance(name, LiteralNode) or name.type != "string" or not name.value:
        return None
    text = _text(value, POSTFIX)
    # A literal or a case would run into the point.
    simple = isinstance(value, ColumnNode) or (isinstance(value, CallNode) and value.function != "when")
    return f"{text if simple else f'({text})'}.{name_text(name.value)}", POSTFIX


def _case_text(args: tuple[ExprNode, ...]) -> str:
    pairs = zip(args[0::2], args[1::2], strict=False)
    texts = [f"when {_text(condition, 0)} then {_text(value, 0)}" for condition, value in pairs]
    last = [f"else {_text(args[-1], 0)}"] if len(args) % 2 else []
    return " ".join(["case", *texts, *last, "end"])


def _call_text(node: CallNode) -> str:
    texts = [_text(arg, 0) for arg in node.args]
    if node.zone is not None:
        texts.append(f"zone => {quoted_text(node.zone)}")
    return f"{node.function}({', '.join(texts)})"


def _literal_text(node: LiteralNode) -> str:
    value, kind = node.value, node.type
    if value is None:
        return "null"
    if kind in ("int64", "bool"):
        return value
    if kind == "double":
        return value if "n" not in value else f"double {quoted_text(value)}"
    if kind == "string":
        return quoted_text(value)
    if kind == "binary":
        return f"x{quoted_text(value)}"
    if kind == "duration[us]":
        return _interval_text(int(value))
    return f"{kind.partition('[')[0].rstrip('0123456789').partition('1')[0]} {quoted_text(value)}"


def _interval_text(span_us: int) -> str:
    unit = next(unit for unit, size_us in INTERVAL_UNITS_US.items() if span_us % size_us == 0)
    return f"interval {span_us // INTERVAL_UNITS_US[unit]} {unit}"
