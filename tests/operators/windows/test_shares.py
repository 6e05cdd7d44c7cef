"""Windows that are due at once are taken in shares of the keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

import tidestate as ts
from tidestate import agg
from tidestate.operators.windows import step
from tidestate.statestore.spec.store import Parquet


def test_many_windows_that_are_due_at_once_are_taken_in_shares(tmp_path: Path) -> None:
    rows, taken = 100_000, list[int]()
    batch = pa.table({"at": pa.array(np.arange(rows) * 10).cast(pa.timestamp("us", "UTC")), "key": np.arange(rows)})
    later = pa.table({"at": pa.array([90_000_000]).cast(pa.timestamp("us", "UTC")), "key": [0]})
    job = (
        ts.stream(event_time="at")
        .group_by("key")
        .window(ts.tumbling("10 seconds"))
        .aggregate(n=agg.count())
        .named("many")
    )

    def counted(*given: Any) -> Any:
        taken.append(given[2])
        return inner(*given)

    inner = step._share_of
    with patch.object(step, "_share_of", counted):
        runner = job.standalone(checkpoint=tmp_path / "root", store=Parquet(budget_bytes=4 << 20))
        panes = runner.run([batch, later])
    assert sorted(panes["key"].to_pylist()) == list(range(rows))
    assert taken
    assert min(taken) > 1
