"""Spark's own checkpoint against ours: whatever a power cut makes of any file, a start knows and rewrites it."""

from __future__ import annotations

import logging
import random
import shutil
import signal
import subprocess
import sys
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

import tidestate as ts
from tests.helpers.manifests import files_below, following
from tests.helpers.moves import fork, reset_to, resync
from tests.helpers.planned_batch import BATCHES, N, check_mended, entry, fold, plan, seen, start
from tests.helpers.planned_batch import planned as planned
from tests.helpers.planned_batch import root as root
from tests.helpers.process import LONG
from tests.helpers.spark_checkpoints import KAFKA, files_of, head_of, made
from tests.helpers.torn_files import DAMAGES, cut, empty, missing, zeros
from tidestate.operators.engine.bootstrap import FILES_READ, spark_position
from tidestate.recovery.inspect.verify import verify
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import SparkPosition
from tidestate.recovery.log.spark_log import (
    NOTHING,
    KnownFiles,
    folded_every,
    followed,
    read_as_patterns,
    read_of,
    with_files,
)
from tidestate.recovery.moves.repair import plan_resync
from tidestate.recovery.spark.spark_checkpoint import COMPACTED, files_read, finish_checkpoint
from tidestate.statestore.errors import IncompatibleError

FILES = ["metadata", *(f"{log}/{n}" for log in ("offsets", "sources/0") for n in (N - 1, N, N + 1)), f"commits/{N}"]
HARMLESS = {("sources/1/0", missing), (f"commits/{N}", missing), (f"offsets/{N + 1}", missing)}
"""What a crash leaves too."""


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", [*FILES, "sources/0/0", "sources/0/2"])
def test_a_torn_file_is_known_and_mended(
    root: Path, name: str, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    assert seen(root).differs == ()
    damage(root / "spark" / name)
    before = files_below(root / "spark")
    found = seen(root).differs
    assert bool(found) == ((name, damage) not in HARMLESS)
    with caplog.at_level(logging.WARNING, "tidestate"):
        head = start(root)
    check_mended(root)
    if found:
        assert (
            files_below(root / "spark-replaced" / str(head.id)).items()
            >= {one: data for one, data in before.items() if not one.startswith("sources/1")}.items()
        )
        assert not (root / "spark/offsets" / str(N + 1)).exists()
        assert all(str(one) in caplog.text for one in found)
        start(root)
    assert len(caplog.records) == bool(found)
    assert len(list((root / "spark-replaced").glob("*"))) == bool(found)


@pytest.mark.parametrize("seed", range(500 if LONG else 12))
def test_several_at_random(root: Path, seed: int) -> None:
    """Cut anywhere, at the end of a line too; lines lost anywhere; folded or not."""
    chance = random.Random(seed)
    if interval := chance.choice([0, 2, 3, 7]):
        fold(root, interval, N + 1)
    paths = sorted(path for path in (root / "spark").rglob("*") if path.is_file() and path.parent.name != "1")
    for path in chance.sample(paths, chance.randint(1, 6)):
        lines = path.read_bytes().split(b"\n")
        how = chance.choice([*DAMAGES, "cut", "lines"])
        if how == "cut":
            path.write_bytes(b"\n".join(lines)[: chance.randint(0, 200)])
        elif how == "lines":
            path.write_bytes(b"\n".join(one for one in lines if chance.random() < 0.6))
        else:
            how(path)
    start(root, interval=interval or COMPACTED)
    check_mended(root, interval or COMPACTED)
    start(root, interval=interval or COMPACTED)
    assert len(list((root / "spark-replaced").glob("*"))) <= 1


@pytest.mark.parametrize("number", [0, 3, N, N + 1])
def test_a_list_that_lost_lines(root: Path, number: int) -> None:
    path = root / "spark/sources/0" / str(number)
    path.write_text("\n".join(path.read_text().split("\n")[:2]))
    # What is only planned rests on nothing: its other file comes later.
    assert bool(seen(root).differs) == (number <= N)
    start(root)
    check_mended(root)


def test_a_list_that_has_other_files(root: Path) -> None:
    path = root / "spark/sources/0/3"
    path.write_text(path.read_text().replace("03%20a", "77%20a"))
    assert [one.path for one in seen(root).differs] == ["spark/sources/0"]
    start(root)
    check_mended(root)


def test_files_that_changed_places(root: Path) -> None:
    """All are there, and those of the newest batch are others."""
    ours, older = (root / "spark/sources/0" / str(number) for number in (N, 1))
    mine, theirs = ours.read_text(), older.read_text()
    ours.write_text(theirs.replace('"batchId": 1', f'"batchId": {N}'))
    older.write_text(mine.replace(f'"batchId": {N}', '"batchId": 1'))
    assert "newest batch" in seen(root).differs[0].why
    start(root)
    check_mended(root)


def test_a_planned_batch_that_brings_a_file_again(root: Path) -> None:
    path = root / "spark/sources/0" / str(N + 1)
    path.write_bytes(entry(2).replace(b'"batchId": 2', b'"batchId": %d' % (N + 1)))
    assert "again" in seen(root).differs[0].why
    start(root)
    check_mended(root)


def test_a_planned_batch_that_spark_would_read_in_part_twice(root: Path) -> None:
    path = root / "spark/sources/0" / str(N + 1)
    first, _second = files_of(N + 1)
    path.write_bytes(path.read_bytes().replace(first.split()[0].encode(), b"file:///in/a%5B1%5D"))
    assert [found.why for found in seen(root).differs] == [
        "a planned batch has several files, and Spark takes the path of one for a pattern"
    ]
    start(root)
    check_mended(root)


@pytest.mark.parametrize("damage", [empty, cut, zeros, missing])
@pytest.mark.parametrize("name", ["2.compact", "5.compact", "6"])
def test_a_folded_list(root: Path, name: str, damage: Callable[[Path], None]) -> None:
    fold(root, 3, N + 1)
    assert seen(root, 3).differs == ()
    damage(root / "spark/sources/0" / name)
    # Of 2.compact Spark looks at the name alone: how often it folds.
    assert bool(seen(root, 3).differs) == (name != "2.compact")
    start(root, interval=3)
    check_mended(root, 3)


def test_a_folded_list_that_lost_lines(root: Path) -> None:
    fold(root, 3, N + 1)
    path = root / "spark/sources/0/5.compact"
    lines = path.read_text().split("\n")
    path.write_text("\n".join(lines[:3] + lines[5:]))
    assert seen(root, 3).differs[0].why == "it lists 10 files as read, but batches have read 12"
    start(root, interval=3)
    check_mended(root, 3)


@pytest.mark.parametrize("interval", [1, 2, 3, 4, 7, 10, 20])
def test_what_is_rewritten_is_where_spark_looks(root: Path, interval: int) -> None:
    (root / "spark/metadata").unlink()
    start(root, interval=interval)
    check_mended(root, interval)


@pytest.mark.parametrize("torn", [False, True])
def test_a_reset_knows_no_setting_of_a_session(tmp_path: Path, torn: bool) -> None:
    """A start under a setting of its own reads what a command has written."""
    checkpoint = made(str(tmp_path), 17)
    reset_to(checkpoint, 18)
    assert "it is gone" in [one.why for one in seen(tmp_path, 3).differs]
    if torn:
        empty(tmp_path / "spark/metadata")
    start(tmp_path, interval=3)
    found = seen(tmp_path, 3)
    assert (found.differs, found.read) == ((), {0: {number: files_of(number) for number in range(17)}})


def test_a_repair_leads_out_whatever_the_setting_of_the_session(tmp_path: Path) -> None:
    made(str(tmp_path), 17)
    fold(tmp_path, 3, 16)
    start(tmp_path, ts.Policy(spark="stop"), interval=3)
    empty(tmp_path / "spark/offsets/16")
    with pytest.raises(IncompatibleError, match="spark-log-differs"):
        start(tmp_path, ts.Policy(spark="stop"), interval=3)
    assert resync(Checkpoint.open(tmp_path)).reset is not None
    assert "it is gone" in [one.why for one in seen(tmp_path, 3).differs]
    start(tmp_path, ts.Policy(spark="stop"), interval=3)
    assert seen(tmp_path, 3).differs == ()


def test_how_often_spark_folds() -> None:
    """As ``CompactibleFileStreamLog`` says, and its tests."""
    found = {(default, last): folded_every([last], default) for default, last in [(3, 2), (5, 19), (5, 49), (5, 1)]}
    assert found == {(3, 2): 3, (5, 19): 5, (5, 49): 5, (5, 1): 2}
    assert [folded_every([last], 3) for last in (8, 9, 10, 3, 4)] == [3, 5, 11, 4, 5]
    assert folded_every([], 10) == 10
    assert folded_every([9, 19, 24], 10) == 5


def crc(path: Path, data: bytes) -> None:
    sums = b"".join(zlib.crc32(data[at : at + 512]).to_bytes(4, "big") for at in range(0, len(data), 512))
    path.with_name(f".{path.name}.crc").write_bytes(b"crc\x00" + (512).to_bytes(4, "big") + sums)


@pytest.mark.parametrize("harm", ["data", "sums"])
def test_what_does_not_fit_hadoops_checksums(root: Path, harm: str) -> None:
    """Hadoop stops at them, though a batch that is only planned might be any."""
    path = root / "spark/sources/0" / str(N + 1)
    crc(path, path.read_bytes())
    assert seen(root).differs == ()
    if harm == "data":
        path.write_text("\n".join(path.read_text().split("\n")[:2]))
    else:
        checksums = path.with_name(f".{path.name}.crc")
        checksums.write_bytes(checksums.read_bytes()[:-2])
    assert [one.why for one in seen(root).differs] == ["it does not match its checksums"]
    start(root)
    check_mended(root)


@pytest.mark.parametrize("moment", ["spark-set-aside", "spark-half-written"])
def test_killed_while_it_mends(root: Path, moment: str) -> None:
    (root / "spark/sources/0/1").unlink()
    done = subprocess.run([sys.executable, "-m", "tests.children.mending", str(root), moment])
    assert done.returncode == -signal.SIGKILL
    start(root)
    check_mended(root)


def test_verify_and_resync_know(root: Path) -> None:
    path = root / "spark/sources/0/1"
    path.write_text("v1")
    found = [one for one in verify(Checkpoint.open(root), spark=True).findings if one.kind == "spark"]
    assert [(one.path, one.why) for one in found] == [
        ("spark/sources/0", "it lists 10 files as read, but batches have read 12")
    ]
    assert plan_resync(Checkpoint.open(root)).findings == tuple(found)
    assert resync(Checkpoint.open(root)).reset is not None
    check_mended(root)
    assert plan_resync(Checkpoint.open(root)).findings == ()
    start(root)
    assert len(list((root / "spark-replaced").iterdir())) == 1


@pytest.mark.parametrize("name", ["offsets/0", "sources/0/0", "sources/1/0", "metadata"])
@pytest.mark.parametrize("damage", [empty, cut, zeros])
def test_before_the_first_batch(tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    """Where a source began it knows alone: a query from the newest offsets must not begin at those of now."""
    checkpoint = Checkpoint.open_or_create(tmp_path)
    checkpoint.publish(following(checkpoint, None, kind="fence"))
    plan(checkpoint, 0)
    began = b'\x00v1\n{"flights":{"0":7,"1":9}}'
    checkpoint.objects.put("spark/sources/1/0", began)
    checkpoint.objects.put("spark/metadata", b'{"id":"first"}')
    before = files_below(tmp_path / "spark")
    start(tmp_path)
    assert files_below(tmp_path / "spark") == before
    damage(tmp_path / "spark" / name)
    start(tmp_path)
    assert files_below(tmp_path / "spark") == ({} if name == "sources/1/0" else {"sources/1/0": began})
    assert seen(tmp_path).differs == ()
    checkpoint.objects.put("spark/commits/0", b"v1\n{}")
    with pytest.raises(IncompatibleError, match="spark-ahead"):
        start(tmp_path)


def test_killed_while_spark_writes_its_first_plan(tmp_path: Path) -> None:
    """Spark 4.1 starts no query where its folder of offsets has a file, and no batch."""
    checkpoint = Checkpoint.open_or_create(tmp_path)
    checkpoint.publish(following(checkpoint, None, kind="fence"))
    checkpoint.objects.put("spark/metadata", b'{"id":"first"}')
    (tmp_path / "spark" / "offsets").mkdir()
    start(tmp_path)
    assert (tmp_path / "spark" / "metadata").exists(), "planned nothing: as it was"
    torn = tmp_path / "spark" / "offsets" / ".0.97b247cb-4f9c-42fc-85d8-b0fb3df1e8d6.tmp"
    torn.write_bytes(b"v1")
    head = start(tmp_path)
    assert not torn.exists()
    assert (tmp_path / "spark-replaced" / str(head.id) / "offsets" / torn.name).exists()
    assert seen(tmp_path).differs == ()


def test_digests_are_carried_on(root: Path) -> None:
    """Through everything that appends a manifest, and where Spark folds its list again and again."""
    checkpoint = Checkpoint.open(root)
    whole = read_of({number: files_of(number) for number in range(BATCHES)})
    assert whole.files == 2 * BATCHES
    position = head_of(checkpoint).spark
    assert position is not None
    assert position.read == {"0": whole}
    reset_to(checkpoint, 4)
    back = head_of(checkpoint).spark
    assert back is not None
    assert back.read == {"0": read_of({number: files_of(number) for number in range(3)})}
    assert read_of(files_read(checkpoint, head_of(checkpoint))[0]) == back.read["0"]
    batch = SparkPosition(back.query_id, 3, back.end, ('{"logOffset":3}', KAFKA.format(30)), {"0": files_of(3)})
    assert followed(back, batch).read == {"0": read_of({number: files_of(number) for number in range(4)})}


@pytest.mark.parametrize("name", ["sources/0/0", "offsets/0", "metadata"])
def test_a_root_that_was_bootstrapped(tmp_path: Path, name: str) -> None:
    checkpoint = Checkpoint.open_or_create(tmp_path)
    history = {0: files_of(0), 2: files_of(1)}
    position = spark_position(checkpoint.objects, [FILES_READ, KAFKA.format(5), FILES_READ], history, 1)
    head = checkpoint.publish(following(checkpoint, None, kind="bootstrap", spark=position)).manifest
    assert finish_checkpoint(checkpoint, head)
    assert seen(tmp_path).differs == ()
    for source, files in history.items():
        assert position.read[str(source)] == with_files(NOTHING, files)
    batch = SparkPosition(position.query_id, 1, position.end, position.end, {"0": (), "2": ()})
    checkpoint.publish(following(checkpoint, checkpoint.head(), spark=followed(position, batch)))
    for number in ("offsets/1", "commits/1"):
        shutil.copy(tmp_path / "spark" / number.replace("1", "0"), tmp_path / "spark" / number)
    assert seen(tmp_path).differs == ()
    zeros(tmp_path / "spark" / name)
    assert [one.path for one in seen(tmp_path).differs] == [f"spark/{name}"]
    start(tmp_path)
    assert seen(tmp_path).read == {source: {0: tuple(sorted(files))} for source, files in history.items()}


def test_a_fork(root: Path, tmp_path: Path) -> None:
    """Its log is its own: what is torn there is rewritten from what it lists itself."""
    fork(root, tmp_path / "fork", 4)
    assert seen(tmp_path / "fork").differs == ()
    (tmp_path / "fork/spark/sources/0/0").unlink()
    shutil.rmtree(root)
    start(tmp_path / "fork")
    found = seen(tmp_path / "fork")
    assert (found.differs, found.read) == ((), {0: {number: files_of(number) for number in range(3)}})


def test_a_digest_depends_on_nothing_but_the_files() -> None:
    chance = random.Random(3)
    files = [f"file:///{uuid.UUID(int=chance.getrandbits(128))} {n}" for n in range(500)]
    whole = with_files(NOTHING, files)
    chance.shuffle(files)
    parts = NOTHING
    while files:
        some = [files.pop() for _ in range(min(len(files), chance.randint(0, 90)))]
        parts = with_files(parts, some)
    assert parts == whole
    assert with_files(NOTHING, ["file:///a 1"]).digest != with_files(NOTHING, ["file:///a 2"]).digest


def test_paths_that_spark_takes_for_patterns() -> None:
    plain, bracket, escaped = "file:///in/a.parquet 5", "file:///in/b[1].parquet 5", "file:///in/c%3F.parquet 5"
    assert read_as_patterns({"0": [plain, bracket, escaped]}) == ["file:///in/b[1].parquet", "file:///in/c?.parquet"]
    assert read_as_patterns({"0": [bracket], "1": [plain, plain]}) == []
    names = ["{a}", "a*", "a\\\\b", "a]"]
    assert len(read_as_patterns({"0": [f"file:///in/{name} 5" for name in names]})) == len(names)


def test_known_files() -> None:
    known = KnownFiles(f"file:///{n} 5" for n in range(1_000))
    assert "file:///7 5" in known
    assert "file:///7 6" in known  # a file that was touched is still that file
    assert "file:///1000 5" not in known
    known.add(f"file:///{n} 5" for n in range(1_000, 80_000))
    assert all(f"file:///{n} 1" in known for n in (0, 999, 1_000, 79_999))
    assert "file:///80000 5" not in known
