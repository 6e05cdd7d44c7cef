"""What a job becomes when it runs, as users call it: runners implement it. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeAlias, cast, runtime_checkable

import pyarrow as pa

from tidestate.operators.describe.start_plan import StartPlan
from tidestate.operators.progress.figures import Gap, Metrics, SinkWaits
from tidestate.recovery.log.manifest import Manifest, Scan
from tidestate.statestore.durations import Span
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.plain import ArrowRows, is_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQueryListener
    from pyspark.sql.streaming.listener import StreamingQueryProgress

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # which has defaults, as that of Python has from 3.13 on

    Panes = TypeVar("Panes", default=pa.Table)
else:
    from typing import TypeVar

    Panes = TypeVar("Panes")
"""The panes that a runner returns: a table, or of a job with several outputs a table for each, by its name."""

Schemas: TypeAlias = pa.Schema | Mapping[str, pa.Schema]
"""The schema of the one stream, or of each of several by name."""
Batch: TypeAlias = ArrowRows | Mapping[str, ArrowRows]
"""Rows of the one stream, or of some of several by name."""
PENDING_LIMIT = 100
"""Results of an operator that is called by hand which may wait for their acknowledgement while it takes messages."""
JobHook = Callable[[str, int], None]
"""Called with the name of a moment and the checkpoint id it is about: for tests that kill the process there."""
Offset: TypeAlias = str | Mapping[str, Any]
"""Where a source goes on, as Spark writes it: ``{"topic":{"0":100}}`` for Kafka; as text or as values."""
OfStream: TypeAlias = Offset | Sequence[Offset | None] | None
Handover: TypeAlias = OfStream | Mapping[str, OfStream]
"""Where sources go on: one offset; a list where a stream has several sources; by stream where there are several."""


@runtime_checkable
class SeekableInput(Protocol):
    """Input that a run can continue where the run before ended, without reading it from the beginning."""

    @property
    def schema(self) -> Schemas:
        """The columns, of each stream by name if there are several."""

    def seek(self, position: Any) -> Iterable[tuple[Any, Batch]]:
        """The batches after ``position``, each with the position after it: a number, a text, or lists and mappings of
        these. ``position`` is one that it gave, or None for the beginning.
        """


@dataclass(frozen=True)
class SparkOffsets:
    """Where the sources of a job end, as Spark writes it in the log of its query.

    ``ends`` has the offset of each source as a JSON text, such as ``{"topic":{"0":100}}`` of Kafka, and ``-`` for a
    source that has not been read yet. Spark numbers sources in the order of the streams in the job. ``files`` has, by
    the number of a source of files, the files as Spark records them, ``file:///input/a.parquet 1700000000000``, the
    time in milliseconds: those of one batch, or all that were read in the position that `SparkInput.seek` gets.
    """

    ends: tuple[str, ...]
    files: Mapping[int, Collection[str]] = field(default_factory=dict)


class SparkInput(ABC):
    """Input of a standalone run whose positions are Spark's offsets. So the job can go on on Spark, and a job begun
    on Spark can go on standalone: see docs/how-to/go-on-with-another-runner.md. For Parquet files there is
    `ParquetFolder`.
    """

    @property
    @abstractmethod
    def schema(self) -> Schemas:
        """The columns, of each stream by name if there are several."""

    @property
    @abstractmethod
    def sources(self) -> int:
        """How many sources Spark's query has: usually one for each stream."""

    @abstractmethod
    def seek(self, position: SparkOffsets | None) -> Iterable[tuple[SparkOffsets, Batch]]:
        """The batches after ``position``, each with the offsets after it. ``position`` is that of the newest
        checkpoint, whoever made it, or None for the beginning.
        """

    def read_again(self, start: SparkOffsets | None, end: SparkOffsets) -> Batch:
        """The rows of one batch that was read before, by this or another runner, from ``start``, None for the
        beginning, to ``end``, with its files: for ``Policy(messages="replay")``, which needs an input that has this.
        What it raises is logged, and the job goes on without what it would have put back.
        """
        raise NotImplementedError

    def numbered(self, streams: Sequence[str]) -> SparkInput:
        """This input with its sources in the order of these ``streams``, those of the job. Only an input that knows
        streams by name needs to do anything.
        """
        return self


Input: TypeAlias = Batch | Iterable[Batch] | SeekableInput | SparkInput
"""What a standalone run reads."""


def several(batches: Batch | Iterable[Batch]) -> Iterable[Batch]:
    """Batches, of which one alone may be given. Raises `UsageError` for what is none."""
    if isinstance(batches, Mapping) or is_rows(batches):
        return cast(Iterable[Batch], [batches])
    if not isinstance(batches, Iterable):
        raise UsageError(
            "the input must be an Arrow table, or several in a list: [table]; with several streams, a mapping of "
            "tables by stream",
            code="argument",
            found=f"{batches!r:.100} ({type(batches).__name__})",
        )
    return batches


