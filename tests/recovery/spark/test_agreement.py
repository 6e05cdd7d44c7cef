"""Spark's own checkpoint against ours: whatever a power cut makes of any file, a start knows and rewrites it."""

from __future__ import annotations

import json
import logging
import random
import shutil
import signal
import subprocess
import sys
import uuid
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.helpers.manifests import files_below, following
from tests.helpers.process import LONG
from tests.helpers.spark_checkpoints import KAFKA, files_of, head_of, made
from tests.helpers.torn_files import DAMAGES, cut, empty, missing, zeros
from tidestate.operators import Policy
from tidestate.operators.engine.bootstrap import FILES_READ, spark_position
from tidestate.recovery.inspect.verify import of_spark, spark_findings, verify
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.input_files import NOTHING, KnownFiles, followed, read_of, with_files
from tidestate.recovery.log.manifest import Manifest, SparkPosition
from tidestate.recovery.moves.fork import fork
from tidestate.recovery.moves.repair import plan_resync, resync
from tidestate.recovery.moves.reset import reset
from tidestate.recovery.spark.agreement import Agreement, compare
from tidestate.recovery.spark.position import load_files
from tidestate.recovery.spark.spark_checkpoint import COMPACTED, files_read, finish
from tidestate.recovery.spark.spark_log import SparkLog, folded_every
from tidestate.recovery.start.spark_repair import Mending
from tidestate.statestore.errors import CorruptionError, IncompatibleError, NotFoundError, UsageError

BATCHES = 6
N = BATCHES - 1
"""Number of the newest batch; Spark has planned one more."""


def entry(number: int) -> bytes:
    lines = [
        json.dumps({"path": one.split()[0], "timestamp": int(one.split()[1]), "batchId": number})
        for one in files_of(number)
    ]
    return "\n".join(["v1", *lines]).encode()


def plan(checkpoint: Checkpoint, batch_id: int) -> None:
    """Spark has planned this batch, and not done it."""
    objects = checkpoint.objects
    objects.put(f"spark/sources/0/{batch_id}", entry(batch_id))
    end = (json.dumps({"logOffset": batch_id}), KAFKA.format(batch_id * 10))
    text = "\n".join(["v1", json.dumps({"batchTimestampMs": batch_id * 1_000}), *end])
    objects.put(f"spark/offsets/{batch_id}", text.encode())


def fold(root: Path, interval: int, last: int) -> None:
    """As Spark folds its list of files."""
    folder = root / "spark/sources/0"
    lines: list[str] = []
    for number in range(last + 1):
        lines += (folder / str(number)).read_text().split("\n")[1:]
        if (number + 1) % interval == 0:
            (folder / f"{number}.compact").write_text("\n".join(["v1", *lines]))
            (folder / str(number)).unlink()


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("planned") / "root"
    checkpoint = made(str(root), BATCHES)
    checkpoint.objects.put("spark/sources/1/0", b'\x00v1\n{"flights":{"0":0,"1":0}}')
    plan(checkpoint, N + 1)
    return root


@pytest.fixture
def root(planned: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(planned, tmp_path / "root"))


def seen(root: Path, interval: int | None = COMPACTED) -> Agreement:
    checkpoint = Checkpoint.open(root)
    return compare(load_files(checkpoint.objects, head_of(checkpoint).spark), SparkLog(checkpoint.objects), interval)


def start(root: Path, policy: Policy | None = None, **settings: Any) -> Manifest:
    """What a start does: look, take over, mend."""
    checkpoint = Checkpoint.open(root)
    mending = Mending(checkpoint, policy or Policy(), **settings)
    head = head_of(checkpoint)
    mending.look(head)
    fence = checkpoint.publish(
        following(checkpoint, checkpoint.head(), kind="fence", spark=head.spark, epoch=head.epoch + 1)
    ).manifest
    mending.done(fence)
    return fence


