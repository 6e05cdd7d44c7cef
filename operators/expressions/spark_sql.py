"""Trees as text of Spark SQL, wherever it gives the same values. Pure.

The table is closed (`TRANSLATES`): a function, and the types of its arguments, are in it if the test that draws trees
and compares both finds no difference. All else raises `NoSqlError`, and rows are handed over to tasks.

No setting of a session may change a value, and nothing may raise. So types are written down at each place, as they
were bound; what may fail is tried (``try_add``), or the rows that would fail are named in a ``CASE``; times are whole
microseconds, since Spark's own functions of them go by the zone of the session; letters of a text that a parser may
take for more than they are become bytes. What is the same in every row is computed here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

import numpy as np
import pyarrow as pa

from tidestate.operators.expressions.arrays import digits_and_scale, repeat_value
from tidestate.operators.expressions.binding import bind_expression
from tidestate.operators.expressions.casts import DAY_LENGTH_US, try_cast
from tidestate.operators.expressions.coercion import MAX_DIGITS, common_type
from tidestate.operators.expressions.operands import Operand
from tidestate.operators.expressions.sql_types import sql_name
from tidestate.operators.expressions.tree import INSTANT, LOCAL, CallNode, ColumnNode, ExprNode, nodes_of
from tidestate.operators.zones.rules import UTC
from tidestate.statestore.errors import expect, of_type

MOST_SQL = 20_000
"""Letters of the text of an expression: where a value is named twice, nested ones double it each time."""
_BOOL, _INT, _LONG, _SINGLE, _DOUBLE = pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64()
_TEXT, _DATE = pa.string(), pa.date32()
_PLAIN_TEXT = re.compile(r"[A-Za-z0-9 _.,:;/+-]*", re.ASCII)
"""What every parser takes as it is, with any setting of escapes and variables."""
_DAY = f"{DAY_LENGTH_US}L"
_FAR_DAYS = 100_000_000
"""Days from 1970 up to which the start of a year has a number."""


class NoSqlError(Exception):
    """What Spark SQL does not compute: of an expression the function, with the types that it has there."""


def spark_type_name(kind: pa.DataType) -> str | None:
    """What Spark calls a type of plain values; None for others, as of numbers without a sign."""
    return None if pa.types.is_unsigned_integer(kind) else sql_name(kind)


def sql_type_of(kind: pa.DataType) -> str:
    """As `spark_type_name`. Raises `NoSqlError` where there is none."""
    name = spark_type_name(kind)
    if name is None:
        raise NoSqlError(f"a value of type {kind}")
    return name


def spark_sql(tree: ExprNode, schema: pa.Schema, names: Mapping[str, str]) -> str:
    """A tree over columns of this ``schema`` as SQL, of the type that it is bound to. ``names``: what the SQL calls
    each column. Raises `NoSqlError`.
    """
    for node in nodes_of(tree):
        if isinstance(node, CallNode) and node.zone not in (None, UTC.name):
            raise NoSqlError(f"{node.function} by the clock of a zone")
    return _term(tree, schema, names).as_it_is()


@dataclass(frozen=True)
class _Term:
    """A part of a tree with its type. ``text``: its SQL; None where it is the same in every row."""

    operand: Operand
    text: str | None

    @property
    def kind(self) -> pa.DataType:
        return self.operand.type

    def as_it_is(self) -> str:
        """Its SQL, of its own type."""
        return _literal_sql(expect(self.operand.constant, "a constant")) if self.text is None else self.text

    def as_type(self, kind: pa.DataType) -> str:
        """Its SQL as another type, which holds its values."""
        if self.text is None:
            constant = expect(self.operand.constant, "a constant")
            return _literal_sql(constant if kind == self.kind else try_cast(repeat_value(constant, 1), kind)[0])
        return _cast_sql(self.text, self.kind, kind)

    def constant(self) -> object:
        """The value that is the same in every row."""
        if self.operand.constant is None:
            raise NoSqlError("a call that is not of literals")
        return self.operand.constant.as_py()


@dataclass(frozen=True)
class _Call:
    """A call that is not the same in every row, with the type of its results."""

    node: CallNode
    kind: pa.DataType
    terms: tuple[_Term, ...]

    def refusal(self, detail: str = "") -> NoSqlError:
        """That the table has no such call."""
        kinds = ", ".join(_name(term.kind) for term in self.terms)
        return NoSqlError(f"{self.node.function} of {detail or kinds}")

    def common(self) -> tuple[pa.DataType, list[str]]:
        """The type in which the arguments meet, and each of them in it."""
        kind = common_type([term.operand for term in self.terms])
        kind = _BOOL if kind is None or pa.types.is_null(kind) else kind
        if spark_type_name(kind) is None:
            raise self.refusal()
        return kind, [term.as_type(kind) for term in self.terms]


def _name(kind: pa.DataType) -> str:
    return spark_type_name(kind) or str(kind)


def _term(node: ExprNode, schema: pa.Schema, names: Mapping[str, str]) -> _Term:
    operand = bind_expression(node, schema).operand
    if operand.constant is not None:
        return _Term(operand, None)
    sql_type_of(operand.type)
    if isinstance(node, ColumnNode):
        return _Term(operand, names[node.name])
    node = of_type(node, CallNode)
    write = TRANSLATES.get(node.function)
    if write is None:
        raise NoSqlError(node.function)
    call = _Call(node, operand.type, tuple(_term(arg, schema, names) for arg in node.args))
    if any(pa.types.is_binary(term.kind) for term in call.terms):
        raise call.refusal()
    text = write(call)
    if len(text) > MOST_SQL:
        raise NoSqlError(f"an expression of more than {MOST_SQL} letters")
    return _Term(operand, text)


# Literals


def _literal_sql(value: pa.Scalar) -> str:
    """A value that was written down, exactly and of its type."""
    kind = value.type
    if pa.types.is_null(kind):
        return "CAST(NULL AS boolean)"
    name = sql_type_of(kind)
    if not value.is_valid:
        return f"CAST(NULL AS {name})"
    if pa.types.is_string(kind):
        return _text_sql(value.as_py())
    if pa.types.is_binary(kind):
        return f"X'{value.as_py().hex()}'"
    if pa.types.is_boolean(kind):
        return "true" if value.as_py() else "false"
    if pa.types.is_date32(kind):
        return f"date_from_unix_date({value.cast(_INT).as_py()})"
    if pa.types.is_timestamp(kind):
        return _time_sql(value)
    return f"CAST('{_number_text(value)}' AS {name})"


def _text_sql(text: str) -> str:
    if _PLAIN_TEXT.fullmatch(text):
        return f"'{text}'"
    return f"CAST(X'{text.encode().hex()}' AS string)"


def _number_text(value: pa.Scalar) -> str:
    number = value.as_py()
    if pa.types.is_decimal(value.type):
        return format(number, "f")
    if not pa.types.is_floating(value.type):
        return str(number)
    if not np.isfinite(number):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(float(number))]
    return str(np.float32(number)) if value.type == _SINGLE else repr(number)


def _time_sql(value: pa.Scalar) -> str:
    micros: int = value.cast(_LONG).as_py()
    if value.type == INSTANT:
        return f"timestamp_micros({_long_sql(micros)})"
    try:
        shown = datetime(1970, 1, 1) + timedelta(microseconds=micros)
    except OverflowError:
        raise NoSqlError("a literal before the year 1 or after 9999") from None
    return f"TIMESTAMP_NTZ'{shown.isoformat(sep=' ')}'"


def _long_sql(number: int) -> str:
    return f"CAST('{number}' AS bigint)"


# Casts


def _cast_sql(text: str, source: pa.DataType, kind: pa.DataType) -> str:
    """What `try_cast` makes. Texts of numbers and numbers with a fraction as text have other grammars in Spark."""
    if source == kind:
        return text
    name, groups = spark_type_name(kind), (_group(source), _group(kind))
    if name is None or groups not in _CASTS or (groups == ("decimal", "float") and kind == _SINGLE):
        raise NoSqlError(f"cast from {_name(source)} to {_name(kind)}")
    if groups == ("float", "float") and kind == _SINGLE:
        raise NoSqlError("cast from double to float")
    return _CASTS[groups](text, name)


def _group(kind: pa.DataType) -> str:
    tests = {
        "bool": pa.types.is_boolean(kind),
        "whole": pa.types.is_signed_integer(kind),
        "float": pa.types.is_floating(kind),
        "decimal": pa.types.is_decimal(kind),
        "text": pa.types.is_string(kind),
        "date": pa.types.is_date32(kind),
        "instant": kind == INSTANT,
        "local": kind == LOCAL,
    }
    return next((name for name, holds in tests.items() if holds), "other")


def _plain_cast(text: str, name: str) -> str:
    return f"CAST({text} AS {name})"


def _tried_cast(text: str, name: str) -> str:
    return f"try_cast({text} AS {name})"


def _whole_of_float(text: str, name: str) -> str:
    # Spark makes the largest bigint of 2**63, which is one more.
    return f"try_cast({_within_long(text, '{}', text)} AS {name})"


def _within_long(text: str, form: str, value: str) -> str:
    """A ``form`` of a float as bigint; null for one that none is near to. ``value``: what the form is of."""
    double = f"CAST({text} AS double)"
    low, high = (f"CAST('{bound}' AS double)" for bound in ("-9223372036854775808", "9223372036854775808"))
    outside = f"isnan({double}) OR {double} >= {high} OR {double} < {low}"
    return f"CASE WHEN {outside} THEN NULL ELSE CAST({form.format(value)} AS bigint) END"


def _date_of_instant(text: str, _name: str = "date") -> str:
    return f"date_from_unix_date(CAST({_days_sql(text)} AS int))"


def _days_sql(text: str) -> str:
    """Days since 1970 in UTC: rounded down, where DIV cuts towards zero."""
    micros = f"unix_micros({text})"
    return f"(({micros} DIV {_DAY}) - CASE WHEN ({micros} % {_DAY}) < 0L THEN 1L ELSE 0L END)"


def _instant_of_date(text: str, _name: str = "timestamp") -> str:
    return f"timestamp_micros(try_multiply(CAST(unix_date({text}) AS bigint), {_DAY}))"


_CASTS: dict[tuple[str, str], Callable[[str, str], str]] = {
    ("bool", "whole"): _plain_cast,
    ("bool", "float"): _plain_cast,
    ("bool", "text"): _plain_cast,
    ("whole", "bool"): _plain_cast,
    ("whole", "whole"): _tried_cast,
    ("whole", "float"): _plain_cast,
    ("whole", "decimal"): _tried_cast,
    ("whole", "text"): _plain_cast,
    ("float", "float"): _plain_cast,
    ("float", "whole"): _whole_of_float,
    ("decimal", "whole"): _tried_cast,
    ("decimal", "float"): _plain_cast,
    ("decimal", "decimal"): _tried_cast,
    ("date", "instant"): _instant_of_date,
    ("instant", "date"): _date_of_instant,
    ("local", "date"): _plain_cast,
}


# Comparisons and choices


def _compared(call: _Call, form: str) -> str:
    """A ``form`` of the arguments in the type in which they meet."""
    return form.format(*call.common()[1])


def _isin(call: _Call) -> str:
    kind, (value, *choices) = call.common()
    if pa.types.is_floating(kind):
        # More than a few choices are looked up in a set, which tells -0.0 from 0.0.
        return f"({' OR '.join(f'{value} = {choice}' for choice in choices)})"
    return f"({value} IN ({', '.join(choices)}))"


def _joined(call: _Call, word: str) -> str:
    return f"({f' {word} '.join(term.as_type(_BOOL) for term in call.terms)})"


def _formed(call: _Call, form: str, kinds: tuple[pa.DataType, ...] = ()) -> str:
    """A ``form`` of the arguments, each as one of these ``kinds``, or as they are."""
    types = kinds or tuple(term.kind for term in call.terms)
    return form.format(*(term.as_type(kind) for term, kind in zip(call.terms, types, strict=True)))


def _alike(call: _Call) -> str:
    return f"{call.node.function}({', '.join(call.common()[1])})"


def _nullif(call: _Call) -> str:
    _, (value, other) = call.common()
    return f"CASE WHEN {value} = {other} THEN NULL ELSE {call.terms[0].as_type(call.kind)} END"


def _when(call: _Call) -> str:
    terms = call.terms
    pairs = zip(terms[0::2], terms[1::2], strict=False)
    parts = [f"WHEN {test.as_type(_BOOL)} THEN {value.as_type(call.kind)}" for test, value in pairs]
    other = f" ELSE {terms[-1].as_type(call.kind)}" if len(terms) % 2 else ""
    return f"CASE {' '.join(parts)}{other} END"


# Numbers


def _arithmetic(call: _Call, name: str) -> str:
    if call.kind in (INSTANT, LOCAL):
        return _shifted(call, name)
    if pa.types.is_decimal(call.kind):
        return f"CAST({name}({', '.join(_decimals(call))}) AS {_name(call.kind)})"
    return f"{name}({', '.join(term.as_type(call.kind) for term in call.terms)})"


def _decimals(call: _Call) -> list[str]:
    """The arguments as decimals, each with its own digits. With 38 at most in the exact result Spark rounds as we do,
    whatever it is told about the loss of precision.
    """
    kinds = [_decimal_type(call, term) for term in call.terms]
    (digits, scale), (other_digits, other_scale) = ((kind.precision, kind.scale) for kind in kinds)
    if call.node.function in ("add", "sub"):
        exact = max(digits - scale, other_digits - other_scale) + 1 + max(scale, other_scale)
        if exact > MAX_DIGITS:
            raise call.refusal(f"decimals whose result has {exact} digits")
    if call.node.function == "div" and other_digits + digits_and_scale(call.kind)[1] >= MAX_DIGITS:
        raise call.refusal("decimals with so many digits")
    return [term.as_type(kind) for term, kind in zip(call.terms, kinds, strict=True)]


def _decimal_type(call: _Call, term: _Term) -> pa.Decimal128Type:
    if pa.types.is_null(term.kind):
        raise call.refusal()
    if term.operand.is_open and pa.types.is_integer(term.kind):
        return pa.decimal128(len(str(abs(int(str(term.constant()))))), 0)  # the digits that were written
    return pa.decimal128(*digits_and_scale(term.kind))


def _shifted(call: _Call, name: str) -> str:
    """A time and a literal interval. As an interval its days would be days of the session's zone."""
    spans = [term for term in call.terms if pa.types.is_duration(term.kind)]
    times = [term for term in call.terms if term.kind == INSTANT]
    if len(spans) != 1 or len(times) != 1 or call.kind != INSTANT or spans[0].text is not None:
        raise call.refusal()
    span = expect(spans[0].operand.constant, "a constant").cast(_LONG)
    micros = _literal_sql(span)
    return f"timestamp_micros({name}(unix_micros({times[0].as_it_is()}), {micros}))"


