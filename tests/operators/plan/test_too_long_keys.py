"""A key that no table takes is a matter of its row, in every operator."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tidestate.agg import count
from tidestate.operators.describe.deduplicate import deduplicated
from tidestate.operators.describe.given_join import join
from tidestate.operators.describe.runnable import Sided
from tidestate.operators.describe.session_join import session_join
from tidestate.operators.describe.windowed import windowed
from tidestate.operators.describe.windows import session
from tidestate.operators.local.harness import Harness
from tidestate.statestore.spec.limits import KEY_BYTES

TOO_LONG = {
    "deduplication": deduplicated(event_time="t", on="k"),
    "join": join(event_time="t", on="k", within=("0 seconds", "10 seconds")),
    "session join": session_join(event_time="t", on="k", gap="2 s"),
    "sessions": windowed(event_time="t", key="k").window(session("10 seconds")).aggregate(n=count()),
}


@pytest.mark.parametrize("name", TOO_LONG)
def test_a_key_that_is_too_long_stops_no_operator(tmp_path: Path, name: str) -> None:
    job, long = TOO_LONG[name], "k" * (KEY_BYTES + 1)
    rows = pa.table({"t": pa.array([1, 2], pa.timestamp("us", tz="UTC")), "k": [long, "a"]})
    schema, given = rows.schema, rows
    if isinstance(job, Sided):
        schema = job.schema(schema, schema)
        given = pa.concat_tables(job.rows(schema, **{side: rows}) for side in job.sides.names)
    tested = Harness(job, schema, folder=tmp_path / "root")
    tested.feed(given)
    refused = tested.ledger()
    assert set(refused["reason"].to_pylist()) == {"key_too_long"}
    tested.feed(given)
