"""The packages from Maven Central with which this Spark reads Kafka and S3, and what a broker needs that it lacks."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import pyspark

SPARK_JARS = Path(pyspark.__file__).parent / "jars"


def without_links() -> dict[str, str]:
    """A setting by which Spark's log of a batch is written without a look at links. Hadoop's own library is not there
    to look with, and Spark would start 25 processes a batch, of a fifth of the processor time.
    """
    (jar,) = SPARK_JARS.glob("spark-sql_*.jar")
    with ZipFile(jar) as classes:
        (path,) = [one for one in classes.namelist() if one.endswith("/FileSystemBasedCheckpointFileManager.class")]
    return {"spark.sql.streaming.checkpointFileManagerClass": path.removesuffix(".class").replace("/", ".")}


INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Settings of a Spark whose queries run for seconds: to compile them would cost more than it saves."""


def for_seconds() -> dict[str, str]:
    """Settings of a Spark that runs for seconds, and not on S3."""
    return INTERPRETED | without_links()


_MINOR = ".".join(pyspark.__version__.split(".")[:2])
_SCALA = "2.12" if _MINOR == "3.5" else "2.13"

_OF_KAFKA = {
    "3.5": ("3.5.1", "3.5.1", "3.4.1", "2.11.1"),
    "4.0": ("4.0.0", "4.0.0", "3.9.0", "2.12.0"),
    "4.1": ("4.1.0", "4.0.0", "3.9.1", "2.12.1"),
}
"""Spark's connector, its tokens, Kafka's clients and the pool."""
_NEWEST_OF_KAFKA = ("4.2.0", "4.0.0", "3.9.2", "2.13.1")


def _connector() -> tuple[str, ...]:
    connector, tokens, clients, pool = _OF_KAFKA.get(_MINOR, _NEWEST_OF_KAFKA)
    return (
        f"org.apache.spark:spark-sql-kafka-0-10_{_SCALA}:{connector}",
        f"org.apache.spark:spark-token-provider-kafka-0-10_{_SCALA}:{tokens}",
        f"org.apache.kafka:kafka-clients:{clients}",
        f"org.apache.commons:commons-pool2:{pool}",
    )


CONNECTOR = _connector()
"""What Spark reads Kafka with: the newest of its minor version that the mirror had when these tests were written."""

BROKER_LACKS = (
    ("org.scala-lang:scala-library:2.13.16", "org.scala-lang:scala-reflect:2.13.16") if _SCALA == "2.12" else ()
)
"""The broker uses Spark's jars for the rest, but is of Scala 2.13."""


(_FOUND,) = SPARK_JARS.glob("hadoop-client-api-*.jar")
HADOOP = _FOUND.stem.removeprefix("hadoop-client-api-")
READS_ENDPOINT = HADOOP not in ("3.3.4", "3.4.1")
"""Whether S3A finds the server where the environment names it: an older SDK does not look there."""

_SDK = {"3.4.1": "2.25.53", "3.4.2": "2.29.52"}
_SDK_1 = tuple(f"com.amazonaws:aws-java-sdk-{name}:1.12.262" for name in ("s3", "dynamodb", "sts"))
_SDK_2 = (f"software.amazon.awssdk:s3-transfer-manager:{_SDK.get(HADOOP, '2.35.4')}",)

S3A = (f"org.apache.hadoop:hadoop-aws:{HADOOP}", *(_SDK_1 if HADOOP.startswith("3.3.") else _SDK_2))
WITHOUT_BUNDLE = "software.amazon.awssdk:bundle,com.amazonaws:aws-java-sdk-bundle"
"""The whole SDK in one file of hundreds of megabytes; what S3A needs of it comes with the named modules."""
