"""A key that no table takes is a matter of its row, in every operator."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import tidestate as ts
from tidestate import agg
from tidestate.statestore.spec.limits import KEY_BYTES

TOO_LONG = {
    "deduplication": ts.stream(event_time="t").deduplicate("k"),
    "join": ts.stream(event_time="t").join(ts.stream(event_time="t"), on="k", within=("0 seconds", "10 seconds")),
    "session join": ts.stream(event_time="t").join_sessions(ts.stream(event_time="t"), on="k", gap="2 s"),
    "sessions": ts.stream(event_time="t").group_by("k").window(ts.sessions("10 seconds")).aggregate(n=agg.count()),
}


@pytest.mark.parametrize("name", TOO_LONG)
def test_a_key_that_is_too_long_stops_no_operator(tmp_path: Path, name: str) -> None:
    job, long = TOO_LONG[name], "k" * (KEY_BYTES + 1)
    rows = pa.table({"t": pa.array([1, 2], pa.timestamp("us", tz="UTC")), "k": [long, "a"]})
    schema, given = rows.schema, rows
    if len(job.graph.streams) == 2:
        schema, given = dict.fromkeys(job.graph.streams, schema), dict.fromkeys(job.graph.streams, rows)
    tested = job.harness(schema, folder=tmp_path / "root")
    tested.feed(given)
    refused = tested.ledger()
    assert set(refused["reason"].to_pylist()) == {"key_too_long"}
    tested.feed(given)
