"""The standalone runner: a job in one process, on batches of Arrow data. No Spark, no Java."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Sized
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.describe.job_streams import JobStreams
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.runs import (
    Batch,
    Input,
    JobHook,
    Schemas,
    SeekableInput,
    SparkInput,
    SparkOffsets,
    Standalone,
    several,
)
from tidestate.operators.describe.sinks import Sinks
from tidestate.operators.engine.bootstrap import check_new, has_begun, newest_at
from tidestate.operators.engine.delivery import PATIENCE_S
from tidestate.operators.engine.driver import Driver, MeasuredByDriver
from tidestate.operators.engine.emitted import emitted_outputs, fit_as_begun
from tidestate.operators.engine.job import Job, Position, Runner, check_runner, no_job_hook
from tidestate.operators.engine.kept_zones import kept_rules
from tidestate.operators.engine.rebuild import needs_side_run
from tidestate.operators.engine.recorded_steps import batch_count
from tidestate.operators.engine.replay_start import NOT_READ_AGAIN, rebuilt
from tidestate.operators.engine.reprocess import late_rows
from tidestate.operators.engine.tasks import Batches, InProcess
from tidestate.operators.engine.untyped_columns import check_types_known
from tidestate.operators.local.input_mark import begin_mark, input_mark
from tidestate.operators.local.replay import InputReplay, InputRunAgain, reached
from tidestate.operators.local.requests import RequestedLoop
from tidestate.operators.local.spark_positions import SparkPositions, offsets_of
from tidestate.operators.plan.graph import Graph, one_batch
from tidestate.recovery.log.checkpoint import Checkpoint, now_us
from tidestate.recovery.log.manifest import InputPosition, Manifest
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.recovery.spark.spark_checkpoint import recorded_positions
from tidestate.recovery.start.policy import Policy
from tidestate.statestore.arguments import checked
from tidestate.statestore.errors import IncompatibleError, TidestateError, UsageError, expect
from tidestate.statestore.html_tables import facts_html
from tidestate.statestore.secrets import public_url
from tidestate.statestore.spec.plain import ArrowRows, as_table
from tidestate.statestore.spec.store import StoreConfig
from tidestate.statestore.storage.objects import Objects

log = logging.getLogger("tidestate")

StandaloneDriver: TypeAlias = Driver[Batches, pa.Table]
AnyReplay: TypeAlias = InputReplay | InputRunAgain


class StandaloneRunner(MeasuredByDriver, Standalone[Any]):
    """The `Standalone` of a description."""

    def __init__(
        self,
        description: Runnable,
        checkpoint: str,
        store: StoreConfig,
        sinks: Sinks[pa.Table],
        partitions: int | None,
        hook: JobHook = no_job_hook,
        policy: Policy | None = None,
        time_zone: str | None = None,
        retain: CheckpointRetention | None = None,
        metrics: int | str | None = None,
        streams: Sequence[str] | None = None,
    ) -> None:
        self.description, self.names = description, streams
        self._streams = JobStreams(description, streams, time_zone)
        self._root = checkpoint
        self._store = store
        self._sinks = sinks
        self._partitions = partitions
        self._hook = hook
        self._policy = policy or Policy()
        self._time_zone, self._retain, self._metrics = time_zone, retain, metrics
        self._driver: StandaloneDriver | None = None
        self._described: Graph | None = None
        self._replaying: AnyReplay | None = None
        self._requested: RequestedLoop | None = None
        self._spark: SparkPositions | None = None
        """What it records of input that has Spark's positions."""

    def __repr__(self) -> str:
        newest = f", checkpoint_id={self._driver.job.head.id}" if self._driver is not None else ""
        return f"Standalone({self.description.name!r}, checkpoint={public_url(self._root)!r}{newest})"

    def _repr_html_(self) -> str:
        """The run as a table, for a notebook."""
        facts = {
            "checkpoint": public_url(self._root),
            "streams": ", ".join(self._streams.by_user),
            "checkpoint_id": self._driver.job.head.id if self._driver is not None else None,
        }
        return facts_html(f"Standalone {self.description.name}", facts)

    @checked
    def run(self, batches: Input, *, drain: bool = False, progress: bool | None = None) -> Any:
        counts = progress is not False and shows_bars()
        panes = self._with_bar(batches) if counts else list(self.stream(batches))
        if drain and not self._is_stopped:
            panes.append(self.drain())
        driver = self._started("there was no batch: give the input from its beginning")
        return driver.all_rows(panes)

    def stream(self, batches: Input) -> Iterator[Any]:
        if self._requested is not None:
            self._requested.is_stopped = False  # which was of the run before
        failure: BaseException | None = None
        try:
            yield from self._of_input(batches)
        except BaseException as error:
            failure = error
            raise
        finally:
            self._end(failure)

    def _of_input(self, batches: Input) -> Iterator[Any]:
        if isinstance(batches, SparkInput):
            return self._sought_on_spark(batches)
        return self._sought(batches) if isinstance(batches, SeekableInput) else self._stream(several(batches))

    def _with_bar(self, batches: Input) -> list[Any]:
        from tidestate.recovery.cli.progress_bar import bar

        with bar() as count:
            if isinstance(batches, SparkInput | SeekableInput):
                return [_counted(panes, count, done) for done, panes in enumerate(self.stream(batches), 1)]
            each = several(batches)
            total = len(each) if isinstance(each, Sized) else None
            return list(self.stream(_counted(batch, count, done, total) for done, batch in enumerate(each)))

    def _stream(self, batches: Iterable[Batch]) -> Iterator[Any]:
        number, replay = -1, None
        for number, batch in enumerate(batches):
            table = self._streams.rows(batch)
            driver = self._begin(schemas_of(table))
            check_runner(driver.head, "standalone")
            replay = self._replay(driver, "standalone") if number == 0 else replay
            taken = driver.head.input or InputPosition(0, "")
            if number < taken.batches - 1:
                if replay is not None:
                    yield from replay.take(number, one_batch(driver.job.graph, table))
                continue
            streams = one_batch(driver.job.graph, table)
            if number == taken.batches - 1:
                if taken.last and taken.last != input_mark(driver.job.graph, streams):
                    raise IncompatibleError(
                        "the input differs from that of the checkpoint in its last batch: give "
                        "all of the input from the beginning; what the checkpoint contains is skipped",
                        code="input-differs",
                        batch=number,
                    )
                if replay is not None:
                    yield from replay.take(number, streams)
                else:
                    self._serve(driver)
                continue
            if replay is not None:
                yield from replay.finish()
                replay = None
            if self._is_stopped:
                return
            yield self._take(driver, streams, _marked(driver.job.graph, streams, InputPosition(number + 1, "")))
        held = self._driver.head.input if self._driver is not None else None
        if held is not None and number + 1 < held.batches:
            raise IncompatibleError(
                "the input differs from that of the checkpoint, which has more batches: give all of the input "
                "from the beginning; what the checkpoint contains is skipped",
                code="input-differs",
                expected=held.batches,
                found=number + 1,
            )
        if replay is not None:
            yield from replay.finish()

    def _sought(self, source: SeekableInput) -> Iterator[Any]:
        """As `_stream`, of what follows the newest checkpoint. It is fenced before the source is asked."""
        driver = self._begin(self._streams.schemas(source.schema))
        check_runner(driver.head, "standalone")
        yield from self._put_back(driver, "standalone", partial(self._read_again, source))
        self._serve(driver)
        for position, batch in _sought_pairs(source, _position(driver.head)):
            streams = one_batch(driver.job.graph, self._streams.rows(batch))
            number = driver.head.input.batches if driver.head.input is not None else 0
            if self._is_stopped:
                return
            after = InputPosition(number + 1, "", _plain(position))
            yield self._take(driver, streams, _marked(driver.job.graph, streams, after))

    def _sought_on_spark(self, source: SparkInput) -> Iterator[Any]:
        """As `_sought`, of input with Spark's positions."""
        if self._policy.messages == "replay" and type(source).read_again is SparkInput.read_again:
            raise UsageError(
                "this input cannot read a batch again: give it read_again(…), start the job on Spark once, or start "
                'with Policy(messages="rebuild"), and give rebuild(…) the replay',
                code="replay-source",
                found=type(source).__name__,
            )
        source = source.numbered(list(self._streams.by_user))
        driver = self._begin(self._streams.schemas(source.schema), spark_sources=source.sources)
        check_runner(driver.head, "spark")
        if self._spark is None:  # input of another kind has begun it, and had nothing
            self._spark = SparkPositions(driver.job.checkpoint, source.sources, self._hook)
            self._spark.compare(driver.head)
            self._spark.begin(driver.head)
        positions = self._spark
        yield from self._put_back(driver, "spark", partial(self._recorded_again, source))
        self._serve(driver)
        for offsets, batch in _sought_pairs(source, positions.newest(driver.head)):
            streams = one_batch(driver.job.graph, self._streams.rows(batch))
            if self._is_stopped:
                return
            has_rows = any(rows.num_rows for rows in streams.values())
            position = positions.after(driver.head, offsets, has_rows=has_rows)
            yield self._take(driver, streams, partial(positions.stored, position))

    def _take(
        self, driver: StandaloneDriver, streams: dict[str, pa.Table], position: Callable[[int], Position]
    ) -> Any:
        """The panes of the next batch; ``position`` as in `Driver.batch`."""
        self._serve(driver)
        with driver.lock:
            panes = driver.rows(driver.batch([streams], now_us(), position))
            driver.skip_idle_time(now_us())
        return panes

    def _serve(self, driver: StandaloneDriver) -> None:
        """Let others ask this run, from where its input goes on. A second loop of the same run is not asked."""
        if self._requested is None:
            self._requested = RequestedLoop(driver)
            driver.serve_requests(self._requested)

    @property
    def _is_stopped(self) -> bool:
        """Whether a request has stopped this run."""
        return self._requested is not None and self._requested.is_stopped

    def _put_back(
        self,
        driver: StandaloneDriver,
        runner: Runner,
        again: Callable[[StandaloneDriver, AnyReplay], Iterator[Any]],
    ) -> Iterator[Any]:
        """Replay the input that the policy asks for, which ``again`` reads; twice, where batches cannot be run again
        and identities say what to put back.
        """
        replay = self._replay(driver, runner)
        if replay is not None:
            yield from again(driver, replay)
            if replay.left_to_identities:
                yield from again(driver, InputReplay(driver))

    def _replay(self, driver: StandaloneDriver, runner: Runner) -> AnyReplay | None:
        """The replay of the input that the policy asks for; None where nothing is missing."""
        graph, head = driver.job.graph, driver.head
        if self._policy.messages != "replay" or head.drained:
            return None
        if needs_side_run(graph, head) or rebuilt(graph, head):
            described = expect(self._described, "a job that runs was described")
            self._replaying = InputRunAgain(driver, described, self._hook, partial(input_mark, graph), runner)
            if self._replaying.left_to_identities:
                self._replaying = InputReplay(driver)
        return self._replaying

    def _read_again(self, source: SeekableInput, driver: StandaloneDriver, replay: AnyReplay) -> Iterator[Any]:
        """What a source has up to the newest checkpoint, for a replay. Where it does not have it any more, the job
        goes on without.
        """
        start = None if replay.start is None else _position(replay.start)
        goal = position = _position(driver.head)
        pairs, number = _sought_pairs(source, start), replay.first
        while not replay.over and not (reached(start, goal) or (number > replay.first and reached(position, goal))):
            try:
                pair = next(pairs, None)
            except TidestateError:
                raise
            except Exception as error:
                log.error(NOT_READ_AGAIN, f"position {start!r}", type(error).__name__, error)
                break
            if pair is None:
                break
            position, batch = pair
            yield from replay.take(number, one_batch(driver.job.graph, self._streams.rows(batch)))
            number += 1
        pairs.close()
        yield from replay.finish()

    def _recorded_again(self, source: SparkInput, driver: StandaloneDriver, replay: AnyReplay) -> Iterator[Any]:
        """As `_read_again`, batch by batch as manifests have recorded them, whichever runner has taken them."""
        recorded = recorded_positions(driver.job.checkpoint, driver.head)
        for number in range(replay.first, batch_count(driver.head)):
            if replay.over:
                break
            position = recorded.get(number)
            try:
                if position is None:
                    raise FileNotFoundError(f"no manifest says what batch {number} has read")
                start = SparkOffsets(position.start) if position.start else None
                batch = source.read_again(start, offsets_of(position))
            except Exception as error:
                log.error(NOT_READ_AGAIN, f"batch {number}", type(error).__name__, error)
                break
            yield from replay.take(number, one_batch(driver.job.graph, self._streams.rows(batch)), position)
        yield from replay.finish()

    def position(self) -> Any:
        newest = self._driver.head if self._driver is not None else newest_at(self._root)
        return None if newest is None else _position(newest)

    @property
    def begun(self) -> bool:
        return has_begun(self._root)

    @checked
    def bootstrap(self, history: Batch | Iterable[Batch], *, deliver: bool = True) -> Any:
        batches = (self._streams.rows(one) for one in several(history))
        first = next(batches, None)
        if first is None:
            raise UsageError("there is no history: give one or more tables", code="no-input")
        check = check_new(Objects(self._root))
        if self._driver is not None:
            check(self._driver.head)
        try:
            driver = self._begin(schemas_of(first), check)
            position = Position(input=InputPosition(0, ""))
            return driver.rows(driver.bootstrap(chain([first], batches), lambda _id: position, deliver=deliver))
        finally:
            self._end()

    @checked
    def drain(self, *, timeout_s: float | None = PATIENCE_S) -> Any:
        driver = self._started("nothing has run here: run(batches, drain=True) skips batches that are done")
        with driver.running(), driver.lock:
            return driver.rows(driver.head if driver.drain(timeout_s) else None)

    @property
    def _measured(self) -> StandaloneDriver:
        return self._started("nothing has run yet")

    @property
    def metrics_url(self) -> str | None:
        return self._driver.metrics_url if self._driver is not None else None

    @checked
    def reprocess_late(
        self, rows: ArrowRows | None = None, *, operator: str | None = None, reason: str | None = None
    ) -> Any:
        driver = self._started("feed a batch first, or run again with the batches so far")
        given = None if rows is None else as_table(rows, self._time_zone)
        with driver.running(), driver.lock:
            driver.deliver()
            back = late_rows(driver.job, given, operator, reason)
            return driver.rows(driver.reprocess_late(back) if back.tables else None)

    def rebuild(self, replay: Batch | Iterable[Batch]) -> Any:
        panes = []
        try:
            for batch in several(replay):
                table = self._streams.rows(batch)
                driver = self._begin(schemas_of(table))
                streams = one_batch(driver.job.graph, table)
                with driver.lock:
                    panes.append(driver.rows(driver.rebuild([streams])))
        finally:
            self._end()
        driver = self._started("there is no replay: give one or more tables")
        return driver.all_rows(panes)

    @property
    def head(self) -> Manifest:
        return self._measured.head

    def fit_sinks(self, graph: Graph) -> None:
        """Tell the sinks what they get. Raises `UsageError`."""
        self._sinks.fit(emitted_outputs(graph))

    def _started(self, otherwise: str) -> StandaloneDriver:
        if self._driver is None:
            raise UsageError(otherwise, code="no-input")
        return self._driver

    def _begin(
        self,
        schemas: Schemas,
        check: Callable[[Manifest | None], None] = lambda _head: None,
        *,
        spark_sources: int | None = None,
    ) -> StandaloneDriver:
        """Begin, or go on. With ``spark_sources`` the input has Spark's positions, of so many sources."""
        runner: Runner = "standalone" if spark_sources is None else "spark"
        if self._driver is None:
            fallback = kept_rules(self._root, self._policy)
            graph = self._described = bind_graph(self.description, schemas, fallback)
            self.fit_sinks(graph)
            checkpoint = Checkpoint.open_or_create(self._root)
            positions = None if spark_sources is None else SparkPositions(checkpoint, spark_sources, self._hook)

            def check_start(head: Manifest | None) -> None:
                if head is None:
                    check_types_known(graph)
                if positions is not None:
                    positions.compare(head)
                check(head)

            job = Job.begin(
                graph,
                checkpoint,
                self._store,
                partitions=self._partitions,
                runner=runner,
                check=check_start,
                hook=self._hook,
                may_change=True,
                policy=self._policy,
            )
            if positions is not None:
                positions.begin(job.head)
            fit_as_begun(self.fit_sinks, graph, job.graph)
            self._spark = positions
            self._driver = Driver(job, InProcess(), self._sinks, retain=self._retain, metrics=self._metrics)
        self._driver.begin(replays=self._policy.messages == "replay")
        with self._driver.lock:
            self._driver.deliver()
        return self._driver

    def _end(self, failure: BaseException | None = None) -> None:
        if self._requested is not None:
            self._requested.end(failure)
        replaying, self._replaying = self._replaying, None
        if replaying is not None:
            replaying.close()
        if self._driver is not None:
            self._driver.end()


