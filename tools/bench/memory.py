"""Peak resident memory of a process that holds state: one job a process, against its budget and 300 MB.

``python -m tools.bench.memory CASE small|full`` is such a process: it prints a JSON object.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

import tidestate as ts
from tidestate import agg
from tidestate.operators.describe.windows import Windows
from tidestate.stores import Parquet
from tools.bench.bids import Bids

ALLOWED_MB = 300
ROW_BYTES = 48
"""Of a group in Arrow: key, window, count, sum and count of the mean, maximum."""


class Peak(msgspec.Struct, frozen=True):
    """What a process has reached, in megabytes of a million bytes; ``begun_mb`` before there was state."""

    name: str
    budget_mb: int
    begun_mb: int
    peak_mb: int
    state_mb: int
    panes: int
    seconds: float

    @property
    def allowed_mb(self) -> int:
        """The most that the process may take: the budget of the job, and a fixed amount for all else."""
        return self.budget_mb + ALLOWED_MB


@dataclass(frozen=True)
class Held:
    """A job and its input, in both sizes. ``delay_s``: the watermark delay."""

    window: Windows
    small: Bids
    full: Bids
    delay_s: int = 60
    budget_mb: int = 64
    small_budget_mb: int = 16


EACH_NEW = 1 << 40
"""So many keys that no two bids have the same."""
MOMENT_US = 1_000_000
CASES = {
    "20 times the budget": Held(
        ts.tumbling("1 day"), Bids(EACH_NEW, 100_000, 70, 50_000), Bids(EACH_NEW, 250_000, 108, 50_000)
    ),
    "a day by the minute": Held(
        ts.sliding("1 day", "1 minute"),
        Bids(500, 20_000, 30, 100, closing_us=MOMENT_US),
        Bids(100_000, 200_000, 30, 1_000, closing_us=MOMENT_US),
    ),
    "an hour by the second": Held(
        ts.sliding("1 hour", "1 second"),
        Bids(100, 5_000, 20, 100, closing_us=MOMENT_US),
        Bids(1_000, 50_000, 75, 1_000, closing_us=MOMENT_US),
    ),
    "sessions of a hot key": Held(
        ts.sessions("30 minutes"),
        Bids(1_000, 100_000, 20, 10_000, draw="hot"),
        Bids(100_000, 500_000, 40, 50_000, draw="hot"),
    ),
    "10 million open windows": Held(
        ts.tumbling("10 seconds"),
        Bids(EACH_NEW, 40_000, 60, 4_000, closing_us=MOMENT_US),
        Bids(EACH_NEW, 200_000, 60, 20_000, closing_us=MOMENT_US),
        delay_s=500,
    ),
}
"""In small size the last one has two million."""


def measured(name: str, *, small: bool) -> Peak:
    """Run a case in a process of its own. Raises `subprocess.CalledProcessError`."""
    command = [sys.executable, "-m", "tools.bench.memory", name, "small" if small else "full"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Peak)


def hold(name: str, *, small: bool) -> Peak:
    """Run a case in this process, in one state partition."""
    held = CASES[name]
    stream, budget_mb = (held.small, held.small_budget_mb) if small else (held.full, held.budget_mb)
    bids = ts.stream(event_time="event_time", watermark_delay=f"{held.delay_s} seconds").group_by("key")
    results = {"bids": agg.count(), "middle": agg.mean("price"), "best": agg.max("price")}
    described = bids.window(held.window).aggregate(**results).allowed_lateness("0 seconds").named("bids")
    before, panes, started = process_mb("self"), 0, time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="tidestate-bench-") as folder:
        store = Parquet(budget_bytes=budget_mb << 20)
        runner = described.standalone(checkpoint=Path(folder) / "root", store=store)
        for found in runner.stream(stream.table(number) for number in range(stream.batches + 1)):
            panes += found.num_rows
        rows = sum(ref.rows for ref in runner.head.operators["bids"].files)
        seconds = round(time.perf_counter() - started, 1)
    return Peak(name, budget_mb, before, process_mb("self"), rows * ROW_BYTES // 1_000_000, panes, seconds)


def row(peak: Peak) -> dict[str, object]:
    """A row to print: ``ratio`` is of the peak to what is allowed."""
    ratio = round(peak.peak_mb / peak.allowed_mb, 3)
    return msgspec.structs.asdict(peak) | {"allowed_mb": peak.allowed_mb, "ratio": ratio}


def process_mb(process: int | str) -> int:
    """The largest resident size of a process so far; ``getrusage`` would count its parent's too."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 // 1_000_000 for line in lines if line.startswith("VmHWM")), 0)


def largest_descendant_mb(name: str) -> int:
    """The largest that a descendant of this process has been whose command line contains ``name``; 0 without one."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
    found, waiting = 0, [os.getpid()]
    while waiting:
        parent = waiting.pop()
        waiting += [child for child, of in parents.items() if of == parent]
        with suppress(OSError):
            if name in Path(f"/proc/{parent}/cmdline").read_text():
                found = max(found, process_mb(parent))
    return found


if __name__ == "__main__":
    logging.getLogger("tidestate").setLevel(logging.ERROR)  # the bid that closes windows is a leap of time
    print(msgspec.json.encode(hold(sys.argv[1], small=sys.argv[2] == "small")).decode())
