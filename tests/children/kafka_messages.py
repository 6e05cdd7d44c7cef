"""A job on Spark that keeps the messages of a Kafka topic: ``python -m tests.children.kafka_messages SERVERS JARS``.

Further commands: ``["topic", NAME]``, a new one of two partitions, which the others are about from then on;
``["forget", {PARTITION: OFFSET}]``, the topic has the messages before these no more.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

from py4j.java_gateway import JavaMember
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import tidestate as ts
from tests.children.commanded_job import obey, say
from tests.children.kafka_job import KafkaCommands
from tests.servers.packages import INTERPRETED
from tidestate import agg
from tidestate.operators.describe.runs import SparkJob

LISTS = (
    ts.stream(event_time="t", watermark_delay="5 seconds")
    .group_by("k")
    .window(ts.tumbling("10 seconds"))
    .aggregate(n=agg.count(), ids=agg.list("id"))
    .named("lists")
    .allowed_lateness("10 seconds")
    .messages(identity=("part", "at"))
    .accumulation("retracting")
)


class MessageCommands(KafkaCommands):
    def topic(self, name: str) -> None:
        self.source = f"{self._servers}#{name}"
        made = self._java.java.util.Collections.singleton(self._admin.NewTopic(name, 2, 1))
        self._asked(lambda client: client.createTopics(made))
        say("made")

    def use(self, name: str) -> None:
        """A topic that an earlier process has made."""
        self.source = f"{self._servers}#{name}"
        say("used")

    def forget(self, **before: int) -> None:
        # Py4J's lookup by name finds the method of an instance that has this name too.
        records = f"z:{self._admin.RecordsToDelete._fqn}"
        before_offset = JavaMember("beforeOffset", None, records, self._java._gateway_client)
        wanted = self._java.java.util.HashMap()
        for partition, offset in before.items():
            of = self._java.org.apache.kafka.common.TopicPartition(self.source.partition("#")[2], int(partition))
            wanted.put(of, before_offset(offset))
        self._asked(lambda client: client.deleteRecords(wanted))
        say("forgotten")

    @property
    def _servers(self) -> str:
        return self.source.partition("#")[0]

    @property
    def _java(self) -> Any:
        return self.spark.sparkContext._jvm

    @property
    def _admin(self) -> Any:
        return self._java.org.apache.kafka.clients.admin

    def _asked(self, ask: Callable[[Any], Any]) -> None:
        """Ask the broker, and wait until it is done."""
        settings = self._java.java.util.Properties()
        settings.put("bootstrap.servers", self._servers)
        client = self._admin.AdminClient.create(settings)
        try:
            ask(client).all().get()
        finally:
            client.close()

    def stream(self, at_most: int = 40, *, fails: bool = True) -> DataFrame:
        """As a user reads it: parsed, with a column that is made, and without some messages. ``fails``: if the topic
        has lost some.
        """
        options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(at_most)}
        options["failOnDataLoss"] = str(fails).lower()
        read = self._at_topic(self.spark.readStream).options(**options).load()
        event = sf.from_json(sf.col("value").cast("string"), "t long, k string, v long, id long").alias("event")
        parsed = read.select("partition", "offset", event).where("event.t is not null and event.id % 7 != 0")
        return parsed.select(
            sf.timestamp_micros("event.t").alias("t"),
            sf.upper("event.k").alias("k"),
            "event.id",
            sf.col("partition").alias("part"),
            sf.col("offset").alias("at"),
        )

    def produce(self, file: str) -> None:
        rows = self.spark.read.parquet(file).coalesce(1).sortWithinPartitions("id")
        fields = sf.struct(sf.unix_micros("t").alias("t"), "k", "v", "id")
        messages = rows.select(sf.to_json(fields).alias("value"), sf.expr("int(id % 3 / 2)").alias("partition"))
        self._at_topic(messages.write, "topic").save()
        say("produced")

    def job(self, root: str, policy: str | None = None, **options: Any) -> SparkJob:
        chosen = ts.Policy(messages=policy) if policy is not None else None
        return LISTS.on_spark(self.stream(**options), checkpoint=root, partitions=2, policy=chosen)


if __name__ == "__main__":
    logging.basicConfig()
    logging.getLogger("tidestate").setLevel(logging.INFO)
    obey(MessageCommands, sys.argv[1], **{"spark.jars": sys.argv[2]}, **INTERPRETED)
