"""Where the input of a case lies: files, folders of partitions, files on S3 (moto's server), a table of Delta, a
topic of a broker of Kafka.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyspark
from pyspark.sql import DataFrame, SparkSession

from tools.bench.bids import FILES_PER_BATCH, SCHEMA
from tools.bench.requests import counted

Source = Literal["files", "folders", "s3", "delta", "kafka"]
DELTA_JAR = f"io.delta:delta-spark_{pyspark.__version__.rpartition('.')[0]}_2.13:4.4.0"
"""There is one for Spark 4.0 and 4.1."""
TOPIC = "bids"
_SDK = "software.amazon.awssdk"
_S3 = ("org.apache.hadoop:hadoop-aws:{}", f"{_SDK}:s3-transfer-manager:2.35.4")


def settings_of(source: Source) -> dict[str, str]:
    """What a session needs to read such an input; Spark fetches it from Maven Central."""
    if source == "delta":
        return {
            "spark.jars.packages": DELTA_JAR,
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        }
    if source == "s3":
        (client,) = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
        hadoop = client.stem.removeprefix("hadoop-client-api-")
        return {
            "spark.jars.packages": ",".join(_S3).format(hadoop),
            "spark.jars.excludes": f"{_SDK}:bundle",
            "spark.hadoop.fs.s3a.path.style.access": "true",
        }
    if source == "kafka":
        from tests.servers.kafka import fetched
        from tests.servers.packages import CONNECTOR

        with TemporaryDirectory() as folder:
            return {"spark.jars": ",".join(fetched(CONNECTOR, Path(folder)))}
    return {}


@contextmanager
def offered(source: Source, files: Path) -> Iterator[str]:
    """The place of an input of this kind, with the rows of these files, as long as this context lasts."""
    paths = sorted(files.iterdir())
    if source == "folders":
        for number, path in enumerate(paths):
            day = files / f"day={date(2024, 1, 1) + timedelta(days=number // FILES_PER_BATCH)}"
            day.mkdir(exist_ok=True)
            shutil.move(path, day / path.name)
    if source == "delta":
        from deltalake import write_deltalake

        for path in paths:
            write_deltalake(str(files.parent / "table"), pq.read_table(path), mode="append")
        yield str(files.parent / "table")
    elif source == "kafka":
        with in_topic(paths, files.parent / "broker") as servers:
            yield servers
    elif source == "s3":
        with counted() as (bucket, _):
            import boto3

            client, name = boto3.client("s3"), urlsplit(bucket).netloc
            for path in paths:
                client.upload_file(str(path), name, f"input/{path.name}")
            yield f"s3a://{name}/input"
    else:
        yield str(files)


@contextmanager
def in_topic(paths: Sequence[Path], folder: Path) -> Iterator[str]:
    """The address of a broker with the rows of these files as JSON, as long as this context lasts. Each part of a
    batch has a partition.
    """
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    from tests.servers.kafka import BROKER, Broker, fetched

    folder.mkdir()
    broker = Broker(fetched(BROKER, folder), folder)
    try:
        admin = AdminClient({"bootstrap.servers": broker.servers})
        admin.create_topics([NewTopic(TOPIC, FILES_PER_BATCH, 1)])[TOPIC].result()
        queue = {"queue.buffering.max.messages": 1_000_000, "linger.ms": 50, "batch.size": 1 << 20}
        producer = Producer({"bootstrap.servers": broker.servers, **queue})
        for number, path in enumerate(paths):
            for text in json_texts(pq.read_table(path)):
                while True:
                    try:
                        producer.produce(TOPIC, text, partition=number % FILES_PER_BATCH)
                        break
                    except BufferError:
                        producer.poll(0.1)
            producer.flush()
        yield broker.servers
    finally:
        broker.stop()


def json_texts(bids: pa.Table) -> list[bytes]:
    """Each bid as a JSON object, with its time as ISO 8601."""
    times = pc.strftime(bids["event_time"], format="%Y-%m-%dT%H:%M:%SZ")
    key, price = (bids[name].cast(pa.string()) for name in ("key", "price"))
    texts = pc.binary_join_element_wise('{"event_time":"', times, '","key":', key, ',"price":', price, "}", "")
    values: list[bytes] = texts.cast(pa.binary()).to_pylist()
    return values


def stream_of(spark: SparkSession, source: Source, place: str, batch: int = 0) -> DataFrame:
    """The input as a stream, a batch after the other; of Kafka so many messages a ``batch``, as they are."""
    if source == "kafka":
        options = {"kafka.bootstrap.servers": place, "subscribe": TOPIC, "startingOffsets": "earliest"}
        return spark.readStream.format("kafka").options(**options, maxOffsetsPerTrigger=str(batch)).load()
    reader = spark.readStream.option("maxFilesPerTrigger", FILES_PER_BATCH)
    if source == "delta":
        return reader.format("delta").option("startingVersion", 0).load(place)
    return reader.schema(SCHEMA).parquet(place)
