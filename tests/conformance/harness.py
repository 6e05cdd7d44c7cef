"""The public harness, opened on a store and a folder of its own; and its tables as a case writes them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.conformance.aggregates import Asked
from tests.conformance.mapping import Input
from tests.conformance.values import decoded
from tidestate import OperatorStream
from tidestate.stores import Memory, Parquet, RocksDB

STORES: dict[str, Callable[[], Any]] = {"memory": Memory, "parquet": Parquet, "rocksdb": RocksDB}
SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None
KINDS = {"early": "early", "on_time": "ontime", "late": "late"}
Schemas = pa.Schema | Mapping[str, pa.Schema]
"""Of the events, by stream where there are several."""
Opener = Callable[[Any, Schemas, Any, Path], Any]
"""Opens a harness: job, schemas, store, folder."""


def public(job: OperatorStream, schema: Schemas, store: Any, folder: Path) -> Any:
    """The harness that users have."""
    return job.harness(schema, store=store, folder=folder, generate=False)


@contextmanager
def folder() -> Iterator[Path]:
    """For durable files that need not survive a power cut."""
    with tempfile.TemporaryDirectory(dir=SCRATCH, prefix="conformance-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def emissions(panes: pa.Table, made: Input, asked: Asked) -> list[dict[str, Any]]:
    """Rows of panes (or of live windows) as a case writes them, in their order."""
    return [_emission(row, made, asked) for row in rows_of(panes)]


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """Rows with timestamps as microseconds: Python's dates end at the year 9999."""
    columns = {}
    for name in table.column_names:
        column = table[name]
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        columns[name] = column.to_pylist()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _emission(row: dict[str, Any], made: Input, asked: Asked) -> dict[str, Any]:
    values = [
        decoded(shape, made.value, row[name]) for name, shape in zip(asked.aggregates, asked.shapes, strict=True)
    ]
    answered: dict[str, Any] = {"window": made.units.window(row["window_start"], row["window_end"])}
    if made.keyed:
        answered["key"] = None if row["key"] is None else made.key.decode(row["key"])
    answered["value"] = values if asked.several else values[0]
    if "kind" in row:
        answered["kind"] = "retract" if row["kind"] == "retract" else KINDS[row["timing"]]
        answered |= {"index": row["pane"], "is_first": row["pane"] == 0, "is_last": row["last"]}
        stamp = row["timestamp"] if "timestamp" in row else row["window_end"] - 1
        answered["timestamp"] = made.units.instant(stamp, "+inf")
    return answered
