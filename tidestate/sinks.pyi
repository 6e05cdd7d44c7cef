"""Where panes go: ``on_spark(…, sink=sinks.DeltaSink("/lake/flights"))``."""

__all__ = [
    # Files and tables
    "ParquetSink",
    "DeltaSink",
    "IcebergSink",
    "TableSink",
    # Partitions of these
    "day",
    "hour",
    # Servers
    "PostgresSink",
    "KafkaSink",
]

from tidestate.operators.sinks.delta import DeltaSink as DeltaSink
from tidestate.operators.sinks.iceberg import IcebergSink as IcebergSink
from tidestate.operators.sinks.kafka import KafkaSink as KafkaSink
from tidestate.operators.sinks.parquet import ParquetSink as ParquetSink
from tidestate.operators.sinks.partitions import day as day
from tidestate.operators.sinks.partitions import hour as hour
from tidestate.operators.sinks.postgres import PostgresSink as PostgresSink
from tidestate.operators.sinks.table import TableSink as TableSink