FILES = ["metadata", *(f"{log}/{n}" for log in ("offsets", "sources/0") for n in (N - 1, N, N + 1)), f"commits/{N}"]
HARMLESS = {("sources/1/0", missing), (f"commits/{N}", missing), (f"offsets/{N + 1}", missing)}
"""What a crash leaves too."""


def is_mended(root: Path, interval: int = COMPACTED) -> None:
    found = seen(root, interval)
    assert (found.differs, found.refusal) == ((), None)
    assert found.read == {0: {number: files_of(number) for number in range(BATCHES)}}
    assert (root / "spark/sources/1/0").read_bytes() == b'\x00v1\n{"flights":{"0":0,"1":0}}'


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
    is_mended(root)
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


@pytest.mark.parametrize("seed", range(500 if LONG else 40))
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
    is_mended(root, interval or COMPACTED)
    start(root, interval=interval or COMPACTED)
    assert len(list((root / "spark-replaced").glob("*"))) <= 1


@pytest.mark.parametrize("number", [0, 3, N, N + 1])
def test_a_list_that_lost_lines(root: Path, number: int) -> None:
    path = root / "spark/sources/0" / str(number)
    path.write_text("\n".join(path.read_text().split("\n")[:2]))
    # What is only planned rests on nothing: its other file comes later.
    assert bool(seen(root).differs) == (number <= N)
    start(root)
    is_mended(root)


def test_a_list_that_has_other_files(root: Path) -> None:
    path = root / "spark/sources/0/3"
    path.write_text(path.read_text().replace("03%20a", "77%20a"))
    assert [one.path for one in seen(root).differs] == ["spark/sources/0"]
    start(root)
    is_mended(root)


def test_files_that_changed_places(root: Path) -> None:
    """All are there, and those of the newest batch are others."""
    ours, older = (root / "spark/sources/0" / str(number) for number in (N, 1))
    mine, theirs = ours.read_text(), older.read_text()
    ours.write_text(theirs.replace('"batchId": 1', f'"batchId": {N}'))
    older.write_text(mine.replace(f'"batchId": {N}', '"batchId": 1'))
    assert "newest batch" in seen(root).differs[0].why
    start(root)
    is_mended(root)


def test_a_planned_batch_that_brings_a_file_again(root: Path) -> None:
    path = root / "spark/sources/0" / str(N + 1)
    path.write_bytes(entry(2).replace(b'"batchId": 2', b'"batchId": %d' % (N + 1)))
    assert "again" in seen(root).differs[0].why
    start(root)
    is_mended(root)


@pytest.mark.parametrize("damage", [empty, cut, zeros, missing])
@pytest.mark.parametrize("name", ["2.compact", "5.compact", "6"])
def test_a_folded_list(root: Path, name: str, damage: Callable[[Path], None]) -> None:
    fold(root, 3, N + 1)
    assert seen(root, 3).differs == ()
    damage(root / "spark/sources/0" / name)
    # Of 2.compact Spark looks at the name alone: how often it folds.
    assert bool(seen(root, 3).differs) == (name != "2.compact")
    start(root, interval=3)
    is_mended(root, 3)


def test_a_folded_list_that_lost_lines(root: Path) -> None:
    fold(root, 3, N + 1)
    path = root / "spark/sources/0/5.compact"
    lines = path.read_text().split("\n")
    path.write_text("\n".join(lines[:3] + lines[5:]))
    assert seen(root, 3).differs[0].why == "it lists 10 files as read, and batches have read 12"
    start(root, interval=3)
    is_mended(root, 3)


@pytest.mark.parametrize("interval", [1, 2, 3, 4, 7, 10, 20])
def test_what_is_rewritten_is_where_spark_looks(root: Path, interval: int) -> None:
    (root / "spark/metadata").unlink()
    start(root, interval=interval)
    is_mended(root, interval)


