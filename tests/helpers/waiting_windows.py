"""A job with several state partitions whose windows wait in parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from tidestate.agg import count
from tidestate.operators import Harness
from tidestate.operators.describe.windowed import windowed

_SECOND = 1_000_000
_ROWS = [{"t": at * _SECOND, "k": "abc"[at % 3], "v": at} for at in range(60)]
_SCHEMA = pa.schema([("t", pa.timestamp("us", tz="UTC")), ("k", pa.string()), ("v", pa.int64())])


def fed(root: Path, kind: Any, delay: str = "20 seconds", **more: Any) -> Harness:
    job = windowed(event_time="t", key="k", watermark_delay=delay).window(kind).aggregate(n=count(), **more)
    harness = Harness(job, _SCHEMA, folder=root, partitions=4)
    harness.feed(_ROWS[:50])
    harness.feed(_ROWS[50:])
    return harness
