"""Every pane is in the target once, in each form: repeated, killed between both commits, overtaken."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from adbc_driver_postgresql import dbapi

import tidestate as ts
from tests.children import included_sink
from tests.helpers.forked import ForkedChild
from tests.helpers.process import LONG
from tests.helpers.spark_inputs import job, sample
from tests.helpers.targets import CASES, KINDS, Target, holds_all_once, target_of
from tests.servers.kafka import kafka_servers as kafka_servers
from tests.servers.postgres import Postgres
from tests.servers.postgres import postgres as postgres
from tests.servers.s3 import s3_endpoint as s3_endpoint
from tests.servers.s3 import s3_root as s3_root
from tidestate.operators import DeliveryId
from tidestate.operators.sinks import included
from tidestate.operators.sinks import postgres as postgres_sink
from tidestate.operators.sinks.forms import Form
from tidestate.operators.sinks.parquet import ParquetSink
from tidestate.operators.sinks.rows import Tables
from tidestate.recovery.log.checkpoint import Checkpoint

pytestmark = pytest.mark.slow

BATCHES = sample(6, 60) if LONG else sample(4, 40)
EACH_DIES = [("delta", "append"), pytest.param("postgres", "upsert", marks=pytest.mark.long)]
EACH_WAKES_UP = [
    ("parquet", "changelog"),
    ("delta", "upsert"),
    pytest.param("postgres", "append", marks=pytest.mark.long),
    pytest.param("iceberg", "upsert", marks=pytest.mark.long),
]
"""In every run each kind is killed between the commits, with its third form. A folder and a table of files also meet
an older self; that of Iceberg is in `test_iceberg`, that of Kafka in `test_kafka`.
"""


class DiedError(Exception):
    pass


def run(target: Target, form: Form, root: Path, *, dies: bool = False) -> None:
    """A job that may die after each delivery that its target has taken, and goes on."""
    sink, seen = target.sink(form), set[ts.DeliveryId]()

    def taken(rows: pa.Table, delivery: DeliveryId) -> None:
        sink(rows, delivery)
        if dies and delivery not in seen:
            seen.add(delivery)
            raise DiedError

    for _ in range(20):
        try:
            job().standalone(checkpoint=root, sink=taken).run(BATCHES, drain=True)
            break
        except DiedError:
            continue
    assert len(seen) > 3 or not dies


@pytest.fixture
def place(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new place for a sink of this kind."""
    if kind == "postgres":
        return f"postgres:{request.getfixturevalue('postgres').uri}#{uuid.uuid4().hex}"
    if kind == "kafka":
        return f"kafka:{request.getfixturevalue('kafka_servers')}#{uuid.uuid4().hex}"
    return f"{kind}:{tmp_path / 'target'}"


@pytest.fixture
def target(place: str) -> Target:
    return target_of(place)


@pytest.mark.parametrize(("kind", "form"), CASES if LONG else EACH_DIES)
def test_an_error_after_each_commit_of_the_target_repeats_nothing(target: Target, form: Form, tmp_path: Path) -> None:
    run(target, form, tmp_path / "root", dies=True)
    assert holds_all_once(target, form, tmp_path / "root") > 20


EACH_KILLED = [(kind, one.forms[-1]) for kind, one in KINDS.items() if kind not in ("delta_by_day", "iceberg_by_day")]
"""In every run tables are killed here without partitions, and where they compact in `test_compaction`."""


@pytest.mark.parametrize(("kind", "form"), CASES if LONG else EACH_KILLED)
def test_killed_between_the_commit_of_the_target_and_ours(place: str, form: Form, tmp_path: Path) -> None:
    root = tmp_path / "root"
    child = ForkedChild("tests.children.included_sink", place, form, root, 3, log=tmp_path / "log")
    child.wait_for(lambda event: event["event"] == "paused")
    child.kill()
    job().standalone(checkpoint=root, sink=target_of(place).sink(form)).run(
        included_sink.DELIVERED_BATCHES, drain=True
    )
    assert holds_all_once(target_of(place), form, root) > 20


