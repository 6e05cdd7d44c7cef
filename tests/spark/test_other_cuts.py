"""A Spark job that went back, was forked, rescaled, repaired or fell back, and then takes more files a batch than
before: every event is once in its state, its net panes or its ledger, and late by the batches as they came.

In every run `tests.recovery.moves.test_other_cuts` has each of these without Spark, `tests.spark.test_reset` rewinds.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import tidestate as ts
from tests.helpers.command import tidestate
from tests.helpers.other_cuts import KINDS, judged, table
from tests.helpers.recut_roots import Held, Root, check_exact, stream
from tests.helpers.spark_inputs import write
from tidestate.operators import Policy
from tidestate.recovery.log.checkpoint import Checkpoint, manifest_path
from tidestate.recovery.log.spark_log import load_files

pytestmark = [pytest.mark.spark, pytest.mark.long]

SCHEMA = "t timestamp, k string, id long, bit long"
EVENTS = stream(random.Random(1))
FILES = [EVENTS[first : first + 8] for first in range(0, len(EVENTS), 8)]
BEFORE = 4
"""Files that came one a batch; the others come three a batch."""
KIND = {"rewound": "triggered", "rescaled": "triggered", "repaired": "sessions", "forked": "sessions"}


def rows(spark: SparkSession, folder: Path, files: int) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files).parquet(str(folder))


def run(
    spark: SparkSession, made: Path, root: Path, name: str, files: int, policy: Policy | None = None, *, drain: bool
) -> None:
    job = (
        KINDS[name].make().on_spark(rows(spark, made / "input", files), checkpoint=root, policy=policy, partitions=2)
    )
    query = job.start()
    query.processAllAvailable()
    query.stop(drain=drain)


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of each job one that has read the first files, one by one; then all files are there."""
    tmp = tmp_path_factory.mktemp("cuts")
    for number, events in enumerate(FILES):
        if number == BEFORE:
            for name in set(KIND.values()):
                run(spark, tmp, tmp / name, name, 1, drain=False)
        write(tmp / "input", number, table(events))
    return tmp


def batches(root: Path, last: int | None = None) -> list[list[int]]:
    """The files of each batch that counts, by number."""
    checkpoint, found = Checkpoint.open(root), []
    for one in checkpoint.history(last=last):
        if one.kind == "batch":
            position = load_files(checkpoint.objects, one.spark)
            assert position is not None
            found.append(sorted(int(Path(path).stem) for files in position.files.values() for path in files))
    return found


def job(root: Path, name: str) -> Root:
    """The job there, as the tests without Spark look at it."""
    found = Root(KINDS[name], EVENTS, root.parent)
    found.root = root
    return found


def goes_on(
    spark: SparkSession,
    made: Path,
    root: Root,
    name: str,
    begun: Sequence[list[int]] = (),
    policy: Policy | None = None,
) -> int:
    """Over the rest of the files, three a batch, all checked; how many events it has had in the end. ``begun`` are
    the batches of the root it was forked from.
    """
    for drain in (False, True):
        run(spark, made, root.root, name, 3, policy, drain=drain)
        cut = [*begun, *batches(root.root)]
        assert sorted(number for files in cut for number in files) == list(range(len(FILES)))
        assert max(map(len, cut)) == 3
        root.held = Held(0, tuple(sum(len(FILES[number]) for number in files) for files in cut))
        check_exact(root, name)
    one_by_one = judged(KINDS[name], FILES)[1]
    assert one_by_one != judged(KINDS[name], root.cut(root.held))[1]
    found = tidestate("verify", root.root, "--read-data", 100, "--spark-checkpoint")
    assert (found.returncode, found.stderr) == (0, "")
    head = Checkpoint.open(root.root).head()
    assert head is not None
    return head.manifest.totals["events"]


def of_batch(root: Path, batch_id: int) -> int:
    """The checkpoint of a Spark batch."""
    history = Checkpoint.open(root).history()
    return next(one.id for one in history if one.kind == "batch" and one.spark and one.spark.batch_id == batch_id)


def rewound(root: Path) -> None:
    done = tidestate("rewind", root, "--to", of_batch(root, 1), "--confirm")
    assert (done.returncode, done.stderr) == (0, "")


def rescaled(root: Path) -> None:
    done = tidestate("rescale", root, "--partitions", 3, "--confirm")
    assert (done.returncode, done.stderr) == (0, "")


def repaired(root: Path) -> None:
    """After its newest state file was cut off."""
    head = Checkpoint.open(root).head()
    assert head is not None
    refs = [ref for part in head.manifest.operators["job"].partitions for ref in part.files]
    os.truncate(root / max(refs, key=lambda ref: ref.last).path, 40)
    assert tidestate("repair", root, "--to", "newest-good", "--confirm").returncode == 0


# Each of them without Spark: `tests.recovery.moves.test_other_cuts`.
@pytest.mark.parametrize("act", [rewound, rescaled, repaired])
def test_it_takes_the_rest_in_other_batches(
    spark: SparkSession, made: Path, tmp_path: Path, act: Callable[[Path], None]
) -> None:
    name = KIND[act.__name__]
    root = shutil.copytree(made / name, tmp_path / "root")
    act(root)
    assert goes_on(spark, made, job(root, name), name) == len(EVENTS)


def test_a_start_that_falls_back_takes_the_rest_in_other_batches(
    spark: SparkSession, made: Path, tmp_path: Path
) -> None:
    root = shutil.copytree(made / "triggered", tmp_path / "root")
    path = root / manifest_path(Checkpoint.open(root).ids()[-1])
    os.truncate(path, path.stat().st_size // 2)
    policy = ts.Policy(damaged="reset")
    assert goes_on(spark, made, job(root, "triggered"), "triggered", policy=policy) == len(EVENTS)


def test_a_fork_takes_the_rest_in_other_batches(spark: SparkSession, made: Path, tmp_path: Path) -> None:
    name = KIND["forked"]
    at = of_batch(made / name, 2)
    first = job(made / name, name)
    done = tidestate("fork", made / name, tmp_path / "fork", "--at", at)
    assert (done.returncode, done.stderr) == (0, "")
    forked = job(tmp_path / "fork", name)
    forked.panes, forked.ledger = first.put_out(at)
    assert goes_on(spark, made, forked, name, batches(made / name, at)) == len(EVENTS)
