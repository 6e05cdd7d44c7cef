"""``tidestate windows`` and ``tidestate messages``: what `query` answers, in every format, in 80 columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidestate as ts
from tests.helpers.command import tidestate_here
from tests.helpers.join_operator_messages import LEFT, RIGHT, near, sided, two_streams
from tests.helpers.operator_messages import WINDOWS, description, operator, stream, table
from tests.helpers.waiting_windows import fed
from tidestate import agg
from tidestate.operators.cli.answers import first_in_order
from tidestate.operators.inspect.query import query
from tidestate.statestore.spec.store import Parquet


def rows(*arguments: object) -> list[dict[str, Any]]:
    done = tidestate_here(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job with several state partitions, whose windows wait in parts."""
    folder = tmp_path_factory.mktemp("windows") / "root"
    fed(folder, ts.sliding("10 seconds", "5 seconds"), total=agg.sum("v"))
    return folder


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of an operator that is fed by hand, with a function of its own and its messages."""
    folder = tmp_path_factory.mktemp("messages") / "root"
    with operator(description(WINDOWS["tumbling"], allowed=10_000), folder, Parquet()) as running:
        for batch in stream(2, 2):
            running.add_messages(table(batch))
        running.flush()
    return folder


def test_windows_are_printed_in_every_format(root: Path, tmp_path: Path) -> None:
    whole = query(root).get_windows()
    printed = rows("windows", root)
    assert [(row["k"], row["n"], row["total"]) for row in printed] != []
    assert sorted(row["total"] for row in printed) == sorted(whole["total"].to_pylist())
    assert tidestate_here("windows", root, "--format", "parquet", "--output", tmp_path / "w.parquet").returncode == 0
    order = [("window_start", "ascending"), ("k", "ascending")]
    assert pq.read_table(tmp_path / "w.parquet").sort_by(order).equals(whole)
    csv = tidestate_here("windows", root, "--format", "csv", "--limit", 3).stdout.splitlines()
    assert csv[0] == '"window_start","window_end","k","n","total","events","panes"'
    assert len(csv) == 4


def test_a_table_has_the_first_windows_of_all_partitions(root: Path) -> None:
    whole = query(root).get_windows()
    lines = tidestate_here("windows", root, "--limit", 4, columns=80).stdout.splitlines()
    assert lines[0].split() == whole.column_names
    assert [line.split()[4] for line in lines[1:5]] == whole["k"].to_pylist()[:4]
    assert lines[5] == f"{whole.num_rows - 4} more: narrow the question, or use --limit"
    assert max(map(len, lines)) <= 80


def test_a_range_a_key_a_checkpoint_and_a_result_are_chosen(root: Path) -> None:
    chosen = rows("windows", root, "--key", "k=b", "--from", "1970-01-01T00:00:20", "--to", "1970-01-01T00:00:25")
    assert [row["window_start"][-6:] for row in chosen] == ["00:15Z", "00:20Z", "00:25Z"]
    assert {row["k"] for row in chosen} == {"b"}
    before = rows("windows", root, "--at", query(root).checkpoint - 1, "--value", "n")
    assert list(before[0]) == ["window_start", "window_end", "k", "n", "events", "panes"]
    assert sum(row["n"] for row in before) == 2 * 50
    for wrong, code in (("z=1", "window-key"), ("k", "read-value")):
        done = tidestate_here("windows", root, "--key", wrong)
        assert done.returncode == 5
        assert code in done.stderr


def test_several_jobs_are_asked_at_once(root: Path, kept: Path) -> None:
    done = rows("windows", root, kept)
    assert {row["job"] for row in done} == {str(root), str(kept)}
    assert len({tuple(row) for row in done}) == 2, "each with columns of its own"
    lines = tidestate_here("windows", root, kept, "--limit", 2, columns=200).stdout.splitlines()
    assert lines[0].split()[:4] == ["job", "window_start", "window_end", "k"]


def test_results_of_own_functions_are_left_out_and_offsets_are_short(kept: Path) -> None:
    lines = tidestate_here("windows", kept, "--limit", 1, columns=120).stdout.splitlines()
    assert "middle" not in lines[0]
    assert lines[-1] == "left out, as functions of yours compute it: middle"
    (first,) = query(kept).get_windows(values=[]).slice(0, 1).to_pylist()
    origin, low, high = first["offsets"][0].values()
    assert f"{origin} {low}" in lines[1]
    assert low == high or f"{origin} {low}-{high}" in lines[1]
    done = tidestate_here("windows", kept, "--value", "middle")
    assert done.returncode == 5
    assert "query-description" in done.stderr


def test_messages_are_printed_by_range_and_key(kept: Path) -> None:
    asked = query(kept)
    every = asked.get_messages()
    assert [row["offset"] for row in rows("messages", kept, "--limit", 100)] == every["offset"].to_pylist()
    low, high = every.slice(2, 1).to_pylist()[0], every.slice(every.num_rows - 3, 1).to_pylist()[0]
    bounds = ("--from", low["time"].isoformat(), "--from-offset", low["offset"])
    bounds = (*bounds, "--to", high["time"].isoformat(), "--to-offset", high["offset"])
    given = (low["time"], low["offset"], high["time"], high["offset"])
    found = rows("messages", kept, *bounds, "--key", "k=a", "--limit", 100)
    assert [row["offset"] for row in found] == asked.get_messages(*given, equal="a")["offset"].to_pylist() != []
    some = rows("messages", kept, "--key", f"v={low['v']}", "--limit", 100)
    assert {row["v"] for row in some} == {low["v"]}, "a column that messages are not stored by is a filter"


# In every run `test_query` asks for a side, and `test_options_named` has the option.
@pytest.mark.long
def test_messages_of_a_side_of_a_join(tmp_path: Path) -> None:
    job, made = near(), [row for batch in two_streams(4, 3) for row in batch]
    schema = {"left": LEFT, "right": RIGHT}
    harness = job.harness(schema, folder=tmp_path, partitions=3)
    harness.feed(sided(made))
    wanted = query(tmp_path).get_messages(side="left", equal="a")["offset"].to_pylist()
    found = rows("messages", tmp_path, "--side", "left", "--key", "k=a", "--limit", 100)
    assert [row["offset"] for row in found] == wanted != []
    done = tidestate_here("messages", tmp_path)
    assert done.returncode == 2
    assert "left or right" in done.stderr
    assert "query-windows" in tidestate_here("windows", tmp_path, "--side", "left").stderr


def test_after_a_drain_there_are_none_and_why(tmp_path: Path) -> None:
    fed(tmp_path, ts.sliding("10 seconds", "5 seconds")).finish()
    lines = tidestate_here("windows", tmp_path, columns=200).stdout.splitlines()
    assert lines[0].split() == ["window_start", "window_end", "k", "n", "events", "panes"]
    assert lines[1:] == [f"no windows, as the input has ended: {tmp_path}"]


def test_a_limit_holds_no_more_than_itself() -> None:
    parts = (pa.table({"n": [number, 99 - number]}) for number in range(50))
    first, others = first_in_order(parts, ["n", "not there"], 3)
    assert first["n"].to_pylist() == [0, 1, 2]
    assert others == 97
