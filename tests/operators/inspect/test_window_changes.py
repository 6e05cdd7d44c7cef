"""What ``tidestate diff`` prints: the windows that differ between two checkpoints, against a naive twin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.command import json_lines, tidestate_here
from tests.helpers.waiting_windows import fed
from tidestate import agg
from tidestate.operators.inspect.query import query
from tidestate.operators.inspect.window_changes import changes_between, window_changes
from tidestate.recovery.inspect.rows import Wanted
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.moves.rescale import execute_rescale, plan_rescale
from tidestate.statestore.errors import UsageError

IDENTITY = ("window_start", "window_end", "k")
SCHEMA = pa.schema([(name, pa.int64()) for name in IDENTITY[:2]] + [("k", pa.string()), ("n", pa.int64())])
LISTED = pa.field("all", pa.list_(pa.int64()))
NUMBERS = st.none() | st.integers(0, 2)
WINDOWS = st.dictionaries(
    st.tuples(st.integers(0, 2), st.sampled_from(["a", "b", ""])),
    st.tuples(NUMBERS, st.none() | st.lists(st.integers(0, 1), max_size=2)),
    max_size=8,
)
Naive = dict[tuple[Any, ...], dict[str, Any]]


def table(windows: dict[tuple[int, str], tuple[Any, Any]]) -> pa.Table:
    rows = [
        {"window_start": start, "window_end": start + 1, "k": k, "n": n, "all": listed}
        for (start, k), (n, listed) in windows.items()
    ]
    return pa.Table.from_pylist(rows, SCHEMA.append(LISTED))


def twin(before: pa.Table, after: pa.Table, identity: tuple[str, ...] = IDENTITY) -> list[dict[str, Any]]:
    """One window after the other, by what Python finds equal."""
    was, now = ({tuple(row[name] for name in identity): row for row in rows.to_pylist()} for rows in (before, after))
    names = [name for name in after.column_names if name not in identity]
    found = []
    for window in sorted(was.keys() | now.keys(), key=lambda one: (one[0], *one[2:], one[1])):
        old, new = was.get(window), now.get(window)
        if old == new:
            continue
        change = "added" if old is None else "removed" if new is None else "changed"
        row = {"change": change, **dict(zip(identity, window, strict=True))}
        for name in names:
            row |= {f"{name}_before": old and old[name], f"{name}_after": new and new[name]}
        found.append(row)
    return found


@given(WINDOWS, WINDOWS)
def test_windows_that_differ_are_those_of_the_twin(before: Any, after: Any) -> None:
    was, now = table(before), table(after)
    assert window_changes(was, now, ["k"]).to_pylist() == twin(was, now)
    assert window_changes(was, was, ["k"]).num_rows == 0


def test_a_result_that_came_or_went_is_printed_and_is_no_difference() -> None:
    was, now = table({(0, "a"): (1, [1]), (1, "a"): (1, [1])}), table({(0, "a"): (2, [1]), (1, "a"): (1, [2])})
    (changed,) = window_changes(was.drop(["all"]), now, ["k"]).to_pylist()
    assert (changed["n_before"], changed["n_after"]) == (1, 2)
    assert (changed["all_before"], changed["all_after"]) == (None, [1])
    (changed,) = window_changes(was, now.drop(["all"]), ["k"]).to_pylist()
    assert (changed["all_before"], changed["all_after"]) == ([1], None)
    named = [rows.append_column("n_after", rows["n"]) for rows in (was, now)]
    assert window_changes(*named, ["k"]).column_names[4:] == [
        *("n_before", "n_after", "all_before", "all_after", "n_after_before", "n_after_after")
    ]
    taken = [rows.rename_columns([*IDENTITY, "change", "change_before"]) for rows in (was, now)]
    assert len(set(window_changes(*taken, ["k"]).column_names)) == 8


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job with several state partitions, whose windows wait in parts."""
    folder = tmp_path_factory.mktemp("changes") / "root"
    fed(folder, ts.sliding("10 seconds", "5 seconds"), total=agg.sum("v"))
    return folder


@pytest.mark.slow
def test_changes_between_any_two_checkpoints(root: Path) -> None:
    newest = query(root).checkpoint
    for before, after in ((newest - 2, newest), (newest, newest - 1), (newest, newest)):
        asked = [query(root, checkpoint=number) for number in (before, after)]
        found = pa.concat_tables(changes_between(*asked, Wanted()))
        expected = twin(*(one.get_windows() for one in asked))
        order = [(name, "ascending") for name in ("window_start", "k", "window_end")]
        assert found.sort_by(order).to_pylist() == expected
        of_key = pa.concat_tables(changes_between(*asked, Wanted({"k": "b"})))
        assert of_key.to_pylist() == [row for row in expected if row["k"] == "b"]
    assert expected == []


def test_changes_across_a_rescale(root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for path in root.rglob("*"):
        if path.is_file():
            (copy / path.relative_to(root)).parent.mkdir(parents=True, exist_ok=True)
            (copy / path.relative_to(root)).write_bytes(path.read_bytes())
    checkpoint = Checkpoint.open(str(copy))
    before = query(copy)
    execute_rescale(checkpoint, plan_rescale(checkpoint, before.partitions + 2))
    assert query(copy).partitions != before.partitions
    assert pa.concat_tables(changes_between(before, query(copy), Wanted())).num_rows == 0
    older = query(copy, checkpoint=before.checkpoint - 1)
    across = pa.concat_tables(changes_between(older, query(copy), Wanted()))
    within = pa.concat_tables(changes_between(older, before, Wanted()))
    order = [(name, "ascending") for name in ("window_start", "k", "window_end")]
    assert across.sort_by(order).equals(within.sort_by(order))
    assert across.num_rows


@pytest.mark.long
@pytest.mark.slow
def test_diff_prints_the_windows_that_differ(root: Path) -> None:
    newest = query(root).checkpoint
    asked = [query(root, checkpoint=number) for number in (newest - 1, newest)]
    expected = twin(*(one.get_windows() for one in asked))
    printed = json_lines(tidestate_here("diff", root, newest - 1, newest, "--json"))
    assert len(printed) == len(expected) > 1
    assert {(row["change"], row["k"], row["n_before"], row["n_after"]) for row in printed} == {
        (row["change"], row["k"], row["n_before"], row["n_after"]) for row in expected
    }
    lines = tidestate_here("diff", root, newest - 1, newest, "--limit", 1, columns=120).stdout.splitlines()
    assert lines[0].split() == ["change", "window_start", "window_end", "k", "n", "total", "events", "panes"]
    values = [expected[0][f"n_{when}"] for when in ("before", "after")]
    texts = ["-" if value is None else str(value) for value in values]
    assert (texts[0] if texts[0] == texts[1] else " -> ".join(texts)) in lines[1]
    assert lines[2].startswith(f"{len(expected) - 1} more")


@pytest.mark.slow
def test_without_windows_it_says_what_is_compared(tmp_path: Path) -> None:
    schema = pa.schema([("t", pa.timestamp("us", tz="UTC")), ("k", pa.string())])
    job = ts.stream(event_time="t").deduplicate("k", within="1 hour").harness(schema, folder=tmp_path)
    job.feed([{"t": 0, "k": "a"}])
    job.feed([{"t": 1, "k": "b"}])
    lines = tidestate_here("diff", tmp_path, 2, 3).stdout.splitlines()
    assert lines[1].split()[:2] == ["added", "b"]
    assert lines[-1] == "the rows of state table seen, as the operator has no windows"
    with pytest.raises(UsageError, match="query-windows"):
        next(changes_between(query(tmp_path), query(tmp_path), Wanted()))
