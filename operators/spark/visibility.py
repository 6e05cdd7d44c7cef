"""What Spark itself has of a job: descriptions of its Spark jobs, gauges in Spark's own metrics system, and what
listeners of the job get as observed metrics.

`DataFrame.observe` would not do: its figures are in the progress of a query only where Spark's own plan reads the
batch, which tasks of ours or the driver read too; and late events, the watermark and the size of the state are known
only once the batch is in a checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from tidestate.operators.progress.instants import END_US
from tidestate.operators.spark.compat import java_class
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.log.summary import events_of, state_size

log = logging.getLogger("tidestate")

_DESCRIPTION = "spark.job.description"


@contextmanager
def described(session: SparkSession, text: str) -> Iterator[None]:
    """Spark jobs of this thread have this description meanwhile. Their group stays: by it Spark cancels them."""
    context = session.sparkContext
    was = context.getLocalProperty(_DESCRIPTION)
    context.setLocalProperty(_DESCRIPTION, text)
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, was)


def note_in_ui(session: SparkSession, text: str) -> None:
    """Leave a text in the list of jobs of Spark's UI: the description of a job without tasks, which takes no core."""
    with described(session, text):
        session.sparkContext._jsc.emptyRDD().collect()


def free_query_name(session: SparkSession, name: str, root: str) -> str:
    """The name of a query; with its root if another one that runs has that name, which Spark would refuse."""
    taken = {query.name for query in session.streams.active}
    return f"{name} ({root})" if name in taken else name


def gauge_values(manifest: Manifest) -> dict[str, int]:
    """What the gauges of a job have after a checkpoint; no watermark before the first and after the end."""
    return {name: value for name, value in _values(manifest, manifest.totals).items() if value is not None}


def observed_values(manifest: Manifest) -> dict[str, int | None]:
    """The same of a batch, as Spark has metrics that it observed: the events of this batch, not of all."""
    return _values(manifest, manifest.counters)


def _values(manifest: Manifest, counters: dict[str, int]) -> dict[str, int | None]:
    size, mark = state_size(manifest), manifest.watermark_us
    late = sum(count for name, count in counters.items() if name.rpartition(".")[2] in ("mildly_late", "very_late"))
    return {
        "checkpoint": manifest.id,
        "events": events_of(manifest, counters),
        "late": late,
        "watermark_ms": None if mark is None or mark == END_US else mark // 1000,
        "state_rows": size.rows,
        "state_bytes": size.bytes,
    }


class SparkGauges:
    """Gauges ``AccumulatorSource.tidestate.<name>.<gauge>`` of the driver, for each sink that Spark's metrics have
    (JMX, Graphite, ``/metrics/json`` of the UI). Accumulators are what Spark makes gauges of by a public interface.
    """

    def __init__(self, session: SparkSession, name: str) -> None:
        self._session, self._context, self._name = session, session.sparkContext, name
        self._gauges: dict[str, Any] = {}

    def set(self, values: Mapping[str, int]) -> None:
        """Set gauges. Never stops a job: a Spark without this interface has none, and the log says so once."""
        if self._context is None:
            return
        try:
            for gauge, value in values.items():
                known = self._gauges.get(gauge)
                accumulator = self._registered(gauge) if known is None else known
                accumulator.add(value - accumulator.sum())
        except Exception as error:
            log.warning("Spark's metrics have no gauges of this job: %s", error)
            self._context = None

    def _registered(self, gauge: str) -> Any:
        """The accumulator of a gauge: that of an earlier run in this Spark, where there was one."""
        name = f"tidestate.{self._name}.{gauge}"
        known: dict[str, Any] = _registered.setdefault(self._context.applicationId, {})
        if name not in known:
            java = self._context._jsc.sc()
            known[name] = java.longAccumulator(name)
            maps = java_class(self._session, "org.apache.spark.api.python.PythonUtils")
            source = java_class(self._session, "org.apache.spark.metrics.source.LongAccumulatorSource$")
            getattr(source, "MODULE$").register(java, maps.toScalaMap({name: known[name]}))
        self._gauges[gauge] = known[name]
        return known[name]


_registered: dict[str, dict[str, Any]] = {}
"""The accumulators of each Spark application, which registers a name once."""
