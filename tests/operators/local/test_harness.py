"""The harness for users' jobs: its page runs, its refusals; what it shows is tested by everything that uses it."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.checkout import ROOT
from tidestate import agg, trigger
from tidestate.statestore.errors import UsageError

SCHEMA = pa.schema([("t", pa.timestamp("us", tz="UTC")), ("k", pa.string())])


@pytest.mark.slow
def test_the_page_runs() -> None:
    page = (ROOT / "docs" / "how-to" / "test-a-job.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.S | re.M)
    assert len(blocks) == 1
    done = subprocess.run([sys.executable, "-c", blocks[0]], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr


def test_state_is_read_by_table_and_survives_a_restart(tmp_path: Path) -> None:
    job = ts.stream(event_time="t").group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count())
    harness = job.harness(SCHEMA, folder=tmp_path, partitions=3)
    rows = pa.table({"t": pa.array([1, 2, 3]).cast(SCHEMA.field("t").type), "k": ["a", "b", "a"]})
    harness.feed(rows)
    before = harness.state("parts").select(["k", "n"]).sort_by("k").to_pylist()
    assert before == [{"k": "a", "n": 2}, {"k": "b", "n": 1}]
    harness.restart()
    assert harness.state("parts").select(["k", "n"]).sort_by("k").to_pylist() == before
    with pytest.raises(UsageError, match="harness-state"):
        harness.state("ends")


def test_what_has_no_windows_and_a_clock_that_goes_back(tmp_path: Path) -> None:
    harness = ts.stream(event_time="t").deduplicate("k").harness(SCHEMA, folder=tmp_path)
    with pytest.raises(UsageError, match="harness-windows"):
        harness.windows()
    other = ts.stream(event_time="t").shift_time("1 second").harness(SCHEMA, folder=tmp_path / "other")
    with pytest.raises(UsageError, match=r"\[feed\]"):
        other.reprocess_late()
    harness.advance_processing_time(5)
    with pytest.raises(UsageError, match="clock"):
        harness.advance_processing_time(4)


def test_what_had_waited_long_enough_as_its_end_was_passed_shows_in_the_next_step(tmp_path: Path) -> None:
    job = (
        ts.stream(processing_time=True)
        .group_by("k")
        .window(ts.tumbling("2 seconds"))
        .aggregate(n=agg.count())
        .allowed_lateness("1 minute")
    )
    waiting = job.trigger(on_time="never", late=trigger.after_processing_time("3 seconds"))
    harness = waiting.harness(SCHEMA, folder=tmp_path)
    harness.feed(pa.table({"t": pa.array([0]).cast(SCHEMA.field("t").type), "k": ["a"]}))
    assert harness.advance_processing_time(3_000_000).num_rows == 0  # the window ends in this step
    harness.restart()
    assert harness.advance_processing_time(3_000_001)["timing"].to_pylist() == ["late"]
    assert harness.advance_processing_time(90_000_000).num_rows == 0


def test_the_ledger_of_a_finished_window_keeps_columns_of_any_name(tmp_path: Path) -> None:
    odd = "a b: <c>, d"
    schema = SCHEMA.append(pa.field(odd, pa.list_(pa.int64())))
    job = (
        ts.stream(event_time="t")
        .group_by("k")
        .window(ts.tumbling("10 seconds"))
        .aggregate(n=agg.count())
        .allowed_lateness(ledger_columns=odd)
    )
    harness = job.trigger(when=trigger.after_count(1)).harness(schema, folder=tmp_path)
    rows = pa.table({"t": pa.array([1, 1]).cast(SCHEMA.field("t").type), "k": ["a", "a"], odd: [[1], [2, 3]]})
    harness.feed(rows.slice(0, 1))
    harness.feed(rows.slice(1, 1))
    assert harness.ledger()[odd].to_pylist() == [[2, 3]]
    assert harness.ledger()["reason"].to_pylist() == ["window_closed"]


def test_windows_of_offsets_begin_where_they_are_asked_to() -> None:
    schema = pa.schema([("o", pa.int64())])
    grouped = ts.stream(offset="o").group_by()
    tested = grouped.window(ts.offset_windows(3, start=1)).aggregate(n=agg.count()).harness(schema)
    panes = pa.concat_tables([tested.feed([{"o": number} for number in range(8)]), tested.finish()])
    found = [tuple(row.values()) for row in panes.select(["window_start", "window_end", "n"]).to_pylist()]
    assert found == [(1, 4, 3), (4, 7, 3), (7, 10, 1)]
    hopping = grouped.window(ts.offset_windows(4, 2, start=1)).aggregate(n=agg.count()).harness(schema)
    panes = pa.concat_tables([hopping.feed([{"o": number} for number in range(8)]), hopping.finish()])
    found = [tuple(row.values()) for row in panes.select(["window_start", "window_end", "n"]).to_pylist()]
    assert found == [(1, 5, 4), (3, 7, 4), (5, 9, 3), (7, 11, 1)]
    with pytest.raises(UsageError, match="window-start"):
        ts.offset_windows(3, start=-1)


def test_a_folder_of_its_own_goes_with_it_and_a_given_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    job = ts.stream(event_time="t").group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count())
    rows = pa.table({"t": pa.array([1]).cast(SCHEMA.field("t").type), "k": ["a"]})
    harness = job.harness(SCHEMA)
    harness.feed(rows)
    harness.restart()
    (made,) = tmp_path.glob("tidestate-harness-*")
    del harness
    gc.collect()
    assert not made.exists()
    with job.harness(SCHEMA) as harness:
        harness.feed(rows)
        assert [*tmp_path.glob("tidestate-harness-*")]
    harness.close()
    assert not [*tmp_path.glob("tidestate-harness-*")]
    with job.harness(SCHEMA, folder=tmp_path / "given") as harness:
        harness.feed(rows)
    assert (tmp_path / "given" / "tidestate.json").exists()


@pytest.mark.long
@pytest.mark.slow
def test_a_folder_of_its_own_goes_when_python_ends_but_not_with_a_fork(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, pyarrow as pa\n"
        "import tidestate as ts\n"
        "grouped = ts.stream(event_time='t').group_by().window(ts.tumbling('10 seconds'))\n"
        "job = grouped.aggregate(n=ts.agg.count())\n"
        "harness = job.harness(pa.schema([('t', pa.timestamp('us', tz='UTC'))]))\n"
        "child = os.fork()\n"
        "if child:\n"
        "    os.waitpid(child, 0)\n"
        f"    print(len(list(pathlib.Path({str(tmp_path)!r}).glob('tidestate-harness-*'))))\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert not [*tmp_path.glob("tidestate-harness-*")]


@pytest.mark.parametrize("wrong", [5, "rows", [1], [("a", 1)]])
def test_rows_of_another_kind_are_refused(wrong: Any) -> None:
    harness = ts.stream(event_time="t").group_by().window(ts.tumbling("1 s")).aggregate(n=agg.count()).harness(SCHEMA)
    with pytest.raises(UsageError, match="argument"):
        harness.feed(wrong)
    assert "events" not in harness.counters()
    with pytest.raises(UsageError, match="streams"):
        harness.feed({"other": []})


def test_input_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="argument"):
        ts.stream(event_time="t").deduplicate("k").standalone(checkpoint=tmp_path / "root").run(5)  # type: ignore[arg-type]


def test_a_harness_that_was_closed_takes_nothing(tmp_path: Path) -> None:
    job = ts.stream(event_time="t").group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count())
    for folder in (None, tmp_path):
        with job.harness(SCHEMA, folder=folder) as harness:
            harness.feed([{"t": datetime(2026, 1, 1, tzinfo=UTC), "k": "a"}])
        for call in (harness.finish, harness.reprocess_late, harness.restart):
            with pytest.raises(UsageError, match="operator-closed"):
                call()
        with pytest.raises(UsageError, match="operator-closed"):
            harness.feed([])


@pytest.mark.parametrize("time", [None, 10**30, -(10**30)])
def test_a_time_that_nothing_can_hold_leaves_the_harness_as_it_was(time: Any) -> None:
    job = ts.stream(event_time="t").group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count())
    with job.harness(SCHEMA) as harness:
        for move in (harness.advance_watermark, harness.advance_processing_time):
            with pytest.raises(UsageError, match="argument"):
                move(time)
        harness.feed([{"t": datetime(2026, 1, 1, tzinfo=UTC), "k": "a"}])
        assert harness.finish().num_rows == 1


def test_rows_and_settings_that_do_not_fit_are_refused() -> None:
    job = ts.stream(event_time="t").group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count())
    with pytest.raises(UsageError, match="root-url"):
        job.harness(SCHEMA, folder=5)  # type: ignore[arg-type]
    with job.harness(SCHEMA) as harness:
        with pytest.raises(UsageError, match="column-missing"):
            harness.feed([{"tt": datetime(2026, 1, 1, tzinfo=UTC), "k": "a"}])
        for time in ("x", 10**30):
            with pytest.raises(UsageError, match="batch-type"):
                harness.feed([{"t": time, "k": "a"}])
        assert harness.ledger().num_rows == 0