def shows_bars() -> bool:
    """Whether standard error is a terminal, or this is a notebook."""
    return "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())


def _counted(value: Any, count: Callable[[str, int, int | None], None], done: int, total: int | None = None) -> Any:
    """``value``, when so many batches are done."""
    count("batches", done, total)
    return value


def _sought_pairs(source: SeekableInput, position: Any) -> Generator[tuple[Any, Batch]]:
    """What a source has after a position. Raises `UsageError` for what is no pair of a position and a batch."""
    pairs = source.seek(position)
    for pair in pairs if isinstance(pairs, Iterable) else [pairs]:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise UsageError(
                "seek(position) returns the batches after it, each with the position that follows: (position, batch)",
                code="position",
                found=f"{pair!r:.100} ({type(pair).__name__})",
            )
        yield pair[0], pair[1]


def _position(head: Manifest) -> Any:
    """Where the input of a checkpoint ended."""
    if head.spark is not None:
        return list(head.spark.end)
    taken = head.input
    if taken is None or not taken.batches:
        return None
    return taken.batches if taken.position is None else taken.position


def _plain(position: Any) -> Any:
    """A position as a manifest holds it. Raises `UsageError`."""
    try:
        plain = json.loads(json.dumps(position, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        plain = None
    if plain is None or plain != position:
        raise UsageError(
            "a position must be a number, a text, or lists and mappings of these with text keys",
            code="position",
            found=position,
        )
    return plain


def schemas_of(batch: pa.Table | Mapping[str, pa.Table]) -> pa.Schema | dict[str, pa.Schema]:
    """The schema of a batch; by stream if it has several."""
    return batch.schema if isinstance(batch, pa.Table) else {name: rows.schema for name, rows in batch.items()}


def _marked(graph: Graph, streams: Mapping[str, pa.Table], after: InputPosition) -> Callable[[int], Position]:
    """The position ``after`` a batch, with the hash of the batch, as `Driver.batch` asks for it."""
    mark = begin_mark(graph, streams)
    return lambda _id: Position(input=msgspec.structs.replace(after, last=mark()))
