"""What a description becomes when it runs, as users call it: runners implement it. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import pyarrow as pa

from tidestate.operators.progress.figures import Gap, Metrics
from tidestate.recovery.log.manifest import Manifest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Batch: TypeAlias = pa.Table | pa.RecordBatch | Mapping[str, pa.Table]
"""Rows of the one stream, or of some of several by name."""
JobHook = Callable[[str, int], None]
"""Called with the name of a moment and the checkpoint id it is about: for tests that kill the process there."""
Offset: TypeAlias = str | Mapping[str, Any]
"""Where a source goes on, as Spark writes it: ``{"topic":{"0":100}}`` for Kafka; as text or as values."""
OfStream: TypeAlias = Offset | Sequence[Offset | None] | None
Handover: TypeAlias = OfStream | Mapping[str, OfStream]
"""Where sources go on: one offset; a list where a stream has several sources; by stream where there are several."""


class Standalone(ABC):
    """A description on a checkpoint folder, fed with batches in this process. Each batch is one checkpoint.

    ``batches`` always means the whole input from its beginning, in the same batches: those the checkpoint holds
    already are skipped, so after a crash the same call continues where it stopped.
    """

    @abstractmethod
    def run(self, batches: Iterable[Batch], *, drain: bool = False) -> pa.Table:
        """Take all batches, then with ``drain`` fire every window; the panes of this call, in order.

        Raises `IncompatibleError` when the input is not the one this checkpoint holds.
        """

    @abstractmethod
    def stream(self, batches: Iterable[Batch]) -> Iterator[pa.Table]:
        """As `run`, one table of panes per checkpoint, as soon as it is committed and delivered."""

    @property
    @abstractmethod
    def begun(self) -> bool:
        """Whether anything was taken in at this root, by this or an earlier run: then `bootstrap` is refused."""

    @abstractmethod
    def bootstrap(self, history: Batch | Iterable[Batch], *, deliver: bool = True) -> pa.Table:
        """Begin a new root with the state that ``history`` leads to: one checkpoint, whole or not at all. Its panes.

        History is no part of ``batches``: what `run` is given afterwards goes on from it. Nothing in it is late.
        Without ``deliver`` the panes are recorded like any, and no sink gets them. Raises `UsageError`
        (``bootstrap-used``) where something was taken in already; a call that died is made again.
        """

    @abstractmethod
    def drain(self) -> pa.Table:
        """Move the watermark to the end of time: every window fires, and no new input is taken. The last panes."""

    @abstractmethod
    def reprocess_late(self, rows: pa.Table | None = None, *, operator: str | None = None) -> pa.Table:
        """Take back what the late ledger holds of events that came too late, each once; the panes that changes.

        Or ``rows`` that you bring, each time you bring them; in a chain, to this ``operator``. Windows that are
        still kept take them, whatever the watermark; for windows that are gone there is a ledger row of the reason
        ``purged``. One checkpoint of its own.
        """

    @property
    @abstractmethod
    def head(self) -> Manifest:
        """The newest checkpoint. Raises `UsageError` before the first batch."""


class SparkJob(ABC):
    """A description on a streaming DataFrame. ``start`` runs it; ``schedule`` says how often."""

    @abstractmethod
    def schedule(self, **trigger: Any) -> Self:
        """As Spark's ``trigger``: ``processingTime="10 seconds"`` or ``availableNow=True``."""

    @abstractmethod
    def with_hook(self, hook: JobHook) -> Self:
        """Call ``hook(moment, checkpoint_id)`` before and after each manifest: for fault injection."""

    @property
    @abstractmethod
    def begun(self) -> bool:
        """Whether anything was taken in at this root, by this or an earlier run: then `bootstrap` is refused."""

    @abstractmethod
    def bootstrap(
        self, history: DataFrame | Mapping[str, DataFrame], *, offsets: Handover = None, deliver: bool = True
    ) -> Manifest:
        """Begin a new root with the state a batch DataFrame leads to; ``start`` then reads exactly what it had not.

        Of several streams, ``history`` and ``offsets`` are by name or side; one without is read from its beginning.
        Sources of files pass over its files; other ``offsets`` say where it ends, as ``{"topic":{"0":100}}``. Without
        ``deliver`` no sink gets its panes. Raises `UsageError` where something does not fit, `ConflictError` where
        files changed meanwhile: nothing is handed over then.
        """

    @abstractmethod
    def start(self) -> DurableQuery:
        """Take over the checkpoint, deliver what is outstanding, and start Spark's query.

        Raises before anything runs: `UsageError` for a description that does not fit the stream or a drained
        checkpoint, `IncompatibleError` for a checkpoint of another job, a changed configuration, or a Spark
        checkpoint that does not belong to ours. One that has merely lost something is rewritten, see `Policy`.
        """


class DurableQuery(ABC):
    """A running query. Its state, watermark and offsets are those of `checkpoint_id`, whatever dies."""

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
    def waiting_since_us(self) -> int | None:
        """Since when the sink has refused what it is offered, and no input is taken; None while it does not."""

    @property
    @abstractmethod
    def is_active(self) -> bool:
        """Whether Spark's query is running."""

    @abstractmethod
    def progress(self) -> list[dict[str, Any]]:
        """Spark's own progress reports of the recent batches, oldest first."""

    @abstractmethod
    def process_all_available(self) -> None:
        """Wait until everything the source has now is in a checkpoint. Raises what stopped the query, if it did."""

    @abstractmethod
    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait for the query to end; False when the time ran out first. Raises what stopped it, if it failed."""

    @abstractmethod
    def stop(self, *, drain: bool = False) -> None:
        """End the query between two batches. What was not read stays unread and comes at the next start.

        With ``drain`` one more checkpoint moves the watermark to the end of time: every window fires, and the
        checkpoint takes no new input afterwards. Call `process_all_available` first to read what is there.
        A sink that refuses is waited for no longer: its panes come at the next start. With ``drain`` the last ones
        are offered until it takes them, or until somebody calls `stop` again.
        Raises what had stopped the query, if it had failed; nothing is drained then.
        """

    @abstractmethod
    def reprocess_late(self, rows: pa.Table | None = None, *, operator: str | None = None) -> int:
        """Take back what the late ledger holds of events that came too late, each once, between two batches.

        Or ``rows`` that you bring, each time you bring them; in a chain, to this ``operator``. Windows that are
        still kept take them, whatever the watermark; for windows that are gone there is a ledger row of the reason
        ``purged``. Panes are delivered as ever. How many events were fed; one checkpoint of its own, or none where
        there was nothing.
        """

    @abstractmethod
    def metrics(self, operator: str | None = None) -> Metrics:
        """Watermark and lag of each source, how often they moved, who is idle; of a chain, those of one operator (by
        default the first).
        """

    @abstractmethod
    def gaps(self, operator: str | None = None) -> list[Gap]:
        """Which buffers origins wait for, and since when; none where rows come without buffers."""

    @abstractmethod
    def prometheus(self, operator: str | None = None) -> str:
        """All that in the text format of Prometheus: with violations of CTIs, buffers by what became of them, and
        events and panes by class since the start.
        """
