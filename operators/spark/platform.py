"""What a job needs of Spark beyond DataFrames, whether its session is classic or of Spark Connect."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Protocol, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tidestate.recovery.log.spark_log import local_file
from tidestate.statestore.errors import TidestateError


def _of_the_jvm() -> tuple[type[Exception], ...]:
    """What a call of the JVM raises; a client of Spark Connect may have no package for such calls."""
    try:
        from py4j.protocol import Py4JError
    except ImportError:
        return ()
    return (Py4JError,)


SPARK_ERRORS: tuple[type[Exception], ...] = (PySparkException, *_of_the_jvm())
"""What calls of Spark raise: its own errors, and those of the JVM behind it."""

FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
"""Spark's setting with the class that writes the log of a query."""
WITHOUT_LINKS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
    "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager",
)
"""The class of Spark's that does it without a search for links: from 4.1 on, and before."""
_starting: Counter[int] = Counter()
"""How many queries are being started with that class, by the identity of their session."""
_starting_lock = threading.Lock()

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)


class Broadcast(Protocol[_T_co]):
    """A value that Spark brings to each worker once."""

    @property
    def value(self) -> _T_co:
        """The value that every worker gets."""
        ...

    def destroy(self) -> None:
        """Remove it everywhere: a task that still runs, and needs it, fails."""
        ...


class Platform(ABC):
    """What the process with the driver of a job has of its Spark. Where a client of Spark Connect does without
    something, the value that says so is here.
    """

    is_connect = False
    """Whether the session is of Spark Connect: its process has neither a JVM nor a SparkContext."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self.configured_session: SparkSession | None = None
        """The session of batches that has our settings: on Spark Connect each is a call of the server."""

    @property
    @abstractmethod
    def parallelism(self) -> int:
        """The number of tasks that run at once."""

    @property
    def is_local(self) -> bool:
        """Whether tasks are known to run in this machine's own processes: then there are no executors."""
        return False

    @property
    def worker_python(self) -> str:
        """The command that starts the Python of the workers; empty where it is not known."""
        return ""

    @abstractmethod
    def has_same_session(self, session: SparkSession) -> bool:
        """Whether a batch is in the user's own session. Spark gives it a clone, Spark Connect before 4.3 does not."""

    def broadcast(self, value: _T) -> Broadcast[_T] | None:
        """Bring a value to each worker, once, when a task there asks for it; None where it must travel with what each
        task gets to run.
        """
        return None

    def described(self, text: str) -> AbstractContextManager[None]:
        """Spark jobs of this thread have this description meanwhile, where this session can say so."""
        return nullcontext()

    def note_in_ui(self, text: str) -> None:  # noqa: B027  nothing is what a client does
        """Leave a text in the list of jobs of Spark's UI, where this session can."""

    def accumulator(self, name: str) -> Any:
        """An accumulator that Spark's metrics have as a gauge of this name; None where a session has none. Raises
        what the JVM raises, for a Spark without this interface too.
        """
        return None

    def check_file_system(self, url: str) -> None:  # noqa: B027  nothing is what a client does
        """Raise `UsageError` (``spark-storage``) unless Spark has a file system for this URL. Looks nothing up; a
        client finds out only when a file is read, see `why_unseen`.
        """

    @abstractmethod
    def why_unseen(self, url: str) -> str | None:
        """Why Spark does not find a file; None if it does. Raises `UsageError` as `check_file_system`."""

    @abstractmethod
    def file_stamp(self, url: str) -> tuple[int, int]:
        """When a file was modified last, in milliseconds, and its size in bytes."""

    @abstractmethod
    def separated(self, stream: DataFrame) -> DataFrame:
        """The stream with a source for each place that reads one. Where one DataFrame is there twice, Spark would
        read both from one source, but write the offsets of two.
        """

    @property
    @abstractmethod
    def file_manager(self) -> str:
        """The class that writes the log of a query, as the user has set it; empty if nobody has."""

    @property
    @abstractmethod
    def file_manager_without_links(self) -> str | None:
        """Which class of `WITHOUT_LINKS` this Spark has; None if none."""

    @contextmanager
    def quick_log(self, url: str) -> Iterator[None]:
        """Queries that are started inside write their log at ``url`` without a search for links, if it is on a local
        disk and the user has set no class for it. Where Hadoop has no library of the system, which PySpark does not
        bring, each search is a process that Java starts: some 20 ms for each of the three files of a batch.
        """
        session, ours = id(self.session), False
        with _starting_lock:
            free = local_file(url) is not None and (_starting[session] > 0 or not self.file_manager)
            manager = self.file_manager_without_links if free else None
            if manager is not None:
                with suppress(*SPARK_ERRORS):  # a place of Spark Connect may let nobody set it
                    self.session.conf.set(FILE_MANAGER, manager)
                    ours = True
            _starting[session] += int(ours)
        try:
            yield
        finally:
            # A query has a copy of the settings from its start on: those of the session are again as they were.
            with _starting_lock:
                _starting[session] -= int(ours)
                if ours and not _starting[session]:
                    self.session.conf.unset(FILE_MANAGER)


def is_connect(of_spark: object) -> bool:
    """Whether a session, or a DataFrame, is of Spark Connect. On Spark 3.5 its class is none of the classic ones."""
    return ".connect." in type(of_spark).__module__


def setting_of(session: SparkSession, name: str, default: str) -> str:
    """A setting of a session; ``default`` where a place of Spark Connect lets nobody read it."""
    try:
        return str(session.conf.get(name, default))
    except SPARK_ERRORS:
        if not is_connect(session):
            raise
        return default


def is_of_spark(error: BaseException) -> bool:
    """Whether Spark has failed, as where a source cannot be read, and not this project in a task of Spark's."""
    return isinstance(error, SPARK_ERRORS) and f"{TidestateError.__module__}." not in str(error)


def is_modified_meanwhile(error: BaseException) -> bool:
    """Whether Spark refused to begin the checkpoint of a query as another one began it at the same moment."""
    return isinstance(error, SPARK_ERRORS) and "ConcurrentModification" in str(error)
