"""Tables of Delta and Iceberg by their own connectors, on a Spark that both have one for: each pane once, in each
form, whoever dies. By hand: ``python -m tools.spark_matrix --sparks 4.1.4 tests/spark/test_tables.py``, with
``TIDESTATE_WIDE=1`` for a few rounds and ``TIDESTATE_LONG=1`` for all.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.checkout import ROOT
from tests.helpers.process import LONG
from tests.helpers.spark_inputs import sample, write
from tests.helpers.targets import Target, holds_all_once
from tests.servers.connect import connect_server
from tests.servers.kafka import UnavailableError
from tests.servers.spark_tables import BOTH, VERSION, connectors, settings_with_tables
from tidestate.operators.sinks.forms import Form
from tidestate.operators.sinks.included import IncludedSink
from tools.demo.child import Child

pytestmark = [pytest.mark.long, pytest.mark.kill]

BATCHES = sample(6, 60)
KILLS = 20 if LONG else 4
"""Of each kill test."""
ENOUGH = sample(80, 60) if LONG else BATCHES
"""More than there are deliveries before so many kills, each within three seconds of its start."""
FORMS = ("append", "changelog", "upsert")


@pytest.fixture
def jars(tmp_path: Path) -> str:
    if VERSION not in BOTH:
        pytest.skip(f"Delta or Iceberg has no connector for Spark {VERSION}")
    try:
        return ",".join(connectors(tmp_path))
    except UnavailableError as error:
        pytest.skip(f"the connectors could not be had from Maven Central: {error}")


def answers(folder: Path, module: str, *given: str) -> list[dict[str, Any]]:
    """What a program compares, until it is done."""
    child, found = Child([sys.executable, "-m", module, *given], folder / "log", cwd=ROOT), list[dict[str, Any]]()

    def ended(event: dict[str, Any]) -> bool:
        found.append(event)
        return bool(event["event"] == "done")

    child.wait_for(ended)
    child.finish()
    return [event for event in found if event["event"] == "compared"]


def test_each_form_of_each_job_holds_what_was_emitted(jars: str, tmp_path: Path) -> None:
    compared = answers(tmp_path, "tests.children.table_forms", jars, str(tmp_path))
    assert len(compared) > 50
    assert [event for event in compared if not event["exact"]] == []


@pytest.mark.parametrize("form", ["append", "upsert"])
@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_two_drivers_with_one_delivery_store_it_once(format: str, form: Form, jars: str, tmp_path: Path) -> None:
    rounds = "20" if LONG else "5"
    (compared,) = answers(tmp_path, "tests.children.table_race", jars, str(tmp_path), format, form, rounds)
    assert compared["exact"]


class Read(Target):
    """What the program has read from the table when it was done."""

    def sink(self, form: Form = "append", **more: Any) -> IncludedSink:
        raise NotImplementedError

    def table(self) -> pa.Table:
        rows = pq.read_table(self.place)
        times = [
            field.with_type(pa.timestamp("us", "UTC")) for field in rows.schema if pa.types.is_timestamp(field.type)
        ]
        schema = {field.name: field for field in (*rows.schema, *times)}
        return rows.cast(pa.schema([*schema.values()]))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_killed_at_any_moment_of_a_delivery(format: str, form: Form, jars: str, tmp_path: Path) -> None:
    """In each round when some deliveries are taken, so long after the next one was offered."""
    for number, table in enumerate(ENOUGH):
        write(tmp_path / "input", number, table)
    chance, kills = random.Random(f"{format}{form}"), 0
    command = [sys.executable, "-m", "tests.children.table_job", jars, str(tmp_path), format, form]
    for number in range(KILLS):
        child, offered, until = Child(command, tmp_path / f"log-{number}", cwd=ROOT), 0, chance.randint(1, 2)

        def reached(event: dict[str, Any], until: int = until) -> bool:
            nonlocal offered
            offered += event["event"] == "offered"
            return offered >= until or event["event"] == "done"

        if child.wait_for(reached)["event"] == "done":
            child.finish()
            break
        time.sleep(chance.uniform(0, 3))
        child.kill()
        kills += 1
    child = Child(command, tmp_path / "log", cwd=ROOT)
    child.wait_for(lambda event: event["event"] == "done")
    child.finish()
    assert kills == KILLS if LONG else kills > 1
    assert holds_all_once(Read(str(tmp_path / "rows.parquet")), form, tmp_path / "root") > 20


@pytest.mark.parametrize(("format", "form"), [("delta", "upsert"), ("iceberg", "changelog")])
def test_a_job_on_spark_connect(format: str, form: Form, jars: str, tmp_path: Path) -> None:
    """The sink runs in the process of the query, and has nothing but DataFrames and SQL."""
    for number, table in enumerate(BATCHES):
        write(tmp_path / "input", number, table)
    server = connect_server(tmp_path, settings_with_tables(jars, tmp_path / "tables"))
    try:
        command = [sys.executable, "-m", "tests.children.table_job", jars, str(tmp_path), format, form, server.url]
        child = Child(command, tmp_path / "log", cwd=ROOT)
        child.wait_for(lambda event: event["event"] == "done")
        child.finish()
    finally:
        server.stop()
    assert holds_all_once(Read(str(tmp_path / "rows.parquet")), form, tmp_path / "root") > 20
