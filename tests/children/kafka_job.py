"""A job on Spark that reads Kafka: ``python -m tests.children.kafka_job SERVERS JARS``.

Besides what any is told: ``["produce", FILE]``, a table to the topic; ``["read", OFFSETS]``, what a query of one's
own sees that begins there; ``["bootstrap", ROOT, {"ending": OFFSETS}]``, with what lies before them.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from tests.children.commanded_job import Told, obey, say
from tests.helpers.spark_inputs import SCHEMA

TOPIC = "events"
_MESSAGE = SCHEMA.replace("t timestamp", "t long")
"""As JSON, with times in microseconds."""


def _events(messages: DataFrame) -> DataFrame:
    event = sf.from_json(sf.col("value").cast("string"), _MESSAGE).alias("event")
    return messages.select(event).select(sf.timestamp_micros("event.t").alias("t"), "event.k", "event.v", "event.id")


class ToldKafka(Told):
    def stream(self, at_most: int = 90) -> DataFrame:
        options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(at_most)}
        return _events(self._at_topic(self.spark.readStream).options(**options).load())

    def produce(self, file: str) -> None:
        """In the order of ids; the three partitions get unequal shares."""
        rows = self.spark.read.parquet(file).coalesce(1).sortWithinPartitions("id")
        fields = sf.struct(sf.unix_micros("t").alias("t"), "k", "v", "id")
        messages = rows.select(sf.to_json(fields).alias("value"), sf.expr("int(id % 6 / 2.5)").alias("partition"))
        self._at_topic(messages.write, "topic").save()
        say("produced")

    def read(self, starting: str) -> None:
        """Each message as its partition, its offset and the id of its event."""
        seen: list[list[Any]] = []
        messages = self._at_topic(self.spark.readStream).option("startingOffsets", starting).load()
        ids = sf.get_json_object(sf.col("value").cast("string"), "$.id").cast("long")
        query = (
            messages.select("partition", "offset", ids)
            .writeStream.trigger(availableNow=True)
            .foreachBatch(lambda batch, _id: seen.extend(map(list, batch.collect())))
            .start()
        )
        query.awaitTermination()
        say("read", messages=seen)

    def bootstrap(self, root: str, ending: dict[str, dict[str, int]]) -> None:
        history = self._at_topic(self.spark.read).option("endingOffsets", json.dumps(ending)).load()
        made = self.job(root).bootstrap(_events(history), offsets=ending)
        say("bootstrapped", checkpoint=made.id)

    def _at_topic(self, of: Any, named_by: str = "subscribe") -> Any:
        """A reader or a writer of the topic."""
        options = {"kafka.bootstrap.servers": self.source, named_by: TOPIC}
        options["kafka.fetch.max.wait.ms"] = "20"  # a consumer that is kept would first hear that there is no more
        return of.format("kafka").options(**options)


if __name__ == "__main__":
    obey(ToldKafka, sys.argv[1], **{"spark.jars": sys.argv[2]})