def _divided(call: _Call, sign: str) -> str:
    """No function that tries: rows that would raise are named."""
    left, right = (term.as_type(call.kind) for term in call.terms)
    value = f"({left} {sign} {right})"
    least = ""
    if sign == "DIV":
        value = f"try_cast({value} AS {_name(call.kind)})"
        if call.kind == _LONG:
            least = f"WHEN {left} = {_long_sql(-(2**63))} AND {right} = -1L THEN NULL "
    return f"CASE WHEN {right} = {_zero(call.kind)} THEN NULL {least}ELSE {value} END"


def _positive_rest(call: _Call) -> str:
    if not pa.types.is_integer(call.kind):
        raise call.refusal()
    left, right = (term.as_type(call.kind) for term in call.terms)
    rest, zero = f"({left} % {right})", _zero(call.kind)
    # Spark's own adds the divisor where both are negative too, and the sum may go round.
    upper = f"WHEN {rest} < {zero} AND {right} > {zero} THEN {rest} + {right}"
    return f"CASE WHEN {right} = {zero} THEN NULL {upper} ELSE {rest} END"


def _zero(kind: pa.DataType) -> str:
    return f"CAST('0' AS {_name(kind)})"


def _of_sign(call: _Call, form: str) -> str:
    text = form.format(call.terms[0].as_type(call.kind))
    if not pa.types.is_integer(call.kind):
        return text
    # The least number has no positive one beside it.
    value, bits = call.terms[0].as_type(call.kind), call.kind.bit_width
    return f"CASE WHEN {value} = CAST('{-(2 ** (bits - 1))}' AS {_name(call.kind)}) THEN NULL ELSE {text} END"


