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

RULES = """
import sys
from typing import Any, NoReturn

READ_BY_US = ("spark.sql.caseSensitive", "spark.sql.streaming.fileSource.log.compactInterval")


def _refuse(*_: Any, **_named: Any) -> NoReturn:
    from pyspark.errors import AnalysisException

    raise AnalysisException("[CONFIG_NOT_AVAILABLE] Configuration is not available.")


if any("foreach_batch_worker" in word for word in sys.orig_argv):
    from pyspark.sql.connect.conf import RuntimeConf
    from pyspark.sql.connect.dataframe import DataFrame

    _get = RuntimeConf.get
    RuntimeConf.set = DataFrame.cache = DataFrame.persist = _refuse
    RuntimeConf.get = lambda conf, name, *default: (_refuse if name in READ_BY_US else _get)(conf, name, *default)
"""
"""On the path of a server: the process of each query is one of a place that lets nobody change settings of Spark,
nor read any but those that PySpark itself does, and keeps no DataFrame.
"""


def test_a_job_where_no_setting_may_be_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(RULES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
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
