"""Moves and collections do what their plan shows: nothing is decided twice, and an old plan does nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.helpers.manifests import files_below
from tests.helpers.moves import execute_repair, repair
from tests.helpers.worked_example import STREAM, example
from tidestate.recovery.cli.main import app
from tidestate.recovery.log.checkpoint import Checkpoint, manifest_path
from tidestate.recovery.log.manifest import state_files
from tidestate.recovery.log.pins import pin
from tidestate.recovery.moves import repair as repairs
from tidestate.recovery.moves import reset as resets
from tidestate.recovery.moves.fork import execute_fork, plan_fork
from tidestate.recovery.moves.repair import plan_repair
from tidestate.recovery.moves.rescale import execute_rescale, plan_rescale
from tidestate.recovery.moves.reset import execute_reset, plan_reset
from tidestate.recovery.moves.reset_plan import ResetPlan
from tidestate.recovery.retention.collection import collect, execute_collection, plan_collection
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.errors import ConflictError, CorruptionError, NotFoundError, TidestateError, UsageError
from tidestate.statestore.spec.store import Parquet
from tidestate.statestore.storage.objects import Objects

NEWEST = CheckpointRetention(newest=1, grace="0 seconds")


def run(root: Path, batches: int) -> None:
    example("retracting").standalone(checkpoint=root, store=Parquet(max_levels=2), partitions=2).run(STREAM[:batches])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A fence and four batches, 2 to 5; the newest manifest is damaged where a test says so."""
    run(tmp_path / "root", 4)
    return tmp_path / "root"


@pytest.fixture
def damaged(root: Path) -> Path:
    (root / manifest_path(5)).write_bytes(b"rubbish")
    return root


def tidestate(*arguments: object) -> Any:
    done = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout.splitlines()[-1])


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> Counter[Any]:
    """How often a function is called, by its last argument that is text."""
    calls, real = Counter[Any](), getattr(owner, name)

    def counting(*arguments: Any, **named: Any) -> Any:
        calls[next((one for one in arguments if isinstance(one, str)), name)] += 1
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, counting)
    return calls


