"""Real Spark on a checkpoint of its own that a power cut has torn: the job starts, and its output is the undisturbed
run's. Which states there are, and that each is known:
tests/recovery/spark/test_agreement.py. Here Spark takes what is rewritten.
"""

from __future__ import annotations

import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.helpers import spark_runs
from tests.helpers.apis import raises_foreign
from tests.helpers.process import LONG, REMOTE
from tests.helpers.spark_inputs import SCHEMA, job, sample, write
from tests.helpers.spark_runs import output, stream
from tests.helpers.torn_files import DAMAGES, cut, empty, missing, zeros
from tidestate.recovery.inspect.verify import verify
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest
from tidestate.statestore.errors import IncompatibleError

pytestmark = pytest.mark.spark
run = partial(spark_runs.run, partitions=1)
TABLES = sample(9, 25)
N = 6
"""Number of the newest batch before the power cut: of entries 5 and 8 Spark makes compact files."""
INTERVAL = "spark.sql.streaming.fileSource.log.compactInterval"


class DiedError(Exception):
    """Stands for the end of the process."""


@pytest.fixture(scope="module")
def folding(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set(INTERVAL, "3")
    yield spark
    spark.conf.unset(INTERVAL)


@pytest.fixture(scope="module")
def made(folding: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``before``: a job that has done batch N, and died within the next; ``whole``: the undisturbed
    run, without Spark.
    """
    tmp = tmp_path_factory.mktemp("mended")
    for number, table in enumerate(TABLES[: N + 2]):
        write(tmp / "input", number, table)

    def dies(moment: str, checkpoint_id: int) -> None:
        if (moment, checkpoint_id) == ("before-manifest", N + 3):
            raise DiedError

    query = job().on_spark(stream(folding, tmp / "input"), checkpoint=tmp / "before", partitions=1)
    with raises_foreign(DiedError):
        query.with_hook(dies).start().processAllAvailable()
    log = tmp / "before/spark"
    assert sorted(path.name for path in (log / "sources/0").iterdir() if path.name[0] != ".") == sorted(
        ["0", "1", "2.compact", "3", "4", "5.compact", "6", "7"]
    )
    assert (log / f"offsets/{N + 1}").exists()
    assert not (log / f"commits/{N + 1}").exists()
    for number, table in enumerate(TABLES[N + 2 :], N + 2):
        write(tmp / "input", number, table)
    job().standalone(checkpoint=tmp / "whole").run(TABLES, drain=True)
    return tmp


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "before", tmp_path / "root"))


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """As `made`, of two files and without a job."""
    for number, table in enumerate(TABLES[:2]):
        write(tmp_path / "input", number, table)
    job().standalone(checkpoint=tmp_path / "whole").run(TABLES[:2], drain=True)
    return tmp_path


def check_goes_on(spark: SparkSession, made: Path, root: Path, tables: Sequence[pa.Table] = TABLES) -> None:
    """To its end, with what the undisturbed one has put out; and then Spark's checkpoint is as it should be."""
    last = run(spark, made / "input", root, drain=True)
    assert last.totals["events"] == sum(table.num_rows for table in tables)
    for kind in ("panes", "late"):
        assert output(root, kind) == output(made / "whole", kind)
    assert verify(Checkpoint.open(root), spark=True).worst is None


def lost_lines(path: Path) -> None:
    lines = path.read_text().split("\n")
    path.write_text("\n".join([lines[0], *lines[2:]]))


EACH = [
    (f"offsets/{N + 1}", zeros),
    ("sources/0/5.compact", lost_lines),
]
"""Each file and each damage, without Spark: `tests.recovery.spark.test_agreement`."""
NAMES = ["metadata", f"commits/{N}", *(f"{log}/{n}" for log in ("offsets", "sources/0") for n in (N, N + 1))]
NAMES += [f"offsets/{N - 1}", "sources/0/5.compact", "sources/0/2.compact", "sources/0/1"]
ALL = [(name, damage) for name in NAMES for damage in (*DAMAGES, lost_lines)]


# In every run many at once, below.
@pytest.mark.long
@pytest.mark.parametrize(("name", "damage"), ALL if LONG else EACH)
@pytest.mark.parametrize("sums", [True, False] if LONG else [False])
def test_a_torn_file(
    folding: SparkSession, made: Path, root: Path, name: str, damage: Callable[[Path], None], sums: bool
) -> None:
    path = root / "spark" / name
    damage(path)
    if not sums:
        path.with_name(f".{path.name}.crc").unlink()
    check_goes_on(folding, made, root)


def test_all_at_once_and_again_after_a_start(
    folding: SparkSession, made: Path, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It goes on through more compactions, by another setting too, and nothing is rewritten twice."""
    names = ["metadata", f"offsets/{N}", f"offsets/{N + 1}", f"commits/{N}", f"sources/0/{N}", "sources/0/5.compact"]
    for name, damage in zip(names, [missing, empty, cut, zeros, cut, missing], strict=True):
        path = root / "spark" / name
        damage(path)
        path.with_name(f".{path.name}.crc").unlink()
    last = made / "input" / f"{len(TABLES) - 1:04d}.parquet"
    hidden, replaced = last.with_name(f".{last.name}"), root / "spark-replaced"
    last.rename(hidden)
    try:
        with caplog.at_level(logging.WARNING, "tidestate"):
            run(folding, made / "input", root, drain=False)
    finally:
        hidden.rename(last)
    assert len(list(replaced.iterdir())) == 1
    if not REMOTE:  # there the server logs it
        (warned,) = [one for one in caplog.messages if "rewritten from ours" in one]
        assert all(f"spark/{name}" in warned for name in names if "sources" not in name)
    run(folding, made / "input", root, drain=True)
    assert len(list(replaced.iterdir())) == 1
    for kind in ("panes", "late"):
        assert output(root, kind) == output(made / "whole", kind)


def test_nothing_is_rewritten_without_need(folding: SparkSession, made: Path, root: Path) -> None:
    """After a crash Spark's planned batch stays as it was planned."""
    planned = (root / f"spark/offsets/{N + 1}").read_bytes()
    check_goes_on(folding, made, root)
    assert (root / f"spark/offsets/{N + 1}").read_bytes() == planned
    assert not (root / "spark-replaced").exists()


@pytest.mark.long
def test_before_the_first_batch(folding: SparkSession, few: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"

    def dies(moment: str, checkpoint_id: int) -> None:
        raise DiedError

    query = job().on_spark(stream(folding, few / "input"), checkpoint=root, partitions=1)
    with raises_foreign(DiedError):
        query.with_hook(dies).start().processAllAvailable()
    empty(root / "spark/sources/0/0")
    zeros(root / "spark/offsets/0")
    check_goes_on(folding, few, root, TABLES[:2])


@pytest.mark.long
def test_a_file_that_comes_again(spark: SparkSession, tmp_path: Path) -> None:
    """Spark forgets files by ``maxFileAge``, and takes one that was touched after that for a new one."""
    folder, root = tmp_path / "input", tmp_path / "root"

    def run() -> Manifest:
        young = spark.readStream.schema(SCHEMA).option("maxFileAge", "1h").parquet(str(folder))
        query = job().on_spark(young, checkpoint=root, partitions=1).start()
        query.processAllAvailable()
        query.stop()
        return query.manifest

    write(folder, 0, TABLES[0])
    run()
    write(folder, 1, TABLES[1])
    os.utime(folder / "0001.parquet", (1_000_100_000, 1_000_100_000))
    before = run()
    os.utime(folder / "0000.parquet", (1_000_100_001, 1_000_100_001))
    for _ in range(2):
        with pytest.raises(IncompatibleError, match="spark-file-again") as caught:
            run()
        assert caught.value.context["files"] == [(folder / "0000.parquet").as_uri()]
    (folder / "0000.parquet").unlink()
    write(folder, 2, TABLES[2])
    os.utime(folder / "0002.parquet", (1_000_100_002, 1_000_100_002))
    last = run()
    assert before.spark is not None
    assert last.spark is not None
    assert last.spark.batch_id == before.spark.batch_id + 1
    assert last.totals["events"] == sum(table.num_rows for table in TABLES[:3])


def test_a_first_batch_of_which_spark_left_an_unfinished_file(spark: SparkSession, few: Path, tmp_path: Path) -> None:
    """Its process was killed while it planned that."""
    for folder in ("offsets", "commits"):
        left = tmp_path / "root" / "spark" / folder / f".0.{uuid.uuid4()}.tmp"
        left.parent.mkdir(parents=True)
        left.write_text("v1\n{")
    run(spark, few / "input", tmp_path / "root", drain=True)
    assert output(tmp_path / "root", "panes") == output(few / "whole", "panes")
