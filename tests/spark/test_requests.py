"""A query on Spark that is asked from elsewhere: what its own user calls, done by files in the root."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tidestate as ts
from tests.helpers.process import REMOTE
from tests.helpers.requests import asker, until
from tests.helpers.spark_inputs import batch, job, write
from tests.helpers.spark_runs import output, stream
from tidestate import DurableQuery, OperatorStream
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.bind.stored_streams import schemas_of_streams
from tidestate.operators.engine.driver import Driver
from tidestate.operators.engine.job import Job
from tidestate.operators.engine.tasks import InProcess
from tidestate.operators.local.requests import RequestedLoop
from tidestate.operators.spark.connect.relations import packed
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.requests import (
    MetricsRequest,
    RebuildRequest,
    ReprocessRequest,
    StopRequest,
)
from tidestate.statestore.errors import FencedError, TidestateError, UsageError
from tidestate.statestore.spec.store import Parquet

pytestmark = pytest.mark.spark

TABLES = [
    batch([(1, "a", 1), (3, "b", 2)]),
    batch([(60, "a", 4)], 2),
    batch([(2, "a", 8), (5, "b", 16), (11, "a", 32)], 3),  # too late, in windows that are retained
]
GIVEN = batch([(4, "b", 64), (12, "c", 128)], 6)


def retained() -> OperatorStream:
    return job().retain_windows("1 hour")


def started(spark: SparkSession, folder: Path) -> DurableQuery:
    """The query after all input, once it can be asked."""
    for number, table in enumerate(TABLES):
        write(folder / "input", number, table)
    running = retained().on_spark(stream(spark, folder / "input"), checkpoint=folder / "root", partitions=2).start()
    running.processAllAvailable()
    until((folder / "root" / "control" / "1" / "begun.json").exists)
    return running


def names_of(text: str) -> set[str]:
    """The names of metrics in a text of Prometheus."""
    return {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}


def test_what_is_asked_equals_the_calls_of_a_standalone_run(spark: SparkSession, tmp_path: Path) -> None:
    """Reprocessing of the ledger, of given rows, and the drain, while the user of the query waits for its end."""
    query, asked = started(spark, tmp_path), asker(tmp_path / "root")
    begun = asked.run()
    assert (begun.runner, begun.job, begun.metrics_url) == ("spark", "job", None)
    assert begun.query == {"id": query.id, "run_id": query.runId, "name": query.name}
    assert asked.ask(ReprocessRequest()).rows == 3
    assert asked.ask(ReprocessRequest()).rows == 0
    answer = asked.ask(ReprocessRequest("job"), GIVEN)
    assert (answer.rows, answer.checkpoint) == (2, query.checkpoint_id)
    text = asked.ask(MetricsRequest()).text
    assert names_of(text) == names_of(query.prometheus())
    ticket = asked.submit(StopRequest(drain=True))
    query.awaitTermination()
    assert asked.answer(ticket).checkpoint == query.checkpoint_id
    assert Checkpoint.open(tmp_path / "root").chosen(None).manifest.drained
    until(lambda: asked.end(begun.epoch) is not None)
    end = asked.end(begun.epoch)
    assert end is not None
    assert (end.why, end.error, end.checkpoint) == ("drained", None, query.checkpoint_id)
    with pytest.raises(UsageError, match="not-running"):
        asked.ask(ReprocessRequest())
    alone = retained().standalone(checkpoint=tmp_path / "alone")
    alone.run(TABLES)
    alone.reprocess_late()
    alone.reprocess_late(GIVEN)
    alone.drain()
    assert output(tmp_path / "root", "panes") == output(tmp_path / "alone", "panes")


def test_errors_of_the_query_are_those_of_who_asks(spark: SparkSession, tmp_path: Path) -> None:
    query, asked = started(spark, tmp_path), asker(tmp_path / "root")
    with pytest.raises(UsageError) as refused:
        asked.ask(ReprocessRequest("other"))
    with pytest.raises(UsageError) as called:
        query.reprocess_late(operator="other")
    assert (refused.value.code, refused.value.message) == (called.value.code, called.value.message)
    assert refused.value.context == {"operator": "other", "there": ["job"]}
    if REMOTE:
        with pytest.raises(UsageError, match="no-messages"):
            asked.ask(RebuildRequest({"": packed(spark.read.parquet(str(tmp_path / "input")))}))
        with pytest.raises(TidestateError) as foreign:
            asked.ask(RebuildRequest({"": packed(spark.read.format("no-such-format").load())}))
        assert foreign.value.code == "request-failed"
        assert "no-such-format" in foreign.value.message
    else:
        with pytest.raises(UsageError, match="request-refused"):
            asked.ask(RebuildRequest({"": b""}))
    assert query.isActive
    assert asked.ask(StopRequest()).error is None
    assert query.awaitTermination(60)
    assert not query.isActive
    until(lambda: asked.end(1) is not None)
    end = asked.end(1)
    assert end is not None
    assert end.why == "stopped"


def test_a_query_that_fails_says_why_it_has_ended(spark: SparkSession, tmp_path: Path) -> None:
    query, asked = started(spark, tmp_path), asker(tmp_path / "root")
    (tmp_path / "input" / "0003.parquet").write_bytes(b"no file of Parquet")
    with pytest.raises(Exception, match=r"0003\.parquet"):
        query.processAllAvailable()
    until(lambda: asked.end(1) is not None)
    end = asked.end(1)
    assert end is not None
    assert end.why == "failed"
    assert end.error is not None


def test_a_query_without_input_ends_once_another_run_has_taken_over(spark: SparkSession, tmp_path: Path) -> None:
    """One that is not Spark's, which would stop the older query itself."""
    query, checkpoint = started(spark, tmp_path), Checkpoint.open(tmp_path / "root")
    description = retained().graph.description
    graph = bind_graph(description, schemas_of_streams(description, checkpoint.chosen(None).manifest))
    driver = Driver(Job.begin(graph, checkpoint, Parquet(), partitions=None), InProcess())
    with driver.running():
        driver.serve_requests(RequestedLoop(driver))
        with pytest.raises(FencedError, match="fenced"):
            query.awaitTermination(60)
    assert not query.isActive
    assert checkpoint.chosen(None).manifest.epoch == driver.head.epoch == 2


def test_where_no_query_runs_this_process_puts_late_events_back_and_the_query_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    started(spark, tmp_path).stop()
    assert ts.Root(root).reprocess(retained()).execute().put_back == 3
    write(tmp_path / "input", len(TABLES), batch([(70, "c", 1)], 8))
    query = retained().on_spark(stream(spark, tmp_path / "input"), checkpoint=root).start()
    query.processAllAvailable()
    assert query.reprocess_late() == 0
    query.stop(drain=True)
    alone = retained().standalone(checkpoint=tmp_path / "alone")
    alone.run(TABLES)
    alone.reprocess_late()
    alone.run([*TABLES, batch([(70, "c", 1)], 8)], drain=True)
    assert output(root, "panes") == output(tmp_path / "alone", "panes")
