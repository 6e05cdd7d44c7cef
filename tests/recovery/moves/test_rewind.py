"""The verbs that go back, on jobs without Spark: what they say, what they leave alone, and how the job goes on."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.command import json_here, tidestate_here
from tests.helpers.manifests import files_below, following
from tests.helpers.moves import repair, rewind
from tests.helpers.worked_example import STREAM, example
from tests.servers.s3 import s3_endpoint, s3_root  # noqa: F401  (fixtures)
from tidestate import agg
from tidestate.recovery.log.checkpoint import Checkpoint, manifest_path
from tidestate.recovery.log.lease import LEASE_FOLDER, Lease, this_process
from tidestate.recovery.log.manifest import DeliveryId, SparkPosition
from tidestate.recovery.log.moments import checkpoint_at
from tidestate.recovery.moves.repair import plan_repair
from tidestate.recovery.moves.reset import plan_reset
from tidestate.recovery.moves.rewind import plan_replay
from tidestate.recovery.start.spark_repair import SparkRepair
from tidestate.statestore.errors import CorruptionError, IncompatibleError, NotFoundError, UsageError

pytestmark = pytest.mark.slow


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A fence, six batches (2 to 7), a drain (8); a sink has all."""
    folder = tmp_path / "root"
    example("retracting").standalone(checkpoint=folder, sink=lambda _panes, _id: None).run(STREAM, drain=True)
    return folder


def observed(root: Path) -> list[list[evidence.Row]]:
    """Panes of each checkpoint that counts."""
    checkpoint = Checkpoint.open(root)
    refs = [[{"path": ref.path} for ref in one.panes] for one in checkpoint.outputs() if one.panes]
    return [sorted(evidence.rows(root, one), key=repr) for one in refs]


def test_a_plan_says_all_and_changes_nothing(root: Path) -> None:
    before = files_below(root)
    done = tidestate_here("rewind", root, "--to", 4)
    assert (done.returncode, done.stderr) == (0, "")
    answered = [line.rstrip() for line in done.stdout.splitlines()]
    assert answered[0].startswith("back to        checkpoint 4, created 20")
    assert answered[1:] == [
        "as checkpoint  9; abandoned: 5-8",
        "watermark      1970-01-01 00:00:11",
        "replayed       5 events of 4 checkpoints",
        "input          3 batches",
        "repeats        2 panes of checkpoint 5, already delivered to the sink",
        "               1 pane of checkpoint 6, already delivered to the sink",
        "               1 pane of checkpoint 8, already delivered to the sink",
        "dry run, nothing was changed: use --confirm to do it",
    ]
    (found,) = json_here("rewind", root, "--to", 4, "--json")
    assert (found["done"], found["reset"], found["abandoned"], found["events"]) == (False, 9, [[5, 8]], 5)
    assert found["panes"][-1] == {"checkpoint": 8, "rows": 1, "delivered": True}
    assert files_below(root) == before


def test_rewound_over_a_drain_the_job_goes_on_to_the_same(root: Path) -> None:
    wanted = observed(root)
    done = tidestate_here("rewind", root, "--to", 4, "--confirm")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "done")
    kinds = {row["id"]: row["abandoned"] for row in json_here("list", root, "--json")}
    assert kinds == {number: 5 <= number <= 8 for number in range(1, 10)}
    assert "abandoned" in tidestate_here("list", root).stdout
    came: list[int] = []
    job = example("retracting").standalone(checkpoint=root, sink=lambda _panes, one: came.append(one.checkpoint))
    job.run(STREAM, drain=True)
    assert observed(root) == wanted
    assert came == [11, 12, 14]  # 9 is the reset, 10 the fence; batch 13 had nothing to show
    again = tidestate_here("rewind", root, "--to", 14)
    assert (again.returncode, again.stdout) == (0, "checkpoint 14 is the newest: there is nothing to undo\n")


