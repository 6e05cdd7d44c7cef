"""Many state partitions are in parts of their own: resolved by every reader, merged, copied, collected."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.moves import fork, repair, reset_to
from tests.helpers.process import LONG, examples, longer
from tests.helpers.worked_example import batch
from tidestate import Aggregation, agg
from tidestate.recovery.inspect.rows import Wanted, state_rows
from tidestate.recovery.inspect.verify import verify
from tidestate.recovery.log import parts
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest, OperatorState, state_files
from tidestate.recovery.log.manifest_file import InvalidManifest, check, decode, origin, successor
from tidestate.recovery.moves.rescale import rescale
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import CorruptionError
from tidestate.statestore.files.refs import PartitionState
from tidestate.statestore.spec.store import Parquet

PARTITIONS = 9
BATCHES = [batch([(10 * number + place, key, 0) for place, key in enumerate("abcdefgh")]) for number in range(6)]


@pytest.fixture(autouse=True)
def _few(first: Path, twin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for the ``twin``, which is made before."""
    few(monkeypatch)


def few(patch: pytest.MonkeyPatch) -> None:
    """Small jobs have parts, too, and many of them."""
    patch.setattr("tidestate.recovery.log.manifest.INLINE_PARTITIONS", 2)
    patch.setattr(parts, "PART_BYTES", 1500)
    patch.setattr(parts, "MAX_CHANGES", 3)


def job(late: str = "0 seconds") -> Aggregation:
    made = (
        ts.stream(event_time="t")
        .group_by("k")
        .window(ts.tumbling("10 seconds"))
        .aggregate(n=agg.count())
        .named("job")
    )
    return made.allowed_lateness(late)


def run(root: Path, batches: int = 6, *, late: str = "0 seconds", **how: Any) -> Any:
    started = job(late).standalone(checkpoint=root, store=Parquet(max_levels=2), **how)
    return started.run(BATCHES[:batches])


def newest(root: Path) -> Manifest:
    """Read by a process that knows nothing yet."""
    return Checkpoint.open(root).chosen(None).manifest


