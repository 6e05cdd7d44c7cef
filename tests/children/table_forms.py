"""What every kind of job emits, in each form in tables of Delta and Iceberg by their own connectors:
``python -m tests.children.table_forms JARS FOLDER`` says for each whether the table holds the net, though each
delivery came twice, and one of them once more when all were there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import tidestate as ts
from tests.helpers.nets import NAMED, NET_JOBS, made, net, plain
from tests.servers.spark_tables import session_with_tables, table_in
from tidestate.operators.sinks.forms import Form
from tidestate.operators.sinks.table import TableFormat, TableSink
from tidestate.statestore.spec.plain import plain_table
from tools.demo.job import say

FORMATS: tuple[TableFormat, ...] = ("delta", "iceberg")
FORMS: tuple[Form, ...] = ("append", "changelog", "upsert")


def main(jars: str, folder: str) -> None:
    """All of them that a sink takes, in one session."""
    session = session_with_tables(jars, Path(folder) / "tables")
    session.sql("CREATE NAMESPACE IF NOT EXISTS ice.db").collect()
    for what, (_, whole, _key) in NET_JOBS.items():
        for form in FORMS if whole else FORMS[:1]:
            for format in FORMATS:
                name = table_in(format, f"t_{what}_{form}".replace(" ", "_"))
                sink = TableSink(name, changes=form, format=format, key=NAMED.get(what))
                exact = holds_what_was_emitted(session, Path(folder), what, name, sink)
                say("compared", what=what, form=form, format=format, exact=exact)
    say("done")


def holds_what_was_emitted(session: SparkSession, folder: Path, what: str, name: str, sink: TableSink) -> bool:
    """Store all deliveries of a job, and read the table as anybody does."""
    emitted, deliveries = made(what)
    sink.fit(emitted)
    frames, wanted = [], list[dict[str, Any]]()
    for number, panes in enumerate(deliveries, 1):
        delivery, path = ts.DeliveryId("f" * 32, number), folder / f"{what}-{number}.parquet"
        pq.write_table(panes, path)
        frames.append(session.read.parquet(str(path)))
        for _ in range(2):
            sink(frames[-1], delivery)
        wanted += sink.formed(panes, delivery).rows.to_pylist()
    sink(frames[0], ts.DeliveryId("f" * 32, 1))  # an older self
    found = plain_table(session.table(name).toArrow()).to_pylist()
    return sorted(map(as_text, found)) == sorted(map(as_text, net(what) if sink.changes == "upsert" else wanted))


def as_text(row: dict[str, Any]) -> str:
    """A row as text, but of the net without the column that says that it is no retraction."""
    return json.dumps(json.loads(msgspec.json.encode(row)), sort_keys=True) if "change" in row else plain(row)


if __name__ == "__main__":
    main(*sys.argv[1:])
