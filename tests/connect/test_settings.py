"""What of a job is sent to a Spark Connect server, and what of it cannot be."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from tests.helpers.spark_inputs import job
from tidestate.operators.describe.sinks import Sinks
from tidestate.operators.spark.connect.function import JobOfQuery
from tidestate.operators.spark.connect.settings import JobSettings
from tidestate.operators.spark.stream_job import StreamJob
from tidestate.recovery.log.manifest import DeliveryId
from tidestate.statestore.errors import IncompatibleError, UsageError
from tidestate.statestore.spec.store import Parquet


class Frame:
    """In place of a DataFrame, of which only the columns are looked at here."""

    schema = StructType([StructField("v", LongType())])


class Counter:
    """A sink with state of its own."""

    def __init__(self) -> None:
        self.guards = {"rows": threading.Lock()}

    def __call__(self, _rows: pa.Table, _delivery: DeliveryId) -> None:
        """Take the rows of a delivery and keep none."""


def of_sink(sink: Callable[..., Any] | None) -> StreamJob:
    return StreamJob(job().graph.description, cast(Any, Frame()), "/root", Parquet(), Sinks(sink), 3)


def closing_over(lock: Any) -> Callable[..., None]:
    def sink(_rows: pa.Table, _delivery: DeliveryId) -> None:
        assert lock

    return sink


def test_the_settings_arrive() -> None:
    sent = of_sink(closing_over([1]))
    settings = JobSettings.of(sent, 2)
    values = settings.values()
    assert (values["description"], values["checkpoint"], values["partitions"]) == (sent.description, "/root", 3)
    assert (values["store"], values["policy"], settings.sources) == (sent.store, sent.policy, 2)
    assert settings.schemas == {"": Frame.schema}
    assert not {"stream", "streams", "listeners"} & values.keys()


@pytest.mark.parametrize(
    ("sink", "culprit"),
    [
        (Counter(), "sinks.panes.guards['rows'] (lock)"),
        (closing_over(threading.Lock()), "sinks.panes.lock (lock)"),
        (closing_over({"a": [0, threading.Lock()]}), "sinks.panes.lock['a'][1] (lock)"),
    ],
)
def test_what_cannot_be_sent_is_named(sink: Callable[..., None], culprit: str) -> None:
    with pytest.raises(UsageError) as caught:
        JobSettings.of(of_sink(sink), 1)
    assert (caught.value.code, caught.value.context["setting"]) == ("not-sent", culprit)


def test_another_version_at_the_server() -> None:
    settings = replace(JobSettings.of(of_sink(None), 1), version="0.0.1")
    with pytest.raises(IncompatibleError) as caught:
        settings.values()
    assert (caught.value.code, caught.value.context["client"]) == ("server-version", "0.0.1")


def test_a_module_that_the_server_lacks() -> None:
    settings = JobSettings.of(of_sink(None), 1)
    lacking = replace(settings, pickled={**settings.pickled, "hook": b"cnowhere_at_all\nhook\n."})
    with pytest.raises(UsageError, match="nowhere_at_all") as caught:
        lacking.values()
    assert caught.value.code == "server-package"


def test_the_function_begins_nothing_outside_of_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    import pickle

    monkeypatch.delenv("SPARK_CONNECT_LOCAL_URL", raising=False)
    function = pickle.loads(pickle.dumps(JobOfQuery(JobSettings.of(of_sink(None), 1))))
    with pytest.raises(UsageError) as caught:
        function(cast(Any, None), 0)
    assert caught.value.code == "not-started"
