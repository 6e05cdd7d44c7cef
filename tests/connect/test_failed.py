"""Errors that pass through a Spark Connect server as text."""

from __future__ import annotations

import uuid

import pytest
from pyspark.sql import SparkSession

from tidestate.operators.spark.compat import SPARK_4
from tidestate.operators.spark.connect import failed
from tidestate.operators.spark.connect.failed import error_of_server, ours
from tidestate.operators.spark.failures import CarriedError, carried_in
from tidestate.operators.spark.platform import SPARK_ERRORS
from tidestate.statestore.errors import DataError, FencedError, UsageError

BROKEN = "(STREAM_FAILED) Broken pipe\n=== Streaming Query ===\nIdentifier: job"


@pytest.mark.parametrize(
    "error",
    [
        UsageError("this checkpoint is drained", code="drained", id=7),
        FencedError("another run has taken over", code="fenced"),
        DataError("a row of\ntwo lines, 'quoted', and \u00e9", code="no-value", columns=["a", "b"], found=None),
    ],
)
def test_an_error_of_ours_is_the_same_afterwards(error: UsageError) -> None:
    text = f"[STREAM_FAILED] Traceback (most recent call last):\n  File x\n{CarriedError(error)}\n\tat org.Spark\n"
    again = error_of_server(text)
    assert type(again) is type(error)
    assert (again.message, again.code, again.context) == (error.message, error.code, error.context)


def test_what_it_comes_from_is_a_text() -> None:
    error = UsageError("your function failed", code="own-function")
    error.__cause__ = ZeroDivisionError("of the user")
    again = carried_in(str(CarriedError(error)))
    assert again is not None
    assert "ZeroDivisionError: of the user" in str(again.__cause__)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("ModuleNotFoundError: No module named 'tidestate'", "server-package"),
        ("ModuleNotFoundError: No module named 'rocksdict'\n\tat org", "server-package"),
        ("[INFINITE_STREAMING_TRIGGER_NOT_SUPPORTED] Trigger type ProcessingTime is not supported", "spark-trigger"),
        (BROKEN, "server-process"),
        ("[STREAM_FAILED] java.io.EOFException\n=== Streaming Query ===", "server-process"),
        ("[INVALID_HANDLE.SESSION_CLOSED] The handle 1 is invalid. Session was closed.", "server-lost"),
        ("[NO_ACTIVE_SESSION] No active Spark session found.", "server-lost"),
        ("failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: refused", "server-lost"),
        ("[STREAM_FAILED] RuntimeError: the sink is full", None),
        ("tidestate-error:bm90IGpzb24=", None),
        ("", None),
    ],
)
def test_what_a_text_says(text: str, code: str | None) -> None:
    error = error_of_server(text)
    assert (error.code if error is not None else None) == code


def test_a_refusal_is_left_where_spark_passes_on_no_error(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Spark 3.5, by the settings of this session; `tests.spark.test_job` on 3.5 has a start that is refused."""
    start_id, refusal = uuid.uuid4().hex, CarriedError(UsageError("drained", code="drained"))
    failed.leave_refusal(start_id, refusal)
    assert failed.left_refusal(spark, start_id) is None or not SPARK_4
    monkeypatch.setattr(failed, "SPARK_4", False)
    failed.leave_refusal(start_id, refusal)
    assert failed.left_refusal(spark, uuid.uuid4().hex) is None
    own = failed.left_refusal(spark, start_id)
    assert own is not None
    assert own.code == "drained"
    assert failed.left_refusal(spark, start_id) is None


def test_foreign_errors_stay_what_they_are() -> None:
    with pytest.raises(SPARK_ERRORS[0], match="the sink is full"), ours():
        raise SPARK_ERRORS[0]("the sink is full")
    with pytest.raises(ZeroDivisionError), ours():
        raise ZeroDivisionError
    with pytest.raises(UsageError) as caught, ours():
        raise SPARK_ERRORS[0](str(CarriedError(UsageError("drained", code="drained"))))
    assert caught.value.code == "drained"
