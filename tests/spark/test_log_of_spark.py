"""The class with which Spark writes the log of our query: on a local root the one that does not search for links."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import tidestate as ts
from tidestate import agg
from tidestate.operators.spark.platform import FILE_MANAGER, WITHOUT_LINKS
from tidestate.operators.spark.platforms import platform_of

pytestmark = pytest.mark.spark

OTHER = [name.replace("FileSystemBased", "FileContextBased") for name in WITHOUT_LINKS]
"""The class that Spark takes by itself."""


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """A session of its own, without the setting."""
    own = spark.newSession()
    own.conf.unset(FILE_MANAGER)
    return own


def class_of_log(session: SparkSession, folder: Path) -> str:
    """The class that writes the log of a job, once it has committed a batch."""
    (folder / "input").mkdir(parents=True)
    times = pa.array([0, 1_000_000]).cast(pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"t": times, "k": ["a", "b"]}), folder / "input" / "0.parquet")
    stream = session.readStream.schema("t timestamp, k string").parquet(str(folder / "input"))
    job = ts.stream(event_time="t").group_by("k").window(ts.tumbling("1 second")).aggregate(n=agg.count())
    query = job.on_spark(stream, checkpoint=folder / "root", tick="1 hour").start()
    try:
        query.processAllAvailable()
        assert query.checkpoint_id >= 1
        of_spark = query._query._jsq.streamingQuery()  # type: ignore[attr-defined]
        return str(of_spark.offsetLog().fileManager().getClass().getName())
    finally:
        query.stop()


def test_a_local_log_is_written_without_a_search_for_links(session: SparkSession, tmp_path: Path) -> None:
    assert class_of_log(session, tmp_path) in WITHOUT_LINKS
    assert session.conf.get(FILE_MANAGER, "") == ""  # queries that the user starts later are written as before


def test_a_class_that_the_user_has_set_stays(session: SparkSession, tmp_path: Path) -> None:
    newest = platform_of(session).file_manager_without_links == WITHOUT_LINKS[0]
    chosen = OTHER[0] if newest else OTHER[1]
    session.conf.set(FILE_MANAGER, chosen)
    assert class_of_log(session, tmp_path) == chosen
    assert session.conf.get(FILE_MANAGER) == chosen


def test_the_log_of_a_remote_root_is_written_as_spark_has_it(session: SparkSession) -> None:
    with platform_of(session).quick_log("s3a://bucket/root/spark"):
        assert session.conf.get(FILE_MANAGER, "") == ""


def test_the_setting_stays_until_the_last_of_several_starts(session: SparkSession) -> None:
    platform, url = platform_of(session), "file:///tmp/root/spark"
    with platform.quick_log(url):
        with platform.quick_log(url):
            assert session.conf.get(FILE_MANAGER) in WITHOUT_LINKS
        assert session.conf.get(FILE_MANAGER) in WITHOUT_LINKS
    assert session.conf.get(FILE_MANAGER, "") == ""


def test_a_start_that_fails_leaves_no_setting(session: SparkSession) -> None:
    with pytest.raises(RuntimeError), platform_of(session).quick_log("file:///tmp/root/spark"):
        raise RuntimeError("no source")
    assert session.conf.get(FILE_MANAGER, "") == ""
