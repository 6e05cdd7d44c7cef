"""The verb plan: what it prints, in words and as JSON, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import tidestate as ts
from tests.helpers.command import tidestate_here
from tests.helpers.process import LONG, forget
from tidestate import agg

JOBS = """
import tidestate as ts
from tidestate import agg

def counted(size="10 seconds", **more):
    return ts.stream(event_time="t").group_by("k").window(ts.tumbling(size)).aggregate(n=agg.count(), **more)

begun = counted(total=agg.sum("v"))
more = counted(total=agg.sum("v"), high=agg.max("v"))
other = counted(total=agg.sum("v"), wide=agg.max("w"))
size = counted("20 seconds", total=agg.sum("v"))
less = counted()

def made():
    return counted(total=agg.sum("v"))
"""
TIME = pa.timestamp("us", "UTC")


def rows(*seconds: int) -> pa.Table:
    times = pa.array([second * 1_000_000 for second in seconds], TIME)
    return pa.table({"t": times, "k": ["a"] * len(seconds), "v": list(seconds), "w": list(seconds)})


def test_what_a_start_would_do_is_printed_and_nothing_is_touched(tmp_path: Path) -> None:
    root, jobs = tmp_path / "root", tmp_path / "jobs.py"
    jobs.write_text(JOBS)
    begun = (
        ts.stream(event_time="t")
        .group_by("k")
        .window(ts.tumbling("10 seconds"))
        .aggregate(n=agg.count(), total=agg.sum("v"))
    )
    begun.standalone(checkpoint=root).run([rows(1, 2), rows(15)])
    forget()
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}

    same = tidestate_here("plan", root, f"{jobs}:begun")
    assert (same.returncode, same.stdout.splitlines()) == (
        0,
        [
            f"{root}: it would go on from checkpoint 3",
            "nothing has changed",
            "the standalone runner has been writing this checkpoint: continue with standalone, over the input that "
            "it had; anything else is refused",
        ],
    )
    if LONG:
        assert tidestate_here("plan", root, f"{jobs}:made").stdout == same.stdout

    more = tidestate_here("plan", root, f"{jobs}:more", "--json")
    planned = json.loads(more.stdout)
    assert (more.returncode, planned["starts"], planned["checkpoint"]) == (0, True, 3)
    (change,) = planned["changes"]
    assert (change["setting"], change["was"], change["now"]) == ("aggregate high", None, 'agg.max("v")')

    size = tidestate_here("plan", root, f"{jobs}:size")
    assert size.returncode == 1
    assert 'window: tumbling("10 seconds") -> tumbling("20 seconds"): state is kept by window' in size.stdout

    assert "loses values: operator windows: aggregate total" in tidestate_here("plan", root, f"{jobs}:less").stdout
    if LONG:
        kept = tidestate_here("plan", root, f"{jobs}:less", "--dropped", "refuse")
        assert (kept.returncode, "configuration-changed" in kept.stdout) == (1, True)

    other = tidestate_here("plan", root, f"{jobs}:other")
    assert (other.returncode, "[column-missing]" in other.stderr, other.stdout) == (5, True, "")
    pq.write_table(rows(1), tmp_path / "like.parquet")
    assert tidestate_here("plan", root, f"{jobs}:other", "--input", tmp_path / "like.parquet").returncode == 0

    new = tidestate_here("plan", tmp_path / "none", f"{jobs}:begun")
    assert (new.returncode, new.stdout) == (
        0,
        f"{tmp_path / 'none'}: a new root\n"
        "the columns of its input are not known: give files or a schema to check them\n",
    )
    if LONG:
        assert tidestate_here("plan", root, f"{jobs}:nothing").returncode == 5
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
