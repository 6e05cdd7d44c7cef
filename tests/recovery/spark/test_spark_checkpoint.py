"""Spark's checkpoint rewritten: on every storage, from manifests or from Spark's log, whatever dies on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.helpers.manifests import following
from tests.helpers.moves import reset_to
from tests.helpers.spark_checkpoints import BATCHES, KAFKA, files_of, head_of, made
from tests.helpers.spark_checkpoints import root as root
from tests.servers.s3 import s3_endpoint, s3_root  # noqa: F401  (fixtures)
from tidestate.recovery.log.checkpoint import Checkpoint, manifest_path
from tidestate.recovery.log.manifest import SparkPosition
from tidestate.recovery.log.spark_log import Entries, SparkLog, followed
from tidestate.recovery.spark.agreement import compare
from tidestate.recovery.spark.spark_checkpoint import files_read, finish_checkpoint
from tidestate.statestore.errors import IncompatibleError

MOMENTS = ("reset-published", "spark-set-aside", "spark-half-written")


S3_IF_LONG = pytest.mark.parametrize(
    "root", ["local", "memory", pytest.param("s3", marks=pytest.mark.long)], indirect=True
)
"""Where a move is not atomic, as on S3, is in memory too."""


class DiedError(Exception):
    """Stands for the end of the process."""


def as_spark_has_it(checkpoint: Checkpoint, batch_id: int) -> None:
    """Spark's checkpoint is that of our head, after this batch."""
    log, head = SparkLog(checkpoint.objects), head_of(checkpoint)
    assert head.spark is not None
    assert (log.query_id(), head.spark.batch_id) == (head.spark.query_id, batch_id)
    assert compare(head.spark, log).differs == ()
    known = [max(0, batch_id - 1), batch_id]
    for folder in ("offsets", "commits"):
        assert sorted(map(int, checkpoint.objects.names(f"spark/{folder}"))) == sorted(set(known))
    assert [log.entry(0, number) for number in range(batch_id + 1)] == [files_of(n) for n in range(batch_id + 1)]


@pytest.mark.slow
@S3_IF_LONG
def test_a_reset_takes_spark_along(root: str) -> None:
    checkpoint = made(root)
    old = {
        name: checkpoint.objects.read(f"spark/sources/0/{name}")
        for name in checkpoint.objects.names("spark/sources/0")
    }
    reset_to(checkpoint, 13)
    as_spark_has_it(checkpoint, 11)
    # Spark looks for entries up to its last compaction in that alone.
    assert checkpoint.objects.names("spark/sources/0") == ["10", "11", "9.compact"]
    assert checkpoint.objects.names("spark-replaced") == [str(BATCHES + 2)]
    for name, data in old.items():
        assert checkpoint.objects.read(f"spark-replaced/{BATCHES + 2}/sources/0/{name}") == data
    assert not finish_checkpoint(checkpoint, head_of(checkpoint))
    reset_to(checkpoint, 3)
    as_spark_has_it(checkpoint, 1)
    reset_to(checkpoint, 2)
    as_spark_has_it(checkpoint, 0)
    reset_to(checkpoint, 1)
    assert checkpoint.objects.names("spark") == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("root", "moment"),
    [
        *zip(("local", "memory", "memory"), MOMENTS, strict=True),
        *(pytest.param("s3", moment, marks=pytest.mark.long) for moment in MOMENTS),
    ],
    indirect=["root"],
)
def test_what_died_on_the_way_is_finished(root: str, moment: str) -> None:
    checkpoint = made(root, 4)

    def dies(at: str, _number: int) -> None:
        if at == moment:
            raise DiedError

    with pytest.raises(DiedError):
        reset_to(checkpoint, 4, hook=dies)
    for kind in ("rescale", "fence"):
        fence = following(checkpoint, checkpoint.head(), kind=kind, spark=head_of(checkpoint).spark)
        checkpoint.publish(fence)
    assert finish_checkpoint(checkpoint, fence)
    as_spark_has_it(checkpoint, 2)
    assert not finish_checkpoint(checkpoint, fence)
    replaced = [
        checkpoint.objects.names(f"spark-replaced/{name}") for name in checkpoint.objects.names("spark-replaced")
    ]
    assert ["commits", "metadata", "offsets", "sources"] in replaced


@S3_IF_LONG
def test_died_before_it_was_published(root: str) -> None:
    checkpoint = made(root, 2)

    def dies(_moment: str, _number: int) -> None:
        raise DiedError

    with pytest.raises(DiedError):
        reset_to(checkpoint, 2, hook=dies)
    assert checkpoint.ids() == [1, 2, 3]
    assert not finish_checkpoint(checkpoint, head_of(checkpoint))
    compare(head_of(checkpoint).spark, SparkLog(checkpoint.objects)).check()


