"""A Spark session whose catalogues have tables of Delta Lake and Iceberg, by their connectors from Maven Central."""

from __future__ import annotations

from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from tests.servers.kafka import fetched
from tools.java import local_session

DELTA_RELEASE = "4.4.0"
ICEBERG_RELEASES = {"4.0": "1.11.0", "4.1": "1.12.0"}
"""The newest for each Spark: after 1.11 there is none for 4.0."""
VERSION = ".".join(pyspark.__version__.split(".")[:2])
BOTH = (*ICEBERG_RELEASES,)
"""The Sparks that both have a connector for."""
MODULES = ("delta-storage", "delta-kernel-api", "delta-kernel-defaults", "delta-kernel-unitycatalog")


def connectors(folder: Path) -> list[str]:
    """The jars of both for this Spark. Raises `tests.servers.kafka.UnavailableError`."""
    delta = [f"io.delta:{name}:{DELTA_RELEASE}" for name in (f"delta-spark_{VERSION}_2.13", *MODULES)]
    iceberg = f"org.apache.iceberg:iceberg-spark-runtime-{VERSION}_2.13:{ICEBERG_RELEASES[VERSION]}"
    return fetched([*delta, iceberg], folder)


def session_with_tables(jars: str, folder: Path) -> SparkSession:
    """A classic session with `settings_with_tables`."""
    return local_session("tables", **settings_with_tables(jars, folder))


def settings_with_tables(jars: str, folder: Path) -> dict[str, str]:
    """Those of the catalogue ``ice`` of Iceberg, and of Spark's own, which has tables of Delta, in ``folder``.
    ``other`` has the tables of ``ice``, as another process sees them: a catalogue remembers what it has read.
    """
    extensions = (
        "io.delta.sql.DeltaSparkSessionExtension",
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    )
    settings = {
        "spark.jars": jars,
        "spark.sql.extensions": ",".join(extensions),
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.warehouse.dir": str(folder / "delta"),
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.shuffle.partitions": "2",
    }
    for catalog in ("ice", "other"):
        settings |= {
            f"spark.sql.catalog.{catalog}": "org.apache.iceberg.spark.SparkCatalog",
            f"spark.sql.catalog.{catalog}.type": "hadoop",
            f"spark.sql.catalog.{catalog}.warehouse": str(folder / "ice"),
        }
    return settings


def table_in(format: str, name: str) -> str:
    """The name of a table of this format in such a session; Spark's own catalogue keeps nothing over a restart."""
    return f"ice.db.{name}" if format == "iceberg" else name
