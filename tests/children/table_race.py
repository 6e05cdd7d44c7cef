"""Two drivers that store the same deliveries in one table at the same time, as where one was taken for dead:
``python -m tests.children.table_race JARS FOLDER FORMAT FORM ROUNDS`` says whether the table has each row once.
"""

from __future__ import annotations

import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tidestate as ts
from tests.servers.spark_tables import session_with_tables, table_in
from tidestate.operators.describe.sinks import Refused
from tidestate.operators.sinks.table import TableSink
from tools.demo.job import say


def main(jars: str, folder: str, format: Any, form: Any, rounds: str) -> None:
    """A delivery after the other, each until both have it."""
    session, name, last, refusals = (
        session_with_tables(jars, Path(folder) / "tables"),
        table_in(format, "raced"),
        int(rounds),
        0,
    )
    session.sql("CREATE NAMESPACE IF NOT EXISTS ice.db").collect()
    names = (name, name.replace("ice.", "other."))
    sinks = [TableSink(name, changes=form, key="k", format=format) for name in names]
    for sink in sinks:
        sink.key = ("k",)
    for number in range(1, last + 1):
        path = str(Path(folder) / f"{number}.parquet")
        rows = session.createDataFrame([(f"{number}", number), ("same", number)], "k string, n long")
        rows.coalesce(1).write.parquet(path)

        def offer(sink: TableSink, path: str = path, number: int = number) -> bool:
            try:
                sink(session.read.parquet(path), ts.DeliveryId("f" * 32, number))
            except Refused:
                return False
            return True

        taken = [False]
        while not all(taken):
            with ThreadPoolExecutor(2) as threads:
                taken = list(threads.map(offer, sinks))
            refusals += 2 - sum(taken)
    found = Counter((row["k"], row["n"]) for row in session.table(name).collect())
    every = [(f"{number}", number) for number in range(1, last + 1)]
    same = [("same", number) for number in range(1, last + 1)] if form == "append" else [("same", last)]
    say("compared", format=format, form=form, exact=found == Counter(every + same), refusals=refusals)
    say("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