def _whole(call: _Call) -> str:
    source, text = call.terms[0].kind, call.terms[0].as_it_is()
    if pa.types.is_integer(source):
        return text
    if pa.types.is_decimal(source):
        return _rounded_decimal(call, f"{call.node.function}({text})", 0)
    return _within_long(text, f"{call.node.function}({{}})", f"CAST({text} AS double)")


def _round(call: _Call) -> str:
    source, text = call.terms[0].kind, call.terms[0].as_it_is()
    digits = int(str(call.terms[1].constant())) if len(call.terms) > 1 else 0
    if pa.types.is_integer(source):
        return text
    if not pa.types.is_decimal(source):
        raise call.refusal(_name(source))  # by the digits that Java prints, which its versions disagree about
    return _rounded_decimal(call, f"round({text}, {digits})", digits)


def _rounded_decimal(call: _Call, text: str, digits: int) -> str:
    precision, scale = digits_and_scale(call.terms[0].kind)
    if precision - scale + 1 + min(digits, scale) > MAX_DIGITS:
        raise call.refusal()
    return f"CAST({text} AS {_name(call.kind)})"


# Texts


def _of_texts(call: _Call) -> str:
    """A function of the same name and arguments, which are texts, and whole numbers that are written down."""
    texts = []
    for term in call.terms:
        is_place = term.text is None and pa.types.is_integer(term.kind)
        texts.append(str(term.constant()) if is_place else term.as_type(_TEXT))
    return f"{call.node.function}({', '.join(texts)})"


