"""The verbs that look, on the checkpoint of a real Spark job that is running meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.helpers.command import json_lines, tidestate
from tests.helpers.spark_inputs import job, rows, sample, write
from tests.helpers.spark_runs import output, stream
from tidestate.operators.describe.runs import DurableQuery
from tidestate.operators.inspect.query import query
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.durations import moment_us

pytestmark = pytest.mark.spark

BATCHES = 3


@pytest.fixture(scope="module")
def running(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, DurableQuery]]:
    """A query that has taken its batches and waits for more."""
    folder = tmp_path_factory.mktemp("spark-cli")
    for number, table in enumerate(sample(BATCHES, 120)):
        write(folder / "input", number, table)
    query = job().on_spark(stream(spark, folder / "input"), checkpoint=folder / "root", partitions=2).start()
    query.processAllAvailable()
    yield folder / "root", query
    query.stop()


def answered(*arguments: object) -> Any:
    done = tidestate(*arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def lines(*arguments: object) -> list[dict[str, Any]]:
    return json_lines(tidestate(*arguments, "--json"))


def test_checkpoints_say_which_spark_batch_they_hold(running: tuple[Path, DurableQuery]) -> None:
    root, query = running
    found = lines("list", root)
    assert [row["spark_batch"] for row in found] == [None, *range(BATCHES)]
    assert sum(row["events"] for row in found) == BATCHES * 120
    observed = answered("show", root)
    assert observed["id"] == query.checkpoint_id
    assert observed["spark"]["end"] == [f'{{"logOffset":{BATCHES - 1}}}']
    assert moment_us(observed["watermark"]) == query.manifest.watermark_us
    assert "spark batch" in tidestate("show", root).stdout


def test_panes_and_ledger_are_those_that_were_committed(running: tuple[Path, DurableQuery]) -> None:
    root, _ = running
    for verb, kind in (("panes", "panes"), ("late", "late")):
        committed = [row for found in output(root, kind).values() for row in found]
        assert len(lines(verb, root)) == len(committed) > 0
    reasons = {row["reason"] for row in lines("late", root)}
    assert reasons == {"very_late", "null_key", "null_event_time"}


@pytest.mark.long  # in every run: tests.operators.root.test_verbs
def test_state_and_what_changed_in_it(running: tuple[Path, DurableQuery]) -> None:
    root, query = running
    newest, before = query.checkpoint_id, query.checkpoint_id - 1
    now, was = (lines("state", root, "--at", number) for number in (newest, before))
    table = lines("show", root)[0]["operators"][0]["tables"][0]
    changes = lines("diff", root, before, newest, "--table", table)
    plain = [tuple(row.items()) for row in was]
    gone = [
        tuple((k, v) for k, v in row.items() if k != "change")
        for row in changes
        if row["change"] in ("removed", "was")
    ]
    came = [
        tuple((k, v) for k, v in row.items() if k != "change") for row in changes if row["change"] in ("added", "is")
    ]
    assert sorted([*(row for row in plain if row not in gone), *came]) == sorted(tuple(row.items()) for row in now)
    assert changes
    one = lines("state", root, "--key", "k=a")
    assert one == [row for row in now if row["k"] == "a"]
    assert one


def test_all_is_whole_and_spark_agrees(running: tuple[Path, DurableQuery]) -> None:
    root, query = running
    found = answered("verify", root, "--read-data", "--spark-checkpoint")
    assert found["findings"] == []
    assert found["good"] == query.checkpoint_id
    assert found["checkpoints"] == len(Checkpoint.open(root).ids())


def test_a_table_of_panes_can_be_read_by_others(running: tuple[Path, DurableQuery], tmp_path: Path) -> None:
    root, _ = running
    done = tidestate("panes", root, "--format", "arrow", "--output", tmp_path / "panes.arrow")
    assert (done.returncode, done.stderr) == (0, "")
    table = pa.ipc.open_stream((tmp_path / "panes.arrow").read_bytes()).read_all()
    committed = [row for found in output(root, "panes").values() for row in found]
    assert sorted(rows(table.drop_columns(["checkpoint"])), key=repr) == sorted(committed, key=repr)


def test_windows_of_a_running_job(running: tuple[Path, DurableQuery]) -> None:
    root, _ = running
    found = query(root).get_windows()
    assert sorted(row["events"] for row in lines("windows", root)) == sorted(found["events"].to_pylist())
    assert found.num_rows > 1