@pytest.mark.parametrize("torn", [False, True])
def test_a_reset_knows_no_setting_of_a_session(tmp_path: Path, torn: bool) -> None:
    """A start under a setting of its own reads what a command has written."""
    checkpoint = made(str(tmp_path), 17)
    reset(checkpoint, 18)
    assert "it is gone" in [one.why for one in seen(tmp_path, 3).differs]
    if torn:
        empty(tmp_path / "spark/metadata")
    start(tmp_path, interval=3)
    found = seen(tmp_path, 3)
    assert (found.differs, found.read) == ((), {0: {number: files_of(number) for number in range(17)}})


def test_a_repair_leads_out_whatever_the_setting_of_the_session(tmp_path: Path) -> None:
    made(str(tmp_path), 17)
    fold(tmp_path, 3, 16)
    start(tmp_path, Policy(spark="stop"), interval=3)
    empty(tmp_path / "spark/offsets/16")
    with pytest.raises(IncompatibleError, match="spark-log-differs"):
        start(tmp_path, Policy(spark="stop"), interval=3)
    assert resync(Checkpoint.open(tmp_path)).reset is not None
    assert "it is gone" in [one.why for one in seen(tmp_path, 3).differs]
    start(tmp_path, Policy(spark="stop"), interval=3)
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
        beside = path.with_name(f".{path.name}.crc")
        beside.write_bytes(beside.read_bytes()[:-2])
    assert [one.why for one in seen(root).differs] == ["it does not fit its checksums"]
    start(root)
    is_mended(root)


@pytest.mark.parametrize("rest", [b"", b"crc", b"crc\x00\x00", bytes(12)])
def test_checksums_that_hadoop_passes_over(root: Path, rest: bytes) -> None:
    (root / "spark/offsets" / f".{N}.crc").write_bytes(rest)
    assert seen(root).differs == ()


@pytest.mark.parametrize("moment", ["spark-set-aside", "spark-half-forged"])
def test_killed_while_it_mends(root: Path, moment: str) -> None:
    (root / "spark/sources/0/1").unlink()
    done = subprocess.run([sys.executable, "-m", "tests.children.mending", str(root), moment])
    assert done.returncode == -signal.SIGKILL
    start(root)
    is_mended(root)


def test_a_policy_may_stop(root: Path) -> None:
    empty(root / "spark/offsets" / str(N))
    before = files_below(root)
    with pytest.raises(IncompatibleError, match="spark-log-differs") as caught:
        start(root, Policy(spark="stop"))
    assert caught.value.context["differs"] == [f"spark/offsets/{N}: it is empty"]
    assert files_below(root) == before
    with pytest.raises(UsageError, match="policy"):
        Policy(spark="hope")  # type: ignore[arg-type]


def test_verify_and_resync_know(root: Path) -> None:
    path = root / "spark/sources/0/1"
    path.write_text("v1")
    found = [one for one in verify(Checkpoint.open(root), spark=True).findings if one.kind == "spark"]
    assert [(one.path, one.why) for one in found] == [
        ("spark/sources/0", "it lists 10 files as read, and batches have read 12")
    ]
    assert plan_resync(Checkpoint.open(root)).findings == tuple(found)
    assert resync(Checkpoint.open(root)).reset is not None
    is_mended(root)
    assert plan_resync(Checkpoint.open(root)).findings == ()
    start(root)
    assert len(list((root / "spark-replaced").iterdir())) == 1


@pytest.mark.parametrize("what", ["another query", "ahead", "ahead, committed"])
@pytest.mark.parametrize("torn", [False, True])
def test_a_checkpoint_of_another_run_is_not_touched(root: Path, what: str, torn: bool) -> None:
    if torn:
        empty(root / "spark/sources/0/0")
    if what == "another query":
        (root / "spark/metadata").write_text('{"id":"second"}')
    else:
        (root / f"spark/{'commits' if 'committed' in what else 'offsets'}/{N + 2}").write_text("")
    before = files_below(root)
    code = "spark-query-changed" if what == "another query" else "spark-ahead"
    with pytest.raises(IncompatibleError, match=code):
        start(root)
    assert files_below(root) == before
    assert resync(Checkpoint.open(root)).reset is not None
    is_mended(root)


