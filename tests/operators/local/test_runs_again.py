"""A run whose messages depend on how they arrived runs its recorded input again, and is what it would have been."""

from __future__ import annotations

import random
import shutil
import signal
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.children.runs_again import GIVEN, LOST_AFTER
from tests.helpers.forked import forked
from tests.helpers.join_jobs import observed
from tests.helpers.lost_messages import FORGET, REBUILD, lose
from tests.helpers.operator_messages import plain, store_config
from tests.helpers.process import LONG
from tests.helpers.runs_again import (
    REPLAYING,
    Clock,
    Input,
    Log,
    disturbed,
    head_of,
    joined,
    sessions_of_sides,
    state_of,
    windows,
    with_ctis,
)
from tidestate.operators.engine.delivery import as_written
from tidestate.operators.local import standalone
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.errors import CorruptionError, NotFoundError, UsageError

KINDS: dict[str, Any] = {
    "joins": joined,
    "ctis": with_ctis,
    "outer sessions": sessions_of_sides,
    **{
        name: lambda seed, name=name: windows(name, seed)
        for name in ("counted", "sliding", "session", "offsets", "lifetimes", "chained", "outputs")
    },
}


@settings(max_examples=60 if LONG else 2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 9999), kind=st.sampled_from([*KINDS, "counted", "joins", "joins"]))
@example(seed=1, kind="counted")
@example(seed=3, kind="joins")
@example(seed=2, kind="outputs")
def test_a_job_is_what_it_would_have_been(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, seed: int, kind: str
) -> None:
    """Panes and all state equal those of a job that has lost nothing."""
    clock = Clock()
    monkeypatch.setattr(standalone, "now_us", clock)
    chance, folder = random.Random(seed), tmp_path_factory.mktemp("again")
    job: Input = KINDS[kind](seed)
    panes = job.job.standalone(checkpoint=folder / "whole", partitions=2).run(clock.paced(job.batches))
    if job.shown is not None:
        asked, shown = job.shown
        assert observed(panes, asked) == shown
    wanted = plain(panes)
    config = store_config(chance.choice(["memory", "parquet"]), folder / "cache")
    found = disturbed(job, folder / "made", chance, config, clock)
    assert sorted(found, key=repr) == sorted(wanted, key=repr)
    if head_of(folder / "made").partitions == 2:
        assert state_of(folder / "made") == state_of(folder / "whole")


def lost(root: Path, batches: int = LOST_AFTER) -> list[tuple[Any, ...]]:
    """The panes of so many batches, all messages of which are gone then."""
    panes = plain(GIVEN.job.standalone(checkpoint=root, partitions=2).run(Log(GIVEN.batches[:batches])))
    assert lose(root)
    return panes


def whole(root: Path) -> list[tuple[Any, ...]]:
    return plain(GIVEN.job.standalone(checkpoint=root, partitions=2).run(Log(GIVEN.batches)))


def lacks(root: Path) -> bool:
    return head_of(root).operators["windows"].rebuilding is not None


def went_on(root: Path, batches: Any = None, **how: Any) -> list[tuple[Any, ...]]:
    """The panes of a start that runs its input again, and of the batches that follow."""
    given = GIVEN.batches if batches is None else batches
    return plain(GIVEN.job.standalone(checkpoint=root, **{"policy": REPLAYING, **how}).run(Log(given)))


def emitted(root: Path) -> list[tuple[Any, ...]]:
    """All panes of a root."""
    found = Checkpoint.open(root)
    panes = [as_written(found, output.panes) for output in found.outputs()]
    return sorted((row for parts in panes for part in parts for row in plain(part)), key=repr)


@pytest.mark.kill
def test_a_kill_at_any_moment_loses_nothing(tmp_path: Path) -> None:
    """The job's own root has one manifest more, or none, and the next start does it again."""
    wanted = sorted(whole(tmp_path / "whole"), key=repr)
    lost(tmp_path / "lost")
    state, before = state_of(tmp_path / "whole"), head_of(tmp_path / "lost").id
    for death in count(1, 1 if LONG else 3):
        root = shutil.copytree(tmp_path / "lost", tmp_path / str(death))
        assert forked("tests.children.runs_again", root, death) == -signal.SIGKILL
        head = head_of(root)
        # With each moment in turn it is the first after the put back; with every third maybe one of a later batch.
        is_back = head.id > before + 1
        assert head.id in (before + 1, before + 2) or not LONG
        assert lacks(root) != is_back
        went_on(root)
        assert (state_of(root), emitted(root)) == (state, wanted)
        assert not list(root.glob("side-run/*"))
        if is_back:
            break
    assert death > 2 * LOST_AFTER, "at each manifest of the side run, and between the two roots"


