"""Spark's trigger of a query: when it plans a batch. Pure."""

from __future__ import annotations

from tidestate.statestore.durations import Span, span_us, text_of
from tidestate.statestore.errors import UsageError

_WITHOUT_BATCHES = ("continuous", "realTime")
"""Triggers of Spark that call nobody with a batch."""


def spark_trigger(
    *,
    processingTime: Span | None = None,  # noqa: N803
    availableNow: bool | None = None,  # noqa: N803
    once: bool | None = None,
    continuous: str | None = None,
    realTime: str | None = None,  # noqa: N803
) -> dict[str, str | bool]:
    """The one argument for ``trigger`` of Spark's writer. Raises `UsageError` for none, for several, for those with
    which a job cannot run, and for a value that Spark would refuse.
    """
    every: dict[str, object] = {
        "processingTime": processingTime,
        "availableNow": availableNow,
        "once": once,
        "continuous": continuous,
        "realTime": realTime,
    }
    given = {name: value for name, value in every.items() if value is not None}
    if len(given) != 1:
        raise _refusal('choose one trigger: processingTime="10 seconds", or availableNow=True', given)
    if not given.keys().isdisjoint(_WITHOUT_BATCHES):
        raise _refusal(
            "with this trigger Spark hands out no batches, and each batch is a checkpoint: choose another one", given
        )
    if processingTime is not None:
        return {"processingTime": _interval(processingTime)}
    ((name, value),) = given.items()
    if value is not True:
        raise _refusal(f"{name} must be True, or left out", given)
    return {name: True}


def _interval(span: Span) -> str:
    """A span as Spark reads it."""
    interval_us = span_us(span)
    if interval_us < 0:
        raise _refusal("the time between two batches must not be negative", {"processingTime": span})
    return text_of(interval_us)


def _refusal(message: str, given: dict[str, object]) -> UsageError:
    found = ", ".join(f"{name}={value!r:.100}" for name, value in given.items())
    return UsageError(message, code="spark-trigger", found=found)