def state(root: Path) -> list[str]:
    """The rows of all state tables, however they are divided."""
    checkpoint, operator = Checkpoint.open(root), newest(root).operators["job"]
    tables = [table for spec in operator.tables for table in state_rows(checkpoint, operator, spec, Wanted())]
    return sorted(repr(row) for table in tables for row in table.to_pylist())


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same job with its partitions in the manifests."""
    root = tmp_path_factory.mktemp("parts") / "twin"
    run(root, partitions=PARTITIONS)
    return root


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("parts") / "root"
    with pytest.MonkeyPatch.context() as patch:
        few(patch)
        run(root, partitions=PARTITIONS)
    return root


@pytest.fixture
def root(first: Path, tmp_path: Path) -> Path:
    """A job that has taken all batches."""
    return Path(shutil.copytree(first, tmp_path / "root"))


def paths(root: Path, kind: str = "") -> list[Path]:
    operator = newest(root).operators["job"]
    return [root / ref.path for ref in (getattr(operator, kind) if kind else operator.parts)]


def test_the_manifest_names_parts_and_readers_see_all_partitions(root: Path, twin: Path) -> None:
    for written, inline in zip(evidence.manifests(root), evidence.manifests(twin), strict=True):
        found, other = (one["operators"]["job"] for one in (written, inline))
        assert (found["partitions"], found["count"], len(other["partitions"])) == ([], PARTITIONS, PARTITIONS)
        assert len(found["base"]) == len(found["copies"])
        assert (other["base"], other["copies"], other["changes"]) == ([], [], [])
        read = Checkpoint.open(root).read(written["id"]).manifest.operators["job"]
        named = [[(ref.table, ref.kind, ref.rows) for ref in one.files] for one in read.partitions]
        assert named == [[(ref["table"], ref.get("kind", "changelog"), ref["rows"]) for ref in one["files"]]
                         for one in other["partitions"]]  # fmt: skip
    assert len(newest(root).operators["job"].base) > 1
    report = verify(Checkpoint.open(root), read_percent=100)
    assert (report.findings, report.good) == ((), 7)


def test_a_restarted_job_goes_on(tmp_path: Path, twin: Path) -> None:
    for number in range(1, 7) if LONG else (1, 3, 4, 6):
        run(tmp_path / "root", number, partitions=PARTITIONS)
    assert state(tmp_path / "root") == state(twin)
    panes = [
        sorted(row for one in evidence.panes(root) for row in one.elements()) for root in (tmp_path / "root", twin)
    ]
    assert panes[0] == panes[1]


ENTRY = st.integers(0, 3)
ROUNDS = st.lists(st.dictionaries(st.integers(0, PARTITIONS - 1), ENTRY, max_size=6), min_size=1, max_size=25)


@given(ROUNDS, st.integers(0, 2**32))
@settings(deadline=None, max_examples=examples(25))
def test_any_changes_give_the_partitions_back(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[dict[int, int]], seed: int
) -> None:
    checkpoint = Checkpoint.open_or_create(tmp_path_factory.mktemp("root"))
    partitions = tuple(PartitionState(lineage=str(number)) for number in range(PARTITIONS))
    operator = OperatorState({}, "", (), partitions)
    head = checkpoint.publish(
        successor(origin(checkpoint.marker.job_id), "fence", "w", 0, operators={"job": operator})
    )
    expected = {1: partitions}
    for place, changed in enumerate(rounds):
        if (seed >> place % 32) & 1:
            checkpoint = Checkpoint.open(checkpoint.objects.root)
            head = checkpoint.read(head.manifest.id)
        now = list(head.manifest.operators["job"].partitions)
        for number, entry in changed.items():
            now[number] = PartitionState(lineage=f"{number}-{entry}")
        moved = msgspec.structs.replace(head.manifest.operators["job"], partitions=tuple(now))
        head = checkpoint.publish(successor(head, "batch", "w", 0, operators={"job": moved}))
        expected[head.manifest.id] = tuple(now)
        assert len(head.manifest.operators["job"].changes) <= parts.MAX_CHANGES + 1
    for number, wanted in expected.items():
        found = Checkpoint.open(checkpoint.objects.root).read(number)
        assert found.manifest.operators["job"].partitions == wanted
        assert found.manifest.operators["job"].count == PARTITIONS


def test_what_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open_or_create(tmp_path)
    operator = OperatorState({}, "", (), tuple(PartitionState(lineage=str(n)) for n in range(PARTITIONS)))
    head = checkpoint.publish(
        successor(origin(checkpoint.marker.job_id), "fence", "w", 0, operators={"job": operator})
    )
    before = sorted((tmp_path / "data").rglob("*"))
    head = checkpoint.publish(successor(head, "tick", "w", 0))
    assert sorted((tmp_path / "data").rglob("*")) == before
    one = msgspec.structs.replace(head.manifest.operators["job"].partitions[3], lineage="x")
    now = list(head.manifest.operators["job"].partitions)
    now[3] = one
    moved = msgspec.structs.replace(head.manifest.operators["job"], partitions=tuple(now))
    checkpoint.publish(successor(head, "tick", "w", 0, operators={"job": moved}))
    (new,) = set((tmp_path / "data").rglob("*")) - set(before)
    assert list(json.loads(new.read_bytes())["partitions"]) == ["3"]


def test_a_few_partitions_are_in_the_manifest(tmp_path: Path) -> None:
    run(tmp_path, partitions=2)
    assert all(len(one["operators"]["job"]["partitions"]) == 2 for one in evidence.manifests(tmp_path))
    assert not list(tmp_path.rglob("*.partitions.json"))


def test_collection_keeps_the_parts_that_are_needed(root: Path) -> None:
    (root / "data" / "job" / f"8-{'0' * 32}.partitions.json").write_bytes(b"left by a crash")
    needed = {ref.path for ref in state_files(newest(root))}
    collect(Checkpoint.open(root), CheckpointRetention(newest=1, grace="0 seconds"))
    there = {path.relative_to(root).as_posix() for path in (root / "data").rglob("*") if path.is_file()}
    assert {path for path in there if path.endswith(".json")} - needed <= {f"data/job/8-{'0' * 32}.partitions.json"}
    assert needed <= there
    assert verify(Checkpoint.open(root), read_percent=100).findings == ()
    run(root, partitions=PARTITIONS)


def test_going_back(root: Path) -> None:
    then = Checkpoint.open(root).read(4).manifest.operators["job"]
    reset_to(Checkpoint.open(root), 4)
    now = newest(root).operators["job"]
    assert (now.base, now.changes, now.partitions) == (then.base, then.changes, then.partitions)
    run(root)
    assert verify(Checkpoint.open(root), read_percent=100).findings == ()


@pytest.mark.long
def test_a_fork_of_a_fork(tmp_path: Path, twin: Path) -> None:
    run(tmp_path / "root", 3, partitions=PARTITIONS)
    fork(tmp_path / "root", tmp_path / "one")
    run(tmp_path / "one", 4)
    fork(tmp_path / "one", tmp_path / "two")
    fork(tmp_path / "two", tmp_path / "three")
    run(tmp_path / "three", 6)
    for name in ("one", "two", "three"):
        assert all(ref.root == 0 for ref in newest(tmp_path / name).operators["job"].parts)
        assert verify(Checkpoint.open(tmp_path / name), read_percent=100).findings == ()
    assert state(tmp_path / "three") == state(twin)


@pytest.mark.parametrize("partitions", [5, *longer(1, 14)])
def test_a_rescale(tmp_path: Path, twin: Path, partitions: int) -> None:
    run(tmp_path / "root", 3, partitions=PARTITIONS)
    rescale(tmp_path / "root", partitions)
    operator = newest(tmp_path / "root").operators["job"]
    assert (operator.count, operator.changes) == (partitions if partitions > 2 else 0, ())
    run(tmp_path / "root", 6)
    assert state(tmp_path / "root") == state(twin)
    assert verify(Checkpoint.open(tmp_path / "root"), read_percent=100).findings == ()


@pytest.mark.long
def test_another_configuration(tmp_path: Path) -> None:
    run(tmp_path, 3, partitions=PARTITIONS)
    run(tmp_path, 6, late="1 hour")
    assert len(newest(tmp_path).operators["job"].partitions) == PARTITIONS


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        pytest.param("base", flip, id="base-flipped"),
        pytest.param("copies", Path.unlink, id="copies-gone"),
        pytest.param("base", Path.unlink, id="base-gone", marks=pytest.mark.long),
        pytest.param("copies", flip, id="copies-flipped", marks=pytest.mark.long),
    ],
)
def test_a_damaged_part_of_a_base_has_a_copy(tmp_path: Path, kind: str, damage: Callable[[Path], None]) -> None:
    run(tmp_path, 5, partitions=PARTITIONS)
    before = newest(tmp_path)
    path = paths(tmp_path, kind)[0]
    damage(path)
    assert newest(tmp_path) == before
    report = verify(Checkpoint.open(tmp_path), read_percent=100)
    assert {one.path for one in report.findings} == {path.relative_to(tmp_path).as_posix()}
    assert report.good == before.id, "nothing is lost"
    assert repair(Checkpoint.open(tmp_path)).reset is None
    run(tmp_path)


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        pytest.param("changes", flip, id="changes-flipped"),
        pytest.param("both", Path.unlink, id="both-gone"),
        pytest.param("changes", Path.unlink, id="changes-gone", marks=pytest.mark.long),
        pytest.param("both", flip, id="both-flipped", marks=pytest.mark.long),
    ],
)
def test_without_a_copy_the_job_goes_back(tmp_path: Path, kind: str, damage: Callable[[Path], None]) -> None:
    root = tmp_path / "root"
    run(root, 5, partitions=PARTITIONS)  # its newest checkpoint has changes next to a base
    operator = newest(root).operators["job"]
    refs = operator.changes[-1:] if kind == "changes" else (operator.base[0], operator.copies[0])
    for ref in refs:
        damage(root / ref.path)
    with pytest.raises(CorruptionError):
        newest(root)
    report = verify(Checkpoint.open(root), read_percent=100)
    assert report.findings
    done = repair(Checkpoint.open(root))
    assert done.reset is not None
    assert done.reset.to == report.good
    run(root)


def test_a_manifest_names_each_partition_once(root: Path) -> None:
    path = next((root / "manifests").glob(f"{newest(root).id:020d}.json"))
    manifest, _ = decode(path.read_bytes(), str(path))
    operator = manifest.operators["job"]
    base = operator.base
    assert len(base) > 1
    for wrong in (
        {"base": base[1:], "copies": operator.copies[1:]},
        {"base": (*base, base[0]), "copies": (*operator.copies, operator.copies[0])},
        {"copies": ()},
        {"copies": operator.copies[::-1]},
        {"count": PARTITIONS + 1},
        {"count": 10**9},
        {"base": tuple(msgspec.structs.replace(ref, root=1) for ref in base)},
        {"base": tuple(msgspec.structs.replace(ref, path="data/other/1") for ref in base)},
        {"base": (msgspec.structs.replace(base[0], last=10**15), *base[1:])},
    ):
        forged = msgspec.structs.replace(manifest, operators={"job": msgspec.structs.replace(operator, **wrong)})
        with pytest.raises(InvalidManifest):
            check(forged)


def test_a_part_has_the_partitions_that_the_manifest_says(tmp_path: Path) -> None:
    run(tmp_path, 2, partitions=PARTITIONS)
    manifest = newest(tmp_path)
    operator = manifest.operators["job"]
    ref = operator.base[0]
    data = json.loads((tmp_path / ref.path).read_bytes())
    for number, change in enumerate([{"operator": "other"}, {"partitions": {}}, {"partitions": 7}]):
        forged = msgspec.json.encode(data | change)
        path = f"data/job/9-{number:032x}.partitions.json"
        (tmp_path / path).write_bytes(forged)
        wrong = msgspec.structs.replace(ref, path=path, bytes=len(forged), checksum=checksum(forged))
        bad = msgspec.structs.replace(operator, base=(wrong, *operator.base[1:]), copies=())
        with pytest.raises(CorruptionError) as refused:
            parts.Parts().resolved(
                Checkpoint.open(tmp_path).objects, msgspec.structs.replace(manifest, operators={"job": bad})
            )
        assert refused.value.code == "manifest-part"


def test_a_writer_that_dies_before_its_manifest_leaves_parts_that_nobody_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidestate.statestore.storage.objects import Objects

    run(tmp_path, 3, partitions=PARTITIONS)
    before = newest(tmp_path)

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Objects, "create", dies)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, 4)
    assert newest(tmp_path) == before
    run(tmp_path)
    assert verify(Checkpoint.open(tmp_path), read_percent=100).findings == ()
