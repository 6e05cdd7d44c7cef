"""Two drivers that store the same deliveries in one table at the same time, as where one was taken for dead:
``python -m tests.children.table_race JARS FOLDER ROUNDS`` says ``exact`` for each format and form.
"""

from __future__ import annotations

import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tidestate as ts
from tests.servers.spark_tables import session_with_tables, table_in
from tidestate.operators.describe.sinks import Refused
from tidestate.operators.sinks.table import TableSink
from tools.demo.job import say


def main(jars: str, folder: str, rounds: str) -> None:
    """All of them, one after the other, each with another writer of the same table."""
    session = session_with_tables(jars, Path(folder) / "tables")
    session.sql("CREATE NAMESPACE IF NOT EXISTS ice.db").collect()
    for format in ("delta", "iceberg"):
        for form in ("append", "upsert"):
            name = table_in(format, f"raced_{form}")
            refusals = 0

            def offer(sink: TableSink, number: int) -> bool:
                path = str(Path(folder) / f"{number}.parquet")
                try:
                    sink(session.read.parquet(path), ts.DeliveryId("f" * 32, number))
                except Refused:
                    return False
                return True

            for number in range(1, int(rounds) + 1):
                rows = session.createDataFrame([(f"{number}", number), ("same", number)], "k string, n long")
                rows.coalesce(1).write.mode("overwrite").parquet(str(Path(folder) / f"{number}.parquet"))
                sinks = [TableSink(name, changes=form, key="k", format=format) for _ in range(2)]  # type: ignore[arg-type]
                for sink in sinks:
                    sink.key = ("k",)
                while True:
                    with ThreadPoolExecutor(2) as threads:
                        taken = list(threads.map(offer, sinks, [number] * 2))
                    refusals += 2 - sum(taken)
                    if all(taken):
                        break
            found = Counter((row["k"], row["n"]) for row in session.table(name).collect())
            last = int(rounds)
            every = [(f"{number}", number) for number in range(1, last + 1)]
            same = [("same", number) for number in range(1, last + 1)] if form == "append" else [("same", last)]
            say("compared", format=format, form=form, exact=found == Counter(every + same), refusals=refusals)
    say("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
