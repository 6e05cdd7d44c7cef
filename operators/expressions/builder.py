"""What users write: an `Expr` collects a tree through Python's operators and PySpark's method names. Pure."""

from __future__ import annotations

from typing import Any, NoReturn, TypeAlias

import pyarrow as pa

from tidestate.operators.expressions.parsing import parse_expression
from tidestate.operators.expressions.printing import expression_text
from tidestate.operators.expressions.sql_types import sql_name, type_named
from tidestate.operators.expressions.tree import CallNode, ColumnNode, ExprNode, OfTree, check_bounds, literal_node
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.arrowtypes import type_text

ExprOrValue: TypeAlias = "Expr | Any"
"""Another expression, or a plain value, which becomes a literal."""


class Expr(OfTree):
    """A value that is computed for each row: ``col("price") * col("qty") > 100``.

    It combines with Python's operators, with ``&``, ``|`` and ``~`` for conditions, and has the methods of PySpark's
    columns under their names. Its types are looked at when the job knows those of its input.
    """

    __slots__ = ()
    # Python would otherwise ask for item 0, 1, 2 … of a column, for ever.
    __iter__ = None
    __contains__ = None

    def __init__(self, tree: ExprNode) -> None:
        check_bounds(tree)
        self.tree = tree

    def __repr__(self) -> str:
        return f"<Expr {expression_text(self.tree)}>"

    def __hash__(self) -> int:
        return hash(self.tree)

    def __bool__(self) -> NoReturn:
        raise UsageError(
            "an expression is neither true nor false before it meets rows: write & for and, | for or, ~ for not, in "
            'comparisons in parentheses, as in (col("a") > 1) & (col("b") < 2); for a choice when(…).otherwise(…)',
            code="expression-bool",
            found=expression_text(self.tree),
        )

    def __eq__(self, operand: object) -> Expr:  # type: ignore[override]
        return call("eq", self, operand)

    def __ne__(self, operand: object) -> Expr:  # type: ignore[override]
        return call("ne", self, operand)

    def __lt__(self, operand: ExprOrValue) -> Expr:
        return call("lt", self, operand)

    def __le__(self, operand: ExprOrValue) -> Expr:
        return call("le", self, operand)

    def __gt__(self, operand: ExprOrValue) -> Expr:
        return call("gt", self, operand)

    def __ge__(self, operand: ExprOrValue) -> Expr:
        return call("ge", self, operand)

    def __and__(self, operand: ExprOrValue) -> Expr:
        return _joined("and", self, operand)

    def __rand__(self, operand: ExprOrValue) -> Expr:
        return _joined("and", operand, self)

    def __or__(self, operand: ExprOrValue) -> Expr:
        return _joined("or", self, operand)

    def __ror__(self, operand: ExprOrValue) -> Expr:
        return _joined("or", operand, self)

    def __invert__(self) -> Expr:
        return call("not", self)

    def __neg__(self) -> Expr:
        return call("neg", self)

    def __add__(self, operand: ExprOrValue) -> Expr:
        return call("add", self, operand)

    def __radd__(self, operand: ExprOrValue) -> Expr:
        return call("add", operand, self)

    def __sub__(self, operand: ExprOrValue) -> Expr:
        return call("sub", self, operand)

    def __rsub__(self, operand: ExprOrValue) -> Expr:
        return call("sub", operand, self)

    def __mul__(self, operand: ExprOrValue) -> Expr:
        return call("mul", self, operand)

    def __rmul__(self, operand: ExprOrValue) -> Expr:
        return call("mul", operand, self)

    def __truediv__(self, operand: ExprOrValue) -> Expr:
        return call("div", self, operand)

    def __rtruediv__(self, operand: ExprOrValue) -> Expr:
        return call("div", operand, self)

    def __floordiv__(self, operand: ExprOrValue) -> Expr:
        return call("int_div", self, operand)

    def __rfloordiv__(self, operand: ExprOrValue) -> Expr:
        return call("int_div", operand, self)

    def __mod__(self, operand: ExprOrValue) -> Expr:
        return call("mod", self, operand)

    def __rmod__(self, operand: ExprOrValue) -> Expr:
        return call("mod", operand, self)

    def __pow__(self, operand: ExprOrValue) -> Expr:
        return call("pow", self, operand)

    def __rpow__(self, operand: ExprOrValue) -> Expr:
        return call("pow", operand, self)

    def isNull(self) -> Expr:  # noqa: N802
        """Whether there is no value; never null itself."""
        return call("is_null", self)

    def isNotNull(self) -> Expr:  # noqa: N802
        """Whether there is a value; never null itself."""
        return call("not", call("is_null", self))

    def isNaN(self) -> Expr:  # noqa: N802
        """Whether it is the float that is no number; false for null."""
        return call("is_nan", self)

    def eqNullSafe(self, operand: ExprOrValue) -> Expr:  # noqa: N802
        """Equality for which null equals null: never null itself."""
        return call("eq_null_safe", self, operand)

    def isin(self, *values: ExprOrValue) -> Expr:
        """Whether it equals any of the values, given one by one or as one list."""
        several = values[0] if len(values) == 1 and isinstance(values[0], list | tuple | set | frozenset) else values
        return call("isin", self, *(sorted(several, key=repr) if isinstance(several, set | frozenset) else several))

    def between(self, lower: ExprOrValue, upper: ExprOrValue) -> Expr:
        """Whether it lies between both, the bounds included."""
        return call("between", self, lower, upper)

    def like(self, pattern: str) -> Expr:
        """Whether the whole text fits a pattern: ``%`` is any letters, ``_`` one, a backslash takes their meaning."""
        return call("like", self, pattern)

    def rlike(self, pattern: str) -> Expr:
        """Whether a regular expression of RE2 is found in the text."""
        return call("rlike", self, pattern)

    def contains(self, text: str) -> Expr:
        """Whether the text occurs in it."""
        return call("contains", self, text)

    def startswith(self, text: str) -> Expr:
        """Whether it begins with the text."""
        return call("startswith", self, text)

    def endswith(self, text: str) -> Expr:
        """Whether it ends with the text."""
        return call("endswith", self, text)

    def cast(self, kind: str | pa.DataType) -> Expr:
        """As another type, by the name that SQL has for it (``"bigint"``, ``"decimal(10,2)"``) or by Arrow's; null
        where the value does not fit.
        """
        target = type_named(kind) if isinstance(kind, str) else kind
        if target is None or not isinstance(target, pa.DataType) or sql_name(target) is None:
            raise UsageError(
                'cast takes the name of a type, such as "bigint", "double", "decimal(10,2)", "string", "boolean", '
                '"date" or "timestamp"',
                code="expression-type",
                found=f"{kind!r:.100}",
            )
        return Expr(CallNode("cast", (self.tree,), type=type_text(target)))

    def getField(self, name: str) -> Expr:  # noqa: N802
        """The field of a struct."""
        return call("field", self, name)

    def when(self, condition: ExprOrValue, value: ExprOrValue) -> Expr:
        """A further choice, after ``when(…)``: ``value`` where ``condition`` is true and none before it was."""
        return call("when", *self._choices(), condition, value)

    def otherwise(self, value: ExprOrValue) -> Expr:
        """The value where no condition of ``when(…)`` is true; null without it."""
        return call("when", *self._choices(), value)

    def _choices(self) -> tuple[Expr, ...]:
        if isinstance(self.tree, CallNode) and self.tree.function == "when" and not len(self.tree.args) % 2:
            return tuple(map(Expr, self.tree.args))
        raise UsageError(
            "when and otherwise follow when(…), and nothing follows otherwise",
            code="expression-function",
            found=expression_text(self.tree),
        )