def _replaced(call: _Call) -> str:
    return _of_texts(call) if call.terms[1].constant() else call.terms[0].as_type(_TEXT)


def _like(call: _Call) -> str:
    if "\n" in str(call.terms[1].constant()):
        raise call.refusal("a pattern with a line break")
    return f"({call.terms[0].as_type(_TEXT)} LIKE {call.terms[1].as_type(_TEXT)})"


def _xxhash64(call: _Call) -> str:
    kind = call.terms[0].kind
    if not (pa.types.is_string(kind) or pa.types.is_date32(kind)):
        raise call.refusal()
    return f"xxhash64({call.terms[0].as_it_is()})"


# Times, in UTC


def _day_of(term: _Term) -> str:
    """The date of a time or date."""
    text = term.as_it_is()
    if term.kind == INSTANT:
        return _date_of_instant(text)
    return text if term.kind == _DATE else f"CAST({text} AS date)"


def _date_part(call: _Call, name: str) -> str:
    return f"{name}({_day_of(call.terms[0])})"


def _time_part(call: _Call, unit_us: int, of_us: int) -> str:
    kind, text = call.terms[0].kind, call.terms[0].as_it_is()
    if kind == INSTANT:
        return f"CAST(pmod(unix_micros({text}), {of_us}L) DIV {unit_us}L AS int)"
    if kind == LOCAL:
        return f"{call.node.function}({text})"
    return f"CASE WHEN {text} IS NOT NULL THEN 0 END"


