"""A query of Nexmark on Flink, in one process: ``python flink_job.py FOLDER QUERY JARS``, with Flink's own Python.

The input is in FOLDER, as `tools.bench.flink` writes it. The query runs twice, and the second run counts: by then the
JVM has compiled its code. What that run took, in seconds by Flink's own clock, is printed as JSON. It imports nothing
of this checkout, which is not installed where Flink is.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment

SLOTS = 2
TABLE_COLUMNS = {
    "bids": "auction BIGINT, bidder BIGINT, price BIGINT",
    "auctions": "auction BIGINT, person BIGINT",
    "persons": "person BIGINT",
}
OF_A_WINDOW = "window_start, window_end"


def windows(function: str, table: str, spans: str) -> str:
    """Rows of a table with the bounds of their windows."""
    return f"TABLE({function}(TABLE {table}, DESCRIPTOR(ts), {spans}))"


TEN_SECONDS = "INTERVAL '10' SECONDS"
SELLERS = (
    f"SELECT person, window_start, window_end FROM {windows('TUMBLE', 'persons', TEN_SECONDS)}",
    f"SELECT auction, person, window_start, window_end FROM {windows('TUMBLE', 'auctions', TEN_SECONDS)}",
)
EVERY_TWO = f"INTERVAL '2' SECONDS, {TEN_SECONDS}"
COUNTED = (
    f"SELECT auction, COUNT(*) AS bids, {OF_A_WINDOW} FROM {windows('HOP', 'bids', EVERY_TWO)} "
    f"GROUP BY auction, {OF_A_WINDOW}"
)
STATEMENTS = {
    "q5": ("bids", "most BIGINT", f"SELECT MAX(bids) FROM ({COUNTED}) GROUP BY {OF_A_WINDOW}"),
    "q7": (
        "bids",
        "highest BIGINT",
        f"SELECT MAX(price) FROM {windows('TUMBLE', 'bids', TEN_SECONDS)} GROUP BY {OF_A_WINDOW}",
    ),
    "q8": (
        "persons auctions",
        "person BIGINT, right_auction BIGINT",
        f"SELECT P.person, A.auction FROM ({SELLERS[0]}) AS P JOIN ({SELLERS[1]}) AS A ON P.person = A.person "
        "AND P.window_start = A.window_start AND P.window_end = A.window_end",
    ),
    "q11": (
        "bids",
        "bids BIGINT",
        "SELECT COUNT(*) FROM TABLE(SESSION(TABLE bids PARTITION BY bidder, DESCRIPTOR(ts), "
        f"{TEN_SECONDS})) GROUP BY bidder, {OF_A_WINDOW}",
    ),
}
"""Of each query the tables it reads, the columns of its result, and its text."""


def environment(folder: Path, jars: str) -> TableEnvironment:
    """Two slots, RocksDB with incremental checkpoints every second, which are exactly-once as Flink has it."""
    settings = Configuration()
    for name, value in {
        "pipeline.jars": jars,
        "parallelism.default": str(SLOTS),
        "state.backend.type": "rocksdb",
        "execution.checkpointing.interval": "1s",
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.dir": f"file://{folder}/flink-checkpoints",
        "taskmanager.memory.managed.size": "2g",
        "taskmanager.memory.network.max": "256m",
    }.items():
        settings.set_string(name, value)
    return TableEnvironment.create(
        EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(settings).build()
    )


def run(folder: Path, query: str, jars: str, output: str) -> float:
    """Run a query into a folder of Parquet files; the seconds it took by Flink's clock, without the planning."""
    tables = environment(folder, jars)
    names, result, text = STATEMENTS[query]
    for name in names.split():
        for part in range(SLOTS):
            # A file each, which is read in the order of its rows: a folder of several would be read in any order, and
            # its rows be late.
            tables.execute_sql(
                f"CREATE TABLE {name}{part} ({TABLE_COLUMNS[name]}, `at` TIMESTAMP(6), "
                "ts AS CAST(`at` AS TIMESTAMP(3)), WATERMARK FOR ts AS ts - INTERVAL '4' SECOND) "
                f"WITH ('connector' = 'filesystem', 'path' = 'file://{folder}/{name}{part}', 'format' = 'parquet')"
            )
        parts = " UNION ALL ".join(f"SELECT * FROM {name}{part}" for part in range(SLOTS))
        tables.execute_sql(f"CREATE VIEW {name} AS {parts}")
    tables.execute_sql(
        f"CREATE TABLE panes ({result}) "
        f"WITH ('connector' = 'filesystem', 'path' = 'file://{folder}/{output}', 'format' = 'parquet')"
    )
    started = tables.execute_sql(f"INSERT INTO panes {text}")
    started.wait()
    return float(started.get_job_client().get_job_execution_result().result().get_net_runtime()) / 1000


if __name__ == "__main__":
    place, asked, wanted = sys.argv[1:]
    run(Path(place), asked, wanted, "cold")
    print(json.dumps(run(Path(place), asked, wanted, "flink-panes")))
