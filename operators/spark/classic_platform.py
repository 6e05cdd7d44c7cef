"""The platform of a classic session: the one door to the JVM, and to the SparkContext.

Besides, `transport` has RDDs, and `scan.extract` looks at plans. A test holds that nothing else does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from tidestate.operators.spark.compat import SPARK_4
from tidestate.operators.spark.platform import FILE_MANAGER, WITHOUT_LINKS, Broadcast, Platform
from tidestate.recovery.log.spark_log import SPARK_FOLDER, local_file
from tidestate.statestore.errors import UsageError
from tidestate.statestore.storage.dialects.table import dialect_of

_DESCRIPTION = "spark.job.description"


_T = TypeVar("_T")


class ClassicPlatform(Platform):
    """What the driver of a classic session has."""

    @property
    def parallelism(self) -> int:
        """The number of tasks that run at once."""
        return max(1, int(self.session.sparkContext.defaultParallelism))

    @property
    def is_local(self) -> bool:
        """Whether tasks run in this machine's own processes: then there are no executors."""
        return bool(self.session.sparkContext.master.partition("[")[0] == "local")

    @property
    def worker_python(self) -> str:
        """The command that starts the Python of the workers."""
        return str(self.session.sparkContext.pythonExec)

    def has_same_session(self, session: SparkSession) -> bool:
        """Spark gives each query a clone."""
        return False

    def broadcast(self, value: _T) -> Broadcast[_T]:
        """Bring a value to each worker, once, when a task there asks for it."""
        broadcast: Broadcast[_T] = self.session.sparkContext.broadcast(value)
        return broadcast

    @contextmanager
    def described(self, text: str) -> Iterator[None]:
        """Spark jobs of this thread have this description meanwhile. Their group stays: by it Spark cancels them."""
        context = self.session.sparkContext
        was = context.getLocalProperty(_DESCRIPTION)
        context.setLocalProperty(_DESCRIPTION, text)
        try:
            yield
        finally:
            context.setLocalProperty(_DESCRIPTION, was)

    def note_in_ui(self, text: str) -> None:
        """Leave a text in the list of jobs of Spark's UI: it describes a job without tasks, which takes no core."""
        with self.described(text):
            self.session.sparkContext._jsc.emptyRDD().collect()

    def accumulator(self, name: str) -> Any:
        """An accumulator that Spark's metrics have as a gauge of this name: that of an earlier run in this Spark,
        where there was one. Raises what the JVM raises, for a Spark without this interface too.
        """
        if name not in self._gauges:
            scala_context = self.session.sparkContext._jsc.sc()
            accumulator = scala_context.longAccumulator(name)
            maps = java_class(self.session, "org.apache.spark.api.python.PythonUtils")
            source = java_class(self.session, "org.apache.spark.metrics.source.LongAccumulatorSource$")
            getattr(source, "MODULE$").register(scala_context, maps.toScalaMap({name: accumulator}))
            self._gauges[name] = accumulator
        return self._gauges[name]

    @cached_property
    def _gauges(self) -> dict[str, Any]:
        """The accumulators of the application. Each batch asks for them, and the name of it is a call of the JVM."""
        return _accumulators.setdefault(self.session.sparkContext.applicationId, {})

    def check_file_system(self, url: str) -> None:
        """Raise `UsageError` (``spark-storage``) unless Spark has a file system for this URL. Looks nothing up."""
        self._file(url)

    def why_unseen(self, url: str) -> str | None:
        """Why Spark does not find a file; None if it does. Raises `UsageError` as `check_file_system`."""
        path, system = self._file(url)
        try:
            return None if system.exists(path) else "nothing is there"
        except Py4JJavaError as error:
            return _first_line(error)

    def file_stamp(self, url: str) -> tuple[int, int]:
        """When a file was modified last, in milliseconds, and its size in bytes."""
        file = local_file(url)
        if file is not None and file.exists():
            status = file.stat()
            return status.st_mtime_ns // 1_000_000, status.st_size
        # As Spark's source of files writes it: escaped, which the path itself is not.
        uri = java_class(self.session, "java.net.URI")(url)
        path = java_class(self.session, "org.apache.hadoop.fs.Path")(uri)
        settings = self.session.sparkContext._jsc.hadoopConfiguration()
        of_spark = path.getFileSystem(settings).getFileStatus(path)
        return int(of_spark.getModificationTime()), int(of_spark.getLen())

    @property
    def file_manager(self) -> str:
        """The class that writes the log of a query, as a setting of the session or a file of Hadoop's says."""
        return str(hadoop_settings(self.session).get(FILE_MANAGER) or "")

    @property
    def file_manager_without_links(self) -> str | None:
        """Which class of `WITHOUT_LINKS` this Spark has; None if none."""
        return next((name for name in WITHOUT_LINKS if _is_class(java_class(self.session, name))), None)

    def separated(self, stream: DataFrame) -> DataFrame:
        """The stream with a source for each place that reads one. Where one DataFrame is there twice, Spark would
        read both from one source, but write the offsets of two.
        """
        plan = stream._jdf.queryExecution().analyzed()
        leaves = [leaf for leaf in elements_of(plan.collectLeaves()) if is_stream(leaf)]
        if not any(leaf.equals(other) for place, leaf in enumerate(leaves) for other in leaves[:place]):
            return stream
        kind = java_class(self.session, f"org.apache.spark.sql.{'classic.' if SPARK_4 else ''}Dataset")
        renamed = self._with_sources_renamed(plan, [])
        return DataFrame(kind.ofRows(self.session._jsparkSession, renamed), self.session)  # type: ignore[attr-defined]

    def _with_sources_renamed(self, step: Any, met: list[Any]) -> Any:
        """A plan where each source that equals one of ``met`` has another name, which makes it another source."""
        if is_stream(step):
            before = sum(step.equals(source) for source in met)
            met.append(step)
            if not before:
                return step
            fields = [step.productElement(place) for place in range(step.productArity())]
            fields[fields.index(step.sourceName())] = f"{step.sourceName()} {before + 1}"
            tag = java_class(self.session, "scala.reflect.ClassTag").AnyRef()
            return step.makeCopy(self._sequence(fields).toArray(tag))
        below = [self._with_sources_renamed(child, met) for child in elements_of(step.children())]
        return step.withNewChildren(self._sequence(below).toIndexedSeq()) if below else step

    def _sequence(self, values: list[Any]) -> Any:
        """The values as an immutable sequence of Scala. That of Spark 3.5 has no ``scala.jdk.javaapi``."""
        return java_class(self.session, "scala.collection.JavaConverters").asScalaBuffer(values).toList()

    def _file(self, url: str) -> tuple[Any, Any]:
        """A path of Hadoop's, and its file system."""
        path = java_class(self.session, "org.apache.hadoop.fs.Path")(url)
        try:
            return path, path.getFileSystem(hadoop_settings(self.session))
        except Py4JJavaError as error:
            raise UsageError(
                f"spark has no file system for this root, where its own checkpoint ({SPARK_FOLDER}/) is kept too: "
                f"it needs {dialect_of(url).connector} (docs/how-to/run-on-a-cluster.md)",
                code="spark-storage",
                url=url,
                reason=_first_line(error),
            ) from None


