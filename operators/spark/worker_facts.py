"""What runs on a worker of Spark, asked in a task that needs nothing of this package there."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark import cloudpickle

from tidestate.operators.spark.platform import Platform


@dataclass(frozen=True, order=True)
class WorkerFacts:
    """``version``: of this package there, empty where it cannot be imported, and then ``failure`` has the reason."""

    host: str
    python: str
    platform: str
    version: str
    failure: str = ""


def worker_facts(platform: Platform, packages: Sequence[str] = ()) -> list[WorkerFacts]:
    """One for each host and Python that runs a small job of as many tasks as run at once. ``packages`` are imported
    too.
    """
    session, tasks = platform.session, platform.parallelism
    module = sys.modules[__name__]
    # The module is sent with the task: workers that lack the package could not import it.
    cloudpickle.register_pickle_by_value(module)
    try:
        rows = session.range(0, tasks, 1, tasks).mapInArrow(partial(_facts, packages), "facts string").collect()
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    return sorted({WorkerFacts(**json.loads(row["facts"])) for row in rows})


def _facts(packages: Sequence[str], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import platform
    import socket
    from importlib import import_module

    for _ in batches:
        version, failure = "", ""
        try:
            version = str(import_module("tidestate").__version__)
            import_module("tidestate.operators.spark.tasks")
            for package in packages:
                import_module(package)
        except Exception as error:
            version, failure = "", f"{type(error).__name__}: {error}"
        facts = {
            "host": socket.gethostname(),
            "python": platform.python_version(),
            "platform": f"{platform.system()} {platform.machine()}",
            "version": version,
            "failure": failure,
        }
        yield pa.record_batch([pa.array([json.dumps(facts)], pa.string())], ["facts"])