def test_a_version_that_is_not_known(root: Path) -> None:
    path = root / "spark/offsets" / str(N)
    path.write_text(path.read_text().replace("v1", "v2"))
    with pytest.raises(IncompatibleError, match="spark-log-format"):
        start(root)
    empty(path)
    with pytest.raises(CorruptionError, match="empty"):
        SparkLog(Checkpoint.open(root).objects).offsets(N)


def test_state_of_sparks_own_cannot_be_rewritten(root: Path) -> None:
    (root / "spark/state/0").mkdir(parents=True)
    start(root)
    empty(root / "spark/offsets" / str(N))
    before = files_below(root)
    with pytest.raises(IncompatibleError, match="spark-state"):
        start(root)
    assert files_below(root) == before


def test_a_drained_root_is_left_alone(root: Path) -> None:
    checkpoint = Checkpoint.open(root)
    head = checkpoint.publish(
        following(checkpoint, checkpoint.head(), kind="tick", drained=True, spark=head_of(checkpoint).spark)
    ).manifest
    shutil.rmtree(root / "spark")
    mending = Mending(checkpoint, Policy(spark="stop"))
    mending.look(head)
    mending.done(head)
    assert not (root / "spark").exists()


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


def test_digests_are_carried_on(root: Path) -> None:
    """Through everything that appends a manifest, and where Spark folds its list again and again."""
    checkpoint = Checkpoint.open(root)
    whole = read_of({number: files_of(number) for number in range(BATCHES)})
    assert whole.files == 2 * BATCHES
    position = head_of(checkpoint).spark
    assert position is not None
    assert position.read == {"0": whole}
    reset(checkpoint, 4)
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
    assert finish(checkpoint, head)
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


@pytest.mark.parametrize(("before", "after"), [("15", "1"), ("15", "-"), ('{"logOffset":4}', '{"logOffset":3}')])
def test_a_planned_offset_that_lies_behind(tmp_path: Path, before: str, after: str) -> None:
    checkpoint = Checkpoint.open_or_create(tmp_path)
    position = SparkPosition("first", 0, (), (before, KAFKA.format(5)), {})
    checkpoint.publish(following(checkpoint, None, spark=position))
    for batch_id, end in enumerate([before, after]):
        text = "\n".join(["v1", '{"batchTimestampMs":1}', end, KAFKA.format(5)])
        checkpoint.objects.put(f"spark/offsets/{batch_id}", text.encode())
    checkpoint.objects.put("spark/metadata", b'{"id":"first"}')
    assert seen(tmp_path).differs[0].path == "spark/offsets/1"


def test_it_looks_again_beside_a_running_job(root: Path) -> None:
    """What Spark and the job did between two looks is no damage."""
    checkpoint = Checkpoint.open(root)
    stale = Checkpoint.open(root).read(N + 1)
    assert list(spark_findings(checkpoint, stale.manifest))
    assert of_spark(checkpoint, stale.manifest) == []


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


def test_known_files() -> None:
    known = KnownFiles(f"file:///{n} 5" for n in range(1_000))
    assert "file:///7 5" in known
    assert "file:///7 6" in known  # a file that was touched is still that file
    assert "file:///1000 5" not in known
    known.add(f"file:///{n} 5" for n in range(1_000, 80_000))
    assert all(f"file:///{n} 1" in known for n in (0, 999, 1_000, 79_999))
    assert "file:///80000 5" not in known


def test_a_batch_with_a_file_that_is_known_is_refused(root: Path) -> None:
    checkpoint = Checkpoint.open(root)
    head = head_of(checkpoint)
    mending = Mending(checkpoint, Policy())
    mending.look(head)
    read = mending.done(head)
    new = SparkPosition("first", N + 1, (), (), {"0": files_of(N + 1)})
    read.check(head, new)
    again = msgspec.structs.replace(new, files={"0": (*files_of(N + 1), files_of(2)[1])})
    with pytest.raises(IncompatibleError, match="spark-file-again") as caught:
        read.check(head, again)
    assert caught.value.context["files"] == [files_of(2)[1].split()[0]]
    read.add(new)
    assert files_of(N + 1)[0] in read._known["0"]
    read._known["0"].add(["file:///has-the-hash-of-another 1"])
    read.check(head, msgspec.structs.replace(new, files={"0": ("file:///has-the-hash-of-another 1",)}))


