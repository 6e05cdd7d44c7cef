"""A job whose tables of Delta and Iceberg give back what a rewind has abandoned, by their own connectors:
``python -m tests.children.table_withdrawal JARS FOLDER FORMAT FORM STEP`` says ``compared`` with what was wrong.

The steps: ``all`` withdraws, goes on, goes back once more and takes that back. ``dies`` is killed in the middle of a
withdrawal; then ``again`` withdraws once more and goes on, and ``undone`` takes the rewind back and goes on.
"""

from __future__ import annotations

import signal
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from tests.helpers.moves import rewind
from tests.helpers.spark_inputs import SCHEMA, job, sample, write
from tests.helpers.targets import Target, holds_all_once, holds_once, with_utc
from tests.servers.spark_tables import session_with_tables, table_in
from tidestate.operators import Root
from tidestate.operators.sinks.included import IncludedSink
from tidestate.operators.sinks.spark_tables import SparkDeltaTable, SparkIcebergTable
from tidestate.operators.sinks.table import TableSink
from tidestate.recovery.log.checkpoint import Checkpoint
from tools.demo.job import say

ID = "delivery"
TABLE_FEED = sample(6, 60)
FIRST_RUN = 3
"""So many batches has the first run; those that are abandoned are of two."""
KEPT_COLUMNS = "window_start TIMESTAMP, window_end TIMESTAMP, k STRING"
KEPT_PARTITIONS = {"delta": "k", "iceberg": "k, days(window_start)"}


class Tables(Target):
    """A job with a table for its panes, and one for its late rows. The place is the folder of all."""

    def __init__(self, session: SparkSession, place: str, format: Any, form: Any) -> None:
        super().__init__(place)
        self.session, self.format, self.form, self.root = session, format, form, Path(place) / "root"
        self.name, self.late_name = table_in(format, "panes"), table_in(format, "late")

    def sink(self, form: Any = "append", **more: Any) -> IncludedSink:
        return TableSink(self.name, changes=form, format=self.format, delivery_column=ID, schema="merge", **more)

    def late_sink(self) -> IncludedSink:
        return TableSink(self.late_name, format=self.format, delivery_column=ID)

    def table(self) -> pa.Table:
        return with_utc(self.session.table(self.name).toArrow())

    def open(self) -> None:
        """Make the table of panes, in partitions where it is of a changelog; or find those of another process again,
        which a catalogue in memory has forgotten.
        """
        self.session.sql("CREATE NAMESPACE IF NOT EXISTS ice.db").collect()
        for name in ("panes", "late") if self.format == "delta" else ():
            place = Path(self.place) / "tables" / "delta" / name
            if place.exists():
                self.session.sql(f"CREATE TABLE {name} USING delta LOCATION '{place}'").collect()
        if self.form == "changelog" and not self.session.catalog.tableExists(self.name):
            kept = KEPT_PARTITIONS[self.format]
            made = f"CREATE TABLE {self.name} ({KEPT_COLUMNS}) USING {self.format} PARTITIONED BY ({kept})"
            self.session.sql(made).collect()

    def run(self, until: int) -> None:
        """Go on until so many batches are done."""
        for number, table in enumerate(TABLE_FEED[:until]):
            if not (Path(self.place) / "input" / f"{number:04d}.parquet").exists():
                write(Path(self.place) / "input", number, table)
        files = self.session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        stream = files.parquet(str(Path(self.place) / "input"))
        sink, late_sink = self.sink(self.form), self.late_sink()
        query = job().on_spark(stream, checkpoint=self.root, partitions=2, sink=sink, late_sink=late_sink).start()
        query.processAllAvailable()
        query.stop()

    def back(self, to: int) -> list[int]:
        """Rewind; the checkpoints with panes that are abandoned by now."""
        rewind(Checkpoint.open(self.root), to)
        checkpoint = Checkpoint.open(self.root)
        head = checkpoint.chosen(None).manifest
        made = [checkpoint.read(number).manifest for number in checkpoint.ids() if head.abandons(number)]
        return [manifest.id for manifest in made if manifest.output("panes")]

    def withdraw(self) -> list[int]:
        """From both tables; the checkpoints whose panes were taken out."""
        Root(self.root).withdraw(self.late_sink()).execute()
        plan = Root(self.root).withdraw(self.sink(self.form)).execute()
        return [delivery.checkpoint for delivery in plan.withdrawal.deliveries]

    def holds(self, *, begun: bool = False) -> None:
        """Both tables have what counts, each row once; of a job that has just ``begun`` that may be little."""
        assert (holds_once if begun else holds_all_once)(self, self.form, self.root, ID)
        ledgers = [pair for output in Checkpoint.open(self.root).outputs() for pair in output.ledgers.items()]
        counting = {str(delivery): sum(ref.rows for ref in refs) for delivery, refs in ledgers}
        assert Counter(row[ID] for row in self.session.table(self.late_name).collect()) == counting

    def offer_all_again(self) -> None:
        """As an older self does."""
        sink, late_sink, checkpoint = self.sink(self.form, key="k"), self.late_sink(), Checkpoint.open(self.root)
        for output in checkpoint.outputs():
            if output.panes:
                paths = [checkpoint.objects.locate(ref.path) for ref in output.panes]
                sink(self.session.read.parquet(*paths), output.delivery_id)
            for delivery, refs in output.ledgers.items():
                paths = [checkpoint.objects.locate(ref.path) for ref in refs]
                late_sink(self.session.read.parquet(*paths), delivery)

    def newest(self) -> int:
        return Checkpoint.open(self.root).chosen(None).manifest.id


