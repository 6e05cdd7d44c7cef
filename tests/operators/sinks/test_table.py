"""A table of Spark's catalogue, as far as it needs no Spark: what is refused, and what is told from an error."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.spark_inputs import batch, job, sample
from tidestate import sinks
from tidestate.operators.sinks.spark_tables import SparkDeltaTable, name_parts
from tidestate.operators.sinks.withdrawal import plan_withdrawal
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import UsageError


def test_a_runner_without_spark_refuses_it_before_anything_is_written(tmp_path: Path) -> None:
    sink, root = sinks.TableSink("main.flights.panes", changes="upsert"), tmp_path / "root"
    with pytest.raises(UsageError, match=r"has no Spark.*sink-runner.*TableSink\('main\.flights\.panes'\)"):
        job().standalone(checkpoint=root, sink=sink).run(sample(1, 5))
    with pytest.raises(UsageError, match="sink-runner"):
        job().standalone(checkpoint=root, late_sink=sinks.TableSink("t")).run(sample(1, 5))
    with pytest.raises(UsageError, match="sink-runner"):
        job().harness(batch([]).schema, folder=root, sink=sink)
    assert not root.exists()
    with pytest.raises(UsageError, match="sink-runner"):
        sink(pa.table({"k": ["a"]}), ts.DeliveryId("f" * 32, 1))


@pytest.mark.parametrize("name", ["", "/lake/flights", "a..b", "a.b.c.d.e", "s3://bucket/table"])
def test_a_name_is_one_of_a_catalogue(name: str) -> None:
    with pytest.raises(UsageError, match="sink-form"):
        sinks.TableSink(name)


def test_a_format_is_one_with_transactions() -> None:
    with pytest.raises(UsageError, match=r"format=.*formats=\['delta', 'iceberg'\]"):
        sinks.TableSink("t", format="parquet")  # type: ignore[arg-type]


def test_names_are_quoted_as_spark_reads_them() -> None:
    assert name_parts("main.`a.b`.t") == ["main", "`a.b`", "t"]
    assert SparkDeltaTable(None, "main.`a.b`.t", {}).quoted == "`main`.`a.b`.`t`"  # type: ignore[arg-type]


def test_it_goes_to_the_server_of_spark_connect_as_it_is() -> None:
    sink = pickle.loads(pickle.dumps(sinks.TableSink("t", changes="upsert", compact="1 hour")))
    assert (str(sink), sink.changes) == ("TableSink('t')", "upsert")


def test_it_is_withdrawn_by_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job().standalone(checkpoint=tmp_path / "root").run(sample(2, 40))
    monkeypatch.delitem(sys.modules, "pyspark.sql", raising=False)
    for more, why in (
        ({"delivery_column": "delivery"}, "give --spark.*sink-runner"),
        ({}, "withdraw-column"),
        ({"changes": "upsert", "delivery_column": "delivery"}, "start the job.*withdraw-form"),
    ):
        with pytest.raises(UsageError, match=why):
            plan_withdrawal(Checkpoint.open(tmp_path / "root"), sinks.TableSink("t", **more))  # type: ignore[arg-type]


class Py4JJavaError(Exception):
    """As PySpark's, by its name."""


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (Py4JJavaError("java.net.ConnectException: refused"), True),
        (Py4JJavaError("io.delta.exceptions.ConcurrentTransactionException: …"), True),
        (Py4JJavaError("Cannot fast-forward: main is not an ancestor of tidestate_1"), True),
        (Py4JJavaError("org.apache.iceberg.exceptions.CommitFailedException: …"), True),
        (Py4JJavaError("[CAST_OVERFLOW]"), False),
        (OSError("broken pipe"), True),
        (KeyError("of ours"), None),
    ],
)
def test_what_passes_is_told_from_what_lasts(error: Exception, passes: Any) -> None:
    assert sinks.TableSink("t").passes(error) is passes
