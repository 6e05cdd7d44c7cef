"""Which errors of a small batch in the driver make tasks take it: those of functions of the user's alone."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from tidestate.operators.engine.micro_batch import TaskResult
from tidestate.operators.spark.in_driver import _tried
from tidestate.statestore.errors import CorruptionError, InvariantError, UsageError


def raises(error: BaseException) -> Callable[[], list[TaskResult]]:
    def run() -> list[TaskResult]:
        raise error

    return run


def test_what_a_function_of_the_user_raises_is_left_to_tasks(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tidestate"):
        assert _tried(raises(UsageError("f raised KeyError", code="own-function"))) is None
    assert "f raised KeyError" in caplog.text


@pytest.mark.parametrize(
    "error",
    [
        InvariantError("a bug", code="invariant"),
        CorruptionError("damage", code="checksum"),
        UsageError("two columns", code="column-twice"),
        MemoryError(),
        TypeError("a bug"),
        SystemExit(7),
    ],
    ids=lambda error: type(error).__name__,
)
def test_every_other_error_ends_the_batch(error: BaseException) -> None:
    with pytest.raises(type(error)) as raised:
        _tried(raises(error))
    assert raised.value is error
