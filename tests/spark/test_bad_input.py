"""What the job refuses on Spark: one clear error each, with its code, and nothing published."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from tests.helpers.spark_inputs import SCHEMA, batch, job, sample, write
from tests.helpers.spark_runs import stream
from tidestate.agg import count, mean
from tidestate.operators import Policy, tumbling
from tidestate.operators.describe.windowed import Windowed, windowed
from tidestate.recovery.log.checkpoint import Checkpoint, manifest_path
from tidestate.recovery.log.marker import MARKER
from tidestate.statestore.errors import (
    CorruptionError,
    IncompatibleError,
    TidestateError,
    UnavailableError,
    UsageError,
)

pytestmark = pytest.mark.spark


def per_key(**changes: str) -> Windowed:
    settings = {"event_time": "t", "key": "k"} | changes
    return windowed(**settings).window(tumbling("10 seconds")).aggregate(n=count())  # type: ignore[arg-type]


DESCRIPTIONS = {
    "column-missing": per_key(key="nobody"),
    "event-time-type": per_key(event_time="v"),
    "key-float": per_key(key="f"),
    "key-type": per_key(key="list"),
    "aggregate-type": per_key().aggregate(m=mean("text")),
    "no-window": windowed(event_time="t", key="k").aggregate(n=count()),
    "no-aggregate": windowed(event_time="t", key="k").window(tumbling("10 seconds")),
}


@pytest.mark.parametrize("code", DESCRIPTIONS)
def test_a_description_that_does_not_fit_the_stream(spark: SparkSession, tmp_path: Path, code: str) -> None:
    write(tmp_path / "input", 0, batch([(1, "a", 1)]))
    wide = stream(spark, tmp_path / "input").selectExpr("*", "v / 3.0D as f", "k as text", "array(v) as list")
    with pytest.raises(UsageError) as caught:
        DESCRIPTIONS[code].on_spark(wide, checkpoint=tmp_path / "cp").start()
    assert caught.value.code == code
    assert not (tmp_path / "cp").exists()


def test_a_dataframe_that_is_no_stream(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        per_key().on_spark(spark.createDataFrame([], SCHEMA), checkpoint=tmp_path / "cp").start()
    assert caught.value.code == "not-a-stream"


def test_an_unwritable_root(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 0, batch([(1, "a", 1)]))
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UnavailableError) as caught:
        job().on_spark(stream(spark, tmp_path / "input"), checkpoint=tmp_path / "file" / "cp").start()
    assert caught.value.code == "storage"


@pytest.fixture(scope="module")
def finished(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an input and the checkpoint of a stopped job; tests work on copies."""
    folder = tmp_path_factory.mktemp("finished")
    for number, table in enumerate(sample(3, 50)):
        write(folder / "input", number, table)
    query = job().on_spark(stream(spark, folder / "input"), checkpoint=folder / "cp").start()
    query.processAllAvailable()
    query.stop()
    return folder


@pytest.fixture
def stopped(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished / "cp", tmp_path / "cp")
    shutil.copytree(finished / "input", tmp_path / "input", copy_function=shutil.copy2)
    return tmp_path


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def refused(
    spark: SparkSession,
    folder: Path,
    source: Path,
    description: Windowed | None = None,
    policy: Policy | None = None,
) -> TidestateError:
    """Start the job; it must be refused before anything is written."""
    before = files(folder / "cp")
    with pytest.raises(TidestateError) as caught:
        (description or job()).on_spark(stream(spark, source), checkpoint=folder / "cp", policy=policy).start()
    assert files(folder / "cp") == before
    return caught.value


def wipe_spark(cp: Path) -> None:
    shutil.rmtree(cp / "spark")


def wipe_ours(cp: Path) -> None:
    shutil.rmtree(cp / "manifests")
    (cp / "tidestate.json").unlink()


def wipe_all_but_spark(cp: Path) -> None:
    for path in cp.iterdir():
        if path.name not in ("spark", MARKER):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def lose_newest_log(cp: Path) -> None:
    for name in ("offsets/2", "commits/2", "sources/0/2"):
        (cp / "spark" / name).unlink()


def lose_source_log(cp: Path) -> None:
    (cp / "spark" / "sources" / "0" / "2").unlink()


def another_query(cp: Path) -> None:
    (cp / "spark" / "metadata").write_text(json.dumps({"id": "00000000-0000-0000-0000-000000000000"}))
    (cp / "spark" / ".metadata.crc").unlink()  # by which it would be a damaged one of ours


def more_rows_under_the_same_offsets(cp: Path) -> None:
    """As after a power cut: same batch id, same offset text, one file more."""
    path = cp / "spark" / "sources" / "0" / "2"
    entry = json.loads(path.read_text().splitlines()[1])
    entry["path"] = entry["path"].replace("0002", "0003")
    path.write_text(path.read_text().rstrip("\n") + "\n" + json.dumps(entry, separators=(",", ":")))


def damage_spark_offsets(cp: Path) -> None:
    path = cp / "spark" / "offsets" / "2"
    path.write_text(path.read_text().replace("batchTimestampMs", "batchTimestampMt"))


