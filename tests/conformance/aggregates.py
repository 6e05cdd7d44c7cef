"""A case's aggregate names as the aggregates of this project."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tests.conformance.case import Unsupported
from tests.conformance.values import Codec, Shape
from tidestate import agg
from tidestate.statestore.errors import UsageError

COLUMN, ARRIVAL, ORDER = "value", "row", "order"
"""The columns aggregates read: the value, the number of its arrival, and how it compares where its type does not."""


@dataclass(frozen=True)
class Named:
    """A function of `tidestate.agg`, what it answers, and what a case calls its options."""

    function: str
    shape: Shape
    fixed: dict[str, Any] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    compares: bool = False


SIZE = dict.fromkeys(("n", "k", "size", "limit"), "n")
DOWN = dict.fromkeys(("reverse", "descending", "reversed"), "descending")
NAMES = {
    "sum": Named("sum", "total"),
    "mean": Named("mean", "number"),
    "list": Named("list", "values"),
    "set": Named("set", "values"),
    "count_by_value": Named("count_by_value", "counts"),
    "count_distinct": Named("count_distinct", "number"),
    "median": Named("median", "number"),
    "quantile": Named("quantile", "number", options={"q": "q"}),
    "variance": Named("variance", "number", options={"population": "population"}),
    "stddev": Named("stddev", "number", options={"population": "population"}),
    "first": Named("first", "value", fixed={"by": ARRIVAL}),
    "last": Named("last", "value", fixed={"by": ARRIVAL}),
    "earliest": Named("earliest", "value"),
    "latest": Named("latest", "value"),
    "top_n": Named("top_n", "ordered", options=SIZE, compares=True),
    "sort": Named("sorted_list", "ordered", options=DOWN, compares=True),
}
ALIASES = {
    "average": "mean",
    "avg": "mean",
    "collect": "list",
    "group": "list",
    "unique": "set",
    "distinct": "set",
    "remove_duplicates": "set",
    "topn": "top_n",
    "sorted": "sort",
    "fold": "reduce",
}
BY_TIME = ("first", "last", "earliest", "latest")
"""Aggregates whose inputs, in a case of kind `accumulation`, are pairs of a value and its time."""
REPORTED_APART = ("set", "count_distinct", "count_by_value")
"""Aggregates that need values which can be distinguished by sorting."""


@dataclass(frozen=True)
class Asked:
    """What a case asks for: aggregates by result name, in order, and whether its values are lists of results."""

    aggregates: dict[str, Any]
    shapes: tuple[Shape, ...]
    several: bool


def specs(spec: Any) -> list[Any]:
    """The aggregates of a case, one by one; without any, the number of elements."""
    return spec if isinstance(spec, list) else ["count" if spec is None else spec]


def name_of(spec: Any) -> str:
    """What the case calls an aggregate, by its first name."""
    name = str(spec.get("type") if isinstance(spec, dict) else spec)
    return ALIASES.get(name, name)


def asked(spec: Any, values: Codec) -> Asked:
    """The aggregates of a case over a column of ``values``. Raises `Unsupported`."""
    built = [_aggregate(one, values) for one in specs(spec)]
    aggregates = {f"result{number}": aggregate for number, (aggregate, _) in enumerate(built)}
    return Asked(aggregates, tuple(shape for _, shape in built), isinstance(spec, list))


def _aggregate(spec: Any, values: Codec) -> tuple[Any, Shape]:
    name = name_of(spec)
    given = {key: value for key, value in spec.items() if key != "type"} if isinstance(spec, dict) else {}
    if name == "count":
        return _made("count"), "number"
    if name == "reduce" and set(given) == {"op"}:
        return _reduce(given["op"], values.type), "value"
    if name in ("min", "max"):
        return _extreme(name, given, values), "value"
    known = NAMES.get(name)
    if known is None or not set(given) <= set(known.options):
        raise Unsupported(f"aggregate {name}" + (f" with {', '.join(sorted(given))}" if known else ""))
    options = known.fixed | {known.options[key]: value for key, value in given.items()}
    if known.compares and not values.comparable:
        options["by"] = ORDER
    return _made(known.function, COLUMN, **options), known.shape


def _extreme(name: str, given: dict[str, Any], values: Codec) -> Any:
    """The largest by a reversed comparator is the smallest."""
    comparator = given.pop("comparator", "natural")
    if given or comparator not in ("natural", "reversed"):
        raise Unsupported(f"aggregate {name} with {', '.join(given) or comparator}")
    if comparator == "reversed":
        name = "min" if name == "max" else "max"
    number = any(of(values.type) for of in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal))
    return _made(name, COLUMN) if number else _made(f"arg_{name}", COLUMN, by=ORDER)


def _made(function: str, *arguments: Any, **options: Any) -> Any:
    try:
        return getattr(agg, function)(*arguments, **options)
    except UsageError as error:
        raise Unsupported(f"aggregate {function}: {error.code}") from None


def _reduce(text: str, kind: pa.DataType) -> Any:
    """An accumulation of our own: what the operation makes of the older and the newer value."""
    operation = _operation(text)

    def merge(older: pa.Table, newer: pa.Table) -> pa.Table:
        pairs = zip(older["so_far"].to_pylist(), newer["so_far"].to_pylist(), strict=True)
        return pa.table({"so_far": pa.array([operation(a, b) for a, b in pairs], kind)})

    return _made(
        "accumulate",
        name=f"reduce {text} of {kind}",
        columns=[COLUMN],
        state={"so_far": kind},
        lift=lambda events: events.rename_columns(["so_far"]),
        merge=merge,
        result=lambda states: states["so_far"],
        result_type=kind,
    )


ARITHMETIC = (ast.Expression, ast.BinOp, ast.Call, ast.Load, ast.Add, ast.Sub, ast.Mult, ast.Constant)


def _operation(text: str) -> Callable[[Any, Any], Any]:
    """``a + b`` and its like as a function of two; only arithmetic, min and max. Raises `Unsupported`."""
    try:
        tree = ast.parse(str(text), mode="eval")
    except SyntaxError:
        raise Unsupported(f"reduce {text}") from None
    for node in ast.walk(tree):
        known = isinstance(node, ast.Name) and node.id in ("a", "b", "min", "max")
        if not known and not isinstance(node, ARITHMETIC):
            raise Unsupported(f"reduce {text}")
    code = compile(tree, "<op>", "eval")
    return lambda a, b: eval(code, {"__builtins__": {}, "min": min, "max": max}, {"a": a, "b": b})
