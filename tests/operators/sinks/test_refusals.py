"""A target that is down holds the intake, one that will never take the rows ends the job, and both say why."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from adbc_driver_manager import AdbcStatusCode, OperationalError, ProgrammingError

import tidestate as ts
from tests.helpers.spark_inputs import job, sample
from tests.helpers.targets import holds_all_once, target_of
from tests.servers.postgres import Postgres
from tests.servers.postgres import postgres as postgres
from tidestate.operators import DeliveryId
from tidestate.operators.engine import delivery
from tidestate.operators.sinks import included
from tidestate.operators.sinks.connection import nowhere
from tidestate.operators.sinks.delta import DeltaSink
from tidestate.operators.sinks.iceberg import IcebergSink
from tidestate.operators.sinks.included import IncludedSink
from tidestate.operators.sinks.kafka import KafkaSink
from tidestate.operators.sinks.parquet import ParquetSink
from tidestate.operators.sinks.postgres import PostgresSink
from tidestate.statestore.errors import UsageError

BATCHES = sample(6, 60)
ROWS = pa.table({"k": ["a", "b"], "kind": ["emit", "emit"], "n": [1, 2]})
ONE = ts.DeliveryId("f" * 32, 2)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(included, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(delivery, "PAUSE_S", 0.001)
    monkeypatch.setattr("tidestate.operators.sinks.kafka.ANSWER_S", 0.2)


def test_a_server_that_goes_down_in_a_run_holds_it_until_it_is_back(
    postgres: Postgres, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = target_of(f"postgres:{postgres.uri}#down")
    sink, offers = target.sink("upsert"), 0

    def taken(rows: pa.Table, one: DeliveryId) -> None:
        nonlocal offers
        offers += 1
        if offers == 3:
            postgres.stop()
        if offers == 5:
            postgres.start()
        sink(rows, one)

    with caplog.at_level(logging.WARNING, "tidestate"):
        job().standalone(checkpoint=tmp_path / "root", sink=taken).run(BATCHES, drain=True)
    holds_all_once(target, "upsert", tmp_path / "root")
    logged = [record.getMessage() for record in caplog.records if "PostgresSink" in record.getMessage()]
    assert len(logged) == 1, "once, though it was refused more than once"
    assert "refuses: " in logged[0]


DOWN: dict[str, Callable[[Path], IncludedSink]] = {
    "postgres": lambda _tmp: PostgresSink("postgresql://user:secret@127.0.0.1:1/db", "t", key="k"),
    "kafka": lambda _tmp: KafkaSink("127.0.0.1:1", "t"),
    "delta": lambda _tmp: DeltaSink(
        "s3://bucket/table",
        storage_options={
            "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_REGION": "us-east-1",
            "max_retries": "0",
        },
    ),
    "iceberg": lambda _tmp: IcebergSink("n.t", properties={"type": "rest", "uri": "http://127.0.0.1:1"}),
}


@pytest.mark.parametrize("kind", DOWN)
def test_what_cannot_be_reached_refuses_and_hides_passwords(kind: str, tmp_path: Path) -> None:
    with pytest.raises(ts.Refused) as refused:
        DOWN[kind](tmp_path)(ROWS, ONE)
    assert "secret" not in str(refused.value)


UNREADABLE = {
    "nonsense": "nonsense",
    "of another database": "mysql://host/db",
    "empty": " ",
    "an unknown option": "postgresql://127.0.0.1:1/db?frobnicate=hush",
    "an unknown word": "host=127.0.0.1 password=hush colour=red",
    "an unknown value": "postgresql://jo:hush@127.0.0.1:1/db?sslmode=bogus",
    "a port that is none": "postgresql://jo:hush@127.0.0.1:99999/db",
    "a port in letters": "postgresql://jo:hush@127.0.0.1:abc/db",
    "a password that is not encoded": "postgresql://jo:hush%zz@127.0.0.1:1/db",
    "an open bracket": "postgresql://[::1/db",
    "a quote that does not end": "host=127.0.0.1 password='hush",
    "no service": "service=nobody",
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_a_connection_string_that_nobody_can_read_ends_the_start(what: str, tmp_path: Path) -> None:
    sink = PostgresSink(UNREADABLE[what], "t", key="k")
    running = job().standalone(checkpoint=tmp_path / "root", sink=sink)
    for run in (lambda: running.run(BATCHES[:1]), lambda: sink(ROWS, ONE)):
        with pytest.raises(UsageError, match="correct it, as in") as ended:
            run()
        assert ended.value.code == "sink-connection"
        assert "hush" not in str(ended.value)
    assert not (tmp_path / "root" / "manifests").exists()


@pytest.mark.parametrize(
    "uri",
    [
        "postgresql://",
        "postgres://jo:p?w@127.0.0.1:1/db",
        "postgresql://jo@127.0.0.1/db?application_name=a@b&connect_timeout=1",
        "postgresql://127.0.0.1:1/db?",
        "postgresql://127.0.0.1:1,127.0.0.1:2/db",
        "postgresql://[::1]:5/db",
        "postgresql:///db?host=/var/run/nowhere&port=5",
        "host = 127.0.0.1  dbname = x ",
        "hostaddr=127.0.0.1 port=1,2",
        "host=nobody.invalid",
        "host=127.0.0.1 password='h u\\'sh'",
    ],
)
def test_a_connection_string_of_libpq_is_read_without_a_server(uri: str) -> None:
    sink = PostgresSink(uri, "t")
    assert sink.check_settings() is None
    assert nowhere(uri).startswith(uri)


def test_options_that_kafka_does_not_take_end_the_start(tmp_path: Path) -> None:
    for options in ({"colour": "red"}, {"security.protocol": "hush", "sasl.password": "hush"}):
        started = job().standalone(checkpoint=tmp_path, sink=KafkaSink("127.0.0.1:1", "t", options=options))
        with pytest.raises(UsageError, match=r"correct options=.*\[sink-connection\]") as ended:
            started.run(BATCHES[:1])
        assert "hush" not in str(ended.value)


def test_what_a_target_will_never_take_ends_the_job(postgres: Postgres, tmp_path: Path) -> None:
    other = ROWS.set_column(2, "n", pa.array(["x", "y"]))
    delta = DeltaSink(tmp_path / "delta")
    delta(ROWS, ONE)
    with pytest.raises(UsageError, match=r"none of .* were stored.*\[sink-target\].*DeltaSink"):
        delta(other.drop_columns(["k"]), ts.DeliveryId(ONE.run, 3))
    table = PostgresSink(postgres.uri, "typed", key="k")
    table(ROWS, ONE)
    with pytest.raises(UsageError, match=r"\[sink-target\].*PostgresSink"):
        table(other.append_column("more", pa.array([1, 2])), ts.DeliveryId(ONE.run, 3))
    assert postgres.rows("SELECT checkpoint FROM tidestate_deliveries WHERE target = 'typed'") == [(2,)]


@pytest.mark.parametrize(
    ("state", "passes"),
    [
        ("40001", True),  # it lost to another transaction
        ("40P01", True),  # a deadlock
        ("55P03", True),  # a lock that was waited for
        ("57P01", True),  # the server stops
        ("08006", True),  # the connection is gone
        ("42P07", True),  # another one has just made the table
        ("42P01", False),
        ("22003", False),
        (None, True),  # it was never reached
    ],
)
def test_what_postgres_says_passes_by_the_class_of_its_state(state: str | None, passes: bool) -> None:
    error = OperationalError("no", status_code=AdbcStatusCode.IO, sqlstate=state)
    assert PostgresSink("postgresql://", "t").passes(error) is passes
    unread = OperationalError('invalid integer value "x" for connection option "y"', status_code=AdbcStatusCode.IO)
    assert PostgresSink("postgresql://", "t").passes(unread) is False
    error = ProgrammingError("no", status_code=AdbcStatusCode.INVALID_ARGUMENT)
    assert PostgresSink("postgresql://", "t").passes(error) is False


def iceberg(tmp: Path, table: str = "n.t") -> IcebergSink:
    return IcebergSink(table, properties={"type": "sql", "uri": f"sqlite:///{tmp}/catalog", "warehouse": str(tmp)})


def delta(tmp: Path) -> DeltaSink:
    return DeltaSink(tmp / "delta")


BEYOND: dict[str, tuple[Callable[[Path], IncludedSink], pa.Array]] = {
    "a duration in Iceberg": (iceberg, pa.array([1, 2], pa.duration("us"))),
    "a time of day in Delta": (delta, pa.array([1, 2], pa.time64("us"))),
    "a duration in Delta": (delta, pa.array([1, 2], pa.duration("us"))),
}


@pytest.mark.parametrize("what", BEYOND)
def test_types_that_a_target_has_not_end_the_job(what: str, tmp_path: Path) -> None:
    made, values = BEYOND[what]
    with pytest.raises(UsageError, match="sink-target"):
        made(tmp_path)(ROWS.append_column("v", values), ONE)


def test_other_columns_than_those_of_a_table_of_iceberg_end_the_job(tmp_path: Path) -> None:
    sink = iceberg(tmp_path)
    sink(ROWS, ONE)
    for other in (ROWS.append_column("more", pa.array([1, 2])), ROWS.set_column(2, "n", pa.array(["x", "y"]))):
        with pytest.raises(UsageError, match=r"\[sink-target\].*IcebergSink"):
            sink(other, ts.DeliveryId(ONE.run, 3))


def test_unsigned_numbers_keep_their_value_in_postgres(postgres: Postgres) -> None:
    largest = 2**64 - 1
    rows = pa.table(
        {"k": pa.array([largest, 1], pa.uint64()), "kind": ["emit"] * 2, "n": pa.array([0, largest], pa.uint64())}
    )
    PostgresSink(postgres.uri, "unsigned", key="k")(rows, ONE)
    assert sorted(postgres.rows("SELECT k::text, n::text FROM unsigned")) == [
        ("1", str(largest)),
        (str(largest), "0"),
    ]
    PostgresSink(postgres.uri, "unsigned", key="k")(
        rows.set_column(1, "kind", pa.array(["retract", "emit"])), ts.DeliveryId(ONE.run, 3)
    )
    assert postgres.rows("SELECT k::text FROM unsigned") == [("1",)]
    inside = rows.append_column("v", pa.array([[1], [2]], pa.list_(pa.uint64())))
    with pytest.raises(UsageError, match="sink-target"):
        PostgresSink(postgres.uri, "inside", key="k")(inside, ONE)


def test_late_rows_are_appended_alone(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="sink-form"):
        job().standalone(checkpoint=tmp_path, late_sink=DeltaSink(tmp_path / "delta", changes="upsert", key="k"))


def test_a_table_of_ones_own_is_used_as_it_is(postgres: Postgres, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="sink-target"):
        postgres_rows(postgres, "CREATE TABLE loose (k text, n int)", PostgresSink(postgres.uri, "loose", key="k"))
    sink = PostgresSink(postgres.uri, "own.sums", key="k")
    postgres_rows(
        postgres, "CREATE SCHEMA own; CREATE TABLE own.sums (k text PRIMARY KEY, n numeric, note text)", sink
    )
    assert sorted(postgres.rows("SELECT k, n::int, note FROM own.sums")) == [("a", 1, None), ("b", 2, None)]
    assert postgres.rows("SELECT checkpoint FROM own.tidestate_deliveries") == [(2,)]


def postgres_rows(server: Postgres, statement: str, sink: PostgresSink) -> None:
    server.run(statement)
    sink(ROWS, ONE)


def test_a_form_that_a_sink_has_not_and_a_package_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"sink-form.*forms=\['append', 'changelog'\]"):
        ParquetSink("/tmp/never", changes="upsert")
    monkeypatch.delitem(sys.modules, "pyspark.sql", raising=False)  # its connector could write to Delta instead
    for sink, module, extra in (
        (DeltaSink("/tmp/never"), "deltalake", "delta"),
        (PostgresSink("postgresql://", "t"), "adbc_driver_postgresql.dbapi", "postgres"),
        (KafkaSink("", "t"), "confluent_kafka", "kafka"),
        (IcebergSink("n.t"), "pyiceberg.catalog", "iceberg"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        for use in (sink.check_settings, lambda used=sink: used(ROWS, ONE)):
            with pytest.raises(UsageError, match=rf"\[sink-package\]|tidestate\[{extra}\]"):
                use()


@pytest.mark.parametrize("name", ["a[1]", "a^b", "a|b", "a\\b"])
def test_a_folder_that_the_package_of_delta_cannot_open(tmp_path: Path, name: str) -> None:
    """It would end the process with an error that nothing catches."""
    sink = DeltaSink(tmp_path / name)
    for use in (sink.check_settings, lambda: sink(ROWS, ONE), lambda: sink.stored(ONE.run)):
        with pytest.raises(UsageError, match="choose another one"):
            use()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a b", "a%b", "ü#?*", "{a}~"])
def test_a_folder_with_other_signs(tmp_path: Path, name: str) -> None:
    sink = DeltaSink(tmp_path / name)
    sink.check_settings()
    sink(ROWS, ONE)
    assert sink.stored(ONE.run) == ONE.checkpoint
    assert [path.name for path in tmp_path.iterdir()] == [name]