_accumulators: dict[str, dict[str, Any]] = {}
"""The accumulators of each Spark application, which registers a name once."""


def hadoop_settings(session: SparkSession) -> Any:
    """Hadoop's settings of a session, those of Spark's with ``spark.hadoop.`` too, as an object of Java."""
    return session._jsparkSession.sessionState().newHadoopConf()  # type: ignore[attr-defined]


def java_class(session: SparkSession, name: str) -> Any:
    """A class of the JVM by its full name. Written as attributes, it costs a search of all jars for each package."""
    return getattr(session._jvm, name)  # type: ignore[attr-defined]


def elements_of(sequence: Any) -> list[Any]:
    """The elements of a sequence of Scala, by place: an iterator of Java ends with an error, which costs 40 ms."""
    return [sequence.apply(place) for place in range(sequence.size())]


def entries_of(mapping: Any) -> dict[str, Any]:
    """The entries of a map of Scala."""
    return {str(pair._1()): pair._2() for pair in elements_of(mapping.toSeq())}


def options_of(leaf: Any) -> dict[str, str]:
    """The options of a source of a stream that is a connector of Spark's second interface; none of another leaf."""
    if not str(leaf.getClass().getSimpleName()).startswith("StreamingRelationV2"):
        return {}
    return {str(entry.getKey()): str(entry.getValue()) for entry in leaf.extraOptions().entrySet()}


def is_stream(leaf: Any) -> bool:
    """Whether a leaf of a plan is a source of a stream."""
    return str(leaf.getClass().getSimpleName()).startswith("StreamingRelation")


def _is_class(name: Any) -> bool:
    """Whether a name of Java's is that of a class: of no class it is a package, which may have any name."""
    return isinstance(name, JavaClass)


def _first_line(error: Py4JJavaError) -> str:
    """The first line of Java's error."""
    return str(error.java_exception.toString()).splitlines()[0]
