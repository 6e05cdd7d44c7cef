"""Tables of Delta and Iceberg by their own connectors, on a Spark that both have one for: each pane once, in each
form, whoever dies. By hand: ``python -m tools.spark_matrix --sparks 4.1.4 tests/spark/test_tables.py``, with
``TIDESTATE_WIDE=1`` for a few rounds and ``TIDESTATE_LONG=1`` for all.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
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
from tests.helpers.targets import Target, holds_all_once, with_utc
from tests.servers.connect import connect_server
from tests.servers.kafka import UnavailableError
from tests.servers.spark_tables import BOTH, VERSION, connectors, settings_with_tables
from tidestate.operators.sinks.forms import Form
from tidestate.operators.sinks.included import IncludedSink
from tools.demo.child import Child
from tools.java import java_home

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
        return with_utc(pq.read_table(self.place))


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


def withdrawals(folder: Path, *given: str) -> list[str]:
    """What was wrong with the tables, of each comparison of a program that withdraws from them."""
    return [str(event["wrong"]) for event in answers(folder, "tests.children.table_withdrawal", *given)]


@pytest.mark.parametrize("form", ["append", "changelog"])
@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_a_table_gives_back_what_a_rewind_has_abandoned(format: str, form: Form, jars: str, tmp_path: Path) -> None:
    """Panes and late rows; that of a changelog has partitions."""
    assert withdrawals(tmp_path, jars, str(tmp_path), format, form, "all") == [""]


@pytest.mark.parametrize("then", ["again", "undone"])
@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_killed_in_the_middle_of_a_withdrawal(format: str, then: str, jars: str, tmp_path: Path) -> None:
    given = [jars, str(tmp_path), format, "changelog"]
    command = [sys.executable, "-m", "tests.children.table_withdrawal", *given, "dies"]
    child = Child(command, tmp_path / "killed", cwd=ROOT)
    child.wait_for(lambda event: event["event"] == "dies")
    child.kill()
    assert withdrawals(tmp_path, *given, then) == [""]


def test_the_command_withdraws_by_a_session_of_its_own(jars: str, tmp_path: Path) -> None:
    given, root = [jars, str(tmp_path), "iceberg", "append"], tmp_path / "root"
    child = Child([sys.executable, "-m", "tests.children.table_withdrawal", *given, "dies"], tmp_path / "a", cwd=ROOT)
    child.wait_for(lambda event: event["event"] == "dies")
    child.kill()
    (tmp_path / "sinks_of_job.py").write_text(
        "from tidestate.sinks import TableSink\nsink = TableSink('ice.db.panes', delivery_column='delivery')\n"
    )
    settings = settings_with_tables(jars, tmp_path / "tables")
    submitted = " ".join(f"--conf {name}={value}" for name, value in settings.items())
    command = [sys.executable, "-m", "tidestate.recovery.cli.main", "withdraw", str(root), "sinks_of_job:sink"]
    submitted = f"--master local[2] {submitted} pyspark-shell"
    done = subprocess.run(
        [*command, "--spark", "--confirm", "--json"],
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": submitted, "JAVA_HOME": java_home()},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["deliveries"]
    assert withdrawals(tmp_path, *given, "taken out") == [""]


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
