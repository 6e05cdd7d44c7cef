"""Spark's trigger of a job: what Spark's writer gets, and what is refused before anything is written."""

from datetime import timedelta
from typing import Any

import pytest

from tidestate.operators.describe.spark_trigger import spark_trigger
from tidestate.statestore.errors import UsageError

TAKEN: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"processingTime": "10 seconds"}, {"processingTime": "10 seconds"}),
    ({"processingTime": "1m30s"}, {"processingTime": "1 minute 30 seconds"}),
    ({"processingTime": timedelta(milliseconds=500)}, {"processingTime": "500 milliseconds"}),
    ({"processingTime": "0 seconds"}, {"processingTime": "0 seconds"}),
    ({"availableNow": True}, {"availableNow": True}),
    ({"once": True, "processingTime": None}, {"once": True}),
]
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({}, r"choose one trigger"),
    "two": (
        {"processingTime": "1 s", "availableNow": True},
        "choose one trigger.*processingTime='1 s', availableNow=True",
    ),
    "False": ({"availableNow": False}, "availableNow must be True, or left out"),
    "once, but a number": ({"once": 1}, "once must be True, or left out"),
    "continuous": ({"continuous": "1 second"}, "hands out no batches.*continuous='1 second'"),
    "real time": ({"realTime": "5 minutes"}, "hands out no batches.*realTime='5 minutes'"),
    "negative": ({"processingTime": "-1 s"}, "must not be negative"),
}


@pytest.mark.parametrize(("arguments", "of_spark"), TAKEN, ids=repr)
def test_spark_gets_one_trigger_in_its_words(arguments: dict[str, Any], of_spark: dict[str, Any]) -> None:
    assert spark_trigger(**arguments) == of_spark


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_spark_or_a_job_cannot_do_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        spark_trigger(**arguments)
    assert refused.value.code == "spark-trigger"


@pytest.mark.parametrize("span", ["soon", "", "1 month", 5])
def test_a_time_between_batches_is_a_span(span: Any) -> None:
    with pytest.raises(UsageError) as refused:
        spark_trigger(processingTime=span)
    assert refused.value.code == "span"
