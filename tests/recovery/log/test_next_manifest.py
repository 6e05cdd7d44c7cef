"""The manifest after a start, a step and each move, field by field, as docs/reference/format.md says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.helpers.moves import fork, reset_to
from tests.helpers.worked_example import STREAM, example
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Delivered, Manifest, OperatorState
from tidestate.recovery.moves.rescale import rescale

OWN: dict[str, Any] = {"panes": (), "late": (), "counters": {}, "spent": None}
"""What a checkpoint without a step does not have."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A fence, then five batches, the last of which moved the watermark; a sink has all."""
    folder = tmp_path / "root"
    example("retracting").standalone(checkpoint=folder, sink=_sink).run(STREAM[:5])
    manifest = newest(folder)
    assert manifest.watermark_us is not None
    assert manifest.watermark_before_us not in (None, manifest.watermark_us), "the last step moved the watermark"
    assert manifest.panes, "and has panes of its own"
    return folder


def _sink(_panes: pa.Table, _id: object) -> None:
    """Takes everything."""


def newest(root: Path) -> Manifest:
    head = Checkpoint.open(root).head()
    assert head is not None
    return head.manifest


def follows(was: Manifest, made: Manifest, **differs: Any) -> None:
    """Each field of ``made`` is that of ``was``, but for what is due to it and what ``differs``."""
    expected = {
        "id": was.id + 1,
        "parent": Checkpoint,
        "writer": str,
        "created_us": int,
        "watermark_before_us": was.watermark_us,
        **OWN,
        **differs,
    }
    for field in made.__struct_fields__:
        wanted, found = expected.get(field, getattr(was, field)), getattr(made, field)
        if field == "operators":
            assert list(found) == list(wanted)
            for name, operator in found.items():
                _operator_follows(was.operators[name], operator, **differs.get("operator", {}))
        elif isinstance(wanted, type):
            assert found != getattr(was, field), field
        else:
            assert found == wanted, field


def _operator_follows(was: OperatorState, made: OperatorState, **differs: Any) -> None:
    expected = {"watermark_before_us": was.watermark_us, **differs}
    for field in made.__struct_fields__:
        if field != "partitions" or "partitions" not in differs:
            assert getattr(made, field) == expected.get(field, getattr(was, field)), field


def test_a_restart(root: Path) -> None:
    was = newest(root)
    example("retracting").standalone(checkpoint=root, sink=_sink).run(STREAM[:5])
    made = Checkpoint.open(root).read(was.id + 1).manifest
    follows(was, made, kind="fence", epoch=was.epoch + 1, parent_id=0, delivered=Delivered(was.id))
    assert (made.kind, made.follows) == ("fence", was.id)


def test_a_reset(root: Path) -> None:
    checkpoint, was = Checkpoint.open(root), newest(root)
    chosen = checkpoint.read(3)
    reset_to(checkpoint, 3)
    differs = {"id": was.id + 1, "parent": chosen.checksum, "parent_id": 3, "abandoned": ((4, was.id),)}
    delivered = newest(root).delivered
    follows(chosen.manifest, newest(root), kind="reset", epoch=was.epoch + 1, delivered=delivered, **differs)
    assert delivered.panes == was.id, "all that its line had delivered"


def test_a_rescale(root: Path) -> None:
    was = newest(root)
    rescale(root, 3)
    made = newest(root)
    follows(was, made, kind="rescale", epoch=was.epoch + 1, delivered=Delivered(was.id), operator={"partitions": ...})
    assert {len(one.partitions) for one in made.operators.values()} == {3}


def test_a_fork(root: Path, tmp_path: Path) -> None:
    was = newest(root)
    done = fork(root, tmp_path / "fork")
    made = newest(tmp_path / "fork")
    differs = {"id": was.id, "parent": "", "job_id": done.job_id, "operator": {"partitions": ...}}
    follows(was, made, kind="fence", epoch=was.epoch + 1, delivered=Delivered(was.id, was.id), **differs)
    for name, operator in made.operators.items():
        here = [ref for part in was.operators[name].partitions for ref in part.files]
        there = [ref for part in operator.partitions for ref in part.files]
        assert there == [msgspec.structs.replace(ref, root=ref.root + 1) for ref in here]


def test_a_fork_of_a_rewound_job_begins_without_its_past(root: Path, tmp_path: Path) -> None:
    reset_to(Checkpoint.open(root), 3)
    was = newest(root)
    fork(root, tmp_path / "fork")
    made = newest(tmp_path / "fork")
    assert (was.abandoned, was.parent_id) == (((4, 6),), 3)
    assert (made.abandoned, made.parent_id, made.parent) == ((), 0, "")


def test_a_step(root: Path) -> None:
    was = newest(root)
    example("retracting").standalone(checkpoint=root, sink=_sink).run(STREAM)
    made = list(Checkpoint.open(root).history(was.id + 2))
    before = Checkpoint.open(root).read(was.id + 1).manifest
    assert [one.kind for one in made] == ["batch"] * len(STREAM[5:])
    for one in made:
        totals = {name: before.totals.get(name, 0) + one.counters.get(name, 0) for name in one.totals}
        (operator,), (earlier,) = one.operators.values(), before.operators.values()
        assert (one.totals, one.epoch, one.parent_id) == (totals, before.epoch, 0)
        assert one.watermark_before_us == operator.watermark_before_us == before.watermark_us
        assert one.watermark_us == operator.watermark_us
        assert earlier.watermark_us == operator.watermark_before_us
        before = one


def test_what_had_been_closed_is_known_until_a_step(root: Path) -> None:
    """Windows up to here had been closed when lateness shrank: neither a start nor a move ends that."""
    strict = example("retracting").allowed_lateness("0 seconds")
    for _ in range(2):
        strict.standalone(checkpoint=root).run(STREAM[:5])
        (operator,) = newest(root).operators.values()
        assert operator.closed_us is not None
        rescale(root, len(operator.partitions) + 1)
    assert newest(root).operators["windows"].closed_us == operator.closed_us
    strict.standalone(checkpoint=root).run(STREAM)
    assert newest(root).operators["windows"].closed_us is None