def test_a_repair_reads_each_file_once_and_plans_once(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = Counter(ref.path for ref in state_files(Checkpoint.open(damaged).read(4).manifest))
    mapped = counted(monkeypatch, Objects, "map")
    planned = [counted(monkeypatch, repairs, name) for name in ("plan_reset", "_files")]
    found = tidestate("repair", damaged, "--to", "newest-good", "--confirm")
    assert (found["done"], found["reset"], found["abandoned"]) == (True, 6, [[5, 5]])
    assert {path: mapped[path] for path in wanted} == wanted, "of a bundle each part"
    assert [sum(calls.values()) for calls in planned] == [1, 1]


@pytest.mark.parametrize("arguments", [("rewind", "--to", 3), ("repair", "--to", "newest-good")], ids=str)
def test_going_back_is_planned_once(
    damaged: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[Any, ...]
) -> None:
    verb, *more = arguments
    observed = tidestate(verb, damaged, *more)
    reads = counted(monkeypatch, resets, "files_read")
    done = tidestate(verb, damaged, *more, "--confirm")
    assert sum(reads.values()) == 1
    assert {**done, "done": False} == observed
    assert Checkpoint.open(damaged).stored_ids()[-1] == observed["reset"]


def test_what_is_published_is_what_was_planned(root: Path, tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(root)
    divided = plan_rescale(checkpoint, 3)
    execute_rescale(checkpoint, divided)
    assert checkpoint.read(6).manifest == divided.manifest
    back = plan_reset(checkpoint, 3)
    execute_reset(checkpoint, back)
    assert checkpoint.read(7).manifest == back.manifest
    forked = plan_fork(root, tmp_path / "fork")
    assert not (tmp_path / "fork").exists()
    assert execute_fork(forked) == forked.result
    assert Checkpoint.open(tmp_path / "fork").read(7).manifest == forked.manifest
    assert tidestate("list", tmp_path / "fork")["id"] == forked.result.checkpoint_id


def test_what_is_deleted_is_what_was_emitted(root: Path) -> None:
    run(root, 6)
    observed = tidestate("gc", root, "--newest", 2, "--grace", "0s")
    before = files_below(root)
    done = tidestate("gc", root, "--newest", 2, "--grace", "0s", "--confirm")
    assert {**done, "done": False} == observed
    gone = {path for path in before if path not in files_below(root)}
    assert gone == {*observed["files"], *(manifest_path(number) for number in observed["checkpoints"])}


def repaired(root: Path) -> Callable[[Checkpoint], object]:
    (root / manifest_path(5)).write_bytes(b"rubbish")
    planned = plan_repair(Checkpoint.open(root))
    assert planned.reset is not None
    return lambda checkpoint: execute_repair(checkpoint, planned)


def rewound(root: Path) -> Callable[[Checkpoint], object]:
    planned = ResetPlan.of_rewind(Checkpoint.open(root), 3)
    return lambda _checkpoint: planned.execute()


def put_back(root: Path) -> Callable[[Checkpoint], object]:
    planned = plan_reset(Checkpoint.open(root), 3)
    return lambda checkpoint: execute_reset(checkpoint, planned)


def rescaled(root: Path) -> Callable[[Checkpoint], object]:
    planned = plan_rescale(Checkpoint.open(root), 3)
    return lambda checkpoint: execute_rescale(checkpoint, planned)


@pytest.mark.parametrize("move", [repaired, rewound, put_back, rescaled])
def test_when_the_head_has_moved_nothing_happens(
    root: Path, move: Callable[[Path], Callable[[Checkpoint], Any]]
) -> None:
    execute, path = move(root), root / manifest_path(6)
    path.write_bytes((root / manifest_path(4)).read_bytes())  # whatever it is
    before = files_below(root)
    with pytest.raises(ConflictError, match="plan-moved") as caught:
        execute(Checkpoint.open(root))
    assert caught.value.context == {"planned_on": 5, "newest": 6}
    assert files_below(root) == before
    path.unlink()
    execute(Checkpoint.open(root))


def check_refused(root: Path, act: Callable[[], object], kind: type[TidestateError], code: str) -> None:
    before = files_below(root.parent)
    with pytest.raises(kind, match=code):
        act()
    assert files_below(root.parent) == before


def test_a_fork_is_of_its_checkpoint_whatever_the_job_has_done_since(root: Path, tmp_path: Path) -> None:
    planned = [plan_fork(root, tmp_path / name, 5) for name in ("first", "second", "third")]
    run(root, 6)
    assert execute_fork(planned[0]).checkpoint_id == 5
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "something").write_text("of yours")
    check_refused(root, lambda: execute_fork(planned[1]), UsageError, "fork-used")
    (tmp_path / "first").rename(tmp_path / "elsewhere")
    for name in (root / "pins").iterdir():
        name.unlink()
    collect(Checkpoint.open(root), NEWEST)
    check_refused(root, lambda: execute_fork(planned[2]), NotFoundError, "collected")


def test_of_two_collections_that_were_planned_one_is_made(root: Path) -> None:
    run(root, 6)
    first, second = (plan_collection(Checkpoint.open(root), NEWEST) for _ in range(2))
    execute_collection(Checkpoint.open(root), first)
    check_refused(root, lambda: execute_collection(Checkpoint.open(root), second), ConflictError, "collection-moved")


def test_what_has_come_to_be_needed_stays(root: Path) -> None:
    """A collection may run while the job does, so it is not refused for what came since: that is left out."""
    run(root, 6)
    checkpoint = Checkpoint.open(root)
    planned = plan_collection(checkpoint, NEWEST)
    pin(checkpoint, 3, "kept")
    run(root, 6)
    done = execute_collection(checkpoint, planned)
    assert set(planned.result.checkpoints) - set(done.checkpoints) == {3}
    assert set(done.files) < set(planned.result.files)
    assert done.pinned == (3,)
    assert done.bytes < planned.result.bytes
    found = CliRunner().invoke(app, ["verify", str(root), "--read-data"])
    assert found.exit_code == 0, found.output
    assert asdict(done)["boundary"] == planned.result.boundary


def test_a_pin_of_what_is_damaged_stops_a_collection_before_it_begins(root: Path) -> None:
    """Also where a reset has abandoned it: a collection that has to know its files cannot."""
    pin(Checkpoint.open(root), 5, "kept")
    (root / manifest_path(5)).write_bytes(b"rubbish")
    repair(Checkpoint.open(root))
    run(root, 6)
    check_refused(root, lambda: collect(Checkpoint.open(root), NEWEST), CorruptionError, "manifest-damaged")
    assert collect(Checkpoint.open(root), CheckpointRetention(newest=99, grace="0 seconds")).checkpoints == ()
