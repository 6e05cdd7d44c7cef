"""Places where the included sinks write, named by a text so that a process to be killed finds them too, and what they
hold there, read by other means than ours.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from tidestate.operators.sinks.delta import DeltaSink
from tidestate.operators.sinks.forms import Form
from tidestate.operators.sinks.iceberg import IcebergSink
from tidestate.operators.sinks.included import IncludedSink
from tidestate.operators.sinks.kafka import KafkaSink
from tidestate.operators.sinks.parquet import ParquetSink
from tidestate.operators.sinks.partitions import day
from tidestate.operators.sinks.postgres import PostgresSink
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.spec.plain import plain_table

Row = tuple[Any, ...]
KEY = "k"
"""Of the jobs of these tests."""


class Target(ABC):
    """A place that a sink writes to and a test reads: its text is the ``place``, ``forms`` are those of its sink."""

    forms: ClassVar[tuple[Form, ...]] = ("append", "upsert", "changelog")

    def __init__(self, place: str) -> None:
        self.place = place

    @abstractmethod
    def sink(self, form: Form = "append", **more: Any) -> IncludedSink:
        """A sink that writes to the place in this ``form``; ``more`` are other settings of it."""

    @abstractmethod
    def table(self) -> pa.Table:
        """All rows in the place, as an ordinary reader sees them; raises what that reader raises where nothing is."""


class InParquet(Target):
    forms = ("append", "changelog")

    def sink(self, form: Form = "append", **more: Any) -> IncludedSink:
        return ParquetSink(self.place, changes=form, **{"key": KEY} | more)

    def table(self) -> pa.Table:
        """As a reader that lists the folder sees it."""
        return pa.concat_tables([pq.read_table(path) for path in sorted(Path(self.place).glob("*.parquet"))])


class InDelta(Target):
    def sink(self, form: Form = "append", **more: Any) -> IncludedSink:
        return DeltaSink(self.place, changes=form, **{"key": KEY} | more)

    def table(self) -> pa.Table:
        import deltalake

        return pa.table(deltalake.DeltaTable(self.place).to_pyarrow_table())


class InPostgres(Target):
    """A table of PostgreSQL; its place is ``URI#TABLE``."""

    def _parts(self) -> tuple[str, str]:
        uri, _, table = self.place.partition("#")
        return uri, table

    def sink(self, form: Form = "append", **more: Any) -> IncludedSink:
        return PostgresSink(*self._parts(), changes=form, **{"key": KEY} | more)

    def table(self) -> pa.Table:
        from adbc_driver_postgresql import dbapi

        uri, table = self._parts()
        with dbapi.connect(uri) as connection, connection.cursor() as cursor:
            cursor.execute(f'SELECT * FROM "{table}"')
            return cursor.fetch_arrow_table()


class InKafka(Target):
    """A topic of Kafka; its place is ``SERVERS#TOPIC``."""

    def _parts(self) -> tuple[str, str]:
        servers, _, topic = self.place.partition("#")
        return servers, topic

    def sink(self, form: Form = "append", **more: Any) -> IncludedSink:
        return KafkaSink(*self._parts(), changes=form, **{"key": KEY} | more)

    def messages(self, isolation: str = "read_committed") -> list[Any]:
        import confluent_kafka as kafka

        servers, topic = self._parts()
        settings = {"bootstrap.servers": servers, "group.id": "tests", "enable.partition.eof": True}
        consumer = kafka.Consumer({**settings, "isolation.level": isolation, "enable.auto.commit": False})
        left = {*consumer.list_topics(topic).topics[topic].partitions}
        consumer.assign([kafka.TopicPartition(topic, one, kafka.OFFSET_BEGINNING) for one in left])
        found = []
        while left:
            message = consumer.poll(30)
            assert message is not None
            if message.error() is None:
                found.append(message)
            else:
                assert message.error().code() == kafka.KafkaError._PARTITION_EOF
                left.discard(message.partition())
        consumer.close()
        return found

    def table(self) -> pa.Table:
        """All messages; of an upsert the newest of each key, as a compacted topic keeps them."""
        found: dict[Any, Any] = {}
        for number, message in enumerate(self.messages()):
            value = message.value()
            replaces = b"window_start" in message.key() and (value is None or b'"change"' not in value)
            found[message.key() if replaces else number] = value
        rows = [json.loads(value) for value in found.values() if value is not None]
        for row in rows:
            row |= {name: datetime.fromisoformat(row[name]) for name in ("window_start", "window_end")}
        return pa.Table.from_pylist(rows)


class InIceberg(Target):
    """``FOLDER``, of a catalogue in SQLite and its tables."""

    def catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog

        Path(self.place).mkdir(exist_ok=True)
        uri, warehouse = f"sqlite:///{self.place}/catalog.db", f"file://{self.place}/warehouse"
        return load_catalog("tests", type="sql", uri=uri, warehouse=warehouse)

    def sink(self, form: Form = "append", **more: Any) -> IncludedSink:
        self.catalog()
        uri, warehouse = f"sqlite:///{self.place}/catalog.db", f"file://{self.place}/warehouse"
        properties = {"type": "sql", "uri": uri, "warehouse": warehouse}
        return IcebergSink(
            "flights.panes", catalog="tests", properties=properties, changes=form, **{"key": KEY} | more
        )

    def table(self) -> pa.Table:
        return pa.table(self.catalog().load_table("flights.panes").scan().to_arrow())