# In every run: the same on a disk, and what is different on S3 by `tests.statestore.storage`, a whole job there by
# `tests.operators.local.test_remote_roots`.
@pytest.mark.long
def test_on_s3(s3_root: str) -> None:  # noqa: F811  (fixture)
    batches = STREAM[:4]
    example().standalone(checkpoint=s3_root).run(batches, drain=True)
    checkpoint = Checkpoint.open(s3_root)
    panes = [sum(ref.rows for ref in one.panes) for one in checkpoint.history()]
    rewind(checkpoint, 3)
    example().standalone(checkpoint=s3_root).run(batches, drain=True)
    found = [sum(ref.rows for ref in one.panes) for one in checkpoint.history() if one.kind in ("batch", "tick")]
    assert found == panes[1:]
    checkpoint.objects.put(manifest_path(checkpoint.ids()[-1]), b"rubbish")
    assert [one.kind for one in repair(checkpoint).findings] == ["manifest"]
    example().standalone(checkpoint=s3_root).run(batches, drain=True)
    assert [sum(ref.rows for ref in one.panes) for one in checkpoint.history() if one.panes] == [
        n for n in panes if n
    ]


def test_a_time_means_the_newest_made_by_then(root: Path) -> None:
    checkpoint = Checkpoint.open(root)
    made = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=checkpoint.read(4).manifest.created_us)
    assert checkpoint_at(checkpoint, made.isoformat()) == 4
    assert checkpoint_at(checkpoint, made.replace(tzinfo=None).isoformat()) == 4
    assert checkpoint_at(checkpoint, (made - timedelta(microseconds=1)).isoformat()) == 3
    assert checkpoint_at(checkpoint, "2999-01-01") == checkpoint_at(checkpoint, np.datetime64("2999")) == 8
    assert checkpoint_at(checkpoint, np.int64(3)) == 3
    rewind(checkpoint, 2)
    assert checkpoint_at(checkpoint, made.isoformat()) == 2  # what is abandoned does not count
    with pytest.raises(NotFoundError, match=r"is newer than this time.*no-such-checkpoint"):
        checkpoint_at(checkpoint, "1999-12-31T23:59")
    with pytest.raises(UsageError, match="rewind-to"):
        checkpoint_at(checkpoint, "yesterday")
    with pytest.raises(UsageError, match="rewind-to"):
        checkpoint_at(checkpoint, np.timedelta64(3, "s"))  # type: ignore[arg-type]


def test_next_to_a_running_driver(root: Path) -> None:
    now = Checkpoint.open(root).read(8).manifest.created_us
    lease = Lease(this_process(), 1, "w", now, now)
    Checkpoint.open(root).objects.put(f"{LEASE_FOLDER}/1-1.json", msgspec.json.encode(lease))
    before = files_below(root)
    done = tidestate_here("rewind", root, "--to", 4, "--confirm")
    assert (done.returncode, "[running]" in done.stderr) == (5, True)
    with pytest.raises(UsageError, match="running"):
        repair(Checkpoint.open(root))
    assert files_below(root) == before
    assert tidestate_here("rewind", root, "--to", 4, "--confirm", "--force").returncode == 0
    # A driver that has yet to take over leaves alone what another one may be about to make.
    rewind(Checkpoint.open(root), 1, force=True)
    (root / "spark").mkdir()
    (root / "spark" / "metadata").write_text("of a query before its first batch")
    newest = Checkpoint.open(root).head()
    mending = SparkRepair(Checkpoint.open(root), ts.Policy())
    mending.compare(newest.manifest if newest else None)
    assert (root / "spark" / "metadata").exists()
    assert newest is not None
    mending.repair(newest.manifest)
    assert not (root / "spark").exists()


