"""A job on Spark that reads Kafka: ``python -m tests.children.kafka_job SERVERS#TOPIC JARS``.

Further commands: ``["produce", FILE]``, a table to the topic; ``["read", OFFSETS]``, what a query of one's
own sees that begins there; ``["metrics"]``; ``["bootstrap", ROOT, {"ending": OFFSETS}]``, with what lies before them;
``["native", FOLDER]``, a query of Spark's own that dies in its third batch; ``["adopt", FOLDER, ROOT]``, and the rest
by a job.
"""

from __future__ import annotations

import json
import sys
import uuid
from contextlib import suppress
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import tidestate as ts
from tests.children.commanded_job import Commands, obey, say
from tests.helpers.spark_inputs import SCHEMA
from tests.servers.packages import INTERPRETED
from tidestate import agg, trigger
from tidestate.operators.local.history_files import schema_of
from tidestate.operators.spark.adopt import execute_adoption, plan_adoption
from tidestate.operators.spark.compat import report_of
from tidestate.operators.spark.monitoring import offsets_behind_of

_MESSAGE = SCHEMA.replace("t timestamp", "t long")
"""As JSON, with times in microseconds."""


def _events(messages: DataFrame) -> DataFrame:
    event = sf.from_json(sf.col("value").cast("string"), _MESSAGE).alias("event")
    return messages.select(event).select(sf.timestamp_micros("event.t").alias("t"), "event.k", "event.v", "event.id")


class KafkaCommands(Commands):
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
        messages = self._at_topic(self.spark.readStream).option("startingOffsets", starting).load()
        ids = sf.get_json_object(sf.col("value").cast("string"), "$.id").cast("long")
        writer = messages.select("partition", "offset", ids).writeStream.trigger(availableNow=True)
        name = f"read_{uuid.uuid4().hex}"
        writer.format("memory").queryName(name).start().awaitTermination()
        say("read", messages=[list(row) for row in self.spark.table(name).collect()])

    def bootstrap(self, root: str, ending: dict[str, dict[str, int]]) -> None:
        history = self._at_topic(self.spark.read).option("endingOffsets", json.dumps(ending)).load()
        made = self.job(root).bootstrap(_events(history), offsets=ending)
        say("bootstrapped", checkpoint=made.id)

    def native(self, folder: str) -> None:
        def sink(rows: DataFrame, batch_id: int) -> None:
            rows.collect()
            if batch_id == 2:
                raise RuntimeError("the query dies here")

        totals = sf.count("*").alias("n"), sf.sum("id").alias("s")
        counted = self.stream().withWatermark("t", "30 days").groupBy(sf.window("t", "365 days")).agg(*totals)
        writer = counted.writeStream.outputMode("update").foreachBatch(sink)
        query = writer.option("checkpointLocation", folder).start()
        with suppress(StreamingQueryException):
            query.awaitTermination()
        say("died")

    def metrics(self) -> None:
        """As text; and how many messages each batch left in the topic."""
        assert self._query is not None
        reports = [report_of(progress) for progress in self._query.recentProgress]
        left = [sum(behind.values()) for report in reports for behind in offsets_behind_of(report)]
        say("metrics", text=self._query.prometheus(), left=left)

    def adopt(self, folder: str, root: str) -> None:
        total = ts.stream(event_time="t", watermark_delay="30 days").group_by().window(ts.tumbling("365 days"))
        total = (
            total.aggregate(n=agg.count(), s=agg.sum("id"))
            .named("totals")
            .allowed_lateness("0 seconds", rule="window")
            .trigger(early=trigger.each_batch())
        )
        adoption = plan_adoption(self.spark, folder, root, total.graph.description, schema_of(SCHEMA))
        execute_adoption(adoption, partitions=2, deliver=False)
        query = total.on_spark(self.stream(), checkpoint=root, paths={"direct_scan"}).start()
        query.processAllAvailable()
        query.stop()
        say("adopted", batch=adoption.query.batch_id, planned=adoption.query.planned, end=adoption.query.end)

    def _at_topic(self, of: Any, named_by: str = "subscribe") -> Any:
        """A reader or a writer of the topic."""
        servers, _, topic = self.source.partition("#")
        options = {"kafka.bootstrap.servers": servers, named_by: topic}
        options["kafka.fetch.max.wait.ms"] = "20"  # a consumer that is kept would first hear that there is no more
        return of.format("kafka").options(**options)


if __name__ == "__main__":
    obey(KafkaCommands, sys.argv[1], **{"spark.jars": sys.argv[2]}, **INTERPRETED)
