"""Add what is missing in ``values.jsonl.gz``: ``python -m tests.golden.make_values``. A form that is there stays: it
is of the version that brought the function, or the type.

The results are those of the evaluator of expressions. Of each row they must be those of the twin
(``tests/twins/expressions.py``), but for nested values, bytes and a few others, which it does not have; and those of
Spark, by the forms of its functions that try, but for the `NOT_OF_SPARK`. Where they are not, nothing is written.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.golden.value_forms import VALUE_ZONES, VALUES_FILE, Form, KeptForm, forms, pack, results, unpack
from tests.helpers.spark_expressions import SparkText, Unlike, plain_text
from tests.twins.expressions import evaluate
from tidestate.operators.expressions.binding import BoundExpression
from tidestate.operators.expressions.tree import CallNode, ColumnNode, ExprNode, LiteralNode
from tidestate.operators.zones.installed import installed_rules
from tools.java import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT_ONCE = 120
"""So many forms are in one query of Spark."""
NESTED = ("list", "map", "struct")
TWINLESS = (*NESTED, "binary")
"""Types whose values the twin does not have."""
NOT_OF_SPARK = {
    "unsigned": "Spark has no unsigned numbers",
    "spans": "spans are no columns here",
    "bytes": "bytes become text and numbers in another way",
    "iso_year": "Spark has no such function",
    "letters": "lower and upper outside of ASCII go by the tables of ICU since Spark 4",
    "line breaks": "before a line break at the end of a text Java's $ holds, and a dot takes none",
    "float as text": "the digits of a float are those of the Java that runs Spark",
    "text as a time": "Spark reads more forms of dates and times",
    "zones": "Spark names no hour that a clock shows twice, and no day without a midnight, from outside of the zone",
    "comparison of kinds": "Spark compares no times with times without a zone by its session here",
    "last digits": "functions of the C library differ in the last digit",
    "days": "Spark adds days of 32 bits, and goes round",
    "two to the 63": "of this double Spark makes the largest number of 64 bits, one less: `SparkText` says null",
    "nulls": "a null beside a decimal has no type there",
    "nested": "values in lists, maps and structs are written and read by columns of their own",
}
"""Why a form is not compared with Spark: compared with the twin alone, or closely."""
CLOSE = ("exp", "ln", "pow")


def exception_of(form: Form, bound: BoundExpression) -> str | None:
    """The name of the exception that a form is; None where it is compared with Spark."""
    function, types = form.tree.function, form.types
    kinds = {*types, *([form.tree.type] if form.tree.type else [])}
    texts = [arg.value for arg in form.tree.args if isinstance(arg, LiteralNode) and arg.type == "string"]
    if any(kind.startswith("uint") for kind in kinds) or pa.types.is_unsigned_integer(bound.type):
        return "unsigned"
    if kinds & {*NESTED}:
        return "nested"
    has_span = "span" in types or pa.types.is_duration(bound.type)
    if has_span or (function in ("add", "sub") and "clock" in types):
        return "spans"
    if "binary" in types:
        return "bytes"
    if function == "iso_year":
        return "iso_year"
    if function in ("lower", "upper"):
        return "letters"
    if function in ("like", "rlike"):
        return "line breaks"
    if function == "cast" and types[0] in ("float", "double") and form.tree.type == "string":
        return "float as text"
    is_time = pa.types.is_temporal(bound.type)
    if is_time and types[0] == "string" and function in ("cast", "to_date", "to_timestamp"):
        return "text as a time"
    if texts and function in ("eq", "lt", "ge") and types[0] in ("instant", "clock", "date"):
        return "text as a time"
    if function == "to_timestamp" or (form.tree.zone in VALUE_ZONES[2:] and function == "date_trunc"):
        return "zones"
    if {"instant", "clock"} <= {*types} or (function == "cast" and {*types} <= {"instant", "clock"} and is_time):
        return "comparison of kinds"
    return "days" if function in ("date_add", "date_diff") and len(types) > 1 else None


def _meets_unsigned(form: Form) -> bool:
    """Whether 64 bits without a sign meet others, or a time, of which the twin knows nothing."""
    function = form.tree.function
    return "uint64" in form.types and (len({*form.types}) > 1 or function == "timestamp_micros")


class ColumnText(SparkText):
    """The SQL of a form whose columns have a prefix."""

    def __init__(self, schema: pa.Schema, prefix: str) -> None:
        super().__init__(schema)
        self._prefix = prefix

    def text(self, node: ExprNode) -> str:
        return f"{self._prefix}{node.name}" if isinstance(node, ColumnNode) else super().text(node)

    def on_timestamp_micros(self, node: CallNode) -> str:
        return f"timestamp_micros({self.to(pa.int64(), node.args[0])})"

    def on_ln(self, node: CallNode) -> str:
        return f"ln({self.to(pa.float64(), node.args[0])})"

    def on_exp(self, node: CallNode) -> str:
        return f"exp({self.to(pa.float64(), node.args[0])})"

    def on_pow(self, node: CallNode) -> str:
        return f"pow({', '.join(self.to(pa.float64(), arg) for arg in node.args)})"


def is_same(function: str, value: Any, answer: Any) -> bool:
    """Whether two results are one; zeros of either sign are."""
    if isinstance(value, float) and isinstance(answer, float):
        close = function in CLOSE and math.isclose(value, answer, rel_tol=1e-13)
        return close or (math.isnan(value) and math.isnan(answer)) or value == answer
    return bool(value == answer) and (value is None) == (answer is None)


def unlike_the_twin(form: Form, bound: BoundExpression, rows: Sequence[Any], values: Sequence[Any]) -> Iterator[str]:
    """What the twin has otherwise, in words."""
    if {*form.types} & {*TWINLESS} or form.tree.function == "pow" or _meets_unsigned(form):
        return
    for row, value in zip(rows, values, strict=True):
        kind, answer = evaluate(form.tree, dict(zip("abc", row, strict=False)), form.schema)
        if kind != bound.type or not is_same(form.tree.function, value, answer):
            yield f"{form.key} of {row}: {value!r} ({bound.type}), and by the twin {answer!r} ({kind})"


def unlike_spark(spark: SparkSession, new_forms: Sequence[KeptForm]) -> Iterator[str]:
    """What Spark has otherwise, in words; of several forms that it refuses each is asked alone."""
    try:
        yield from _unlike_spark(spark, new_forms)
    except Exception as error:
        if len(new_forms) == 1:
            yield f"{new_forms[0].key}: {str(error)[:300]}"
        else:
            for form in new_forms:
                yield from unlike_spark(spark, [form])


def _unlike_spark(spark: SparkSession, new_forms: Sequence[KeptForm]) -> Iterator[str]:
    """Each form's columns are beside those of the others, with rows of nulls."""
    # A query for each form would take minutes: most of it is Spark's planning.
    most = max(len(form.rows) for form in new_forms)
    columns: dict[str, pa.Array] = {}
    texts = []
    for number, form in enumerate(new_forms):
        rows = form.table()
        for name in rows.column_names:
            column = rows[name].combine_chunks()
            columns[f"f{number}_{name}"] = pa.concat_arrays([column, pa.nulls(most - len(column), column.type)])
        text = ColumnText(form.schema, f"f{number}_").text(form.tree)
        texts.append(f"{plain_text(text, form.type)} AS r{number}")
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.table(columns), Path(folder) / "rows.parquet")
        # Of literals Spark would compute the answers itself, by rules of its optimizer.
        frame = spark.read.parquet(folder).coalesce(1)
        answers = [row.asDict() for row in frame.selectExpr(*texts).collect()]
    for number, form in enumerate(new_forms):
        for row, value, answer in zip(form.rows, form.results, answers, strict=False):
            if not is_same(form.tree.function, value, answer[f"r{number}"]):
                yield f"{form.key} of {row}: {value!r}, and by Spark {answer[f'r{number}']!r}: {texts[number]}"


