"""How many files a target has after a day of deliveries, and how long a reader takes:
``python -m tools.target_files``.

A delivery every 15 minutes, of some windows of four keys, by a clock of its own, so that it takes seconds. Prints the
table of docs/how-to/write-to-a-sink.md.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq

import tidestate as ts
from tidestate import sinks
from tidestate.operators.sinks import compaction

_DAY_US = 86_400_000_000
_BEGIN_US = 20_454 * _DAY_US
"""The first of January 2026."""
BY_DAY = {"partition_by": sinks.day("window_start")}
DAY_TARGETS: dict[str, tuple[str, dict[str, Any]]] = {
    "`ParquetSink(folder)`": ("parquet", {}),
    '`ParquetSink(folder, partition_by=sinks.day("window_start"))`': ("parquet", BY_DAY),
    "`DeltaSink(table)`": ("delta", {}),
    '`DeltaSink(table, partition_by=sinks.day("window_start"), compact="1 hour")`': (
        "delta",
        BY_DAY | {"compact": "1 h"},
    ),
    "`IcebergSink(table)`": ("iceberg", {}),
    '`IcebergSink(table, partition_by=sinks.day("window_start"), compact="1 hour")`': (
        "iceberg",
        BY_DAY | {"compact": "1 h"},
    ),
}


def catalog_settings(folder: Path) -> dict[str, str]:
    """A catalogue of Iceberg in a file."""
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


SINKS: dict[str, Callable[..., Any]] = {
    "parquet": lambda folder, **more: sinks.ParquetSink(folder, **more),
    "delta": lambda folder, **more: sinks.DeltaSink(folder, **more),
    "iceberg": lambda folder, **more: sinks.IcebergSink(
        "day.panes", catalog="files", properties=catalog_settings(folder), **more
    ),
}


def panes(number: int, batches: int) -> pa.Table:
    """The panes of a delivery: a window of each of four keys."""
    start = _BEGIN_US + number * _DAY_US // batches
    times = pa.array([start] * 4, pa.timestamp("us", "UTC"))
    return pa.table({"window_start": times, "k": ["a", "b", "c", "d"], "n": [number] * 4})


def files_and_rows(kind: str, folder: Path) -> tuple[int, int]:
    """The files that a reader of the newest state opens, and the rows that it finds."""
    if kind == "delta":
        table = deltalake.DeltaTable(str(folder))
        return len(table.file_uris()), table.to_pyarrow_table().num_rows
    if kind == "iceberg":
        from pyiceberg.catalog import load_catalog

        found = load_catalog("files", **catalog_settings(folder)).load_table("day.panes")
        return len(found.inspect.files()), found.scan().to_arrow().num_rows
    return len([*folder.rglob("*.parquet")]), pq.read_table(folder).num_rows


def measured(name: str, batches: int, folder: Path) -> str:
    """A row of the table."""
    kind, settings = DAY_TARGETS[name]
    begin, sink = int(time.time() * 1e6), SINKS[kind](folder, **settings)
    for number in range(batches):
        with mock.patch.object(compaction, "now_us", return_value=begin + (number + 1) * _DAY_US // batches):
            sink(panes(number, batches), ts.DeliveryId("f" * 32, number + 1))
    began = time.perf_counter()
    files, rows = files_and_rows(kind, folder)
    took = time.perf_counter() - began
    assert rows == 4 * batches, f"{name}: {rows} rows of {4 * batches}"
    return f"| {name} | {batches} | {files} | {len([*folder.rglob('*.parquet')])} | {took * 1000:.0f} ms |"


def main(given: list[str] | None = None) -> None:
    """Print the table, a row for each target."""
    parser = argparse.ArgumentParser(prog="python -m tools.target_files")
    parser.add_argument("--batches", type=int, default=96, help="deliveries in the day")
    batches = parser.parse_args(given).batches
    headings = ("sink", "deliveries", "files that a reader opens", "files in the folder", "to read them")
    print(f"| {' | '.join(headings)} |\n|{'---|' * len(headings)}")
    for name in DAY_TARGETS:
        with tempfile.TemporaryDirectory() as folder:
            print(measured(name, batches, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
