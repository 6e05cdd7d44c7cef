"""Any function of any columns: refused when it is bound, or a value or null for each row, of the type it said."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.drawn_expressions import NAMED_TYPES
from tidestate.operators.expressions.binding import bind_expression
from tidestate.operators.expressions.names import SIGNATURES
from tidestate.operators.expressions.printing import expression_text
from tidestate.operators.expressions.tree import CallNode, ColumnNode, literal_node
from tidestate.operators.zones.installed import installed_rules
from tidestate.statestore.errors import UsageError

ENDS = [-(2**63), 2**63 - 1, 0, 1_774_746_000]
RULES = {zone: installed_rules(zone) for zone in ("Europe/Berlin", "Pacific/Apia")}
COLUMNS: dict[str, pa.Array] = {
    **{
        f"i{bits}": pa.array([-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, -1, None], f"int{bits}")
        for bits in (8, 16, 32, 64)
    },
    **{f"u{bits}": pa.array([0, 2**bits - 1, 1, None], f"uint{bits}") for bits in (8, 16, 32, 64)},
    "f16": pa.array(np.array([0, 65504, -np.inf, np.nan], np.float16)),
    "f32": pa.array([-0.0, 3.4e38, math.nan, 1e-45], pa.float32()),
    "f64": pa.array([1.7e308, -1.7e308, math.nan, -math.inf]),
    "f63": pa.array([2.0**63, -(2.0**63), 5e-324, None]),
    "d5": pa.array([Decimal("999.99"), Decimal("-999.99"), Decimal("0.01"), None], pa.decimal128(5, 2)),
    "d38": pa.array([Decimal("9" * 38), Decimal("-" + "9" * 38), Decimal(1), None], pa.decimal128(38, 0)),
    "d0": pa.array([Decimal("0." + "9" * 38), Decimal("0." + "1" * 38), None, None], pa.decimal128(38, 38)),
    "d256": pa.array([Decimal(10**60), None, None, None], pa.decimal256(70, 2)),
    "s": pa.array(["", "9" * 400, "1e999999999", "\x00"]),
    "s2": pa.array(["9999-12-31T23:59:59Z", "0001-01-01T00:00:00+14:00", "😀", None]),
    "large": pa.array(["a", "", None, "b"], pa.large_string()),
    "view": pa.array(["a", "", None, "b"], pa.string_view()),
    "raw": pa.array([b"", b"\xff\x00", b"abc", None]),
    "fixed": pa.array([b"abc", b"\xff\xff\xff", None, None], pa.binary(3)),
    "flag": pa.array([True, False, None, True]),
    "day": pa.array([-(2**31), 2**31 - 1, 0, None], pa.int32()).view(pa.date32()),
    "d64": pa.array([0, 86_400_000, -86_400_000, None], pa.int64()).view(pa.date64()),
    **{
        f"t{unit}{zone[:2]}": pa.array(ENDS).view(pa.timestamp(unit, zone or None))
        for unit in ("s", "ms", "us", "ns")
        for zone in ("", "UTC", "Europe/Berlin")
    },
    "span": pa.array(ENDS).view(pa.duration("us")),
    "span_s": pa.array(ENDS).view(pa.duration("s")),
    "clock": pa.array([0, 5, None, 9], pa.int32()).view(pa.time32("s")),
    "list": pa.array([[1, None], [], None, [2**63 - 1]]),
    "doubles": pa.array([[math.nan, None], [], None, [1.0]], pa.large_list(pa.float64())),
    "pairs": pa.array([[1, 2], [3, 4], None, None], pa.list_(pa.int32(), 2)),
    "map": pa.array([[("a", 1)], [], None, [("b", None)]], pa.map_(pa.string(), pa.int32())),
    "struct": pa.array([{"a": 1}, {"a": None}, None, {"a": 2}]),
    "null": pa.nulls(4),
    "named": pa.array(["x", "y", None, "x"]).dictionary_encode(),
}
LITERALS: list[Any] = [
    None,
    0,
    -1,
    5,
    2**63 - 1,
    1.5,
    math.nan,
    "a",
    "",
    "%",
    "yyyy-MM",
    "day",
    True,
    b"a",
    Decimal("1.5"),
]
LITERALS += [date(2026, 1, 1), datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC), timedelta(days=5)]
PARTS = [*map(ColumnNode, COLUMNS), *map(literal_node, LITERALS)]
WHOLE = pa.table(COLUMNS)
# Chunks that begin in the middle of their buffers, as slices of batches do.
ROWS = pa.concat_tables([WHOLE.slice(2, 2), WHOLE.slice(0, 3), WHOLE.slice(3, 0), WHOLE.slice(1)])


@pytest.mark.parametrize("function", sorted(SIGNATURES))
def test_any_function_of_any_columns(function: str) -> None:
    signature = SIGNATURES[function]
    most = signature.minimum + 2 if signature.maximum is None else signature.maximum

    @settings(max_examples=settings.default.max_examples * 8)  # type: ignore[union-attr]
    @given(
        st.lists(st.sampled_from(PARTS), min_size=signature.minimum, max_size=most),
        st.sampled_from(NAMED_TYPES),
        st.data(),
    )
    def check(args: list[Any], kind: str, data: st.DataObject) -> None:
        zone = data.draw(st.sampled_from([None, *RULES])) if signature.takes_zone else None
        node = CallNode(function, tuple(args), zone, kind if function == "cast" else None)
        try:
            bound = bind_expression(node, ROWS.schema, RULES)
        except UsageError as error:
            assert error.code in ("expression-type", "expression-decimal", "expression-name")  # noqa: PT017
            return
        for rows in (ROWS, ROWS.slice(1, 5), ROWS.slice(0, 0)):
            result = bound.evaluate(rows)
            assert len(result) == len(rows)
            assert result.type == bound.type, expression_text(node)
            result.validate(full=True)

    check()
