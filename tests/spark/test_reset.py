"""A Spark job that went back: rewound, repaired, fallen back, its spark folder gone or of another time, killed on the
way. It reads on: every event is there once, and with the same cut of the input its output is the same row for row.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tidestate as ts
from tests.helpers.command import tidestate
from tests.helpers.forked import forked
from tests.helpers.moves import reset_to
from tests.helpers.process import REMOTE, longer
from tests.helpers.spark_inputs import sample, write
from tests.helpers.spark_runs import output, run
from tidestate.operators import Policy
from tidestate.recovery.inspect.verify import verify
from tidestate.recovery.log.checkpoint import Checkpoint, manifest_path
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.log.spark_log import SparkLog, load_files
from tidestate.recovery.spark.agreement import compare
from tidestate.recovery.spark.spark_checkpoint import finish_checkpoint
from tidestate.statestore.errors import CorruptionError, DataError

pytestmark = pytest.mark.spark
TABLES = sample(5, 60)
BEFORE = 4
"""Batches before the damage; the others come after it."""


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``before``: a job that has read four files. ``whole``: the same when it has read all five and drained."""
    tmp = tmp_path_factory.mktemp("reset")
    for number, table in enumerate(TABLES[:BEFORE]):
        write(tmp / "input", number, table)
    run(spark, tmp / "input", tmp / "before", drain=False)
    shutil.copytree(tmp / "before", tmp / "whole")
    for number, table in enumerate(TABLES[BEFORE:], BEFORE):
        write(tmp / "input", number, table)
    run(spark, tmp / "input", tmp / "whole", drain=True)
    return tmp


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / "before", tmp_path / "root")
    return tmp_path / "root"


def of_batch(root: Path, batch_id: int) -> int:
    """The checkpoint of a Spark batch."""
    batches = (one for one in Checkpoint.open(root).history() if one.kind == "batch")
    return next(one.id for one in batches if one.spark and one.spark.batch_id == batch_id)


def goes_on(spark: SparkSession, made: Path, root: Path, policy: Policy | None = None) -> Manifest:
    """To its end, with what the unharmed one has put out."""
    last = run(spark, made / "input", root, drain=True, policy=policy)
    assert last.totals["events"] == sum(table.num_rows for table in TABLES)
    for kind in ("panes", "late"):
        assert output(root, kind) == output(made / "whole", kind)
    assert verify(Checkpoint.open(root), spark=False).worst is None
    return last


def test_rewound(spark: SparkSession, made: Path, root: Path) -> None:
    to = of_batch(root, 1)
    dry = tidestate("rewind", root, "--to", to)
    assert (dry.returncode, dry.stderr) == (0, "")
    assert "120 events of 2 checkpoints" in dry.stdout
    assert Checkpoint.open(root).ids() == list(range(1, BEFORE + 2))
    found = json.loads(tidestate("rewind", root, "--to", to, "--json").stdout)
    assert [Path(path).name for path in found["sources"][0]["files"]] == [f"{n:04d}.parquet" for n in (2, 3)]
    assert tidestate("rewind", root, "--to", to, "--confirm").returncode == 0
    assert sorted(path.name for path in (root / "spark-replaced").iterdir()) == [str(BEFORE + 2)]
    done = tidestate("verify", root, "--spark-checkpoint")
    assert (done.returncode, done.stderr) == (0, "")
    goes_on(spark, made, root)


@pytest.mark.long  # in every run: tests.recovery.moves, and test_rewound
def test_rewound_to_before_the_first_batch(spark: SparkSession, made: Path, root: Path) -> None:
    assert tidestate("rewind", root, "--to", 1, "--confirm").returncode == 0
    assert not (root / "spark").exists()
    goes_on(spark, made, root)