BY_DAY = {"partition_by": [KEY, day("window_start")]}
DAY = "window_start_day"
"""The column that such a target has more."""


class InParquetByDay(InParquet):
    """Folders for each key and day."""

    def sink(self, form: Form = "append", **more: Any) -> IncludedSink:
        return super().sink(form, **BY_DAY | more)

    def table(self) -> pa.Table:
        """As a reader of Hive's folders sees it, which is told their types."""
        levels = ds.partitioning(pa.schema([(KEY, pa.string()), (DAY, pa.date32())]), flavor="hive")
        return ds.dataset(self.place, format="parquet", partitioning=levels).to_table().drop_columns([DAY])


class InDeltaByDay(InDelta):
    """Partitions for each key and day, whose small files are compacted after each delivery."""

    def sink(self, form: Form = "append", **more: Any) -> IncludedSink:
        return super().sink(form, **BY_DAY | {"compact": "1 us"} | more)

    def table(self) -> pa.Table:
        return super().table().drop_columns([DAY])


class InIcebergByDay(InIceberg):
    """A table of Iceberg with the same partitions, compacted as often."""

    def sink(self, form: Form = "append", **more: Any) -> IncludedSink:
        return super().sink(form, **BY_DAY | {"compact": "1 us"} | more)


KINDS: dict[str, type[Target]] = {
    "parquet": InParquet,
    "delta": InDelta,
    "postgres": InPostgres,
    "kafka": InKafka,
    "iceberg": InIceberg,
    "parquet_by_day": InParquetByDay,
    "delta_by_day": InDeltaByDay,
    "iceberg_by_day": InIcebergByDay,
}
CASES: list[tuple[str, Form]] = [(name, form) for name, kind in KINDS.items() for form in kind.forms]


def target_of(text: str) -> Target:
    """The target that ``KIND:PLACE`` names, such as ``parquet:/tmp/panes``. Raises `KeyError` for another kind."""
    kind, _, place = text.partition(":")
    return KINDS[kind](place)


def nowhere() -> IncludedSink:
    """A sink that has never stored anything."""
    return ParquetSink("/nowhere/at-all")


def with_utc(rows: pa.Table) -> pa.Table:
    """Rows that Spark has written, whose times are those of its session, which is in UTC."""
    utc = pa.timestamp("us", "UTC")
    fields = [field.with_type(utc) if pa.types.is_timestamp(field.type) else field for field in rows.schema]
    return rows.cast(pa.schema(fields))


def plain_rows(table: pa.Table, names: list[str]) -> list[Row]:
    return [tuple(row[name] for name in names) for row in plain_table(table).to_pylist()]


def holds_all_once(
    target: Target, form: Form, root: Path, delivery: str | None = None, operator: str | None = None
) -> int:
    """Every pane of the root is there once, in this form, and of no other; how many rows that are, some of which take
    others back. ``delivery``: the column that has the id; ``operator``: the output whose panes they are.
    """
    rows = holds_once(target, form, root, delivery, operator)
    assert rows > 20
    assert "retract" in counting_panes(root, delivery, operator)["kind"].to_pylist()
    return rows


def holds_once(
    target: Target, form: Form, root: Path, delivery: str | None = None, operator: str | None = None
) -> int:
    """The same of a job that has just begun, and may have little."""
    panes = counting_panes(root, delivery, operator)
    names = [name for name in panes.column_names if form == "append" or name != "kind"]
    found = target.table()
    assert set(found.column_names) == {*names, *(["change"] if form == "changelog" else [])}
    wanted = plain_rows(panes, names)
    if form == "upsert":
        stands: dict[Row, Row] = {}
        for row in panes.to_pylist():
            identified = row["window_start"], row[KEY]
            if row["kind"] == "retract":
                del stands[identified]
            else:
                stands[identified] = tuple(row[name] for name in names)
        wanted = list(stands.values())
    assert Counter(plain_rows(found, names)) == Counter(wanted)
    return found.num_rows


def counting_panes(root: Path, delivery: str | None = None, operator: str | None = None) -> pa.Table:
    """The panes of the checkpoints that count, of one output, with the ids under which they are delivered."""
    checkpoint, tables = Checkpoint.open(root), []
    for output in checkpoint.outputs():
        for id_, ref in ((id_, ref) for id_, refs in output.emitted.items() for ref in refs):
            if operator is not None and ref.path.split("/")[1] != operator:
                continue
            panes = plain_table(pq.read_table(checkpoint.objects.locate(ref.path)))
            ids = pa.array([str(id_)] * panes.num_rows, pa.string())
            tables.append(panes if delivery is None else panes.append_column(delivery, ids))
    return pa.concat_tables(tables)
