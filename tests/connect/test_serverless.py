"""A place that refuses settings and keeps no DataFrame: a job does without both."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.helpers.process import REMOTE
from tests.helpers.spark_inputs import job, sample, write
from tests.helpers.spark_runs import output, stream
from tests.servers.connect import connect_server

pytestmark = pytest.mark.skipif(not REMOTE, reason="of the form on Spark Connect: make connect")

RULES = Path(__file__).with_name("serverless")


def test_a_job_where_no_setting_may_be_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(RULES))
    server = connect_server(tmp_path)
    tables = sample(3, 80)
    for number, table in enumerate(tables):
        write(tmp_path / "input", number, table)
    session = SparkSession.builder.remote(server.url).create()
    try:
        described = job().on_spark(stream(session, tmp_path / "input"), checkpoint=tmp_path / "root", partitions=3)
        query = described.trigger(availableNow=True).start()
        assert query.awaitTermination(120)
    finally:
        session.stop()
        server.stop()
    job().standalone(checkpoint=tmp_path / "alone").run(tables)
    assert output(tmp_path / "root", "panes") == output(tmp_path / "alone", "panes")
    assert output(tmp_path / "root", "late") == output(tmp_path / "alone", "late")