def lose_manifests(cp: Path) -> None:
    for path in sorted((cp / "manifests").iterdir())[-2:]:
        path.unlink()


def damage_newest_manifest(cp: Path) -> None:
    path = cp / manifest_path(Checkpoint.open(cp).ids()[-1])
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


BREAKS: dict[str, tuple[Callable[[Path], None], type[TidestateError], str]] = {
    "spark's checkpoint wiped": (wipe_spark, IncompatibleError, "spark-log-differs"),
    "ours wiped": (wipe_ours, IncompatibleError, "spark-ahead"),
    "all wiped but spark and the marker": (wipe_all_but_spark, IncompatibleError, "spark-ahead"),
    "our newest manifests lost": (lose_manifests, CorruptionError, "root-further"),
    "spark's newest log files lost": (lose_newest_log, IncompatibleError, "spark-log-differs"),
    "spark's source log lost": (lose_source_log, IncompatibleError, "spark-log-differs"),
    "spark's checkpoint of another query": (another_query, IncompatibleError, "spark-query-changed"),
    "same batch, more files": (more_rows_under_the_same_offsets, IncompatibleError, "spark-log-differs"),
    "spark's offsets damaged": (damage_spark_offsets, IncompatibleError, "spark-log-differs"),
    "newest manifest damaged": (damage_newest_manifest, CorruptionError, "manifest-damaged"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_checkpoint_is_refused_before_anything_happens(
    spark: SparkSession, stopped: Path, finished: Path, name: str
) -> None:
    break_it, kind, code = BREAKS[name]
    break_it(stopped / "cp")
    # What has merely lost something is rewritten, unless a policy says otherwise: tests/spark/test_mended.py.
    policy = Policy(spark="stop") if code == "spark-log-differs" else None
    error = refused(spark, stopped, finished / "input", policy=policy)
    assert type(error) is kind
    assert error.code == code


def test_the_checkpoint_of_another_job(spark: SparkSession, stopped: Path, finished: Path) -> None:
    other = windowed(event_time="t", key="k", name="other").window(tumbling("10 seconds")).aggregate(n=count())
    error = refused(spark, stopped, finished / "input", other)
    assert isinstance(error, IncompatibleError)
    assert error.code == "other-job"
    assert error.context["found"] == ["job"]


def test_a_changed_configuration_shows_the_difference(spark: SparkSession, stopped: Path, finished: Path) -> None:
    error = refused(spark, stopped, finished / "input", replace(job(), key=("k", "id")))
    assert isinstance(error, IncompatibleError)
    assert error.code == "configuration-changed"
    assert error.context["changed"]["group_by"] == "k -> k, id"
    assert error.context["why"]["group_by"] == "state is kept by key"


def test_a_damaged_state_file_stops_the_query_and_loses_nothing(
    spark: SparkSession, stopped: Path, finished: Path
) -> None:
    head = Checkpoint.open(stopped / "cp").head()
    assert head is not None
    # All of them: a batch reads only the state partitions that it touches.
    refs = {ref.path for state in head.manifest.operators["job"].partitions for ref in state.files}
    good = {path: (stopped / "cp" / path).read_bytes() for path in refs}
    for path, whole in good.items():
        (stopped / "cp" / path).write_bytes(whole[: len(whole) // 2])
    extra = sample(1, 50, seed=9)[0]
    write(finished / "input", 3, extra)
    try:
        query = job().on_spark(stream(spark, finished / "input"), checkpoint=stopped / "cp").start()
        with pytest.raises(CorruptionError) as caught:
            query.processAllAvailable()
        assert caught.value.code == "file-damaged"
        assert caught.value.context["path"] in refs
        with pytest.raises(CorruptionError):
            query.stop()
        for path, whole in good.items():
            (stopped / "cp" / path).write_bytes(whole)
        query = job().on_spark(stream(spark, finished / "input"), checkpoint=stopped / "cp").start()
        query.processAllAvailable()
        query.stop()
        assert query.manifest.totals["events"] == 200
    finally:
        (finished / "input" / "0003.parquet").unlink()


def test_a_checkpoint_that_the_standalone_runner_feeds(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 0, batch([(1, "a", 1)]))
    job().standalone(checkpoint=tmp_path / "cp").run([batch([(1, "a", 1)])])
    error = refused(spark, tmp_path, tmp_path / "input")
    assert isinstance(error, IncompatibleError)
    assert error.code == "other-runner"


def test_a_batch_of_one_empty_file_is_a_batch_without_events(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "input"
    folder.mkdir()
    for number, text in enumerate(
        ['{"t":"2024-01-01T00:00:01Z","k":"a"}', "", '{"t":"2024-01-01T00:00:02Z","k":"a"}']
    ):
        (folder / f"{number}.json").write_text(text)
        os.utime(folder / f"{number}.json", (1_000_000_000 + number,) * 2)
    source = spark.readStream.schema("t timestamp, k string").option("maxFilesPerTrigger", 1).json(str(folder))
    query = per_key().on_spark(source, checkpoint=tmp_path / "cp").start()
    query.processAllAvailable()
    query.stop(drain=True)
    assert query.manifest.totals["accepted"] == 2
    assert query.manifest.spark is not None
    assert query.manifest.spark.batch_id == 2
