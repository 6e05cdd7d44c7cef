"""`agg.accumulate`: of one stream, or with a lift for each side of a merge."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tidestate import UsageError, agg
from tidestate.operators.aggregates.custom import Accumulate
from tidestate.statestore.errors import of_type


def lift(events: pa.Table) -> pa.Table:
    return events.rename_columns(["total"])


def debit(events: pa.Table) -> pa.Table:
    return pa.table({"total": pc.negate(events["right_w"])})


def older(first: pa.Table, _: pa.Table) -> pa.Table:
    return first


def total(state: pa.Table) -> pa.ChunkedArray:
    return state["total"]


ABOUT: dict[str, Any] = {
    "name": "kept_total",
    "state": {"total": pa.int64()},
    "merge": older,
    "result": total,
    "result_type": pa.int64(),
}


def test_one_lift_is_of_one_stream() -> None:
    kept = of_type(agg.accumulate(columns=["v"], lift=lift, **ABOUT), Accumulate)
    assert (kept.reads, kept.keeps, kept.result_type) == (("v",), (("total", pa.int64()),), pa.int64())
    assert kept.functions is not None
    assert kept.functions.steps == {"lift": lift, "merge": older, "result": total}


def test_a_lift_for_each_side_is_of_a_merge() -> None:
    columns, lifts = {"left": ["left_v"], "right": ["right_w"]}, {"left": lift, "right": debit}
    by_side = of_type(agg.accumulate(columns=columns, lift=lifts, version=2, **ABOUT), Accumulate)
    assert by_side == agg.accumulate(columns=["side", "left_v", "right_w"], lift=lift, version=2, **ABOUT)
    rows = {"side": ["right", "left", "right"], "left_v": [None, 1, None], "right_w": [2, None, None]}
    assert by_side.functions is not None
    assert by_side.functions.steps["lift"](pa.table(rows))["total"].to_pylist() == [-2, 1, None]


@pytest.mark.parametrize(
    ("columns", "lifts", "text"),
    [
        (["v"], {"left": lift}, "both by side"),
        ({"left": ["v"]}, lift, "both by side"),
        ({"left": ["v"]}, {"right": lift}, "each side needs a lift"),
        ([], lift, "needs at least one column to read"),
        ("v", lift, r"^accumulate\(columns=…\) takes a sequence of text or a mapping"),
    ],
)
def test_what_does_not_fit_is_refused(columns: Any, lifts: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        agg.accumulate(columns=columns, lift=lifts, **ABOUT)
