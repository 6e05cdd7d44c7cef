"""Files of a root that are gone, empty or another's: each reader says so, or answers exactly as before."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.collected import NOW, files, observed, run, whole
from tests.helpers.command import tidestate_here
from tests.helpers.manifests import chain, following
from tests.helpers.moves import fork, repair, reset_to
from tests.helpers.process import LONG, in_turn, longer
from tidestate.operators.inspect.history.window_history import window_history
from tidestate.operators.inspect.report import points
from tidestate.recovery.inspect.rows import Wanted, output_rows, state_difference, state_rows
from tidestate.recovery.inspect.verify import verify
from tidestate.recovery.log.boundary import Boundary
from tidestate.recovery.log.checkpoint import Checkpoint, manifest_path
from tidestate.recovery.log.marker import MARKER
from tidestate.recovery.log.pins import pin, unpin
from tidestate.recovery.log.records import boundary_path, held_pins, read_pins, seal
from tidestate.recovery.log.traces import REACHED
from tidestate.recovery.moves.repair import plan_repair
from tidestate.recovery.moves.rescale import plan_rescale
from tidestate.recovery.retention.collection import collect, plan_collection
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.errors import CorruptionError, DataError, NotFoundError

SOME = (3, 6, 7, 10, 14)
"""A pinned one that was collected, the first, one that was abandoned, one between, the newest."""
WINDOW = "2024-01-01T00:00:40"


def put_out(checkpoint: Checkpoint, kind: str) -> list[Any]:
    rows = output_rows(checkpoint, checkpoint.outputs(), kind, "windows", Wanted())
    return [table.to_pylist() for table in rows]


def state(checkpoint: Checkpoint) -> list[Any]:
    head = checkpoint.head()
    assert head is not None
    operator = head.manifest.operators["windows"]
    return [
        pa.concat_tables(state_rows(checkpoint, operator, spec, Wanted())).to_pylist() for spec in operator.tables
    ]


def report(checkpoint: Checkpoint) -> Any:
    found = verify(checkpoint, read_percent=100)
    if found.findings:
        raise CorruptionError("it is among the findings", code="found")
    return found, points.checkpoint_history(checkpoint, 100)


def reported(checkpoint: Checkpoint) -> Any:
    found = window_history(checkpoint, WINDOW, {"k": "a"})
    if found.unread:
        raise CorruptionError("it says what it could not read", code="unread")
    return found


def collection(checkpoint: Checkpoint) -> Any:
    planned = plan_collection(checkpoint, NOW, at_us=2**60).result
    return planned.boundary, planned.pinned, planned.kept, planned.panes_gone, planned.late_gone


READERS: dict[str, Callable[[Checkpoint], Any]] = {
    "panes": lambda checkpoint: put_out(checkpoint, "panes"),
    "late": lambda checkpoint: put_out(checkpoint, "late"),
    "paths": lambda checkpoint: checkpoint.pane_paths(),
    "a sink that comes later": lambda checkpoint: [one.id for one in checkpoint.outputs(1) if one.panes],
    "state": state,
    "diff": lambda checkpoint: state_difference(checkpoint, (10, 12), None, None, Wanted()).to_pylist(),
    "a pinned one": lambda checkpoint: checkpoint.read(3).manifest,
    "history": reported,
    "manifests": lambda checkpoint: list(checkpoint.history()),
    "report": report,
    "gc": collection,
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two collections and a reset behind it, two pins, one of them of a checkpoint that was collected."""
    root = tmp_path_factory.mktemp("lost") / "root"
    run(root, 6)
    checkpoint = Checkpoint.open(root)
    pin(checkpoint, 3, "old")
    collect(checkpoint, CheckpointRetention(newest=3, grace="0 seconds"))
    reset_to(checkpoint, 6)
    run(root, 8)
    collect(checkpoint, CheckpointRetention(newest=6, grace="0 seconds"))
    pin(checkpoint, 9, "new")
    run(root, 9)
    assert checkpoint.ids() == [6, 7, 8, 9, 10, 11, 12, 13, 14]
    assert checkpoint.boundary().number == 2
    return root


