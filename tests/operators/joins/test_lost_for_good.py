"""Why lost rows of an outer session join cannot be put back: two jobs that differ only in what they will emit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

import tidestate as ts
from tests.helpers.internals import plan_of
from tidestate.operators.local.harness import Harness

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("user", "string"), ("item", "string"), ("t", TIME), ("off", "int64")])
VISITS = ts.stream(event_time="t", offset="off").join_sessions(
    ts.stream(event_time="t", offset="off"),
    on=("user", "item"),
    gap="5 s",
    session_key="user",
    how="full",
    identity=True,
    name="visits",
)


def rows(*given: tuple[str, int, int]) -> pa.Table:
    """Item, time in seconds, offset."""
    made = [{"user": "u", "item": item, "t": at * 1_000_000, "off": offset} for item, at, offset in given]
    return pa.Table.from_pylist(made, SCHEMA)


def begun(folder: Path, *early: tuple[str, int, int]) -> Harness:
    """A session from 0 to 13, of which the first seconds are behind the watermark, 8, with their identities."""
    schema = {"left": SCHEMA, "right": SCHEMA}
    made = VISITS.harness(schema, folder=folder)
    made.feed({"left": rows(("b", 0, 1), *early), "right": rows(("c", 1, 1))})
    made.feed({"left": rows(("b", 4, 3)), "right": rows(("a", 7, 2))})
    made.feed({"left": rows(("b", 8, 4)), "right": rows(("c", 8, 3))})
    return made


def test_a_row_of_an_outer_session_join_may_have_been_there_or_not(tmp_path: Path) -> None:
    """Without the rows of a side the state is the same, and a replay may have the row in both cases: it had come, or
    it will come and be too late. What has to be emitted is not the same.
    """
    had, had_not = begun(tmp_path / "had", ("a", 1, 2)), begun(tmp_path / "had_not")
    tables = [spec.name for spec in plan_of(had).tables]
    assert [name for name in tables if had.state(name) != had_not.state(name)] == ["left"]
    assert had.state("left_seen")["offset"].to_pylist() == [3, 4], "the identity of the row has expired"

    def partners(panes: pa.Table) -> list[Any]:
        return [row["left_off"] for row in panes.to_pylist() if row["right_off"] == 2]

    assert (partners(had.finish()), partners(had_not.finish())) == ([2], [None])
