"""One driver for all runners: the same checkpoints, deliveries and warnings; what cannot be is not published.

Of Spark: tests/spark/test_same_checkpoints.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from tests.helpers.same_checkpoints import (
    IDENTITIES,
    OF_BYTES,
    OF_THE_CLOCK,
    OF_THE_RUNNER,
    Run,
    by_hand,
    by_harness,
    by_standalone,
    check_asked_again,
    warnings,  # noqa: F401  (a fixture)
    what_came,
)
from tests.helpers.spark_inputs import batch, job, sample
from tests.twins import streams
from tests.twins.naive import Setting
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.engine.driver import Driver
from tidestate.operators.engine.job import Job, Position
from tidestate.operators.engine.micro_batch import TaskResult
from tidestate.operators.engine.tasks import InProcess
from tidestate.operators.local import standalone
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Delivered
from tidestate.statestore.errors import InvariantError
from tidestate.statestore.spec.store import Parquet

RUNNERS = [
    pytest.param(by_harness, id="harness"),
    pytest.param(by_standalone, id="standalone"),
    pytest.param(by_hand, id="by hand"),
]


def test_harness_and_standalone_publish_deliver_and_warn_in_the_same_way(
    tmp_path: Path,
    warnings: Callable[[Path], list[str]],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
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
@settings(max_examples=settings.default.max_examples // 4)
def test_any_stream_gives_both_the_same_checkpoints(
    tmp_path_factory: pytest.TempPathFactory, setting: Setting, made: list[streams.Batch]
) -> None:
    batches, described = [streams.arrow(one) for one in made], streams.description(setting)
    root = tmp_path_factory.mktemp("roots")
    dropped = IDENTITIES, OF_THE_CLOCK, OF_THE_RUNNER, OF_BYTES
    ours, theirs = (
        what_came(run, described, root / run.__name__, batches, *dropped) for run in (by_harness, by_standalone)
    )
    assert ours == theirs


@pytest.mark.parametrize("run", RUNNERS)
def test_a_sink_that_says_no_is_asked_again_and_nothing_is_taken_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    check_asked_again(run, tmp_path / "root", monkeypatch)


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
    results = InProcess().run(at_work.micro_batch(0), [batch([(1, "a", 1), (2, "b", 1)])])
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
