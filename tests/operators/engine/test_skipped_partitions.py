"""State partitions without arrivals and with nothing due are not opened; what comes out is the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.process import examples
from tidestate import OperatorStream, agg
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.engine import tasks
from tidestate.operators.engine.driver import Driver
from tidestate.operators.engine.job import Job, Position
from tidestate.operators.engine.micro_batch import MicroBatch, OperatorInput, TaskResult, spans
from tidestate.operators.engine.tasks import InProcess
from tidestate.operators.plan.classify import PartitionedRows
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import InvariantError
from tidestate.statestore.spec.store import Parquet

SECOND = 1_000_000
TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("t", TIME), ("k", pa.string())])
PARTITIONS = 7
Event = tuple[int, str]


def rows(*events: Event) -> pa.Table:
    times = pa.array([at * SECOND for at, _ in events], pa.int64()).cast(TIME)
    return pa.table([times, pa.array([key for _, key in events], pa.string())], schema=SCHEMA)


def job(within: int | None = 20, *, in_order: bool = False) -> OperatorStream:
    span = None if within is None else f"{within} s"
    return ts.stream(event_time="t").deduplicate("k", within=span, in_order=in_order, name="job")


def entries(root: Path) -> list[list[Any]]:
    return [one["operators"]["job"]["partitions"] for one in evidence.manifests(root)]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The partitions whose step ran."""
    found: list[int] = []
    real = tasks.run_partition

    def run(batch: MicroBatch, operator: OperatorInput, partition: int, *rest: Any) -> Any:
        found.append(partition)
        return real(batch, operator, partition, *rest)

    monkeypatch.setattr(tasks, "run_partition", run)
    return found


def test_only_partitions_with_arrivals_run(tmp_path: Path, ran: list[int]) -> None:
    tested = job().harness(SCHEMA, store=Parquet(), folder=tmp_path, partitions=PARTITIONS)
    tested.feed(rows((1, "a")))
    assert ran == list(range(PARTITIONS)), "nobody knows yet what is due"
    ran.clear()
    tested.feed(rows((2, "b")))
    (where,) = ran
    *_, before, after = entries(tmp_path)
    assert [number for number in range(PARTITIONS) if before[number] != after[number]] == [where]


def test_time_alone_starts_no_task_where_nothing_is_due(
    tmp_path: Path, ran: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tested = job().harness(SCHEMA, store=Parquet(), folder=tmp_path, partitions=PARTITIONS)
    tested.feed(rows((1, "a")))
    monkeypatch.setattr(InProcess, "run", None)
    tested.advance_watermark(10 * SECOND)
    monkeypatch.undo()
    head = evidence.manifests(tmp_path)[-1]
    assert (head["kind"], head["watermark_us"]) == ("tick", 10 * SECOND)
    assert head["operators"]["job"]["expired"] == {"seen": 10 * SECOND}, "what expires does so all the same"


def test_the_end_of_time_reaches_all_partitions(tmp_path: Path, ran: list[int]) -> None:
    tested = job().harness(SCHEMA, folder=tmp_path, partitions=PARTITIONS)
    tested.feed(rows((1, "a")))
    ran.clear()
    tested.finish()
    assert ran == list(range(PARTITIONS))


def test_rejected_rows_reach_the_ledger_though_no_partition_runs(tmp_path: Path, ran: list[int]) -> None:
    tested = job().harness(SCHEMA, folder=tmp_path, partitions=PARTITIONS)
    tested.feed(rows((50, "a")))
    ran.clear()
    tested.feed(rows((1, "a"), (2, "b")))
    assert ran == []
    assert tested.ledger()["k"].to_pylist() == ["a", "b"]
    assert tested.counters()["very_late"] == 2


def test_what_waits_is_due_though_something_newer_has_arrived(tmp_path: Path, ran: list[int]) -> None:
    made = ts.stream(event_time="t", watermark_delay="30 seconds").group_by("k").window(ts.tumbling("10 seconds"))
    tested = made.aggregate(n=agg.count()).named("job").harness(SCHEMA, folder=tmp_path, partitions=PARTITIONS)
    tested.feed(rows((31, "a")))
    tested.feed(rows((32, "a")))
    ran.clear()
    assert tested.feed(rows((55, "a"))).num_rows == 0
    (where,) = ran
    ran.clear()
    assert tested.feed(rows((71, "b")))["k"].to_pylist() == ["a"]
    assert where in ran
    assert len(ran) == 2


def test_after_another_setting_every_partition_looks_again(tmp_path: Path, ran: list[int]) -> None:
    def described(late: str) -> OperatorStream:
        made = (
            ts.stream(event_time="t")
            .group_by("k")
            .window(ts.tumbling("10 seconds"))
            .aggregate(n=agg.count())
            .named("job")
        )
        return made.allowed_lateness(late)

    described("0 seconds").harness(SCHEMA, folder=tmp_path, partitions=PARTITIONS).feed(rows((1, "a")))
    for late in ("0 seconds", "1 hour"):
        head = Checkpoint.open(tmp_path).chosen(None).manifest
        checkpoint = Checkpoint.open(tmp_path).as_new_run()
        operator = head.operators["job"]
        marked = tuple(msgspec.structs.replace(one, due_mark=10**15) for one in operator.partitions)
        _publish(checkpoint, msgspec.structs.replace(operator, partitions=marked))
        tested = described(late).harness(SCHEMA, folder=tmp_path)
        ran.clear()
        tested.feed(rows((2, "a")))
        assert len(ran) == (1 if late == "0 seconds" else PARTITIONS)


def _publish(checkpoint: Checkpoint, operator: Any) -> None:
    from tidestate.recovery.log.manifest_file import successor

    checkpoint.publish(successor(checkpoint.chosen(None), "fence", "w", 0, operators={"job": operator}))


BATCHES = st.lists(st.lists(st.tuples(st.integers(0, 60), st.sampled_from("abcdefgh")), max_size=5), max_size=6)


@given(BATCHES, st.sampled_from([None, 0, 15]), st.integers(1, PARTITIONS), st.booleans())
@settings(deadline=None, max_examples=examples(25))
def test_results_are_those_of_a_job_that_skips_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[list[Event]],
    within: int | None,
    partitions: int,
    in_order: bool,
) -> None:
    folder, how = tmp_path_factory.mktemp("roots"), (batches, within, partitions, in_order)
    assert played(folder / "a", *how) == all_run(folder / "b", *how)


