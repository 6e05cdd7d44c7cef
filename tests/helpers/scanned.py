"""The worked example run into a root, what its sink was given, and the parts of a dataset that are opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from tests.helpers.worked_example import STREAM, example
from tidestate import DeliveryId
from tidestate.recovery.inspect import scans
from tidestate.recovery.inspect.rows import AT

Row = dict[str, Any]


class Sink:
    """What it was given, with the checkpoint of each row."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def __call__(self, panes: pa.Table, delivery: DeliveryId) -> None:
        self.rows += [{AT: delivery.checkpoint, **row} for row in panes.to_pylist()]

    def until(self, checkpoint: int) -> list[Row]:
        return [row for row in self.rows if row[AT] <= checkpoint]


def run(root: object, mode: str = "retracting", stream: list[pa.Table] = STREAM, **more: Any) -> Sink:
    sink = Sink()
    example(mode).standalone(checkpoint=root, sink=sink).run(stream, **more)
    return sink


@contextmanager
def opened() -> Iterator[list[str]]:
    """The parts that are opened meanwhile."""
    found: list[str] = []
    before = scans._PartFiles.open_part

    def noted(self: Any, path: str) -> Any:
        found.append(path)
        return before(self, path)

    with mock.patch.object(scans._PartFiles, "open_part", noted):
        yield found


def rows(dataset: ds.Dataset) -> list[Row]:
    return dataset.to_table().to_pylist()


def tables_of(dataset: ds.Dataset) -> duckdb.DuckDBPyConnection:
    """A database that has the dataset as the table ``rows``."""
    return duckdb.connect().register("rows", dataset)


def sql(statement: str, dataset: ds.Dataset) -> list[tuple[Any, ...]]:
    return tables_of(dataset).sql(statement).fetchall()