# In every run: a folder on a disk. What is different on S3 is in `tests.statestore.storage`.
@pytest.mark.long
def test_a_folder_on_s3(s3_root: str, tmp_path: Path) -> None:
    """Read as any reader of S3 does."""
    sink, root = ParquetSink(f"{s3_root}/panes"), tmp_path / "root"
    for until in (2, len(BATCHES)):
        job().standalone(checkpoint=root, sink=sink).run(BATCHES[:until])
    files = fsspec.filesystem("s3").glob(f"{s3_root}/panes/*.parquet")
    with fsspec.open_files([f"s3://{name}" for name in files]) as opened:
        stored = sum(pq.read_table(file).num_rows for file in opened)
    there = Checkpoint.open(root).pane_paths()
    assert stored == sum(pq.read_table(path).num_rows for path in there) > 20


WITHOUT_LOCKS = [kind for kind in KINDS if kind != "postgres"]
"""There the second one waits for the first."""
IN_LONG = ("kafka", "iceberg", "iceberg_by_day", "delta_by_day")
OVERTAKEN = [
    pytest.param(kind, KINDS[kind].forms[1], marks=[pytest.mark.long] if kind in IN_LONG else [])
    for kind in WITHOUT_LOCKS
]


@pytest.mark.parametrize(("kind", "form"), CASES if LONG else EACH_WAKES_UP)
def test_an_older_self_that_wakes_up_stores_nothing_again(target: Target, form: Form, tmp_path: Path) -> None:
    """Two sinks of one target, as of two runs: each delivery is offered to both, and some of them later once more."""
    first, second, came = target.sink(form), target.sink(form), list[tuple[Any, ts.DeliveryId]]()

    def both(rows: pa.Table, delivery: DeliveryId) -> None:
        came.append((rows, delivery))
        for sink in (first, second) if len(came) % 2 else (second, first):
            sink(rows, delivery)

    job().standalone(checkpoint=tmp_path / "root", sink=both).run(BATCHES, drain=True)
    for rows, delivery in came[::2]:
        first(rows, delivery)
    assert holds_all_once(target, form, tmp_path / "root") > 20


@pytest.mark.parametrize(("kind", "form"), OVERTAKEN)
def test_an_older_self_that_is_overtaken_in_the_middle_stores_nothing(
    kind: str, target: Target, form: Form, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has found that the id is not there, and reads the rows; then another one stores all of them."""
    module = import_module(f"tidestate.operators.sinks.{kind.partition('_')[0]}")
    first, second, overtaken = target.sink(form), target.sink(form), list[ts.DeliveryId]()
    tables_of, most = module.tables_of, 1 if kind == "kafka" else 3

    def taken(rows: pa.Table, delivery: DeliveryId) -> None:
        def slow(rows: pa.Table) -> Tables:
            found = tables_of(rows)

            def each() -> Iterator[pa.Table]:
                if delivery not in overtaken and len(overtaken) < most:
                    overtaken.append(delivery)
                    second(rows, delivery)
                yield from found.each

            return Tables(found.schema, each())

        monkeypatch.setattr(module, "tables_of", slow)
        first(rows, delivery)

    job().standalone(checkpoint=tmp_path / "root", sink=taken).run(BATCHES, drain=True)
    assert len(overtaken) == most
    assert holds_all_once(target, form, tmp_path / "root") > 20


def test_an_older_self_that_stands_still_in_its_transaction_is_waited_for(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, root = target_of(f"postgres:{postgres.uri}#{uuid.uuid4().hex}"), tmp_path / "root"
    monkeypatch.setattr(postgres_sink, "LOCK_S", 0.2)
    monkeypatch.setattr(included, "TRIES", 1)
    sink, refused = target.sink("upsert"), list[ts.DeliveryId]()

    def taken(rows: pa.Table, delivery: DeliveryId) -> None:
        if len(refused) < 2:
            with dbapi.connect(postgres.uri) as older, older.cursor() as cursor:
                sink._remember(cursor, delivery)
                refused.append(delivery)
                sink(rows, delivery)
        sink(rows, delivery)

    job().standalone(checkpoint=root, sink=taken).run(BATCHES, drain=True)
    assert len({*refused}) == 1, "it was refused, and offered again"
    assert holds_all_once(target, "upsert", root) > 20