def test_rewound_over_a_drain(spark: SparkSession, made: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(made / "whole", root)
    drained = Checkpoint.open(root).ids()[-1]
    done = reset_to(Checkpoint.open(root), of_batch(root, BEFORE))
    assert done.abandoned[-1][1] == drained
    assert not done.manifest.drained
    last = goes_on(spark, made, root)
    assert last.drained
    assert last.id > drained


def flipped(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(bytes(data))


def state_file(root: Path) -> Path:
    """The newest state file that the newest checkpoint names."""
    head = Checkpoint.open(root).head()
    assert head is not None
    refs = [ref for part in head.manifest.operators["job"].partitions for ref in part.files]
    return root / max(refs, key=lambda ref: ref.last).path


def manifest_flipped(root: Path) -> None:
    flipped(root / manifest_path(BEFORE + 1), 300)


def state_cut(root: Path) -> None:
    os.truncate(state_file(root), 40)


@pytest.mark.parametrize("damage", [*longer(manifest_flipped), state_cut])
def test_repaired(spark: SparkSession, made: Path, root: Path, damage: Callable[[Path], None]) -> None:
    damage(root)
    damaged = {path: path.read_bytes() for path in (root / "manifests").iterdir()}
    dry = tidestate("repair", root, "--to", "newest-good", "--json")
    assert dry.returncode == 0, dry.stderr
    plan = json.loads(dry.stdout)
    assert [one["kind"] for one in plan["findings"]] == ["manifest" if damage is manifest_flipped else "file"]
    assert {path: path.read_bytes() for path in (root / "manifests").iterdir()} == damaged
    assert tidestate("repair", root, "--to", "newest-good", "--confirm").returncode == 0
    assert damaged.items() <= {path: path.read_bytes() for path in (root / "manifests").iterdir()}.items()
    again = tidestate("repair", root, "--to", "newest-good")
    assert (again.returncode, again.stdout) == (0, "nothing to repair\n")
    goes_on(spark, made, root)


def test_a_start_stops_at_a_damaged_manifest_and_names_the_repair(
    spark: SparkSession, made: Path, root: Path
) -> None:
    manifest_flipped(root)
    with pytest.raises(CorruptionError, match=f"tidestate repair {root} --to newest-good"):
        run(spark, made / "input", root, drain=True)


@pytest.mark.long
def test_a_start_falls_back_when_asked_to(
    spark: SparkSession, made: Path, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flipped(state_file(root), 200)
    with caplog.at_level(logging.WARNING, "tidestate"):
        goes_on(spark, made, root, ts.Policy(damaged="reset"))
    abandoned = f"back to checkpoint {BEFORE}, the newest intact one; abandoned: {BEFORE + 1}"
    assert REMOTE or abandoned in "\n".join(caplog.messages), "on Spark Connect the server logs it"


def gone(root: Path) -> None:
    shutil.rmtree(root / "spark")


def older(root: Path) -> None:
    for path in ("offsets", "commits", "sources/0"):
        for number in (BEFORE - 1, BEFORE - 2):
            (root / "spark" / path / str(number)).unlink()


def newer(root: Path) -> None:
    for number in (BEFORE, BEFORE + 1):
        (root / manifest_path(number)).unlink()


@pytest.mark.long  # in every run: tests.recovery
def test_a_start_goes_on_above_what_it_saw_when_asked_to(spark: SparkSession, made: Path, root: Path) -> None:
    newer(root)
    goes_on(spark, made, root, ts.Policy(damaged="reset"))
    assert Checkpoint.open(root).ids()[:BEFORE] == [*range(1, BEFORE), BEFORE + 2]


@pytest.mark.long
@pytest.mark.parametrize("damage", [gone, *longer(older, newer)])
def test_spark_resynced(spark: SparkSession, made: Path, root: Path, damage: Callable[[Path], None]) -> None:
    damage(root)
    with pytest.raises(DataError, match="tidestate repair"):
        run(spark, made / "input", root, drain=True, policy=ts.Policy(spark="stop"))
    had = {path.name for path in (root / "spark").rglob("*")}
    assert tidestate("repair", root, "--resync-spark").returncode == 0
    assert {path.name for path in (root / "spark").rglob("*")} == had
    assert tidestate("repair", root, "--resync-spark", "--confirm").returncode == 0
    assert {path.name for path in (root / "spark-replaced").rglob("*")} >= had
    again = tidestate("repair", root, "--resync-spark")
    assert (again.returncode, again.stdout) == (0, "nothing to repair\n")
    goes_on(spark, made, root)


@pytest.mark.parametrize("moment", ["reset-published", "spark-set-aside", "spark-half-written"])
def test_killed_on_the_way_back(spark: SparkSession, made: Path, root: Path, moment: str) -> None:
    assert forked("tests.children.reset", root, of_batch(root, 1), moment) == -signal.SIGKILL
    if moment == "spark-half-written":
        goes_on(spark, made, root)
        return
    checkpoint = Checkpoint.open(root)
    head = checkpoint.head()
    assert head is not None
    assert finish_checkpoint(checkpoint, head.manifest)
    compare(load_files(checkpoint.objects, head.manifest.spark), SparkLog(checkpoint.objects)).check()
