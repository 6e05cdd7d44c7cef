"""A Spark job that writes to a table of Delta or Iceberg by its own connector, to be killed at any moment:
``python -m tests.children.table_job JARS FOLDER FORMAT FORM [SERVER]`` says ``offered`` and ``taken`` around each
delivery, and ``done`` when there is no more input and the rows of the table are in a file. With the address of a
server of Spark Connect the session is one there, and nothing is said of deliveries.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from tests.helpers.spark_inputs import SCHEMA, job
from tests.servers.spark_tables import session_with_tables, table_in
from tidestate.operators import DeliveryId
from tidestate.operators.sinks.table import TableSink
from tidestate.statestore.errors import UsageError
from tools.demo.job import say


class Telling(TableSink):
    """Says when it is called, and when it returns."""

    def __call__(self, rows: DataFrame, delivery: DeliveryId) -> None:  # type: ignore[override]
        say("offered", checkpoint=delivery.checkpoint)
        super().__call__(rows, delivery)
        say("taken", checkpoint=delivery.checkpoint)


def main(jars: str, folder: str, format: str, form: str, server: str = "") -> None:
    """Run to the end, or until the kill."""
    tables = Path(folder) / "tables"
    session = SparkSession.builder.remote(server).getOrCreate() if server else session_with_tables(jars, tables)
    name = table_in(format, "panes")
    session.sql("CREATE NAMESPACE IF NOT EXISTS ice.db").collect()
    place = tables / "delta" / "panes"
    if format == "delta" and any(place.glob("_delta_log/*.json")):  # a catalogue in memory has forgotten it
        session.sql(f"CREATE TABLE panes USING delta LOCATION '{place}'").collect()
    elif place.exists():
        shutil.rmtree(place)  # of one that died as it made the table
    compact = "1 us" if form == "append" else None
    make = TableSink if server else Telling
    sink = make(name, changes=form, format=format, compact=compact)  # type: ignore[arg-type]
    stream = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(Path(folder) / "input"))
    try:
        query = job().on_spark(stream, checkpoint=Path(folder) / "root", sink=sink, partitions=2).start()
        query.processAllAvailable()
        query.stop(drain=True)
    except UsageError as error:  # it died when it was drained, and has now delivered what it owed
        if error.code != "drained":
            raise
    pq.write_table(session.table(name).toArrow(), Path(folder) / "rows.parquet")
    say("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
