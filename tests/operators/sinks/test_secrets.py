"""No sink, error or log line has a password, in whatever way its target is named; nor has the error behind it."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import tidestate as ts
from tidestate.operators.sinks import included
from tidestate.operators.sinks.delta import DeltaSink
from tidestate.operators.sinks.iceberg import IcebergSink
from tidestate.operators.sinks.included import IncludedSink
from tidestate.operators.sinks.kafka import KafkaSink
from tidestate.operators.sinks.parquet import ParquetSink
from tidestate.operators.sinks.postgres import PostgresSink
from tidestate.statestore.errors import UsageError

PASSWORD = "QX/Z Q@X%Z"
ENCODED = "QX%2FZ%20Q%40X%25Z"
SINKS: dict[str, Callable[[], IncludedSink]] = {
    "before the host": lambda: PostgresSink(f"postgresql://jo:{ENCODED}@host/db", "t"),
    "as it is": lambda: PostgresSink(f"postgresql://jo:{PASSWORD}@host/db", "t"),
    "in the query": lambda: PostgresSink(f"postgresql://host/db?password={ENCODED}", "t"),
    "in words": lambda: PostgresSink(f"host=host password='{PASSWORD}'", "t"),
    "in words without quotes": lambda: PostgresSink(f"host=host password={PASSWORD}", "t"),
    "of Kafka": lambda: KafkaSink("host:1", "t", options={"sasl.password": PASSWORD, "ssl.key.pem": ENCODED}),
    "of a broker": lambda: KafkaSink(f"SASL://jo:{PASSWORD}@host:1", "t"),
    "of storage": lambda: DeltaSink("s3://box/t", storage_options={"AWS_SECRET_ACCESS_KEY": PASSWORD}),
    "in a URL": lambda: DeltaSink(f"s3://jo:{PASSWORD}@box/t"),
    "of a connection string": lambda: DeltaSink(
        "az://box/t",
        storage_options={"azure_storage_connection_string": f"AccountName=a;AccountKey={PASSWORD};End=b"},
    ),
    "of a key in JSON": lambda: DeltaSink(
        "gs://box/t", storage_options={"google_service_account_key": json.dumps({"private_key": PASSWORD})}
    ),
    "of fsspec": lambda: ParquetSink("s3://box/t", storage_options={"key": "jo", "secret": PASSWORD}),
    "of fsspec, below others": lambda: ParquetSink(
        "s3://box/u", storage_options={"client_kwargs": {"aws_session_token": PASSWORD}}
    ),
    "of a header": lambda: IcebergSink("n.t", properties={"header.Authorization": f"Bearer {PASSWORD}"}),
    "of a catalogue": lambda: IcebergSink("n.t", properties={"uri": f"postgresql://jo:{ENCODED}@host/db"}),
    "of a catalogue in words": lambda: IcebergSink("n.t", properties={"s3.secret-access-key": PASSWORD}),
}


def failing(error: type[Exception]) -> None:
    try:
        raise ValueError(f"cannot log in with {PASSWORD!r}")
    except ValueError as cause:
        raise error(f"no {PASSWORD} and no {ENCODED}") from cause


@pytest.mark.parametrize("error", [OSError, ValueError, RuntimeError])
@pytest.mark.parametrize("what", SINKS)
def test_nothing_that_people_see_has_a_password(
    what: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(included, "TRIES", 1)
    sink = SINKS[what]()
    monkeypatch.setattr(sink, "store", lambda *_: failing(error))
    monkeypatch.setattr(sink, "passes", lambda found: True if isinstance(found, OSError) else None)
    with caplog.at_level(logging.WARNING, "tidestate"), pytest.raises((ts.Refused, UsageError)) as caught:
        sink(pa.table({"k": ["a"]}), ts.DeliveryId("f" * 32, 1))
    seen = [str(sink), repr(sink), caplog.text, str(caught.value), "".join(traceback.format_exception(caught.value))]
    lines = [line for text in seen for line in text.splitlines() if "raise " not in line]
    assert not any(piece in line for line in lines for piece in ("QX", "X%Z", "Z Q")), lines


@pytest.mark.parametrize("what", [what for what in SINKS if what.startswith("of ") and "broker" not in what])
def test_a_traceback_with_locals_has_no_option(what: str) -> None:
    assert not any(piece in repr(vars(SINKS[what]())) for piece in ("X%Z", "Z Q"))


def test_a_compaction_that_fails_logs_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"AWS_SECRET_ACCESS_KEY": PASSWORD}
    sink = DeltaSink(str(tmp_path / "t"), compact="1 hour", storage_options=options)
    monkeypatch.setattr(sink, "_compacted_us", lambda: failing(OSError))
    with caplog.at_level(logging.WARNING, "tidestate"):
        sink(pa.table({"k": ["a"]}), ts.DeliveryId("f" * 32, 1))
    assert "was not compacted" in caplog.text
    assert not any(piece in caplog.text for piece in ("QX", "X%Z", "Z Q"))