def _to_date(call: _Call) -> str:
    if call.terms[0].kind not in (INSTANT, LOCAL, _DATE):
        raise call.refusal()
    return _day_of(call.terms[0])


def _to_timestamp(call: _Call) -> str:
    if call.terms[0].kind == INSTANT:
        return call.terms[0].as_it_is()
    if call.terms[0].kind != _DATE:
        raise call.refusal()
    return _instant_of_date(call.terms[0].as_it_is())


_UNITS_US = {"day": DAY_LENGTH_US, "hour": 3_600_000_000, "minute": 60_000_000, "second": 1_000_000}


def _truncated(call: _Call) -> str:
    unit, term = str(call.terms[0].constant()).lower(), call.terms[1]
    if term.kind not in (INSTANT, _DATE):
        raise call.refusal(_name(term.kind))
    if term.kind == INSTANT and unit in _UNITS_US:
        micros = f"unix_micros({term.as_it_is()})"
        return f"timestamp_micros(try_subtract({micros}, pmod({micros}, {_UNITS_US[unit]}L)))"
    day = _day_of(term)
    if unit != "day":
        inside = f"unix_date({day}) BETWEEN {-_FAR_DAYS} AND {_FAR_DAYS}"
        day = f"CASE WHEN {inside} THEN trunc({day}, '{unit}') END"
    return _instant_of_date(day) if term.kind == INSTANT else day


