"""A topic of Kafka, by a producer with transactions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from tidestate.operators.sinks.forms import Form
from tidestate.operators.sinks.included import IncludedSink
from tidestate.operators.sinks.packages import package
from tidestate.operators.sinks.rows import Rows, tables_of
from tidestate.operators.sinks.stored_columns import ColumnChoice, stored_columns
from tidestate.recovery.log.manifest import DeliveryId
from tidestate.statestore.arguments import checked
from tidestate.statestore.errors import UsageError
from tidestate.statestore.secrets import GivenOptions, public_servers, secrets_of_options, secrets_of_servers

HEADER = "tidestate-delivery"
"""The header of each message: the id of its delivery, ``run-checkpoint``."""
ANSWER_S = 5.0
"""How long a broker may take to answer."""
COMMIT_S = 30.0
_LASTING = (
    "CLUSTER_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "INVALID_TRANSACTION_TIMEOUT",
    "MSG_SIZE_TOO_LARGE",
    "TOPIC_AUTHORIZATION_FAILED",
    "TOPIC_EXCEPTION",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "UNSUPPORTED_VERSION",
    "_INVALID_ARG",
)


class KafkaSink(IncludedSink):
    """Writes each row of a delivery as a message in JSON to a topic, all of them in one transaction, with the id in
    the topic ``<topic>.deliveries``, which is made, compacted, with the first one.

    A reader with ``isolation.level=read_committed`` sees each row once. Others also see those of transactions that
    were given up; the header ``tidestate-delivery`` has the id by which they know a repeat. With ``append``
    (the default) the key of a message is the ``key``; in other forms it is window and key, and an upsert has a
    message without a value for what is gone, as a compacted topic needs it.

    ``options`` go to the producer, in librdkafka's words; jobs that write to one topic each need a
    ``transactional.id`` (default: ``tidestate-<topic>``). On Spark the rows pass through the driver, a partition at
    a time.
    """

    kept_for_good = (
        "messages in Kafka cannot be withdrawn: let consumers skip those whose header tidestate-delivery has the id "
        "of an abandoned checkpoint, or give the job a new topic"
    )

    @checked
    def __init__(
        self,
        servers: str,
        topic: str,
        *,
        changes: Form = "append",
        key: str | Sequence[str] | None = None,
        columns: ColumnChoice = None,
        delivery_column: str | None = None,
        options: Mapping[str, str | int] | None = None,
        behind: int = 0,
    ) -> None:
        secrets = secrets_of_options(options or {}) + secrets_of_servers(servers)
        super().__init__(changes, key, behind, secrets, stored_columns(columns, delivery_column))
        self._servers, self._topic, self._deliveries = servers, topic, f"{topic}.deliveries"
        self._common = GivenOptions({"bootstrap.servers": servers, "log_level": 2, **_connection(options or {})})
        self._options = GivenOptions({"transactional.id": f"tidestate-{topic}", **(options or {})})
        self._producer: Any = None
        self._checked = False
        self._had: dict[str, int] = {}

    def __str__(self) -> str:
        return f"KafkaSink({public_servers(self._servers)!r}, {self._topic!r})"

    def check_settings(self) -> None:
        """The package is there, and takes the options. Raises `UsageError`."""
        kafka = package("confluent_kafka", "kafka")
        if self._checked:
            return
        try:
            kafka.Producer({**self._common, **self._options})
            self._checked = True
        except kafka.KafkaException as error:
            raise UsageError(
                "librdkafka rejects the options of this sink: correct options= "
                f"({self._secrets.without(str(error))})",
                code="sink-connection",
                sink=str(self),
            ) from None

    def by(self, schema: pa.Schema) -> list[str]:
        """The columns of the key of a message."""
        return super().by(schema) or list(self.key or ())

    def store(self, rows: Rows, delivery: DeliveryId) -> None:
        kafka = package("confluent_kafka", "kafka")
        try:
            if self._producer is None:
                self._begin(kafka)
            if delivery.checkpoint > self._had.get(delivery.run, 0):
                self._write(rows, delivery)
                self._had[delivery.run] = delivery.checkpoint
        except BaseException:
            self._producer = None  # whether it was committed is known when the next one has begun
            raise

    def stored(self, run: str) -> int:
        if self._producer is None:
            self._begin(package("confluent_kafka", "kafka"))
        return self._had.get(run, 0)

    def _begin(self, kafka: Any) -> None:
        """A producer that has ended the transactions of all before it, of an older self too, and what they wrote."""
        producer = kafka.Producer({**self._common, **self._options})
        producer.init_transactions(ANSWER_S)
        self._had = dict(self._committed(kafka))
        self._producer = producer

    def _committed(self, kafka: Any) -> Iterator[tuple[str, int]]:
        """The runs whose rows are there, each with its highest checkpoint."""
        self._make_deliveries()
        reading = {"group.id": "tidestate", "enable.auto.commit": False, "enable.partition.eof": True}
        consumer = kafka.Consumer({**self._common, **reading, "isolation.level": "read_committed"})
        with contextlib.closing(consumer):
            consumer.assign([kafka.TopicPartition(self._deliveries, 0, kafka.OFFSET_BEGINNING)])
            while True:
                message = consumer.poll(ANSWER_S)
                error = message.error() if message is not None else kafka.KafkaError(kafka.KafkaError._TIMED_OUT)
                if error is None:
                    yield message.key().decode(), int(message.value())
                elif error.code() == kafka.KafkaError._PARTITION_EOF:
                    return
                else:
                    raise kafka.KafkaException(error)

    def _make_deliveries(self) -> None:
        admin = package("confluent_kafka.admin", "kafka")
        client = admin.AdminClient({**self._common})
        if self._deliveries not in client.list_topics(timeout=ANSWER_S).topics:
            topic = admin.NewTopic(self._deliveries, 1, -1, config={"cleanup.policy": "compact"})
            client.create_topics([topic], operation_timeout=ANSWER_S)[self._deliveries].result(ANSWER_S)

    def _write(self, rows: Rows, delivery: DeliveryId) -> None:
        producer, headers = self._producer, [(HEADER, str(delivery).encode())]
        producer.begin_transaction()
        tables = tables_of(rows)
        by = self.target_names(tables.schema)
        for table in tables.each:
            for key, value in self._messages(table, by, delivery):
                self._produce(self._topic, key=key, value=value, headers=headers)
        self._produce(self._deliveries, key=delivery.run, value=str(delivery.checkpoint))
        producer.commit_transaction(COMMIT_S)

    def _messages(
        self, table: pa.Table, by: Sequence[str], delivery: DeliveryId
    ) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Key and value of each message; no value for what is gone. ``by``: the columns of the key in the target."""
        found = self.formed(table, delivery)
        for row in found.gone.to_pylist() if found.gone is not None else ():
            yield msgspec.json.encode(row), None
        for row in found.rows.to_pylist():
            yield msgspec.json.encode({name: row[name] for name in by}) if by else None, msgspec.json.encode(row)

    def _produce(self, topic: str, **message: Any) -> None:
        while True:
            try:
                self._producer.produce(topic, **message)
                self._producer.poll(0)
                return
            except BufferError:  # it holds as many as it may
                self._producer.poll(1.0)

    def passes(self, error: BaseException) -> bool | None:
        if type(error).__name__ != "KafkaException":
            return None
        return error.args[0].name() not in _LASTING


def _connection(options: Mapping[str, str | int]) -> dict[str, str | int]:
    """What a consumer needs of the options of a producer."""
    return {name: value for name, value in options.items() if name.startswith(("sasl.", "security.", "ssl."))}
