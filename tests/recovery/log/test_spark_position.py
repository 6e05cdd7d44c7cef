"""A batch of Spark is the committed one only if all of it is, and the next one only if it begins where that ended."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tidestate.recovery.log.manifest import SparkPosition
from tidestate.recovery.log.spark_log import check_follows, check_same
from tidestate.statestore.errors import IncompatibleError

DONE = SparkPosition("query", 4, ("3", "30"), ("4", "40"), {"0": ("/in/4.parquet 7",)})
NEXT = SparkPosition("query", 5, DONE.end, ("5", "50"), {"0": ("/in/5.parquet 8",)})
OTHERS: dict[str, Any] = {
    "query_id": "another",
    "batch_id": 6,
    "start": ("2", "30"),
    "end": ("4", "41"),
    "files": {"0": ("/in/4.parquet 9",)},
}


@pytest.mark.parametrize("part", OTHERS)
def test_a_committed_batch_is_planned_again_as_it_was(part: str) -> None:
    check_same(DONE, msgspec.structs.replace(DONE))
    with pytest.raises(IncompatibleError, match="spark-batch-differs") as caught:
        check_same(DONE, msgspec.structs.replace(DONE, **{part: OTHERS[part]}))
    assert caught.value.context["part"] == part


@pytest.mark.parametrize("part", ["query_id", "batch_id", "start"])
def test_the_next_batch_begins_where_the_newest_one_ended(part: str) -> None:
    check_follows(DONE, NEXT)
    with pytest.raises(IncompatibleError, match="spark-batch-gap"):
        check_follows(DONE, msgspec.structs.replace(NEXT, **{part: OTHERS[part]}))


def test_the_first_batch_begins_with_nothing() -> None:
    first = SparkPosition("query", 0, (), ("1",))
    check_follows(None, first)
    for other in (msgspec.structs.replace(first, batch_id=1), msgspec.structs.replace(first, start=("0",))):
        with pytest.raises(IncompatibleError, match="spark-batch-gap"):
            check_follows(None, other)