def missing_forms() -> tuple[list[KeptForm], list[str]]:
    """What the file does not have, and what the twin says to it."""
    zones = {name: installed_rules(name) for name in VALUE_ZONES} | unpack()[0]
    keys, new_forms, differences = {form.key for form in unpack()[1]}, list[KeptForm](), list[str]()
    for form, bound in forms(zones):
        if form.key in keys:
            continue
        rows = [list(row) for row in form.rows()]
        values = results(bound, form.table(rows))
        differences += list(unlike_the_twin(form, bound, rows, values))[:1]
        basis = exception_of(form, bound)
        if basis is None:
            try:
                ColumnText(form.schema, "").text(form.tree)
            except (Unlike, KeyError) as error:
                basis = "zones" if isinstance(error, Unlike) else "nulls"
        new_forms.append(KeptForm(form.tree, form.schema, bound.type, rows, values, basis or "spark"))
    return new_forms, differences


def main() -> None:
    """Ends with 1, and writes nothing, where a result is neither that of the twin and of Spark, nor an exception."""
    new_forms, differences = missing_forms()
    for_spark = [form for form in new_forms if form.basis == "spark"]
    if for_spark:
        spark = local_session("values")
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        spark.conf.set("spark.sql.ansi.enabled", "true")
        for first in range(0, len(for_spark), AT_ONCE):
            differences += unlike_spark(spark, for_spark[first : first + AT_ONCE])
        spark.stop()
    if differences:
        print("\n".join(differences))
        sys.exit(1)
    # Rules that are kept win: what was computed by them stays what it is under another tzdata.
    zones = {name: installed_rules(name) for name in VALUE_ZONES} | unpack()[0]
    pack(zones, [*unpack()[1], *new_forms])
    unpack.cache_clear()
    forms_kept = unpack()[1]
    rows = sum(len(form.rows) for form in forms_kept)
    print(f"{len(new_forms)} forms are new: {len(forms_kept)} forms, {rows} rows, {VALUES_FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
