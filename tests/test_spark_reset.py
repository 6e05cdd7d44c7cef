"""A Spark job that went back: rewound, repaired, fallen back, its spark folder gone or of another time, killed on the
way. It reads on: every event is there once, and with the same cut of the input its output is the same row for row.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from operators import Policy
from recovery.checkpoint import Checkpoint
from recovery.manifest import Manifest
from recovery.reset import reset
from recovery.verify import verify
from tests.spark_inputs import job, sample, write
from tests.test_cli import tidemark
from tests.test_spark_job import output, stream

pytestmark = pytest.mark.spark
TABLES = sample(7, 60)
BEFORE = 5
"""Batches before the damage; the others come after it."""


def run(spark: SparkSession, folder: Path, root: Path, *, drain: bool, policy: Policy | None = None) -> Manifest:
    query = job().on_spark(stream(spark, folder), checkpoint=root, partitions=2, policy=policy).start()
    query.process_all_available()
    query.stop(drain=drain)
    return query.manifest


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``before``: a job that has read five files. ``whole``: the same when it has read all seven and drained."""
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
    dry = tidemark("rewind", root, "--to", to)
    assert (dry.returncode, dry.stderr) == (0, "")
    assert "180 events of 3 checkpoints" in dry.stdout
    assert Checkpoint.open(root).ids() == list(range(1, BEFORE + 2))
    found = json.loads(tidemark("rewind", root, "--to", to, "--json").stdout)
    assert [Path(path).name for path in found["sources"][0]["files"]] == [f"{n:04d}.parquet" for n in (2, 3, 4)]
    assert tidemark("rewind", root, "--to", to, "--confirm").returncode == 0
    assert sorted(path.name for path in (root / "spark-replaced").iterdir()) == [str(BEFORE + 2)]
    done = tidemark("verify", root, "--spark-checkpoint")
    assert (done.returncode, done.stderr) == (0, "")
    goes_on(spark, made, root)


def test_rewound_to_before_the_first_batch(spark: SparkSession, made: Path, root: Path) -> None:
    assert tidemark("rewind", root, "--to", 1, "--confirm").returncode == 0
    assert not (root / "spark").exists()
    goes_on(spark, made, root)


def test_rewound_over_a_drain(spark: SparkSession, made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "whole", tmp_path / "root")
    reset(Checkpoint.open(tmp_path / "root"), of_batch(tmp_path / "root", 6))
    goes_on(spark, made, tmp_path / "root")
