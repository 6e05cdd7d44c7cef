"""The checkpoint root: one chain of manifests, one winner per id, and roots that are not what they seem."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import msgspec
import pytest

from tests.helpers.manifests import chain, files_below, following
from tests.helpers.manifests import checkpoint as checkpoint
from tidestate.recovery.log.checkpoint import Checkpoint, manifest_path
from tidestate.recovery.log.manifest import MANIFEST_FORMAT, Head
from tidestate.recovery.log.manifest_file import encode
from tidestate.recovery.log.marker import MARKER
from tidestate.statestore.distribution import version
from tidestate.statestore.errors import (
    ConflictError,
    CorruptionError,
    DataError,
    FencedError,
    IncompatibleError,
    InvariantError,
    NotFoundError,
    UnavailableError,
)


def test_each_manifest_names_the_version_that_wrote_it(checkpoint: Checkpoint) -> None:
    first = checkpoint.publish(following(checkpoint, None))
    second = checkpoint.publish(following(checkpoint, first, version="0.0.1"))  # carried over from another version
    assert {first.manifest.version, second.manifest.version} == {version()}
    assert checkpoint.head() == second


def test_a_new_root_has_a_marker_and_no_head(checkpoint: Checkpoint, tmp_path: Path) -> None:
    marker = json.loads((tmp_path / MARKER).read_text())
    assert marker == msgspec.to_builtins(checkpoint.marker)
    assert (marker["format"], marker["atomic_create"]) == (MANIFEST_FORMAT, "link")
    assert checkpoint.head() is None
    assert checkpoint.ids() == []
    assert list(checkpoint.history()) == []


def test_opening_again_finds_the_same_job(checkpoint: Checkpoint, tmp_path: Path) -> None:
    for again in (Checkpoint.open(tmp_path), Checkpoint.open_or_create(tmp_path)):
        assert again.marker == checkpoint.marker
        assert again.writer != checkpoint.writer


def test_of_many_that_make_a_root_all_end_up_with_the_same(tmp_path: Path) -> None:
    barrier = threading.Barrier(8)
    found: list[str] = []

    def make() -> None:
        barrier.wait()
        found.append(Checkpoint.open_or_create(tmp_path / "root").marker.job_id)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


def test_manifests_follow_one_another(checkpoint: Checkpoint, tmp_path: Path) -> None:
    heads = chain(checkpoint, 3)
    reader = Checkpoint.open(tmp_path)
    assert reader.ids() == [1, 2, 3]
    assert reader.head() == heads[-1]
    assert [reader.read(number) for number in (1, 2, 3)] == heads
    assert list(reader.history()) == [head.manifest for head in heads]
    assert [head.manifest.parent for head in heads] == ["", heads[0].checksum, heads[1].checksum]
    assert (tmp_path / "manifests/00000000000000000002.json").exists()


@pytest.mark.parametrize("folder", ["", "nowhere", "empty"])
def test_no_checkpoint_here(tmp_path: Path, folder: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFoundError) as caught:
        Checkpoint.open(tmp_path / folder)
    assert caught.value.code == "no-checkpoint"
    assert files_below(tmp_path) == {}


def test_a_root_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UnavailableError):
        Checkpoint.open(tmp_path / "file")


def test_no_such_checkpoint(checkpoint: Checkpoint) -> None:
    chain(checkpoint, 2)
    with pytest.raises(NotFoundError) as caught:
        checkpoint.read(3)
    assert (caught.value.code, caught.value.context) == ("no-such-checkpoint", {"id": 3})


def test_the_loser_of_a_race_published_nothing(checkpoint: Checkpoint, tmp_path: Path) -> None:
    heads = chain(checkpoint, 1)
    winner = checkpoint.publish(following(checkpoint, heads[0], created_us=1))
    before = files_below(tmp_path)
    with pytest.raises(ConflictError) as caught:
        checkpoint.publish(following(checkpoint, heads[0], created_us=2))
    assert (caught.value.code, caught.value.context) == ("manifest-moved", {"id": 2})
    assert files_below(tmp_path) == before
    assert checkpoint.head() == winner


def test_an_older_epoch_is_fenced(checkpoint: Checkpoint, tmp_path: Path) -> None:
    heads = chain(checkpoint, 1)
    winner = Checkpoint.open(tmp_path).publish(following(checkpoint, heads[0], epoch=2, kind="fence"))
    before = files_below(tmp_path)
    with pytest.raises(FencedError) as caught:
        checkpoint.publish(following(checkpoint, heads[0]))
    assert (caught.value.code, caught.value.context) == ("fenced", {"id": 2, "epoch": 1, "newer_epoch": 2})
    assert files_below(tmp_path) == before
    assert checkpoint.head() == winner


def test_many_publish_at_once_and_one_wins(checkpoint: Checkpoint) -> None:
    head = chain(checkpoint, 1)[0]
    barrier = threading.Barrier(8)
    outcomes: list[Head | None] = []

    def publish(me: int) -> None:
        barrier.wait()
        try:
            outcomes.append(checkpoint.publish(following(checkpoint, head, writer=str(me))))
        except ConflictError:
            outcomes.append(None)

    threads = [threading.Thread(target=publish, args=(me,)) for me in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 8
    assert [outcome for outcome in outcomes if outcome is not None] == [checkpoint.head()]


def test_a_lost_reply_is_recognised(checkpoint: Checkpoint, tmp_path: Path) -> None:
    manifest = following(checkpoint, chain(checkpoint, 1)[0])
    first = checkpoint.publish(manifest)
    before = files_below(tmp_path)
    assert checkpoint.publish(manifest) == first
    assert files_below(tmp_path) == before


def test_a_manifest_of_another_root_is_a_bug(checkpoint: Checkpoint) -> None:
    with pytest.raises(InvariantError):
        checkpoint.publish(following(checkpoint, None, job_id="other"))
    assert checkpoint.ids() == []


def test_a_manifest_that_nothing_could_read_is_never_published(checkpoint: Checkpoint) -> None:
    with pytest.raises(InvariantError, match="can be read"):
        checkpoint.publish(following(checkpoint, None, processing_us=10**19))
    assert checkpoint.ids() == []


def test_a_wrong_parent_is_noticed(checkpoint: Checkpoint) -> None:
    head = chain(checkpoint, 2)[-1]
    checkpoint.publish(following(checkpoint, head, parent="xxh3:0000000000000000"))
    with pytest.raises(CorruptionError) as caught:
        checkpoint.head()
    assert (caught.value.code, caught.value.context) == ("manifest-chain", {"path": manifest_path(3)})


@pytest.mark.parametrize("damage", ["flipped", "torn", "empty"])
def test_a_damaged_newest_manifest_is_never_passed_over(checkpoint: Checkpoint, tmp_path: Path, damage: str) -> None:
    chain(checkpoint, 3)
    hurt(tmp_path / manifest_path(3), damage)
    with pytest.raises(CorruptionError) as caught:
        checkpoint.head()
    assert (caught.value.code, caught.value.context["path"]) == ("manifest-damaged", manifest_path(3))


@pytest.mark.parametrize("damage", ["flipped", "torn", "empty"])
def test_a_damaged_older_manifest_stops_only_who_reads_it(
    checkpoint: Checkpoint, tmp_path: Path, damage: str
) -> None:
    heads = chain(checkpoint, 3)
    hurt(tmp_path / manifest_path(2), damage)
    assert checkpoint.head() == heads[-1]
    with pytest.raises(CorruptionError, match="manifest-damaged"):
        checkpoint.read(2)
    with pytest.raises(CorruptionError, match="manifest-damaged"):
        list(checkpoint.history())


def hurt(path: Path, damage: str) -> None:
    whole = path.read_bytes()
    flipped = whole.replace(b'"epoch":1', b'"epoch":2')
    path.write_bytes({"flipped": flipped, "torn": whole[:-40], "empty": b""}[damage])


def test_a_manifest_under_another_id_or_of_another_job(checkpoint: Checkpoint, tmp_path: Path) -> None:
    heads = chain(checkpoint, 2)
    (tmp_path / manifest_path(3)).write_bytes((tmp_path / manifest_path(2)).read_bytes())
    with pytest.raises(CorruptionError, match="manifest-foreign"):
        checkpoint.head()
    foreign, _ = encode(following(checkpoint, heads[-1], job_id="other"))
    (tmp_path / manifest_path(3)).write_bytes(foreign)
    with pytest.raises(CorruptionError, match="manifest-foreign"):
        checkpoint.read(3)


def test_a_lost_marker_is_not_made_again(checkpoint: Checkpoint, tmp_path: Path) -> None:
    chain(checkpoint, 1)
    (tmp_path / MARKER).unlink()
    with pytest.raises(CorruptionError, match="marker-missing"):
        Checkpoint.open_or_create(tmp_path)
    assert not (tmp_path / MARKER).exists()
    with pytest.raises(NotFoundError, match="no-checkpoint"):
        Checkpoint.open(tmp_path)


@pytest.mark.parametrize("data", [b"", b"{", b"{}", b"[]", b'{"format":"1"}', b"\xff\xfe"], ids=repr)
def test_a_damaged_marker(tmp_path: Path, data: bytes) -> None:
    (tmp_path / MARKER).write_bytes(data)
    with pytest.raises(CorruptionError, match="marker-damaged"):
        Checkpoint.open(tmp_path)
    assert (tmp_path / MARKER).read_bytes() == data


def test_a_marker_of_a_newer_format(checkpoint: Checkpoint, tmp_path: Path) -> None:
    newer = msgspec.structs.replace(checkpoint.marker, format=MANIFEST_FORMAT + 1)
    (tmp_path / MARKER).write_bytes(msgspec.json.encode(newer))
    with pytest.raises(IncompatibleError) as caught:
        Checkpoint.open(tmp_path)
    assert (caught.value.code, caught.value.context) == ("checkpoint-format", {"expected": 1, "found": 2})


def test_a_flipped_bit_in_the_marker_is_an_error_of_ours_or_harmless(checkpoint: Checkpoint, tmp_path: Path) -> None:
    head = chain(checkpoint, 1)[0]
    whole = (tmp_path / MARKER).read_bytes()
    for place in range(len(whole)):
        for bit in range(8):
            (tmp_path / MARKER).write_bytes(whole[:place] + bytes([whole[place] ^ (1 << bit)]) + whole[place + 1 :])
            try:
                found: object = Checkpoint.open(tmp_path).head()
            except DataError as error:
                found = error.code
            assert found in (head, "marker-damaged", "checkpoint-format", "manifest-foreign")


def test_a_marker_of_a_newer_format_may_have_other_fields(tmp_path: Path) -> None:
    (tmp_path / MARKER).write_bytes(b'{"format":2,"job":{"id":"j"}}')
    with pytest.raises(IncompatibleError, match="checkpoint-format"):
        Checkpoint.open(tmp_path)


def test_leftovers_next_to_the_manifests_are_no_checkpoints(checkpoint: Checkpoint, tmp_path: Path) -> None:
    heads = chain(checkpoint, 2)
    (tmp_path / "manifests/.00000000000000000003.json.0123abcd").write_bytes(b"torn")
    (tmp_path / "manifests/notes.txt").write_bytes(b"")
    (tmp_path / "manifests/copy of 2.json").write_bytes(b"")
    assert checkpoint.ids() == [1, 2]
    assert checkpoint.head() == heads[-1]
