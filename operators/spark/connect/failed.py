"""Errors of the server's process, as the client sees them: those of ours as ours, what it lacks by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from tidestate.operators.spark.failures import carried_in
from tidestate.operators.spark.platform import SPARK_ERRORS
from tidestate.statestore.errors import TidestateError, UnavailableError, UsageError

_BROKEN = re.compile(r"STREAM_FAILED\S* (?:Broken pipe|Connection reset|java\.io\.EOFException|null)|\(java\.io\.EOF")
"""What the server says when it writes to the process of a query, or reads from it, and that is gone."""
_LOST = re.compile(
    r"INVALID_HANDLE\.SESSION_|NO_ACTIVE_SESSION|failed to connect to all addresses|StatusCode\.UNAVAILABLE|recvmsg:"
)
_LACKS = re.compile(r"ModuleNotFoundError: (No module named '([^']+)')")


def error_of_server(text: str) -> TidestateError | None:
    """The error of ours that the text of an error of Spark's carries, or what the server lacks; None for neither."""
    if (error := carried_in(text)) is not None:
        return error
    if (lacks := _LACKS.search(text)) is not None:
        return UsageError(
            "the Spark Connect server lacks a package that the job needs: install tidestate there in the version of "
            "the client, with the extras of the job (docs/how-to/run-on-a-cluster.md)",
            code="server-package",
            reason=lacks[1],
        )
    if "INFINITE_STREAMING_TRIGGER_NOT_SUPPORTED" in text:
        return UsageError(
            "this place runs a query only until it has read what is there: start the job with "
            "trigger(availableNow=True), again and again",
            code="spark-trigger",
        )
    if _BROKEN.search(text) is not None:
        return process_died()
    if _LOST.search(text) is not None:
        return UnavailableError(
            "the Spark Connect server has lost this session, or cannot be reached: if the query has ended with it, "
            "start the job again, nothing is lost; the command line says what was committed, tidestate list",
            code="server-lost",
        )
    return None


def process_died() -> UnavailableError:
    """The error of a query without its process."""
    return UnavailableError(
        "the process of this query in the Spark Connect server has died: start the job again, nothing is lost; the "
        "reason is in the log of the server (Spark 3.5 passes on no error of that process)",
        code="server-process",
    )


@contextmanager
def ours() -> Iterator[None]:
    """Raise errors of ours that Spark carries in place of its own."""
    try:
        yield
    except SPARK_ERRORS as error:
        if (own := error_of_server(str(error))) is not None:
            raise own from own.__cause__
        raise