def answers(root: Path, first: int = 0, step: int = 1) -> dict[str, Any]:
    """What each reader gives, or each ``step``-th from the ``first`` one; or the code of its error."""
    found = {}
    for name, reader in [*READERS.items()][first::step]:
        try:
            found[name] = reader(Checkpoint.open(root))
        except (DataError, NotFoundError) as error:
            found[name] = error.code
    return found


def damages(root: Path) -> Iterator[tuple[str, Path, bytes | None]]:
    records = [one for one in root.rglob("*") if one.relative_to(root).parts[0] not in ("data", "panes", "late")]
    for path in sorted(one for one in records if one.is_file()):
        if path.parent.name == "manifests" and int(path.stem) not in SOME and not LONG:
            continue
        yield "gone", path, None
        yield "empty", path, b""
        others = [one for one in sorted(path.parent.iterdir()) if one != path and one.suffix == path.suffix]
        for other in others if LONG else others[-1:]:
            yield f"that of {other.name}", path, other.read_bytes()


@pytest.mark.slow
def test_any_record_gone_empty_or_swapped_is_reported_or_harmless(root: Path) -> None:
    before = answers(root)
    assert not [name for name, answer in before.items() if isinstance(answer, str)]
    seen = set()
    for number, (how, path, data) in enumerate(damages(root)):
        good = path.read_bytes()
        path.unlink() if data is None else path.write_bytes(data)
        try:
            now = answers(root) if LONG else answers(root, number % 8, 8)
        finally:
            path.write_bytes(good)
        for name, answer in now.items():
            assert answer == before[name] or isinstance(answer, str), (how, path, name)
        seen.add(str(path.relative_to(root)).partition("/")[0])
    assert seen == {MARKER, "manifests", "gc", "pins", REACHED}
    assert answers(root) == before


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    return shutil.copytree(root, tmp_path / "root")


def test_a_sink_that_comes_later_is_not_moved_past_a_gap(copy: Path) -> None:
    (copy / manifest_path(10)).unlink()
    taken: list[int] = []
    with pytest.raises(CorruptionError, match=r"manifest-gone.*ids=10\n"):
        run(copy, 10, sink=lambda _rows, number: taken.append(number))
    head = Checkpoint.open(copy).newest()
    assert head is not None
    assert (taken, head.manifest.delivered.panes) == ([], 0)
    assert list(Checkpoint.open(copy).outputs(11))  # what lies beyond is whole
    with pytest.raises(CorruptionError, match="manifest-gone"):
        Checkpoint.open(copy).read(10)
    done = tidestate_here("panes", copy, "--json")
    assert (done.returncode != 0, done.stdout) == (True, "")
    assert "manifest-gone" in done.stderr


def test_a_reset_goes_back_over_a_gap(copy: Path) -> None:
    (copy / manifest_path(10)).unlink()
    reset_to(Checkpoint.open(copy), 9)
    assert observed(Checkpoint.open(copy))
    assert verify(Checkpoint.open(copy)).worst is None
    run(copy, 9)
    collect(Checkpoint.open(copy), NOW)


@pytest.mark.parametrize("lost", [(11,), (6, 7), (9,)], ids=repr)
def test_nothing_is_deleted_where_a_manifest_is_gone(copy: Path, lost: tuple[int, ...]) -> None:
    for number in lost:
        (copy / manifest_path(number)).unlink()
    there = files(copy)
    with pytest.raises(CorruptionError, match="manifest-gone"):
        collect(Checkpoint.open(copy), NOW)
    assert files(copy) == there


@pytest.mark.parametrize("count", [1, *longer(2)])
def test_nothing_is_deleted_where_the_first_manifests_are_gone(tmp_path: Path, count: int) -> None:
    """Of a root that was never collected: no boundary says where it begins."""
    run(tmp_path, 8)
    for number in range(1, count + 1):
        (tmp_path / manifest_path(number)).unlink()
    there, checkpoint = files(tmp_path), Checkpoint.open(tmp_path)
    for act in (lambda: collect(checkpoint, NOW), checkpoint.pane_paths):
        with pytest.raises(CorruptionError, match="manifest-gone"):
            act()
    assert files(tmp_path) == there
    assert verify(checkpoint, read_percent=100).worst is not None