class Measured(ABC):
    """What has metrics: a run of a job, or an operator by hand. Another thread may ask."""

    @property
    @abstractmethod
    def waits(self) -> SinkWaits:
        """How it has waited for its sinks, and what is not delivered."""

    @abstractmethod
    def prometheus(self) -> str:
        """The metrics in the text format of Prometheus, see docs/how-to/monitor.md. Raises `UsageError` without the
        extra ``metrics``.
        """

    @abstractmethod
    def opentelemetry(self, provider: Any = None) -> None:
        """Let a ``MeterProvider`` of OpenTelemetry observe the same metrics (default: the global one), whenever it
        collects. Raises `UsageError` without the extra ``opentelemetry``.
        """

    @property
    @abstractmethod
    def metrics_url(self) -> str | None:
        """Where they are served; None if they are not, or not now."""


class Standalone(Measured, Generic[Panes]):
    """A job on a checkpoint folder, run over batches in this process. Each batch is one checkpoint.

    ``batches`` is always the whole input from its beginning, in the same batches: those that the checkpoint already
    contains are skipped, so after a crash the same call continues where it stopped. A batch is anything that exports
    Arrow data (``__arrow_c_stream__``), and one table may stand for a list of one. Of a `SeekableInput` only what
    comes after `position` is read. With a `SparkInput`, such as a `ParquetFolder`, the job can go on on Spark, and a
    job that was begun there goes on here.
    """

    @abstractmethod
    def run(self, batches: Input, *, drain: bool = False, progress: bool | None = None) -> Panes:
        """Process all batches; with ``drain`` every window then fires. Returns the panes of this call, in order: a
        table, and of a job with several outputs a dictionary with one for each.
        Raises `IncompatibleError` if the input is not the one that the checkpoint contains.

        A batch is Arrow data (a table, a record batch, a DataFrame of Polars or pandas 2.2); where there are several
        streams a dictionary, ``{"orders": …, "shipments": …}``, of which the first one has them all, if only without
        rows, and others may leave some out.

        A terminal or a notebook has a bar on standard error that counts batches, unless ``progress`` is False.
        """

    @abstractmethod
    def stream(self, batches: Input) -> Iterator[Panes]:
        """As `run`, but yields the panes of each checkpoint once it is committed and delivered."""

    @abstractmethod
    def position(self) -> Any:
        """Where the input of the newest checkpoint ended: the position that a `SeekableInput` gave with its last
        batch, Spark's offset of each source on a root of Spark, of other input the number of batches; None before the
        first one.
        """

    @property
    @abstractmethod
    def begun(self) -> bool:
        """Whether anything was taken in at this root, by this or an earlier run: then `bootstrap` is refused."""

    @abstractmethod
    def bootstrap(self, history: Batch | Iterable[Batch], *, deliver: bool = True) -> Panes:
        """Create a new root with the state of past events, in one checkpoint, whole or not at all. Returns its panes.

        The history is not part of ``batches``: the input of `run` continues from it. None of its events is late. With
        ``deliver=False`` the panes are recorded, but no sink receives them. Raises `UsageError` (``bootstrap-used``)
        if the root has accepted input already; repeat a call that died.
        """

    @abstractmethod
    def drain(self, *, timeout_s: float | None = 60.0) -> Panes:
        """Move the watermark to the end of time: every window fires, and no more input is accepted. Returns the last
        panes. Raises `UnavailableError` (``sink-refuses``) if a sink has not accepted everything after ``timeout_s``
        (None: wait forever): the checkpoint is drained, and the next start, or call, delivers what is left.
        """

    @abstractmethod
    def reprocess_late(
        self, rows: ArrowRows | None = None, *, operator: str | None = None, reason: str | None = None
    ) -> Panes:
        """Reprocess the late ledgers of all operators, or of ``operator``, each event once; or ``rows``, each time
        they are given, for ``operator`` where there are several. Returns the panes. The rows stay in the ledger.

        ``reason``: that of the rows in the ledger, by default each that can be put back: ``very_late``,
        ``undecodable`` for another schema (docs/how-to/read-json-from-kafka.md), and ``expectation`` after its
        condition was mended (docs/how-to/expect.md). Rows of the others wait for a later call. Any other reason
        raises `UsageError` (``feed-reason``), with why.

        Windows that are still retained take the events, whatever the watermark; for windows that are gone a ledger
        row with the reason ``purged`` is added. It is one checkpoint of its own.
        """

    @abstractmethod
    def rebuild(self, replay: Batch | Iterable[Batch]) -> Panes:
        """Put back stored messages whose files were lost, by a replay of the input: rows in any order, any number of
        times; each batch is one checkpoint, and none of them is input. Returns the panes that correct others.

        The start had ``Policy(messages="rebuild")``. Windows are served meanwhile, from the messages that are there;
        one that has all its messages again emits a pane if its result differs from the last one; a join emits the
        pairs that it has missed. The log says how many windows still lack some, or rows a join. Raises `UsageError`
        (``no-messages``) if a replay cannot put back any.
        """

    @property
    @abstractmethod
    def head(self) -> Manifest:
        """The `Manifest` of the newest checkpoint; ``.id`` is its number. Raises `UsageError` before the first."""


