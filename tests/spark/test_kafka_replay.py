"""A Spark job over a real Kafka that lost its stored messages reads the topic again by itself.

All of the long form: in every run `tests.spark.test_messages` has files that are read again, and files that are gone.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.children.driver import Driver
from tests.helpers import evidence
from tests.helpers.lost_messages import noted
from tests.helpers.process import forget
from tests.helpers.spark_inputs import sample
from tests.helpers.spark_runs import output
from tests.servers.kafka import UnavailableError, fetched
from tests.servers.kafka import kafka_servers as kafka_servers
from tests.servers.packages import CONNECTOR
from tidestate.operators.inspect.query import query
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest

pytestmark = pytest.mark.spark
TABLES = sample(4, 50)
BEFORE = 3


@pytest.fixture(scope="module")
def driver(kafka_servers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    folder = tmp_path_factory.mktemp("kafka")
    try:
        connector = fetched(CONNECTOR, folder)
    except UnavailableError as error:
        pytest.skip(f"Spark's connector could not be had from Maven Central: {error}")
    driver = Driver(folder, "tests.children.kafka_messages", kafka_servers, ",".join(connector))
    yield driver
    driver.finish()


def produce(driver: Driver, folder: Path, tables: list[pa.Table]) -> None:
    pq.write_table(pa.concat_tables(tables), folder / "table.parquet")
    driver.ask("produce", str(folder / "table.parquet"), until="produced")


def run(driver: Driver, root: Path, *, drain: bool = False, **options: Any) -> None:
    assert driver.start(str(root), **options)["event"] == "started"
    driver.ask("settle", until="settled")
    driver.ask("drain" if drain else "stop", until="stopped")


def lose_a_partition(root: Path) -> int:
    """Delete the message files of the state partition that has most of them; how many rows these had."""
    state = max(head_of(root).operators["lists"].states, key=lambda one: len(messages_of(one)))
    for ref in messages_of(state):
        (root / ref.path).unlink()
    forget()
    return sum(ref.rows for ref in messages_of(state))


def messages_of(state: Any) -> list[Any]:
    return [ref for ref in state.files if ref.table == "messages"]


def head_of(root: Path) -> Manifest:
    head = Checkpoint.open(root).newest()
    assert head is not None
    return head.manifest


def panes(root: Path) -> Counter[str]:
    return Counter(repr(row) for rows in output(root, "panes").values() for row in rows)


def is_the_same(made: Path, whole: Path) -> None:
    assert panes(made) == panes(whole)
    assert output(made, "late") == output(whole, "late")
    assert head_of(made).totals["events"] == head_of(whole).totals["events"]
    kept = [
        query(root).get_messages().sort_by([("origin", "ascending"), ("offset", "ascending")])
        for root in (made, whole)
    ]
    assert kept[0].equals(kept[1])


def kinds(root: Path) -> Counter[str]:
    return Counter(one["kind"] for one in evidence.manifests(root))


@pytest.fixture
def job(driver: Driver, tmp_path: Path) -> Path:
    """A job that has read three of four tables of a topic of its own, and then lost messages; a `whole` one that has
    not is beside it. The fourth table came after.
    """
    topic = f"messages-{uuid.uuid4().hex}"
    (tmp_path / "topic").write_text(topic)
    driver.ask("topic", topic, until="made")
    produce(driver, tmp_path, TABLES[:BEFORE])
    for name in ("made", "whole"):
        run(driver, tmp_path / name)
    assert lose_a_partition(tmp_path / "made")
    produce(driver, tmp_path, TABLES[BEFORE:])
    return tmp_path


@pytest.mark.long
def test_the_topic_is_read_again(driver: Driver, job: Path) -> None:
    made, whole, logged = job / "made", job / "whole", driver.log.stat().st_size
    spark_files = {path: path.read_bytes() for path in (made / "spark").rglob("*") if path.is_file()}
    driver.tell("start", str(made), f"before-manifest:{head_of(made).id + 2}", {"policy": "replay"})
    driver.heard("paused")
    assert all(path.read_bytes() == data for path, data in spark_files.items()), "the job's own query is as it was"
    driver.kill()
    driver.ask("use", (job / "topic").read_text(), until="used")
    assert head_of(made).kind == "fence", "it was killed in the middle"
    assert noted(head_of(made).operators["lists"].rebuilding) is not None
    run(driver, made, policy="replay")
    run(driver, whole)
    log = driver.log.read_text()[logged:]
    assert log.count("replay: the input is run again from ") == 2
    assert "all messages are back" in log
    is_the_same(made, whole)
    assert noted(head_of(made).operators["lists"].rebuilding) is None
    fed = kinds(made)["feed"]
    for root in (made, whole):
        run(driver, root, drain=True, policy="replay")
    assert kinds(made)["feed"] == fed, "nothing is lost any more"
    is_the_same(made, whole)


@pytest.mark.long
@pytest.mark.parametrize("fails", [True, False])
def test_a_topic_without_its_oldest_messages(driver: Driver, job: Path, fails: bool) -> None:
    """The job says so and goes on; what Spark is to do about lost messages is the user's own option."""
    made, logged = job / "made", driver.log.stat().st_size
    driver.ask("forget", {"0": 95, "1": 45}, until="forgotten")
    options = {"policy": "replay", "fails": fails}
    run(driver, made, **options)
    log = driver.log.read_text()[logged:]
    assert ("the source could not be read again from checkpoint" in log) == fails
    assert "the replay did not have all lost messages" in log
    run(driver, job / "whole", fails=fails)
    assert head_of(made).totals["events"] == head_of(job / "whole").totals["events"]
    rebuilding = head_of(made).operators["lists"].rebuilding
    assert rebuilding is not None
    assert rebuilding.lacking
    assert panes(made) != panes(job / "whole")
    run(driver, made, policy="forget", fails=fails)
    assert head_of(made).operators["lists"].rebuilding is None
