"""What the job refuses on Spark: one clear error each, with its code, and nothing published."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import tidestate as ts
from tests.helpers.changed_jobs import changed
from tests.helpers.spark_inputs import SCHEMA, batch, job, sample, write
from tests.helpers.spark_runs import stream
from tidestate import Aggregation, agg
from tidestate.operators import Policy
from tidestate.recovery.inspect.verify import verify
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


def per_key(event_time: str = "t", key: str = "k", **more: Any) -> Aggregation:
    grouped = ts.stream(event_time=event_time).group_by(key).window(ts.tumbling("10 seconds"))
    return grouped.aggregate(n=agg.count(), **more)


DESCRIPTIONS = {
    "column-missing": per_key(key="nobody"),
    "event-time-type": per_key(event_time="v"),
    "key-float": per_key(key="f"),
    "key-type": per_key(key="list"),
    "aggregate-type": per_key(m=agg.mean("text")),
    "no-window": ts.stream(event_time="t").group_by("k").aggregate(n=agg.count()),
    "no-aggregate": ts.stream(event_time="t").group_by("k").window(ts.tumbling("10 seconds")).aggregate(),
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
    description: Aggregation | None = None,
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
    policy = ts.Policy(spark="stop") if code == "spark-log-differs" else None
    error = refused(spark, stopped, finished / "input", policy=policy)
    assert type(error) is kind
    assert error.code == code


def test_the_checkpoint_of_another_job(spark: SparkSession, stopped: Path, finished: Path) -> None:
    other = (
        ts.stream(event_time="t")
        .group_by("k")
        .window(ts.tumbling("10 seconds"))
        .aggregate(n=agg.count())
        .named("other")
    )
    error = refused(spark, stopped, finished / "input", other)
    assert isinstance(error, IncompatibleError)
    assert error.code == "other-job"
    assert error.context["found"] == ["job"]


def test_a_changed_configuration_shows_the_difference(spark: SparkSession, stopped: Path, finished: Path) -> None:
    error = refused(spark, stopped, finished / "input", changed(job(), key=("k", "id")))
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


def test_a_file_that_spark_takes_for_a_pattern(spark: SparkSession, tmp_path: Path) -> None:
    """Spark reads the other files of its batch twice. One alone is right, and so are tasks that read files."""
    folder, root, tables = tmp_path / "input", tmp_path / "root", sample(4, 30)

    def all_at_once(name: str, **more: Any) -> ts.DurableQuery:
        frame = spark.readStream.schema(SCHEMA).parquet(str(folder))
        query = job().on_spark(frame, checkpoint=tmp_path / name, partitions=2, **more).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        return query

    write(folder, 0, tables[0])
    (folder / "0000.parquet").rename(folder / "a[1].parquet")
    assert all_at_once("root", paths=()).manifest.totals["events"] == 30
    for number in (1, 2, 3):
        write(folder, number, tables[number])
    (folder / "0001.parquet").rename(folder / "b{1}.parquet")
    with pytest.raises(IncompatibleError, match="spark-file-pattern") as caught:
        all_at_once("root", paths=())
    assert [Path(file).name for file in caught.value.context["files"]] == ["b{1}.parquet"]
    head = Checkpoint.open(root).head()
    assert head is not None
    assert head.manifest.totals["events"] == 30
    (folder / "b{1}.parquet").rename(folder / "b1.parquet")
    assert all_at_once("root", paths=()).manifest.totals["events"] == 120
    assert verify(Checkpoint.open(root), spark=True).worst is None


@pytest.mark.classic("scan")
def test_tasks_read_a_file_that_spark_takes_for_a_pattern(spark: SparkSession, tmp_path: Path) -> None:
    for number, name in enumerate(("a?.parquet", "b*.parquet", "c.parquet")):
        write(tmp_path / "input", number, sample(3, 30)[number])
        (tmp_path / f"input/000{number}.parquet").rename(tmp_path / "input" / name)
    frame = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "input"))
    query = job().on_spark(frame, checkpoint=tmp_path / "root", partitions=2).start()
    query.processAllAvailable()
    query.stop()
    assert query.scan is not None
    assert query.scan.direct
    assert query.manifest.totals["events"] == 90