def test_without_its_boundary_nothing_is_read_short(copy: Path) -> None:
    (copy / boundary_path(2)).unlink()
    for act in (lambda one: list(one.outputs()), lambda one: collect(one, NOW), lambda one: one.ids()):
        with pytest.raises(CorruptionError, match="manifest-gone"):
            act(Checkpoint.open(copy))
    assert verify(Checkpoint.open(copy)).worst is not None
    (copy / boundary_path(2)).write_bytes(seal(Boundary(1, 4, 0, "")))
    with pytest.raises(CorruptionError, match="record-damaged"):
        Checkpoint.open(copy).ids()


def test_the_first_manifests_of_a_fork_are_missed(copy: Path, tmp_path: Path) -> None:
    fork(copy, tmp_path / "fork", 11)
    run(tmp_path / "fork", 9)
    forked = Checkpoint.open(tmp_path / "fork")
    whole(tmp_path / "fork")
    assert forked.ids()[0] == forked.marker.first == 11
    for number in (11, 12):
        (tmp_path / "fork" / manifest_path(number)).unlink()
        with pytest.raises(CorruptionError, match="manifest-gone"):
            list(forked.outputs())
    for path in (tmp_path / "fork" / "manifests").iterdir():
        path.unlink()
    with pytest.raises(CorruptionError, match="root-further"):
        forked.head()


def lose(root: Path, count: int) -> None:
    for path in sorted((root / "manifests").iterdir())[-count:]:
        path.unlink()


def outcome(root: Path) -> list[Any]:
    """Rows in the end, whatever the checkpoints were called."""
    return [rows for _, rows in observed(Checkpoint.open(root))]


