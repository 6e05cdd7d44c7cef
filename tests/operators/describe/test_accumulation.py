"""`agg.accumulate`: of one stream, or with a lift for each side of a merge."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tidestate import UsageError, agg
from tidestate.operators.aggregates.custom import accumulate
from tidestate.operators.describe.merge_accumulation import merge_accumulate


def lift(events: pa.Table) -> pa.Table:
    return events.rename_columns(["total"])


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
    assert agg.accumulate(columns=["v"], lift=lift, **ABOUT) == accumulate(columns=["v"], lift=lift, **ABOUT)


def test_a_lift_for_each_side_is_of_a_merge() -> None:
    columns, lifts = {"left": ["left_v"], "right": ["right_w"]}, {"left": lift, "right": lift}
    by_side = agg.accumulate(columns=columns, lift=lifts, version=2, **ABOUT)
    assert by_side == merge_accumulate(
        left=["left_v"], right=["right_w"], lift_left=lift, lift_right=lift, version=2, **ABOUT
    )


@pytest.mark.parametrize(
    ("columns", "lifts", "text"),
    [
        (["v"], {"left": lift}, "both by side"),
        ({"left": ["v"]}, lift, "both by side"),
        ({"left": ["v"]}, {"right": lift}, "each side has a lift"),
        ([], lift, "needs columns to read"),
        ("v", lift, r"^accumulate\(columns=…\) takes a sequence of text or a mapping"),
    ],
)
def test_what_does_not_fit_is_refused(columns: Any, lifts: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        agg.accumulate(columns=columns, lift=lifts, **ABOUT)
