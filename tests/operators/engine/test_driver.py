"""One driver for all runners: the same checkpoints, deliveries and warnings; what cannot be is not published."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from pyspark.sql import SparkSession

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.arrow_rows import arrow_of
from tests.helpers.spark_inputs import batch, job, rows, sample, write
from tests.twins import streams
from tests.twins.naive import Setting
from tidestate import OperatorStream
from tidestate.operators import DeliveryId
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.engine import delivery, job_log
from tidestate.operators.engine.driver import Driver
from tidestate.operators.engine.in_process import InProcess
from tidestate.operators.engine.job import Job, Position
from tidestate.operators.engine.partition import TaskResult
from tidestate.operators.engine.transport import BatchInput
from tidestate.operators.local import standalone
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Delivered
from tidestate.statestore.errors import InvariantError
from tidestate.statestore.spec.store import Parquet

IDENTITIES = {"job_id", "writer", "parent", "path", "segment", "previous", "lineage"}
CLOCK = {"created_us", "processing_us", "quiet_us"}
OF_THE_RUNNER = {"input", "spark", "restored", "scan", "spent"}
OF_BYTES = {"bytes", "checksum", "tail"}
"""Files hold the ids of their segments, so their bytes differ."""


@dataclass
class Sink:
    """Takes each ``takes``-th offer, refuses the others by False and by the exception in turn."""

    root: Path
    takes: int = 1
    offers: list[tuple[DeliveryId, int]] = field(default_factory=list)
    took: list[tuple[DeliveryId, list[tuple[object, ...]]]] = field(default_factory=list)

    def __call__(self, panes: Any, delivery_id: DeliveryId) -> bool:
        self.offers.append((delivery_id, len(list((self.root / "manifests").glob("*.json")))))
        if number := len(self.offers) % self.takes:
            if number % 2:
                return False
            raise ts.Refused("not now")
        self.took.append((delivery_id, rows(panes if isinstance(panes, pa.Table) else arrow_of(panes))))
        return True


Run = Callable[[OperatorStream, Path, Sequence[pa.Table], Any], None]


def by_harness(described: OperatorStream, root: Path, batches: Sequence[pa.Table], sink: Any) -> None:
    tested = described.harness(batches[0].schema, store=Parquet(), folder=root, partitions=2, sink=sink)
    for one in batches:
        tested.feed(one)
    tested.reprocess_late()
    tested.finish()


def by_standalone(described: OperatorStream, root: Path, batches: Sequence[pa.Table], sink: Any) -> None:
    started = described.standalone(checkpoint=root, sink=sink, partitions=2)
    started.run(batches)
    started.reprocess_late()
    started.drain()


def by_hand(described: OperatorStream, root: Path, batches: Sequence[pa.Table], sink: Any) -> None:
    """Each message with an offset of its own."""
    numbered = [one.append_column("offset", one["id"]).append_column("origin", one["k"]) for one in batches]
    with described.by_hand(numbered[0].schema, checkpoint=root) as running:  # type: ignore[arg-type]
        ts.run_operator(running, numbered, sink, clock=lambda: 0, drain=True)


def by_spark(described: OperatorStream, root: Path, batches: Sequence[pa.Table], sink: Any) -> None:
    session = SparkSession.getActiveSession()
    assert session is not None
    folder = root.with_name(f"{root.name}-input")
    for number, one in enumerate(batches):
        write(folder, number, one)
    stream = session.readStream.schema("t timestamp, k string, v long, id long").option("maxFilesPerTrigger", 1)
    query = described.on_spark(stream.parquet(str(folder)), checkpoint=root, sink=sink, partitions=2).start()
    query.processAllAvailable()
    query.reprocess_late()
    query.stop(drain=True)


RUNNERS = [
    pytest.param(by_harness, id="harness"),
    pytest.param(by_standalone, id="standalone"),
    pytest.param(by_hand, id="by hand"),
    pytest.param(by_spark, id="spark", marks=pytest.mark.spark),
]


def without(found: Any, names: set[str]) -> Any:
    """``found`` without what has these names, at any depth."""
    if isinstance(found, dict):
        return {name: without(value, names) for name, value in found.items() if name not in names}
    return [without(one, names) for one in found] if isinstance(found, list) else found


def deliveries(sink: Sink) -> list[tuple[int, int, list[tuple[object, ...]]]]:
    """What was taken, runs by their number."""
    runs = list(dict.fromkeys(one.run for one, _ in sink.took))
    return [(runs.index(one.run), one.checkpoint, found) for one, found in sink.took]


def what_came(
    run: Run, described: OperatorStream, root: Path, batches: Sequence[pa.Table], *dropped: set[str]
) -> Any:
    """Manifests, rows of panes and ledger, and deliveries; in how many files these rows are depends on the tasks."""
    sink = Sink(root)
    run(described, root, batches, sink)
    manifests = evidence.manifests(root)
    files = [{kind: sorted(evidence.rows(root, m[kind]), key=repr) for kind in ("panes", "late")} for m in manifests]
    dropped = (*dropped, {"panes", "late"})
    return without(manifests, set[str]().union(*dropped)), files, deliveries(sink)


@pytest.fixture(autouse=True)
def _session(request: pytest.FixtureRequest) -> None:
    """Spark runs where it is asked for, and only there."""
    if request.node.get_closest_marker("spark"):
        request.getfixturevalue("spark")


@pytest.fixture
def warnings(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Path], list[str]]]:
    """What was logged since the last call, without the name of the root; of every checkpoint, as some runners make
    one run of what others make several of.
    """
    monkeypatch.setattr(job_log, "WARN_EVERY_S", 0.0)

    def answered(root: Path) -> list[str]:
        found = [one.getMessage().replace(str(root), "ROOT") for one in caplog.records]
        caplog.clear()
        return found

    with caplog.at_level(logging.WARNING, "tidestate"):
        yield answered


def test_harness_and_standalone_publish_deliver_and_warn_in_the_same_way(
    tmp_path: Path, warnings: Callable[[Path], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standalone, "now_us", lambda: 0)
    dropped = IDENTITIES, {"created_us"}, OF_THE_RUNNER, OF_BYTES
    found = what_came(by_harness, job(), tmp_path / "a", sample(6, 60), *dropped), warnings(tmp_path / "a")
    assert found == (
        what_came(by_standalone, job(), tmp_path / "b", sample(6, 60), *dropped),
        warnings(tmp_path / "b"),
    )
    kinds = [one["kind"] for one in found[0][0]]
    assert kinds == ["fence", *["batch"] * 6, "feed", "tick"]
    assert len(found[0][2]) > 3
    assert any("rejected by job" in one for one in found[1])
    assert any("late events have expired" in one for one in found[1])


@pytest.mark.slow
@given(streams.settings(), streams.batches())
@settings(max_examples=max(3, settings.default.max_examples // 4))
def test_any_stream_gives_both_the_same_checkpoints(
    tmp_path_factory: pytest.TempPathFactory, setting: Setting, made: list[streams.Batch]
) -> None:
    batches, described = [streams.arrow(one) for one in made], streams.description(setting)
    root = tmp_path_factory.mktemp("roots")
    dropped = IDENTITIES, CLOCK, OF_THE_RUNNER, OF_BYTES
    ours, theirs = (
        what_came(run, described, root / run.__name__, batches, *dropped) for run in (by_harness, by_standalone)
    )
    assert ours == theirs


@pytest.mark.spark
def test_spark_publishes_delivers_and_warns_as_standalone_does(
    tmp_path: Path, warnings: Callable[[Path], list[str]]
) -> None:
    dropped = IDENTITIES, CLOCK, OF_THE_RUNNER, OF_BYTES
    found = what_came(by_spark, job(), tmp_path / "a", sample(4, 60), *dropped), warnings(tmp_path / "a")
    alone = what_came(by_standalone, job(), tmp_path / "b", sample(4, 60), *dropped), warnings(tmp_path / "b")
    assert found == alone


@pytest.mark.parametrize("run", RUNNERS)
def test_a_sink_that_says_no_is_asked_again_and_nothing_is_taken_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setattr(delivery, "PAUSE_S", 0.001)
    root = tmp_path / "root"
    sink = Sink(root, takes=3)
    run(job(), root, [batch([(second, "a", second)], second) for second in (1, 30, 45)], sink)
    there = [one.delivery_id for one in Checkpoint.open(root).outputs() if one.panes]
    assert [one for one, _ in sink.took] == there
    assert len(there) >= 3
    assert [one for one, _ in sink.offers] == [one for one in there for _ in range(3)]
    manifests = [[at for _, at in sink.offers[n : n + 3]] for n in range(0, len(sink.offers), 3)]
    assert all(len({*at}) == 1 for at in manifests), "no checkpoint while something is refused"


@pytest.fixture
def at_work(tmp_path: Path) -> Job:
    graph = bind_graph(job().graph.description, batch([]).schema)
    return Job.begin(graph, Checkpoint.open_or_create(tmp_path / "root"), Parquet(), partitions=2)


Results = list[TaskResult]


def another(one: TaskResult, **changes: Any) -> TaskResult:
    return msgspec.structs.replace(one, **changes)


def answering(one: TaskResult, place: int, **changes: Any) -> TaskResult:
    answers = list(one.answers)
    answers[place] = msgspec.structs.replace(answers[place], **changes)
    return another(one, answers=tuple(answers))


def counted(one: TaskResult, **counters: int) -> TaskResult:
    return another(one, counters=one.counters | counters)


def apart(one: TaskResult) -> Results:
    """As two tasks give it."""
    first, second = one.answers
    rest = {"counters": {}, "panes": (), "late": ()}
    return [another(one, span=(0, 1), answers=(first,)), another(one, span=(1, 2), answers=(second,), **rest)]


WRONG: dict[str, Callable[[Results], Results]] = {
    "an operator of the round": lambda found: [*found, another(found[0], operator="other")],
    "answers once": lambda found: [*found, found[0]],
    "each partition answers": lambda found: apart(found[0])[:1],
    "once, from its base": lambda found: [another(found[0], span=(0, 1))],
    "from its base": lambda found: [answering(found[0], 1, base_lineage="0" * 32)],
    "with something to do answers": lambda found: [another(found[0], answers=found[0].answers[:1])],
    "saw the same input": lambda found: [apart(found[0])[0], another(apart(found[0])[1], max_event_us=7)],
    "has one class": lambda found: [counted(found[0], accepted=9)],
    "has a row in the ledger": lambda found: [counted(found[0], events=9)],
}


@pytest.mark.parametrize("belief", WRONG)
def test_what_cannot_be_is_not_published(at_work: Job, belief: str) -> None:
    driver, head = Driver(at_work, InProcess()), at_work.head
    results = InProcess().run(at_work.micro_batch(0), BatchInput([batch([(1, "a", 1), (2, "b", 1)])]))
    with pytest.raises(InvariantError, match=belief):
        driver.commit(2, WRONG[belief](results), "batch", Position())
    assert driver.head is head
    assert Checkpoint.open(at_work.checkpoint.objects.root).ids() == [1]
    assert driver.commit(2, results, "batch", Position()).id == 2


def test_a_round_that_was_overtaken_is_not_published(at_work: Job) -> None:
    driver = Driver(at_work, InProcess())

    def meanwhile(_number: int) -> Position:
        driver.advance(0)
        driver.tick(lambda batch: batch.after({}))
        return Position()

    with pytest.raises(InvariantError, match="right after its base"):
        driver.batch([batch([(1, "a", 1)])], 0, meanwhile)
    assert [one.kind for one in at_work.checkpoint.history()] == ["fence", "tick"]


def test_no_sink_has_taken_what_is_not_published(at_work: Job) -> None:
    with pytest.raises(InvariantError, match="accepts only what is published"):
        at_work.mark_delivered(at_work.head.id + 1)
    at_work.delivered = Delivered(at_work.head.id + 5)
    with pytest.raises(InvariantError, match="what was delivered stays delivered"):
        Driver(at_work, InProcess()).tick(lambda batch: batch.after({}), 0)