def changed(batches: list[pa.Table], number: int) -> list[pa.Table]:
    """The batches, one of which has other values."""
    batch = batches[number]
    column = batch.schema.get_field_index("v")
    return [*batches[:number], batch.set_column(column, "v", pc.add(batch["v"], 1)), *batches[number + 1 :]]


@pytest.mark.parametrize(
    ("collected", "why"), [(False, "batch 1 of the source differs"), (True, "emitted other panes")]
)
def test_a_source_that_gives_other_rows_puts_nothing_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, collected: bool, why: str
) -> None:
    """Its batches are known by their hashes, or by what they make; nothing is lost by the attempt."""
    lost(tmp_path / "root")
    if collected:
        collect(Checkpoint.open(tmp_path / "root"), CheckpointRetention(newest=1, grace="0 seconds"))
    for seeks in (False, True) if LONG else (collected,):
        root = shutil.copytree(tmp_path / "root", tmp_path / str(seeks))
        runner = GIVEN.job.standalone(checkpoint=root, policy=REPLAYING)
        some = changed(GIVEN.batches[:LOST_AFTER], 1)
        assert runner.run(Log(some) if seeks else some).num_rows == 0
        assert lacks(root)
        assert why in caplog.text
        assert "rewind to a checkpoint before the loss" in caplog.text
        assert not list(root.glob("side-run/*"))
        caplog.clear()
        whole(tmp_path / f"whole-{seeks}")
        went_on(root)
        assert not lacks(root)
        assert state_of(root) == state_of(tmp_path / f"whole-{seeks}")


def test_a_source_that_lacks_batches_is_reported_and_the_job_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Panes that differ from those with all messages have been emitted then, so nothing is put back later."""

    class Gone(Log):
        """It has the old batches no more."""

        def seek(self, position: Any) -> Any:
            if position is None:
                raise OSError("they are gone")
            return super().seek(position)

    lost(tmp_path)
    runner = GIVEN.job.standalone(checkpoint=tmp_path, policy=REPLAYING)
    assert runner.run(Gone(GIVEN.batches[:6])).num_rows
    assert "the source could not be read again from position None (OSError: they are gone)" in caplog.text
    assert "the source did not give batch 0 again" in caplog.text
    assert lacks(tmp_path)
    went_on(tmp_path)
    assert "after the loss, than it does with all messages" in caplog.text
    assert lacks(tmp_path)
    went_on(tmp_path, policy=FORGET)
    assert "gives up on the 27 rows of lost files" in caplog.text
    assert not lacks(tmp_path)


def test_a_job_collects_nothing_before_the_messages_are_back(tmp_path: Path) -> None:
    lost(tmp_path)
    keep = CheckpointRetention(newest=1, grace="0 seconds")
    there = Checkpoint.open(tmp_path).present_ids()
    went_on(tmp_path, changed(GIVEN.batches[:LOST_AFTER], 1), checkpoints=keep)
    assert lacks(tmp_path)
    assert Checkpoint.open(tmp_path).present_ids()[: len(there)] == there
    went_on(tmp_path, GIVEN.batches[:LOST_AFTER], checkpoints=keep)
    assert not lacks(tmp_path)


def test_what_happened_beside_the_input_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = GIVEN.job.standalone(checkpoint=tmp_path)
    job.bootstrap(GIVEN.batches[0])
    assert lose(tmp_path)
    went_on(tmp_path, GIVEN.batches[1:3])
    assert "of checkpoint 2: it took history, which is not in the source" in caplog.text
    assert lacks(tmp_path)


def test_a_changed_job_runs_again_from_its_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lost(tmp_path)
    wider = GIVEN.job.allowed_lateness("90 seconds", ledger_columns=("part", "at"))
    plain(wider.standalone(checkpoint=tmp_path, policy=REPLAYING).run(Log(GIVEN.batches)))
    assert "the job was changed after it" in caplog.text
    assert lacks(tmp_path)


def test_a_replay_by_hand_cannot_put_them_back(tmp_path: Path) -> None:
    lost(tmp_path)
    runner = GIVEN.job.standalone(checkpoint=tmp_path, policy=REBUILD)
    with pytest.raises((CorruptionError, NotFoundError)) as caught:
        runner.run(Log(GIVEN.batches))
    assert caught.value.code == "file-missing"
    assert 'Policy(messages="replay")' in str(caught.value)
    with pytest.raises(UsageError, match=r"\[no-messages\]"):
        runner.rebuild(GIVEN.batches)