class SparkJob(ABC):
    """A job over streaming DataFrames. ``start`` runs it; ``trigger`` says when Spark plans a batch.

    A client of Spark Connect need not reach the root for ``start``, but for `begun`, `bootstrap` and `plan`.
    """

    @abstractmethod
    def trigger(
        self,
        *,
        processingTime: Span | None = None,  # noqa: N803
        availableNow: bool | None = None,  # noqa: N803
        once: bool | None = None,
        continuous: str | None = None,
        realTime: str | None = None,  # noqa: N803
    ) -> Self:
        """As ``trigger`` of Spark's writer: one of ``processingTime="10 seconds"``, ``availableNow=True`` and
        ``once=True``; without it a batch follows the other. The last two end the query. ``continuous`` and
        ``realTime`` are refused: they have no batches, which a checkpoint is made of. Raises `UsageError`.
        """

    @abstractmethod
    def listen(self, listener: StreamingQueryListener) -> Self:
        """Call this listener of Spark with the events of this query alone. Each progress has, in addition to what
        Spark puts there, what the checkpoint of its batch has: as one of ``observedMetrics``, ``tidestate``, and in
        its ``json`` as in `DurableQuery.lastProgress`. Call it once for each listener (docs/how-to/monitor.md).
        """

    @abstractmethod
    def with_hook(self, hook: JobHook) -> Self:
        """Call ``hook(moment, checkpoint_id)`` before and after each manifest: for fault injection."""

    @property
    @abstractmethod
    def begun(self) -> bool:
        """Whether this root has ever accepted input, in this run or an earlier one: then `bootstrap` is refused."""

    @abstractmethod
    def bootstrap(
        self, history: DataFrame | Mapping[str, DataFrame], *, offsets: Handover = None, deliver: bool = True
    ) -> Manifest:
        """Create a new root with the state of past events, a batch DataFrame; ``start`` then reads only what it did
        not contain.

        With several streams, ``history`` and ``offsets`` are by stream or side name; a stream that is left out is
        read from its beginning. File sources skip the files of the history; other sources need ``offsets``, the
        positions at which it ends, as ``{"topic":{"0":100}}``. With ``deliver=False`` no sink receives its panes.
        Raises `UsageError` if something does not fit, `ConflictError` if files changed meanwhile: nothing is handed
        over then.
        """

    @abstractmethod
    def plan(self) -> StartPlan:
        """What `start` would do, by the types of the DataFrames; nothing is touched. Raises `CorruptionError` for a
        root that a start could not read, and `UsageError` where the job does not fit the streams.
        """

    @abstractmethod
    def start(self) -> DurableQuery:
        """Take over the checkpoint, deliver pending panes, and start Spark's query.

        Raises before anything runs: `UsageError` for a job that does not fit the stream, or a drained
        checkpoint; `IncompatibleError` for a checkpoint of another job, a changed configuration, or a Spark
        checkpoint that is not ours. A Spark checkpoint that has only lost files is rewritten, see `Policy`.
        """


