"""A job on its way from the client to the server's process of its query."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tidestate.operators.describe.sinks import sink_name
from tidestate.operators.spark.stream_job import StreamJob
from tidestate.statestore.distribution import version
from tidestate.statestore.errors import IncompatibleError, UsageError

FRAMES = ("stream", "streams")
"""Fields of a job that stay in the client: frames of its session, and what they read."""
OF_THE_CLIENT = (*FRAMES, "listeners", "spark_trigger", "names")
"""Fields of a job that the server's process does not need."""


@dataclass(frozen=True)
class JobSettings:
    """What the server's process needs of a job: the columns of its streams in place of the DataFrames, how many
    ``sources`` they read, and the other settings, each pickled. ``start_id`` is a random one of each start.
    """

    schemas: Mapping[str, StructType]
    sources: int
    pickled: Mapping[str, bytes]
    version: str
    start_id: str

    @classmethod
    def of(cls, job: StreamJob, sources: int) -> JobSettings:
        """The settings of a job. Raises `UsageError` (``not-sent``) for one that cannot be pickled."""
        frames = job.streams or {"": job.stream}
        schemas = {name: frame.schema for name, frame in frames.items()}
        settings = {field.name: getattr(job, field.name) for field in fields(job) if field.name not in OF_THE_CLIENT}
        pickled = {name: _pickled(name, value) for name, value in settings.items()}
        return cls(schemas, sources, pickled, version(), uuid.uuid4().hex)

    def values(self) -> dict[str, Any]:
        """The settings by name, but for the frames. Raises `IncompatibleError` (``server-version``) where the client
        has another version of this package, and `UsageError` (``server-package``) where the server lacks a module.
        """
        if "unknown" not in (self.version, version()) and self.version != version():
            raise IncompatibleError(
                "the Spark Connect server has another version of tidestate than the client: install the same version",
                code="server-version",
                client=self.version,
                server=version(),
            )
        try:
            return {name: pickle.loads(value) for name, value in self.pickled.items()}
        except (ImportError, AttributeError) as error:
            raise UsageError(
                "the Spark Connect server lacks a module that the job needs: install it there, or send your own "
                "along, cloudpickle.register_pickle_by_value(module) before the start",
                code="server-package",
                reason=f"{type(error).__name__}: {error}",
            ) from None

    def frames(self, session: SparkSession) -> dict[str, Any]:
        """An empty DataFrame in place of each stream, by name; that of the only one under an empty name."""
        return {name: session.createDataFrame([], schema) for name, schema in self.schemas.items()}


def _pickled(name: str, value: Any) -> bytes:
    try:
        return bytes(cloudpickle.dumps(value))
    except Exception as error:
        raise UsageError(
            "the job runs in the Spark Connect server, to which this cannot be sent: what a description, a sink or a "
            "hook refers to must not hold a lock, a session or an open file; let it make these at its first call",
            code="not-sent",
            setting=_culprit(name, value),
            reason=f"{type(error).__name__}: {str(error).partition(chr(10))[0]}",
        ) from None


def _culprit(name: str, value: Any) -> str:
    """What of a setting cannot be pickled: the way to the innermost attribute or element that holds it."""
    # From outside to inside: a part that can be pickled is not the one, whatever is in it.
    for inner, held in _inside(value):
        try:
            cloudpickle.dumps(held)
        except Exception:
            return _culprit(f"{name}{inner}", held)
    return f"{name} ({sink_name(value)})" if callable(value) else f"{name} ({type(value).__name__})"


def _inside(value: Any) -> list[tuple[str, Any]]:
    """The parts of a value, each with how it is named there."""
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", held) for key, held in value.items()]
    if isinstance(value, (list, tuple)):
        return [(f"[{place}]", held) for place, held in enumerate(value)]
    closure = getattr(value, "__closure__", None)
    if closure:
        return [
            (f".{name}", cell.cell_contents) for name, cell in zip(value.__code__.co_freevars, closure, strict=True)
        ]
    slots = getattr(value, "__struct_fields__", ())
    attributes = dict(vars(value)) if hasattr(value, "__dict__") and not isinstance(value, type) else {}
    attributes |= {name: getattr(value, name) for name in slots}
    return [(f".{name}", held) for name, held in attributes.items()]
