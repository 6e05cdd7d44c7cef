"""A root that a client of Spark Connect cannot reach: it is read, and asked, by a small task in the server."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from tidestate.operators.spark.failures import Failure, failure_of
from tidestate.operators.spark.platform import is_connect
from tidestate.recovery.log.absent import no_root
from tidestate.recovery.log.marker import MARKER, MARKER_BYTES
from tidestate.statestore.errors import NotFoundError, TidestateError
from tidestate.statestore.storage.objects import Objects


class _Call(msgspec.Struct, frozen=True):
    """A method of `Objects`, and with what it is called."""

    method: Literal["read", "create", "names", "exists", "age_us"]
    arguments: tuple[Any, ...]


class _Returned(msgspec.Struct, frozen=True):
    """What it returned, or raised."""

    value: Any = None
    failure: Failure | None = None


class ObjectsByTask(Objects):
    """What a client needs of a root, each call by one task: to list, to read, to create if absent. Plain values go
    and come, no code. The rest of `Objects` is not there.
    """

    tells_age = False

    def __init__(self, session: SparkSession, root: str) -> None:
        self.root, self.bases = root, ()
        self._session = session

    def read(self, path: str, limit: int | None = None) -> bytes:
        data: bytes = self._called(_Call("read", (path, limit)))
        return data

    def create(self, path: str, data: bytes) -> None:
        self._called(_Call("create", (path, data)))

    def names(self, folder: str, *, hidden: bool = False) -> list[str]:
        names: list[str] = self._called(_Call("names", (folder,)))
        return names

    def exists(self, path: str) -> bool:
        return bool(self._called(_Call("exists", (path,))))

    def age_us(self, path: str) -> int | None:
        age_us: int | None = self._called(_Call("age_us", (path,)))
        return age_us

    def _called(self, call: _Call) -> Any:
        task = partial(_answers, self.root, msgspec.msgpack.encode(call))
        rows = self._session.range(0, 1, 1, 1).mapInArrow(task, "answer binary").collect()
        returned = msgspec.msgpack.decode(bytes(rows[0]["answer"]), type=_Returned)
        if returned.failure is not None:
            returned.failure.raised()
        return returned.value


def _answers(root: str, packed: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What the task runs: one call on the root, whose answer is one row."""
    for _ in batches:
        call = msgspec.msgpack.decode(packed, type=_Call)
        try:
            returned = _Returned(getattr(Objects(root), call.method)(*call.arguments))
        except TidestateError as error:
            returned = _Returned(failure=failure_of(error))
        yield pa.record_batch([pa.array([msgspec.msgpack.encode(returned)], pa.binary())], ["answer"])


def objects_of_client(session: SparkSession, root: str) -> Objects:
    """The root as this client reads it: itself, where it has the same marker file as a task, else by tasks; of a
    classic session always itself. Raises `NotFoundError` where there is none.
    """
    direct = Objects(root)
    by_task = ObjectsByTask(session, root) if is_connect(session) else direct
    try:
        marker = by_task.read(MARKER, MARKER_BYTES)
    except NotFoundError:
        raise no_root(root) from None
    try:
        # A laptop may have a folder of that name too: the marker has the random id of the job.
        return direct if direct.read(MARKER, MARKER_BYTES) == marker else by_task
    except TidestateError:
        return by_task