@pytest.mark.slow
@S3_IF_LONG
def test_died_before_the_first_batch(root: str) -> None:
    checkpoint = made(root, 2)

    def dies(moment: str, _number: int) -> None:
        if moment == "reset-published":
            raise DiedError

    with pytest.raises(DiedError):
        reset_to(checkpoint, 1, hook=dies)
    assert finish_checkpoint(checkpoint, head_of(checkpoint))
    assert checkpoint.objects.names("spark") == []
    assert not finish_checkpoint(checkpoint, head_of(checkpoint))


def forgotten(checkpoint: Checkpoint, upto: int) -> None:
    for number in range(1, upto + 1):
        checkpoint.objects.delete(manifest_path(number))


def test_sparks_log_knows_what_collected_manifests_reported(tmp_path: Path) -> None:
    checkpoint = made(str(tmp_path), 12)
    forgotten(checkpoint, 6)
    checkpoint.objects.delete("spark/sources/0/9")  # a manifest has it
    wanted: dict[int, Entries] = {0: {number: files_of(number) for number in range(11)}}
    assert files_read(checkpoint, checkpoint.read(12).manifest) == wanted
    reset_to(checkpoint, 12)
    as_spark_has_it(checkpoint, 10)
    forgotten(checkpoint, 12)
    checkpoint.objects.move("spark", "gone")  # the reset has them all
    reset_to(checkpoint, head_of(checkpoint).id)
    as_spark_has_it(checkpoint, 10)


@pytest.mark.parametrize("how", ["gone", "another query", "cut"])
def test_nothing_is_touched_where_files_are_forgotten(tmp_path: Path, how: str) -> None:
    checkpoint = made(str(tmp_path), 8)
    forgotten(checkpoint, 5)
    if how == "gone":
        checkpoint.objects.delete("spark/sources/0/2")
    elif how == "cut":
        (tmp_path / "spark/sources/0/2").write_bytes(b'v1\n{"path":"file:///inp')
    else:
        (tmp_path / "spark/metadata").write_bytes(b'{"id":"second"}')
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(IncompatibleError, match="spark-files-lost"):
        reset_to(checkpoint, 7)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_state_of_sparks_own_goes_nowhere(tmp_path: Path) -> None:
    checkpoint = made(str(tmp_path), 3)
    checkpoint.objects.put("spark/state/0/0/1.delta", b"rows")
    with pytest.raises(IncompatibleError, match="spark-state"):
        reset_to(checkpoint, 2)
    assert checkpoint.ids() == [1, 2, 3, 4]


def test_a_batch_of_several_entries_and_one_of_none(tmp_path: Path) -> None:
    """After a crash a batch may hold two entries of a source, or none where another source had rows."""
    checkpoint = Checkpoint.open_or_create(tmp_path)
    head: Any = None
    position: SparkPosition | None = None
    start: tuple[str, ...] = ()
    for batch_id, (last, files) in enumerate([(1, ("file:///a 1", "file:///b 2")), (1, ()), (2, ("file:///c 3",))]):
        end = (json.dumps({"logOffset": last}), KAFKA.format(batch_id))
        position = followed(position, SparkPosition("first", batch_id, start, end, {"0": files}))
        head = checkpoint.publish(following(checkpoint, head, spark=position))
        start = end
    assert files_read(checkpoint, head.manifest) == {
        0: {0: (), 1: ("file:///a 1", "file:///b 2"), 2: ("file:///c 3",)}
    }
    reset_to(checkpoint, 3)
    position = head_of(checkpoint).spark
    assert position is not None
    compare(msgspec.structs.replace(position, read_ref=None), SparkLog(checkpoint.objects)).check()


@pytest.mark.slow
@S3_IF_LONG
def test_a_move_that_died_goes_on(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = made(root, 3)
    objects = checkpoint.objects
    deleted: list[str] = []

    def dies(path: str) -> None:
        if len(deleted) == 3:
            raise DiedError
        deleted.append(path)
        delete(path)

    delete = objects._storage.delete
    with monkeypatch.context() as patched:
        patched.setattr(objects._storage, "delete", dies)
        if objects.atomic_create == "link":
            objects.move("spark", "spark-replaced/6")  # at once
        else:
            with pytest.raises(DiedError):
                objects.move("spark", "spark-replaced/6")
    reset_to(checkpoint, 3)
    as_spark_has_it(checkpoint, 1)
    folders = [f"spark-replaced/{one}/offsets" for one in objects.names("spark-replaced")]
    assert {"0", "1", "2"} <= {name for folder in folders for name in objects.names(folder)}