def col(name: str) -> Expr:
    """The column of this name; a field of a struct is ``col("a").getField("b")``."""
    if not isinstance(name, str) or not name:
        raise UsageError(
            'col takes the name of a column, such as col("price")', code="expression-name", found=f"{name!r:.100}"
        )
    return Expr(ColumnNode(name))


def lit(value: object) -> Expr:
    """A plain value: text, bytes, a bool, number, date, datetime, timedelta or None."""
    return as_expr(value)


def when(condition: ExprOrValue, value: ExprOrValue) -> Expr:
    """``value`` where the condition is true: ``when(col("n") > 9, "many").when(…).otherwise("few")``."""
    return call("when", condition, value)


def expr(text: str) -> Expr:
    """The expression that a text says, in the words of SQL: ``expr("price > 0 and country in ('nl', 'de')")``."""
    return Expr(parse_expression(text))


def as_expr(value: object) -> Expr:
    """An expression as it is; a plain value as a literal. Raises `UsageError` (``expression-type``) for another."""
    if isinstance(value, Expr):
        return value
    if type(value).__module__.startswith("pyspark."):
        raise UsageError(
            "this is a column of Spark, which only Spark can compute: write it with tidestate.col",
            code="expression-type",
            found=f"{value!r:.100}",
        )
    return Expr(literal_node(value))


def condition_tree(condition: str | Expr) -> ExprNode:
    """The tree of a condition, which may be text. Raises `UsageError` for what is neither."""
    return (expr(condition) if isinstance(condition, str) else as_expr(condition)).tree


def as_column(value: object) -> Expr:
    """As `as_expr`, but text is the name of a column, as in the functions of PySpark."""
    return col(value) if isinstance(value, str) else as_expr(value)


def call(function: str, *args: object, zone: str | None = None) -> Expr:
    """A call of a stored function; plain arguments become literals."""
    return Expr(CallNode(function, tuple(as_expr(arg).tree for arg in args), zone))


def _joined(function: str, left: object, right: object) -> Expr:
    """A conjunction or disjunction; a chain of them is one call, however long."""
    trees = as_expr(left).tree, as_expr(right).tree
    first = trees[0]
    parts = first.args if isinstance(first, CallNode) and first.function == function else (first,)
    return Expr(CallNode(function, (*parts, trees[1])))