PUT_BACK = in_turn([2, 3, 5], [True, False])
"""In every run `test_a_pin_knows_of_a_checkpoint_that_is_gone` is without notes."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "notes"), [PUT_BACK[0], *(pytest.param(*case, marks=pytest.mark.long) for case in PUT_BACK[1:])]
)
def test_a_root_that_was_put_back_goes_on_above_what_it_saw(tmp_path: Path, count: int, notes: bool) -> None:
    """The manifests of an older copy with the files of now: refused, and with a word gone on, no id used twice."""
    root = tmp_path / "root"
    run(root, 8)
    run(tmp_path / "other", 10)
    lose(root, count)
    if not notes:  # as after a kill and a power cut
        shutil.rmtree(root / REACHED)
    there = files(root)
    for act in (
        lambda: run(root, 10),
        lambda: collect(Checkpoint.open(root), NOW),
        lambda: plan_rescale(Checkpoint.open(root), 3),
    ):
        with pytest.raises(CorruptionError, match="root-further"):
            act()
    assert files(root) == there
    assert verify(Checkpoint.open(root)).worst is not None
    assert [one.checkpoint for one in plan_repair(Checkpoint.open(root)).findings] == [9]
    run(root, 10, policy=ts.Policy(damaged="reset"))
    checkpoint = Checkpoint.open(root)
    assert checkpoint.ids() == [*range(1, 10 - count), *range(10, 14 + count)]
    back = checkpoint.read(10).manifest
    assert (back.kind, back.parent_id, back.abandoned) == ("reset", 9 - count, ((10 - count, 9),))
    assert outcome(root) == outcome(tmp_path / "other")
    assert verify(checkpoint, read_percent=100).worst is None
    collect(checkpoint, NOW)
    whole(root)


def test_what_a_crash_leaves_is_no_sign_of_more(tmp_path: Path) -> None:
    """The attempt at a next checkpoint, and the newest one lost without a trace but that: they look the same."""
    run(tmp_path, 6)
    lose(tmp_path, 1)
    shutil.rmtree(tmp_path / REACHED)
    run(tmp_path, 8)
    whole(tmp_path)


def test_a_pin_knows_of_a_checkpoint_that_is_gone(copy: Path) -> None:
    pin(Checkpoint.open(copy), 14, "newest")
    shutil.rmtree(copy / REACHED)
    lose(copy, 1)
    with pytest.raises(CorruptionError, match="root-further"):
        run(copy, 10)
    done = repair(Checkpoint.open(copy))
    assert done.reset is not None
    assert (done.reset.id, done.reset.to) == (15, 13)


def test_a_rewind_is_not_undone_by_losing_it(copy: Path) -> None:
    reset_to(Checkpoint.open(copy), 9)
    lose(copy, 1)
    with pytest.raises(CorruptionError, match=r"root-further.*newest=14 traces_up_to=15"):
        Checkpoint.open(copy).head()


def test_where_no_manifest_is_left_nothing_begins_again(copy: Path, tmp_path: Path) -> None:
    lose(copy, 99)
    shutil.rmtree(copy / "gc")
    shutil.rmtree(copy / REACHED)
    there = files(copy)
    checkpoint = Checkpoint.open(copy)
    for act in (
        lambda: run(copy, 3),
        lambda: run(copy, 3, policy=ts.Policy(damaged="reset")),
        lambda: checkpoint.pane_paths(),
        lambda: collect(checkpoint, NOW),
    ):
        with pytest.raises(CorruptionError, match=r"root-further|none-whole"):
            act()
    assert verify(checkpoint).worst is not None
    (copy / MARKER).unlink()
    with pytest.raises(CorruptionError, match="marker-missing"):
        run(copy, 3)
    assert files(copy) == there - {MARKER}


def test_a_boundary_tells_that_there_was_a_newest(copy: Path) -> None:
    collect(Checkpoint.open(copy), CheckpointRetention(newest=1, grace="0 seconds"))
    lose(copy, 1)
    shutil.rmtree(copy / REACHED)
    assert Checkpoint.open(copy).stored_ids() == [3, 9]  # pinned
    with pytest.raises(CorruptionError, match=r"root-further.*traces_up_to=14"):
        Checkpoint.open(copy).head()
    assert reset_to(Checkpoint.open(copy), 9).id == 15
    run(copy, 9)
    assert verify(Checkpoint.open(copy), read_percent=100).worst is None


def test_either_file_of_a_pin_keeps_its_checkpoint(copy: Path) -> None:
    checkpoint = Checkpoint.open(copy)
    for lost in ("pins/old.json", "pins/old.held"):
        again = shutil.copytree(copy, copy.parent / lost.replace("/", "-"))
        (again / lost).unlink()
        checkpoint = Checkpoint.open(again)
        collect(checkpoint, NOW)
        assert checkpoint.read(3).manifest.id == 3
        whole(again)
        unpin(checkpoint, "old")
        assert (read_pins(checkpoint.objects)[0].name, held_pins(checkpoint.objects)) == ("new", {"new"})
        collect(checkpoint, NOW)
        with pytest.raises(NotFoundError, match="collected"):
            checkpoint.read(3)


def test_a_listing_next_to_a_writer_may_lack_what_came_meanwhile(tmp_path: Path) -> None:
    """A folder is not listed at one moment: a later manifest may be seen and an earlier one missed."""

    class Torn(type(Checkpoint.open_or_create(tmp_path).objects)):  # type: ignore[misc]
        listed = 0

        def names(self, folder: str) -> list[str]:
            found = super().names(folder)
            if folder == "manifests":
                self.listed += 1
                if self.listed == 1:
                    heads = chain(Checkpoint.open(tmp_path), 0) or [Checkpoint.open(tmp_path).read(4)]
                    for _ in range(2):
                        made = following(Checkpoint.open(tmp_path), heads[-1])
                        heads.append(Checkpoint.open(tmp_path).publish(made))
                    found = [*found, *super().names(folder)[-1:]]
            return list(found)

    chain(Checkpoint.open(tmp_path), 4)
    checkpoint = dataclasses.replace(Checkpoint.open(tmp_path), objects=Torn(tmp_path))
    assert checkpoint.ids() == [1, 2, 3, 4, 5, 6]


def test_a_run_notes_how_far_it_came(tmp_path: Path) -> None:
    run(tmp_path, 3)
    assert [one.name for one in (tmp_path / REACHED).iterdir()] == [f"{4:020d}"]
    run(tmp_path, 4)
    assert [one.name for one in (tmp_path / REACHED).iterdir()] == [f"{6:020d}"]


def test_a_folder_in_place_of_a_manifest_stops_no_collection(copy: Path) -> None:
    newest = Checkpoint.open(copy).ids()[-1]
    (copy / manifest_path(newest)).unlink()
    (copy / manifest_path(newest)).mkdir()
    repair(Checkpoint.open(copy))
    for _ in range(2):
        run(copy, 10)
        collected = collect(Checkpoint.open(copy), CheckpointRetention(newest=1, grace="0 seconds"))
    assert collected.boundary > newest
    assert len(Checkpoint.open(copy).ids()) == 1