STRANGE = ["x.compact", "².compact", "1e3.compact", "09.compact", f"{2**31}.compact", "٣", "007", "+7"]


@pytest.mark.parametrize("folder", ["sources/0", "offsets", "commits"])
def test_a_name_that_spark_does_not_write_is_known_and_mended(root: Path, folder: str) -> None:
    """Spark reads a number out of each of them, or fails to."""
    for name in (*STRANGE, "9" * 200 + ".compact", "-1.compact", "1_0.compact"):
        path = root / "spark" / folder / name
        path.write_bytes(b"v1\n")
        assert [one.path for one in seen(root).differs] == [f"spark/{folder}/{name}"]
        path.unlink()
    path.write_bytes(b"v1\n")
    start(root)
    is_mended(root)


@pytest.mark.parametrize("folder", ["sources/0", "sources", "offsets", "commits"])
def test_what_spark_passes_over_says_nothing(root: Path, folder: str) -> None:
    for name in ("README", "x.json", "²", "9" * 40, "5.tmp", "compact", "1e3"):
        (root / "spark" / folder / name).write_bytes(b"junk")
    is_mended(root)


def test_a_time_of_a_batch_that_is_none_is_known_and_mended(root: Path) -> None:
    path = root / f"spark/offsets/{N + 1}"
    text = path.read_text()
    numbers = ["Infinity", "-Infinity", "NaN", "1e400", "1e3", "-1", str(2**63), "9" * 5000]
    for time in (*numbers, "true", "null", '"5"', "[5]"):
        path.write_text(text.replace(f": {(N + 1) * 1000}", f": {time}"))
        assert time in path.read_text()
        assert [str(one) for one in seen(root).differs] == [f"spark/offsets/{N + 1}: it is cut or garbled"]
    start(root)
    is_mended(root)


@pytest.mark.parametrize("name", [f"{2**31 - 1}.compact", f"{2**61 - 2}.compact", str(2**31 - 1)])
@pytest.mark.parametrize("offset", [2**31 - 1, 2**62, 10**30])
def test_numbers_without_end_take_no_time(root: Path, name: str, offset: int) -> None:
    """They would be counted up to, by ones."""
    (root / "spark/sources/0" / name).write_bytes(b"v1")
    path = root / f"spark/offsets/{N + 1}"
    path.write_text(path.read_text().replace(f'{{"logOffset": {N + 1}}}', f'{{"logOffset": {offset}}}'))
    assert str(offset) in path.read_text()
    assert seen(root).differs
    with suppress(CorruptionError, NotFoundError):
        SparkLog(Checkpoint.open(root).objects).planned("first", N + 1)
    start(root)
    is_mended(root)


@pytest.mark.parametrize(
    "fields",
    ['"timestamp":1,"batchId":-1', f'"timestamp":{2**64},"batchId":1', f'"timestamp":1,"batchId":{2**40}'],
)
def test_an_entry_with_numbers_past_those_of_spark(root: Path, fields: str) -> None:
    (root / "spark/sources/0/1").write_text(f'v1\n{{"path":"x",{fields}}}')
    assert [one.path for one in seen(root).differs] == ["spark/sources/0/1"]


def test_entries_alone_and_folded_are_read_as_spark_does(root: Path) -> None:
    fold(root, 2, 3)
    (root / "spark/sources/0/2").write_bytes(entry(2))
    log = SparkLog(Checkpoint.open(root).objects)
    for after in range(-1, N):
        found = log._files(0, after, N)
        assert found == tuple(sorted(one for n in range(after + 1, N + 1) for one in files_of(n)))
    with pytest.raises(NotFoundError) as lacking:
        log._files(0, 2, N + 5)
    assert lacking.value.context["entry"] == N + 2