def test_kafka_begins_there(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open_or_create(tmp_path)
    head = None
    for batch_id in range(3):
        end = (json.dumps({"flights": {"0": batch_id * 10, "1": 7}}), "5", '{"stream":{"shard":"a"}}')
        spark = SparkPosition("query", batch_id, (), end)
        head = checkpoint.publish(following(checkpoint, head, spark=spark))
    kafka = '{"flights": {"0": 10, "1": 7}}'
    replay = plan_replay(checkpoint, plan_reset(checkpoint, 2))
    assert [(one.begin, one.starting_offsets) for one in replay.sources] == [
        (kafka, kafka),
        ("5", None),
        ('{"stream":{"shard":"a"}}', None),
    ]
    answered = tidestate_here("rewind", tmp_path, "--to", 2).stdout
    assert f"startingOffsets {kafka}" in answered


def state_of(root: Path, number: int) -> Path:
    """The newest state file of a checkpoint."""
    refs = Checkpoint.open(root).read(number).manifest.operators["windows"].partitions[0].files
    return root / refs[-1].path


def test_a_start_falls_back_and_says_which_panes_come_again(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    wanted = observed(root)
    (root / manifest_path(8)).write_bytes(b"rubbish")
    (root / manifest_path(7)).write_bytes(b"")
    state_of(root, 6).unlink()
    job = example("retracting")
    with pytest.raises(CorruptionError, match="tidestate repair"):
        job.standalone(checkpoint=root).run(STREAM)
    came: list[int] = []

    def sink(_panes: pa.Table, one: DeliveryId) -> None:
        came.append(one.checkpoint)

    with caplog.at_level(logging.WARNING, "tidestate"):
        job.standalone(checkpoint=root, sink=sink, policy=ts.Policy(damaged="reset")).run(STREAM, drain=True)
    assert observed(root) == wanted
    assert "back to checkpoint 5, the newest intact one; abandoned: 6-8" in caplog.text
    assert len([one for one in caplog.messages if one.startswith("checkpoint ") and " rejected by " not in one]) == 3
    assert came == [11, 13]


def test_another_jobs_start_resets_nothing(root: Path) -> None:
    (root / manifest_path(8)).write_bytes(b"rubbish")
    before = files_below(root)
    other = (
        ts.stream(event_time="t")
        .group_by("k")
        .window(ts.tumbling("1 minute"))
        .aggregate(n=agg.count())
        .named("other")
    )
    with pytest.raises(IncompatibleError, match="other-job"):
        other.standalone(checkpoint=root, policy=ts.Policy(damaged="reset")).run(STREAM)
    assert files_below(root) == before


def test_what_cannot_be_gone_back_to(root: Path) -> None:
    state_of(root, 4).unlink()
    before = files_below(root)
    with pytest.raises(CorruptionError, match="reset-damaged"):
        rewind(Checkpoint.open(root), 4)
    with pytest.raises(NotFoundError, match="no-such-checkpoint"):
        rewind(Checkpoint.open(root), 99)
    for arguments, code, word in (
        (("rewind", root, "--to", "soon"), 5, "[rewind-to]"),
        (("repair", root, "--to", "newest-good", "--resync-spark"), 5, "[repair-what]"),
    ):
        done = tidestate_here(*arguments, "--confirm")
        assert (done.returncode, word in done.stderr) == (code, True), done.stderr
    (found,) = json_here("repair", root, "--to", "newest-good", "--confirm", "--json")
    assert found == {"done": False, "findings": [], "reset": None}
    assert files_below(root) == before


def test_none_is_whole(root: Path) -> None:
    for number in range(1, 9):
        (root / manifest_path(number)).write_bytes(b"")
    with pytest.raises(CorruptionError, match="none-whole"):
        plan_repair(Checkpoint.open(root))


def test_panes_a_sink_waits_for_are_made_again(tmp_path: Path) -> None:
    """Not state, but delivery could not go on without them."""
    given: list[int] = []

    def full(_panes: pa.Table, one: DeliveryId) -> None:
        if len(given) == 1:
            raise RuntimeError("full")
        given.append(one.checkpoint)

    job = example("retracting")
    with pytest.raises(RuntimeError):
        job.standalone(checkpoint=tmp_path, sink=full).run(STREAM)
    job.standalone(checkpoint=tmp_path).run(STREAM)
    wanted = observed(tmp_path)
    checkpoint = Checkpoint.open(tmp_path)
    waiting = next(one for one in checkpoint.history(given[0] + 1) if one.panes)
    (tmp_path / waiting.panes[0].path).unlink()
    found = plan_repair(checkpoint)
    assert found.reset is not None
    assert found.reset.to == waiting.id - 1
    rewind(checkpoint, found.reset.to)
    came: list[int] = []
    job.standalone(checkpoint=tmp_path, sink=lambda _panes, one: came.append(one.checkpoint)).run(STREAM)
    assert observed(tmp_path) == wanted
    assert len(came) == len(wanted) - 1
