"""Spark's own checkpoint against ours: what a start refuses or leaves alone, and what Spark would not write."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

import tidestate as ts
from tests.helpers.manifests import files_below, following
from tests.helpers.moves import resync
from tests.helpers.planned_batch import N, check_mended, entry, fold, seen, start
from tests.helpers.planned_batch import planned as planned
from tests.helpers.planned_batch import root as root
from tests.helpers.spark_checkpoints import KAFKA, files_of, head_of
from tests.helpers.torn_files import empty
from tidestate.recovery.inspect.verify import _spark, spark_findings
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import SparkPosition
from tidestate.recovery.log.spark_log import SparkLog
from tidestate.recovery.start.spark_repair import SparkRepair
from tidestate.statestore.errors import CorruptionError, IncompatibleError, NotFoundError, UsageError


@pytest.mark.parametrize("rest", [b"", b"crc", b"crc\x00\x00", bytes(12)])
def test_checksums_that_hadoop_passes_over(root: Path, rest: bytes) -> None:
    (root / "spark/offsets" / f".{N}.crc").write_bytes(rest)
    assert seen(root).differs == ()


def test_a_policy_may_stop(root: Path) -> None:
    empty(root / "spark/offsets" / str(N))
    before = files_below(root)
    with pytest.raises(IncompatibleError, match="spark-log-differs") as caught:
        start(root, ts.Policy(spark="stop"))
    assert caught.value.context["differs"] == [f"spark/offsets/{N}: it is empty"]
    assert files_below(root) == before
    with pytest.raises(UsageError, match="policy"):
        ts.Policy(spark="hope")  # type: ignore[arg-type]


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
    check_mended(root)


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
    mending = SparkRepair(checkpoint, ts.Policy(spark="stop"))
    mending.compare(head)
    mending.repair(head)
    assert not (root / "spark").exists()


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


def test_it_looks_again_next_to_a_running_job(root: Path) -> None:
    """What Spark and the job did between two looks is no damage."""
    checkpoint = Checkpoint.open(root)
    stale = Checkpoint.open(root).read(N + 1)
    assert list(spark_findings(checkpoint, stale.manifest))
    assert _spark(checkpoint, stale.manifest) == []


def test_a_batch_with_a_file_that_is_known_is_refused(root: Path) -> None:
    checkpoint = Checkpoint.open(root)
    head = head_of(checkpoint)
    mending = SparkRepair(checkpoint, ts.Policy())
    mending.compare(head)
    read = mending.repair(head)
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
    check_mended(root)


@pytest.mark.parametrize("folder", ["sources/0", "sources", "offsets", "commits"])
def test_what_spark_passes_over_says_nothing(root: Path, folder: str) -> None:
    for name in ("README", "x.json", "²", "9" * 40, "5.tmp", "compact", "1e3"):
        (root / "spark" / folder / name).write_bytes(b"junk")
    check_mended(root)


def test_a_time_of_a_batch_that_is_none_is_known_and_mended(root: Path) -> None:
    path = root / f"spark/offsets/{N + 1}"
    text = path.read_text()
    numbers = ["Infinity", "-Infinity", "NaN", "1e400", "1e3", "-1", str(2**63), "9" * 5000]
    for time in (*numbers, "true", "null", '"5"', "[5]"):
        path.write_text(text.replace(f": {(N + 1) * 1000}", f": {time}"))
        assert time in path.read_text()
        assert [str(one) for one in seen(root).differs] == [f"spark/offsets/{N + 1}: it is truncated or garbled"]
    start(root)
    check_mended(root)


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
    check_mended(root)


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


def test_half_a_character_is_no_id_of_a_query(root: Path) -> None:
    """JSON may escape one; it can be in no error and no manifest."""
    (root / "spark/metadata").write_bytes(b'{"id":"\\ud800"}')
    assert [str(one) for one in seen(root).differs] == ["spark/metadata: it is truncated or garbled"]
    start(root)
    check_mended(root)
