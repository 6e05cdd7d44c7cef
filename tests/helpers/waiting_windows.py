"""A job with several state partitions whose windows wait in parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

import tidestate as ts
from tidestate import agg
from tidestate.operators import Harness

_SECOND = 1_000_000
_ROWS = [{"t": at * _SECOND, "k": "abc"[at % 3], "v": at} for at in range(60)]
_SCHEMA = pa.schema([("t", pa.timestamp("us", tz="UTC")), ("k", pa.string()), ("v", pa.int64())])


def fed(root: Path, kind: Any, delay: str = "20 seconds", **more: Any) -> Harness:
    job = ts.stream(event_time="t", watermark_delay=delay).group_by("k").window(kind).aggregate(n=agg.count(), **more)
    harness = job.harness(_SCHEMA, folder=root, partitions=4)
    harness.feed(_ROWS[:50])
    harness.feed(_ROWS[50:])
    return harness
