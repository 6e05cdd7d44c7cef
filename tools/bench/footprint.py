"""Bytes that a checkpoint writes, against the Arrow bytes of the groups that its batch has changed."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tidestate.stores import Parquet
from tools.bench.alone import SIZE_US, bids
from tools.bench.bids import Bids
from tools.bench.memory import ROW_BYTES


@dataclass(frozen=True)
class Written:
    """Bytes over all checkpoints of a run: of changelog segments, of folded files, and of what changed."""

    changelog: int
    folded: int
    changed: int


def written(stream: Bids) -> Written:
    """Tumbling windows, standalone, in one state partition; folded as often as by default."""
    known: set[str] = set()
    changelog = folded = changed = 0
    with tempfile.TemporaryDirectory(prefix="tidestate-bench-") as folder:
        runner = bids().standalone(checkpoint=Path(folder) / "root", store=Parquet())
        tables = [stream.table(number) for number in range(stream.batches)]
        for events, _ in zip(tables, runner.stream(tables), strict=True):
            changed += ROW_BYTES * _groups(events)
            new = [ref for ref in runner.head.operators["bids"].files if ref.path not in known]
            known |= {ref.path for ref in new}
            changelog += sum(ref.bytes for ref in new if ref.kind == "changelog")
            folded += sum(ref.bytes for ref in new if ref.kind != "changelog")
    return Written(changelog, folded, changed)


def _groups(events: pa.Table) -> int:
    starts = pc.divide(events["event_time"].cast(pa.int64()), SIZE_US)
    return pa.table({"key": events["key"], "start": starts}).group_by(["key", "start"]).aggregate([]).num_rows