def played(
    root: Path, batches: Sequence[Sequence[Event]], within: int | None, partitions: int, in_order: bool
) -> Any:
    tested = job(within, in_order=in_order).harness(SCHEMA, folder=root, partitions=partitions)
    found = []
    for number, events in enumerate(batches):
        found += [tested.feed(rows(*events)).to_pylist(), tested.advance_watermark(number * 11 * SECOND).to_pylist()]
        found.append(tested.state("seen").to_pylist())
        if number % 2:
            tested.restart()
    operator = Checkpoint.open(root).chosen(None).manifest.operators["job"]
    found += [operator.expired, [one.expired for one in operator.states], tested.ledger().to_pylist()]
    return [*found, tested.finish().to_pylist(), tested.counters()]


def all_run(root: Path, *how: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OperatorInput, "due", lambda operator, _: {*operator.base})
        return played(root, *how)


@pytest.fixture
def started(tmp_path: Path) -> Job:
    graph = bind_graph(job().graph.description, SCHEMA)
    begun = Job.begin(graph, Checkpoint.open_or_create(tmp_path / "root"), Parquet(), partitions=2)
    Driver(begun, InProcess()).batch([rows((1, "a"))], 0, lambda _id: Position())
    return begun


def changed(one: TaskResult, **changes: Any) -> TaskResult:
    return msgspec.structs.replace(one, **changes)


def test_a_partition_that_was_not_known_to_be_idle_must_answer(started: Job) -> None:
    (found,) = InProcess().run(started.micro_batch(0), [rows((2, "a"))])
    ended = changed(found, progress=msgspec.structs.replace(found.progress, watermark_us=2**63 - 1))
    with pytest.raises(InvariantError, match="with something to do answers"):
        started.commit([ended], "batch", Position())


@given(st.integers(1, 300), st.integers(1, 40))
def test_tasks_share_the_partitions_evenly(partitions: int, tasks: int) -> None:
    found = spans(partitions, tasks)
    assert [number for span in found for number in range(*span)] == list(range(partitions))
    sizes = {last - first for first, last in found}
    assert len(found) == min(partitions, tasks)
    assert max(sizes) - min(sizes) <= 1


@given(st.lists(st.text("aé\x00\U0001f30a", max_size=3), max_size=30), st.integers(1, 9), st.integers(1, 9))
def test_rows_by_partition_are_all_rows_in_their_order(keys: list[str], partitions: int, tasks: int) -> None:
    table = pa.table({"k": pa.array(keys, pa.string()), "n": pa.array(range(len(keys)), pa.int64())})
    whole = PartitionedRows.of(table, ["k"], partitions)
    parts = [part for span in spans(partitions, tasks) for part in whole.between(*span).parts()]
    assert sorted(n for _, found in parts for n in found["n"].to_pylist()) == list(range(len(keys)))
    assert [number for number, _ in parts] == [number for number, _ in whole.counts]
    for number, found in parts:
        assert found["n"].to_pylist() == sorted(found["n"].to_pylist()) == whole[number]["n"].to_pylist()
        again = PartitionedRows.of(found, ["k"], partitions)
        assert again.counts == ((number, found.num_rows),)
