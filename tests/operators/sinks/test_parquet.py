"""A folder of Parquet files: each delivery is one file, named by its run too, however often it comes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tidestate.operators import DeliveryId
from tidestate.sinks import ParquetSink


def test_a_delivery_is_one_file_and_runs_have_their_own(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "out")
    offers = [("first", 1, "a"), ("first", 1, "a"), ("first", 2, "b"), ("second", 1, "c"), ("first", 1, "a")]
    for run, checkpoint, key in offers:
        sink(pa.table({"k": [key]}), DeliveryId(run, checkpoint))
    files = sorted((tmp_path / "out").glob("*.parquet"))
    assert [pq.read_table(file)["k"].to_pylist() for file in files] == [["a"], ["c"], ["b"]]
