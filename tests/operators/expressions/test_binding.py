"""Functions one by one: values at their edges, nested types, and what is refused when a tree is bound."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidestate.operators.expressions import binding, functions
from tidestate.operators.expressions.binding import bind_condition, bind_expression
from tidestate.operators.expressions.builder import Expr, as_expr, col, expr, lit, when
from tidestate.operators.expressions.printing import expression_text
from tidestate.operators.expressions.tree import CallNode, ColumnNode
from tidestate.operators.zones.installed import installed_rules
from tidestate.statestore.errors import UsageError

ROWS = pa.table(
    {
        "n": pa.array([1, -(2**63), None]),
        "small": pa.array([127, -128, None], pa.int8()),
        "big": pa.array([2**64 - 1, 0, None], pa.uint64()),
        "x": pa.array([math.nan, -0.0, None]),
        "price": pa.array([Decimal("9.99"), Decimal("-0.01"), None], pa.decimal128(5, 2)),
        "s": pa.array(["Straße", "", None]),
        "raw": pa.array([b"ok", b"\xff", None]),
        "at": pa.array([0, 1_774_746_000_000_000, None]).view(pa.timestamp("us", "UTC")),
        "day": pa.array([date(2026, 3, 29), date(1969, 12, 31), None]),
        "flag": pa.array([True, False, None]),
        "list": pa.array([[1, None, 3], [], None], pa.list_(pa.int64())),
        "fixed": pa.array([[1, 2], [3, 4], None], pa.list_(pa.int64(), 2)),
        "map": pa.array([[("a", 1)], [], None], pa.map_(pa.string(), pa.int64())),
        "struct": pa.array([{"a": 1, "b c": "x"}, {"a": None, "b c": None}, None]),
        "named": pa.array(["a", "b", None]).dictionary_encode(),
        "large": pa.array(["a", "b", None], pa.large_string()),
        "ns": pa.array([1_500, -1, None], pa.timestamp("ns", "Europe/Berlin")),
        "seconds": pa.array([1, 2**62, None], pa.timestamp("s", "UTC")),
    }
)
ZONES = {"Europe/Berlin": installed_rules("Europe/Berlin")}


def values(text: str | Expr, rows: pa.Table = ROWS) -> list[Any]:
    tree = expr(text).tree if isinstance(text, str) else text.tree
    bound = bind_expression(tree, rows.schema, ZONES)
    result = bound.evaluate(rows)
    assert result.type == bound.type
    listed: list[Any] = result.to_pylist()
    return listed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n + 9223372036854775807", [None, -1, None]),
        ("n - 1", [0, None, None]),
        ("n * -1", [-1, None, None]),
        ("n div -1", [-1, None, None]),
        ("small div 10", [12, -12, None]),
        ("small % 10", [7, -8, None]),
        ("pmod(small, 10)", [7, 2, None]),
        ("pmod(small, -10)", [7, -8, None]),
        ("small / 10", [12.7, -12.8, None]),
        ("n % -1", [0, 0, None]),
        ("-n", [-1, None, None]),
        ("abs(n)", [1, None, None]),
        ("small + 1", [None, -127, None]),
        ("small + 200", [327, 72, None]),
        ("small * small", [None, None, None]),
        ("big + 1", [None, 1, None]),
        ("big * 2", [None, 0, None]),
        ("big - 1", [2**64 - 2, None, None]),
        ("big > n", [True, True, None]),
        ("big + n", [Decimal(2**64), Decimal(-(2**63)), None]),
        ("x = x", [True, True, None]),
        ("x > 1e300", [True, False, None]),
        ("x = 0", [False, True, None]),
        ("x in (0.0, double 'nan')", [True, True, None]),
        ("x / 0", [None, None, None]),
        ("ln(x)", [pytest.approx(math.nan, nan_ok=True), None, None]),
        ("cast(x as bigint)", [None, 0, None]),
        ("floor(x)", [None, 0, None]),
        ("price * price", [Decimal("99.8001"), Decimal("0.0001"), None]),
        ("price / 3", [Decimal("3.330000"), Decimal("-0.003333"), None]),
        ("price / 0", [None, None, None]),
        ("round(price, 1)", [Decimal("10.0"), Decimal("0.0"), None]),
        ("ceil(price)", [Decimal(10), Decimal(0), None]),
        ("cast(price as decimal(2,1))", [None, Decimal("0.0"), None]),
        ("price > 9.985", [True, False, None]),
        ("upper(s)", ["STRASSE", "", None]),
        ("length(raw)", [2, 1, None]),
        ("cast(raw as string)", ["ok", None, None]),
        ("concat_ws('-', null, null)", ["", "", ""]),
        ("s like 'Stra_e'", [True, False, None]),
        ("hour(at, zone => 'Europe/Berlin')", [1, 3, None]),
        ("at > '2000-01-01'", [False, True, None]),
        ("at > '2000-01-01T00:00:00+01:00' or null", [None, True, None]),
        ("day = '2026-03-29'", [True, False, None]),
        ("at < day", [True, False, None]),
        ("at - interval 1 day < at", [True, True, None]),
        ("date_add(day, 9999999999999)", [None, None, None]),
        ("flag and null", [None, False, None]),
        ("not flag or null", [None, True, None]),
        ("flag <=> null", [False, False, True]),
        ("element_at(list, 1)", [1, None, None]),
        ("element_at(list, -1)", [3, None, None]),
        ("element_at(list, 9)", [None, None, None]),
        ("element_at(fixed, 2)", [2, 4, None]),
        ("element_at(map, 'a')", [1, None, None]),
        ("element_at(map, 'z')", [None, None, None]),
        ("size(list)", [3, 0, None]),
        ("size(map)", [1, 0, None]),
        ("size(fixed)", [2, 2, None]),
        ("array_contains(list, 3)", [True, False, None]),
        ("array_contains(list, 4)", [None, False, None]),
        ("array_contains(fixed, 4)", [False, True, None]),
        ("struct.a", [1, None, None]),
        ("struct.`b c`", ["x", None, None]),
        ("struct is null", [False, False, True]),
        ("coalesce(list, null)", [[1, None, 3], [], None]),
        ("named = 'b'", [False, True, None]),
        ("concat(large, named)", ["aa", "bb", None]),
        ("unix_micros(ns)", [1, -1, None]),
        ("unix_micros(seconds)", [1_000_000, None, None]),
        ("crc32('a')", [3904355907] * 3),
        ("xxhash64(s) % 1", [0, 0, 0]),
        ("pow(n, 2)", [1.0, 2.0**126, None]),
        ("exp(n)", [math.e, 0.0, None]),
        ("1 + 1", [2, 2, 2]),
        ("null", [None] * 3),
        ("null + 1", [None] * 3),
        ("null = null", [None] * 3),
        ("cast(null as date)", [None] * 3),
        ("nullif(n, 1)", [None, -(2**63), None]),
        (
            "to_timestamp('2026-10-25T02:30', zone => 'Europe/Berlin')",
            [datetime(2026, 10, 25, 0, 30, tzinfo=UTC)] * 3,
        ),
        ("to_timestamp('2026-03-29T02:30', zone => 'Europe/Berlin')", [datetime(2026, 3, 29, 1, tzinfo=UTC)] * 3),
    ],
)
def test_values_at_the_edges(text: str, expected: list[Any]) -> None:
    assert values(text) == expected


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("pirce > 1", "expression-name"),
        ("struct.z", "expression-name"),
        ("s + 1", "expression-type"),
        ("s > 1", "expression-type"),
        ("flag > 1", "expression-type"),
        ("n and flag", "expression-type"),
        ("at > 'yesterday'", "expression-type"),
        ("day > '2026-02-30'", "expression-type"),
        ("list = list", "expression-type"),
        ("not n", "expression-type"),
        ("n.a", "expression-type"),
        ("upper(n)", "expression-type"),
        ("substring(s, n, 1)", "expression-type"),
        ("lpad(s, 5000, ' ')", "expression-type"),
        ("split_part(s, ',', 0)", "expression-type"),
        ("s like 'a\\'", "expression-type"),
        ("s rlike '('", "expression-type"),
        ("s rlike '(?=a)'", "expression-type"),
        ("year(s)", "expression-type"),
        ("date_trunc('century', at)", "expression-type"),
        ("date_trunc('hour', day)", "expression-type"),
        ("date_format(at, 'EEEE')", "expression-type"),
        ("cast(list as string)", "expression-type"),
        ("cast(n as date)", "expression-type"),
        ("is_nan(n)", "expression-type"),
        ("price % 2", "expression-type"),
        ("big % n", "expression-type"),
        ("round(n, 1.5)", "expression-type"),
        ("round(n, 99)", "expression-type"),
        ("at + at", "expression-type"),
        ("at + 1", "expression-type"),
        ("-big", "expression-type"),
        ("xxhash64(x)", "expression-type"),
        ("element_at(list, 0)", "expression-type"),
        ("case when n then 1 end", "expression-type"),
        ("coalesce(n, s)", "expression-type"),
        ("cast(price as decimal(38,2)) * price", "expression-decimal"),
        ("coalesce(cast(n as decimal(38,0)), cast(n as decimal(38,38)))", "expression-decimal"),
        ("add(n)", "expression-function"),
        ("upper(s, zone => 'UTC')", "expression-function"),
        ("hour(at, zone => 'Europe/Paris')", "time-zone"),
    ],
)
def test_what_is_refused_when_it_is_bound(text: str, code: str) -> None:
    with pytest.raises(UsageError) as refused:
        values(text)
    assert refused.value.code == code


def test_an_unknown_function_of_a_stored_tree() -> None:
    with pytest.raises(UsageError, match="expression-function"):
        bind_expression(CallNode("later", (ColumnNode("n"),)), ROWS.schema)


def test_a_condition_is_true_or_false() -> None:
    assert bind_condition(expr("n > 0").tree, ROWS.schema).type == pa.bool_()
    with pytest.raises(UsageError, match="expression-type"):
        bind_condition(expr("n").tree, ROWS.schema)


def test_a_column_alone_stays_what_it_is() -> None:
    for name in ROWS.column_names:
        bound = bind_expression(ColumnNode(name), ROWS.schema)
        assert bound.evaluate(ROWS) is not None
        assert bound.type == ROWS.schema.field(name).type
        assert str(bound.evaluate(ROWS)) == str(ROWS[name])  # NaN too


def test_large_tables_are_computed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "_MOST_ROWS", 7)
    rows = pa.table({"n": pa.chunked_array([np.arange(20), np.arange(11)])})
    bound = bind_expression(expr("n * 2").tree, rows.schema)
    assert bound.evaluate(rows).to_pylist() == [2 * number for number in [*range(20), *range(11)]]
    monkeypatch.setattr(binding, "_MOST_BYTES", 16)
    assert len(bound.evaluate(rows)) == 31


@pytest.mark.parametrize(
    "use", [bool, lambda value: value and value, lambda value: not value, lambda value: 1 if value else 2]
)
def test_python_cannot_ask_whether_it_is_true(use: Any) -> None:
    with pytest.raises(UsageError, match=r"expression-bool.*a > 1"):
        use(col("a") > 1)


def test_python_cannot_go_through_it() -> None:
    with pytest.raises(TypeError):
        list(col("a"))  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        assert 1 in col("a")  # type: ignore[operator]


def test_a_column_of_spark_is_refused() -> None:
    kind = type("Column", (), {"__module__": "pyspark.sql.column"})
    with pytest.raises(UsageError, match=r"tidestate\.col .*expression-type|expression-type"):
        as_expr(kind())
    with pytest.raises(UsageError, match="expression-type"):
        col("a") + kind()


@pytest.mark.parametrize("name", ["", 5, None])
def test_a_column_has_a_name(name: Any) -> None:
    with pytest.raises(UsageError, match="expression-name"):
        col(name)


def test_choices_in_the_wrong_order() -> None:
    with pytest.raises(UsageError, match="expression-function"):
        col("a").otherwise(1)
    with pytest.raises(UsageError, match="expression-function"):
        when(col("a"), 1).otherwise(2).when(col("b"), 3)
    with pytest.raises(UsageError, match="expression-type"):
        col("a").cast("varchar")


@pytest.mark.parametrize(
    ("built", "text"),
    [
        (1 + col("a") - 2, "1 + a - 2"),
        (2 - col("a"), "2 - a"),
        (2 * col("a") / 3 // 4 % 5, "2 * a / 3 div 4 % 5"),
        (1 / col("a"), "1 / a"),
        (7 // col("a"), "7 div a"),
        (7 % col("a"), "7 % a"),
        (col("a") ** 2, "pow(a, 2)"),
        (2 ** col("a"), "pow(2, a)"),
        (True & col("a"), "true and a"),
        (False | col("a"), "false or a"),
        (col("a").isNaN(), "is_nan(a)"),
        (col("a").isin({2, 1}), "a in (1, 2)"),
        (col("a").contains("x"), "contains(a, 'x')"),
        (col("a").startswith("x"), "startswith(a, 'x')"),
        (col("a").endswith("x"), "endswith(a, 'x')"),
        (col("a").cast(pa.int8()), "cast(a as tinyint)"),
        ((col("a") <= 1) | (col("a") >= 2) | (col("a") < 0), "a <= 1 or a >= 2 or a < 0"),
        (functions.coalesce("a", lit(0)), "coalesce(a, 0)"),
        (functions.nullif("a", "b"), "nullif(a, b)"),
        (functions.greatest_value("a", "b"), "greatest(a, b)"),
        (functions.least_value("a", "b"), "least(a, b)"),
        (functions.pmod("a", 2), "pmod(a, 2)"),
        (functions.abs_("a"), "abs(a)"),
        (functions.sqrt("a"), "sqrt(a)"),
        (functions.ln("a"), "ln(a)"),
        (functions.exp("a"), "exp(a)"),
        (functions.floor("a"), "floor(a)"),
        (functions.ceil("a"), "ceil(a)"),
        (functions.round_("a", 2), "round(a, 2)"),
        (functions.length("a"), "length(a)"),
        (functions.lower(functions.upper("a")), "lower(upper(a))"),
        (functions.trim("a"), "trim(a)"),
        (functions.ltrim("a"), "ltrim(a)"),
        (functions.rtrim("a"), "rtrim(a)"),
        (functions.substring("a", 1, 2), "substring(a, 1, 2)"),
        (functions.concat("a", lit("-"), "b"), "concat(a, '-', b)"),
        (functions.concat_ws("-", "a", "b"), "concat_ws('-', a, b)"),
        (functions.replace("a", "x", "y"), "replace(a, 'x', 'y')"),
        (functions.split_part("a", ",", 1), "split_part(a, ',', 1)"),
        (functions.lpad("a", 5, "0"), "lpad(a, 5, '0')"),
        (functions.element_at("a", 1), "element_at(a, 1)"),
        (functions.size("a"), "size(a)"),
        (functions.array_contains("a", 1), "array_contains(a, 1)"),
        (functions.year("a"), "year(a)"),
        (functions.quarter("a"), "quarter(a)"),
        (functions.month("a"), "month(a)"),
        (functions.day_of_month("a"), "day(a)"),
        (functions.day_of_week("a"), "day_of_week(a)"),
        (functions.day_of_year("a"), "day_of_year(a)"),
        (functions.week_of_year("a"), "week(a)"),
        (functions.iso_year("a"), "iso_year(a)"),
        (functions.hour_of_day("a", zone="Europe/Berlin"), "hour(a, zone => 'Europe/Berlin')"),
        (functions.minute("a"), "minute(a)"),
        (functions.second("a"), "second(a)"),
        (functions.to_date("a"), "to_date(a)"),
        (functions.to_timestamp("a"), "to_timestamp(a)"),
        (functions.from_utc("a"), "from_utc(a)"),
        (functions.date_trunc("day", "a", zone="UTC"), "date_trunc('day', a, zone => 'UTC')"),
        (functions.date_format("a", "yyyy"), "date_format(a, 'yyyy')"),
        (functions.date_add("a", 1), "date_add(a, 1)"),
        (functions.date_diff("a", "b"), "date_diff(a, b)"),
        (functions.unix_micros("a"), "unix_micros(a)"),
        (functions.timestamp_micros("a"), "timestamp_micros(a)"),
        (functions.xxhash64("a"), "xxhash64(a)"),
        (functions.crc32("a"), "crc32(a)"),
    ],
)
def test_what_python_makes(built: Expr, text: str) -> None:
    assert expression_text(built.tree) == text
    assert expr(text).tree == built.tree


@pytest.mark.parametrize("zone", ["", 5])
def test_a_zone_has_a_name(zone: Any) -> None:
    with pytest.raises(UsageError, match="time-zone"):
        functions.hour_of_day("a", zone=zone)