class DurableQuery(Measured):
    """A running query. Its state, watermark and offsets are those of `checkpoint_id`, whatever fails.

    On Spark Connect the job runs in the server, and this asks it: checkpoint, metrics and gaps are those of the
    newest checkpoint in the root, and ``waits.total_us`` is 0 (docs/how-to/run-on-spark-connect.md).
    """

    @property
    @abstractmethod
    def checkpoint_id(self) -> int:
        """Id of the newest checkpoint."""

    @property
    @abstractmethod
    def manifest(self) -> Manifest:
        """The newest checkpoint: offsets, watermark, counters, files."""

    @property
    @abstractmethod
    def scan(self) -> Scan | None:
        """Who read the files of this run's newest batch: the driver or tasks themselves, or Spark, and why; see
        docs/how-it-works/how-rows-are-read.md. None before the first batch. The manifest of each batch has it too.
        """

    @property
    @abstractmethod
    def waiting_since_us(self) -> int | None:
        """Since when a sink has refused, during which no input is processed; None if none does."""

    @property
    @abstractmethod
    def id(self) -> str:
        """The id of Spark's query, the same after a restart from its checkpoint."""

    @property
    @abstractmethod
    def runId(self) -> str:  # noqa: N802
        """The id of this run of Spark's query, another one at each start."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of Spark's query: the last operator, with the root if a query of that name runs."""

    @property
    @abstractmethod
    def isActive(self) -> bool:  # noqa: N802
        """Whether Spark's query is running."""

    @property
    @abstractmethod
    def status(self) -> dict[str, Any]:
        """Spark's status; while a sink holds the intake its ``message`` says so."""

    @property
    @abstractmethod
    def lastProgress(self) -> StreamingQueryProgress | None:  # noqa: N802
        """Spark's newest progress report, None before the first: a mapping, from Spark 4 on with attributes. Under
        ``["tidestate"]`` it has what the checkpoint of its batch has, as in a line of ``tidestate list --json``; and
        ``observedMetrics`` have the numbers of it.
        """

    @property
    @abstractmethod
    def recentProgress(self) -> list[StreamingQueryProgress]:  # noqa: N802
        """The reports of the recent batches, oldest first, as `lastProgress`."""

    @abstractmethod
    def exception(self) -> Exception | None:
        """The error that stopped the query; None if it runs, or was stopped."""

    @abstractmethod
    def explain(self, extended: bool = False) -> None:
        """Print in one sentence which path the rows of the newest batch took and why, with the page that has the
        figures of it (docs/how-it-works/how-rows-are-read.md), and then Spark's physical plan; with ``extended`` the
        logical plans too.
        """

    @abstractmethod
    def processAllAvailable(self) -> None:  # noqa: N802
        """Wait until all input that the source has now is in a checkpoint. Raises the error that stopped the query,
        if it failed.
        """

    @abstractmethod
    def awaitTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802
        """Wait for the query to end. With a ``timeout`` in seconds: True if it has ended, False if the time came
        first. Raises the error that stopped the query, if it failed.
        """

    @abstractmethod
    def stop(self, *, drain: bool = False, timeout_s: float | None = 60.0) -> None:
        """End the query between two batches. Unread input stays unread and is processed after the next start.

        With ``drain`` one more checkpoint moves the watermark to the end of time: every window fires, and the root
        accepts no more input. Call `processAllAvailable` first to read what is there. A refusing sink is not waited
        for: its panes are delivered at the next start. With ``drain`` the last panes are offered until the sink
        accepts them or `stop` is called again.

        Raises the error that had stopped the query, if it had failed; nothing is drained then. Raises
        `UnavailableError` if after ``timeout_s`` (None: wait forever) a sink has not returned (``sink-hangs``), or
        has not accepted the last panes (``sink-refuses``): the next start delivers them.
        """

    @abstractmethod
    def reprocess_late(
        self, rows: pa.Table | None = None, *, operator: str | None = None, reason: str | None = None
    ) -> int:
        """Reprocess the late ledgers of all operators, or of ``operator``, between two batches, each event once; or
        ``rows``, each time they are given, for ``operator`` where there are several. ``reason`` as in
        `Standalone.reprocess_late`.

        Windows that are still retained take the events, whatever the watermark; for windows that are gone a ledger
        row with the reason ``purged`` is added. Panes are delivered as always. Returns the number of events; it is
        one checkpoint of its own, or none if there was nothing to do.
        """

    @abstractmethod
    def rebuild(self, replay: DataFrame | Mapping[str, DataFrame]) -> int:
        """Put back stored messages whose files were lost, between two batches, by a replay: a batch DataFrame with
        rows that the stream had, in any order, any number of times; by stream or side if there are several. It is one
        checkpoint of its own. Returns the number of messages that were put back.

        The start had ``Policy(messages="rebuild")``, see `Standalone.rebuild`. `Query.replay_from` has the offsets to
        replay from. Raises `UsageError` (``no-messages``) if a replay cannot put back any.
        """

    @abstractmethod
    def metrics(self, operator: str | None = None) -> Metrics:
        """Watermark and lag of each source, how often it moved, and which sources are idle; of one operator of
        several (default: the first).
        """

    @abstractmethod
    def gaps(self, operator: str | None = None) -> list[Gap]:
        """The buffers that origins wait for, and since when; empty if rows arrive without buffers."""


def with_hook(job: SparkJob, hook: JobHook) -> SparkJob:
    """The job, which calls ``hook(moment, checkpoint_id)`` before and after each manifest: a test that kills the
    process there sees what the next start makes of it.
    """
    return job.with_hook(hook)
