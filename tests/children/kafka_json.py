"""A job on Spark that decodes Kafka's values itself: ``python -m tests.children.kafka_json SERVERS#TOPIC JARS``.

As `tests.children.kafka_job`; further ``["spoil", COUNT]``: so many messages that are no objects, to each partition.
"""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import tidestate as ts
from tests.children.commanded_job import deliver, obey, say
from tests.children.kafka_job import KafkaCommands
from tests.servers.packages import INTERPRETED
from tidestate import Aggregation, agg
from tidestate.operators.describe.runs import SparkJob

_FIELDS = {"t": pa.timestamp("us", "UTC"), "k": "string", "v": "int64", "id": "int64"}
CUT_TEXT = '{"t": 1, "k": "a"'


def decoded_totals() -> Aggregation:
    """Times are whole numbers of microseconds, as `KafkaCommands.produce` writes them."""
    events = ts.stream(event_time="t", decode=ts.json("value", _FIELDS, epoch="us"), watermark_delay="1 hour")
    windows = events.watermark(by="partition").group_by("k").window(ts.tumbling("10 seconds"))
    results = windows.aggregate(n=agg.count(), v=agg.sum("v"), ids=agg.list("id"))
    return results.allowed_lateness("1 hour", ledger_columns=["topic", "offset"])


class JsonCommands(KafkaCommands):
    def stream(self, at_most: int = 90) -> DataFrame:
        options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(at_most)}
        return self._at_topic(self.spark.readStream).options(**options).load()

    def job(self, root: str, **options: Any) -> SparkJob:
        stream = self.stream(**options)
        return decoded_totals().on_spark(stream, checkpoint=root, partitions=2, sink=deliver)

    def spoil(self, count: int) -> None:
        rows = self.spark.range(3 * count).select(
            sf.lit(CUT_TEXT).alias("value"), sf.expr("int(id % 3)").alias("partition")
        )
        self._at_topic(rows.write, "topic").save()
        say("spoiled")


if __name__ == "__main__":
    obey(JsonCommands, sys.argv[1], **{"spark.jars": sys.argv[2]}, **INTERPRETED)