def main(jars: str, folder: str, format: str, form: str, step: str) -> None:
    """Do one of the steps."""
    session = session_with_tables(jars, Path(folder) / "tables")
    tables = Tables(session, folder, format, form)
    tables.open()
    try:
        WITHDRAWAL_STEPS[step](tables)
    except AssertionError:
        say("compared", wrong=traceback.format_exc()[-2000:])
    else:
        say("compared", wrong="")
    say("done")


def every(tables: Tables) -> None:
    """Withdraw, go on, go back once more, and take that back: then what was withdrawn comes again."""
    tables.run(FIRST_RUN)
    tables.run(FIRST_RUN + 1)
    first = tables.back(2)
    assert tables.withdraw() == first
    assert len(first) > 1
    tables.holds(begun=True)
    assert tables.withdraw() == []
    tables.offer_all_again()
    tables.holds(begun=True)
    for _ in range(2):  # the second one meets runs that were withdrawn before
        tables.run(len(TABLE_FEED))
        tables.holds()
        newest = tables.newest()
        gone = [number for number in tables.back(newest - 2) if number not in first]  # these stay gone
        assert tables.withdraw() == gone != []
        tables.back(newest)
        assert tables.withdraw() == []
        tables.offer_all_again()
        tables.holds()
    tables.run(len(TABLE_FEED))
    tables.holds()


def dies(tables: Tables) -> None:
    """Die when the property of a Delta table says what is to go, or before ``main`` of an Iceberg table is moved."""
    tables.run(FIRST_RUN)
    tables.run(FIRST_RUN + 1)
    tables.back(2)

    def killed(*_given: Any) -> None:
        say("dies")
        signal.pause()

    SparkDeltaTable._delete_rows = killed  # type: ignore[assignment, method-assign]
    SparkIcebergTable._call = killed  # type: ignore[assignment, method-assign]
    Root(tables.root).withdraw(tables.sink(tables.form)).execute()


def again(tables: Tables) -> None:
    """Who withdraws once more has it done."""
    assert tables.withdraw() != []
    tables.run(len(TABLE_FEED))
    tables.holds()


def taken_out(tables: Tables) -> None:
    """Somebody else has withdrawn the panes."""
    Root(tables.root).withdraw(tables.late_sink()).execute()
    plan = Root(tables.root).withdraw(tables.sink(tables.form))
    assert plan.withdrawal.deliveries == ()
    tables.run(len(TABLE_FEED))
    tables.holds()


def undone(tables: Tables) -> None:
    """What was to go counts again: it is there once, whether it was taken out or not."""
    tables.back(tables.newest() - 1)
    assert tables.withdraw() == []
    tables.run(len(TABLE_FEED))
    tables.holds()


WITHDRAWAL_STEPS = {"all": every, "dies": dies, "again": again, "undone": undone, "taken out": taken_out}

if __name__ == "__main__":
    main(*sys.argv[1:])