def _unix_micros(call: _Call) -> str:
    if call.terms[0].kind != INSTANT:
        raise call.refusal()
    return f"unix_micros({call.terms[0].as_it_is()})"


def _timestamp_micros(call: _Call) -> str:
    if not pa.types.is_integer(call.terms[0].kind):
        raise call.refusal()
    return f"timestamp_micros({call.terms[0].as_type(_LONG)})"


def _cast(call: _Call) -> str:
    return call.terms[0].as_type(call.kind)


TRANSLATES: dict[str, Callable[[_Call], str]] = {
    **{
        name: partial(_compared, form=f"({{}} {sign} {{}})")
        for name, sign in {"eq": "=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq_null_safe": "<=>"}.items()
    },
    "ne": partial(_compared, form="(NOT ({} = {}))"),
    "between": partial(_compared, form="({0} >= {1} AND {0} <= {2})"),
    "isin": _isin,
    "and": partial(_joined, word="AND"),
    "or": partial(_joined, word="OR"),
    "not": partial(_formed, form="(NOT {})", kinds=(_BOOL,)),
    "is_null": partial(_formed, form="({} IS NULL)"),
    "is_nan": partial(_formed, form="isnan({})"),
    **dict.fromkeys(("greatest", "least", "coalesce"), _alike),
    "nullif": _nullif,
    "when": _when,
    "add": partial(_arithmetic, name="try_add"),
    "sub": partial(_arithmetic, name="try_subtract"),
    "mul": partial(_arithmetic, name="try_multiply"),
    "div": partial(_arithmetic, name="try_divide"),
    "int_div": partial(_divided, sign="DIV"),
    "mod": partial(_divided, sign="%"),
    "pmod": _positive_rest,
    "neg": partial(_of_sign, form="(- {})"),
    "abs": partial(_of_sign, form="abs({})"),
    **dict.fromkeys(("floor", "ceil"), _whole),
    "round": _round,
    "sqrt": partial(_formed, form="sqrt({})", kinds=(_DOUBLE,)),
    **dict.fromkeys(("length", "trim", "ltrim", "rtrim", "substring", "concat", "concat_ws"), _of_texts),
    **dict.fromkeys(("contains", "startswith", "endswith", "split_part", "lpad"), _of_texts),
    "replace": _replaced,
    "like": _like,
    "crc32": partial(_formed, form="crc32(CAST({} AS binary))", kinds=(_TEXT,)),
    "xxhash64": _xxhash64,
    **{name: partial(_date_part, name=name) for name in ("year", "quarter", "month", "day")},
    "day_of_week": partial(_date_part, name="dayofweek"),
    "day_of_year": partial(_date_part, name="dayofyear"),
    "week": partial(_date_part, name="weekofyear"),
    "hour": partial(_time_part, unit_us=3_600_000_000, of_us=DAY_LENGTH_US),
    "minute": partial(_time_part, unit_us=60_000_000, of_us=3_600_000_000),
    "second": partial(_time_part, unit_us=1_000_000, of_us=60_000_000),
    "to_date": _to_date,
    "to_timestamp": _to_timestamp,
    "date_trunc": _truncated,
    "date_add": partial(
        _formed,
        form="date_from_unix_date(try_cast(try_add(CAST(unix_date({}) AS bigint), {}) AS int))",
        kinds=(_DATE, _LONG),
    ),
    "date_diff": partial(
        _formed,
        form="try_cast(try_subtract(CAST(unix_date({}) AS bigint), CAST(unix_date({}) AS bigint)) AS int)",
        kinds=(_DATE, _DATE),
    ),
    "unix_micros": _unix_micros,
    "timestamp_micros": _timestamp_micros,
    "cast": _cast,
}
"""What writes a call, by the stored name of its function. Left out: what Java and Arrow compute by other rules
(regular expressions, letters in upper and lower case, formats of times, powers and logarithms, floats as text and
rounded), what needs the rules of a zone, and values with parts.
"""
