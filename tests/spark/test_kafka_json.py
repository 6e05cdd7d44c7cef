"""Values of a real Kafka, decoded by the job itself: what is no object among them, and a kill, change no result.

The broker and Spark's connector come from Maven Central; without them these tests are skipped.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidestate as ts
from tests.children.driver import Driver
from tests.children.kafka_json import CUT_TEXT, decoded_totals
from tests.helpers.spark_inputs import sample
from tests.servers.kafka import UnavailableError, fetched
from tests.servers.kafka import kafka_servers as kafka_servers
from tests.servers.packages import CONNECTOR
from tidestate.recovery.log.checkpoint import Checkpoint

pytestmark = [pytest.mark.spark, pytest.mark.long]


def results(root: Path) -> list[tuple[object, ...]]:
    rows = ts.Root(root).panes(net=True).to_table().to_pylist()
    return sorted((row["window_start"], row["k"], row["n"], row["v"], sorted(row["ids"])) for row in rows if row["k"])


def test_values_of_kafka_in_a_job_that_is_killed(kafka_servers: str, tmp_path: Path) -> None:
    try:
        connector = fetched(CONNECTOR, tmp_path)
    except UnavailableError as error:
        pytest.skip(f"Spark's connector could not be had from Maven Central: {error}")
    topic, root, tables = f"json-{uuid.uuid4().hex}", tmp_path / "root", sample(3, 80)
    driver = Driver(tmp_path, "tests.children.kafka_json", f"{kafka_servers}#{topic}", ",".join(connector))
    try:
        for table in tables:
            pq.write_table(table, tmp_path / "table.parquet")
            driver.ask("produce", str(tmp_path / "table.parquet"), until="produced")
            driver.ask("spoil", 5, until="spoiled")
        driver.start(str(root), "before-manifest:3")
        driver.tell("settle")
        driver.heard("paused")
        driver.kill()
        driver.goes_on(str(root))
    finally:
        driver.finish()
    rows = [row for table in tables for row in table.to_pylist()]
    texts = [json.dumps(row | {"t": row["t"] and int(row["t"].timestamp() * 1e6)}).encode() for row in rows]
    count = len(texts)
    columns = {"value": texts, "partition": pa.array([0] * count, pa.int32()), "topic": [topic] * count}
    values = pa.table({**columns, "offset": list(range(count))})
    decoded_totals().standalone(checkpoint=tmp_path / "alone").run([values], drain=True)
    assert results(root) == results(tmp_path / "alone")
    spoiled = [row for row in ts.Root(root).late().to_table().to_pylist() if row["reason"] == "undecodable"]
    assert [(row["value"], row["topic"]) for row in spoiled] == [(CUT_TEXT.encode(), topic)] * 45
    assert len({(row["partition"], row["offset"]) for row in spoiled}) == 45
    head = Checkpoint.open(root).newest()
    assert head is not None
    assert (head.manifest.totals["events"], head.manifest.totals["undecodable"]) == (count + 45, 45)
