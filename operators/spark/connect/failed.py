"""Errors of the server's process, as the client sees them: those of ours as ours, what it lacks by name.

From Spark 4 on they are in the text of Spark's own error. Spark 3.5 passes on nothing: there the process leaves the
refusal of a start in a setting of the session, which it shares with the client, and the error of a run in the root.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark.sql import SparkSession

from tidestate.operators.spark.compat import SPARK_4
from tidestate.operators.spark.failures import CarriedError, carried_in
from tidestate.operators.spark.platform import SPARK_ERRORS
from tidestate.statestore.errors import TidestateError, UnavailableError, UsageError

_BROKEN = re.compile(r"STREAM_FAILED\S* (?:Broken pipe|Connection reset|java\.io\.EOFException|null)|\(java\.io\.EOF")
"""What the server says when it writes to the process of a query, or reads from it, and that is gone."""
_LOST = re.compile(
    r"INVALID_HANDLE\.SESSION_|NO_ACTIVE_SESSION|failed to connect to all addresses|StatusCode\.UNAVAILABLE|recvmsg:"
)
_REFUSAL = "tidestate.refusal."
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
        "reason is in the log of the server",
        code="server-process",
    )


def leave_refusal(start_id: str, refusal: CarriedError) -> None:
    """In the server's process: leave why a start was refused, where Spark passes on no error."""
    session = None if SPARK_4 else SparkSession.getActiveSession()
    if session is not None:
        with suppress(*SPARK_ERRORS):
            session.conf.set(f"{_REFUSAL}{start_id}", str(refusal))


def left_refusal(session: SparkSession, start_id: str) -> TidestateError | None:
    """In the client: the refusal that the process has left."""
    name, text = f"{_REFUSAL}{start_id}", ""
    with suppress(*SPARK_ERRORS):  # the session has ended too
        text = session.conf.get(name, "") or ""
        session.conf.unset(name)
    return carried_in(text)


@contextmanager
def ours() -> Iterator[None]:
    """Raise errors of ours that Spark carries in place of its own."""
    try:
        yield
    except SPARK_ERRORS as error:
        if (own := error_of_server(str(error))) is not None:
            raise own from own.__cause__
        raise
