"""A process that fuzzes one target, guided by coverage where atheris is installed, and dies of what it finds.

``python -m tests.faults.fuzz.guided TARGET SECONDS FOLDER``: what it tried last is in ``FOLDER/last``, bytes that
reached something new are in ``FOLDER/found``. It prints how many it has tried.
"""

from __future__ import annotations

import importlib.util
import resource
import signal
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

LONGEST_S = 20
"""For one input: what takes longer is a hang."""
MOST_BYTES = 1 << 30
GUIDED = (
    "tidestate.recovery.log",
    "tidestate.recovery.spark",
    "tidestate.statestore.files",
    "tidestate.statestore.spec",
    "tidestate.statestore.stores.rocks",
    "tidestate.operators.bind",
    "json",
)
"""Whose branches guide it."""
HAS_ATHERIS = importlib.util.find_spec("atheris") is not None


class _Watched:
    """A target whose last input is on the disk while it is tried, in bounded time and memory."""

    def __init__(self, name: str, folder: Path) -> None:
        from tests.faults.fuzz.targets import TARGETS, tried

        self.target, self._tried, self._last = TARGETS[name], tried, folder / "last"
        self.runs = 0
        self.seeds = [*self.target.seeds(), *(path.read_bytes() for path in (folder / "corpus").iterdir())]
        for data in self.seeds:
            self._tried(self.target, data)
        self._began = _peak()

    def __call__(self, data: bytes) -> None:
        self.runs += 1
        self._last.write_bytes(data)
        signal.alarm(LONGEST_S)
        self._tried(self.target, data)
        signal.alarm(0)
        assert _peak() - self._began < MOST_BYTES, "it takes too much memory"


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _by_coverage(name: str, seconds: int, folder: Path) -> None:
    import atheris

    with atheris.instrument_imports(include=list(GUIDED)):
        watched = _Watched(name, folder)
    seeds = folder / "seeds"
    seeds.mkdir(exist_ok=True)
    for number, data in enumerate(watched.seeds):
        (seeds / f"{number:04d}").write_bytes(data)

    def one(data: bytes) -> None:
        watched(bytes(data))
        if watched.runs % 100 == 0:
            (folder / "runs").write_text(str(watched.runs))

    limits = [
        f"-max_total_time={seconds}",
        "-max_len=65536",
        "-rss_limit_mb=0",
        "-print_final_stats=0",
        "-verbosity=0",
    ]
    atheris.Setup([sys.argv[0], *limits, str(folder / "found"), str(seeds)], one)
    atheris.Fuzz()


def _by_chance(name: str, seconds: int, folder: Path) -> None:
    from tests.faults.fuzz.bytes_of import varied

    watched, chance, until = _Watched(name, folder), Random(time.time_ns()), time.monotonic() + seconds
    while time.monotonic() < until:
        watched(varied(chance, watched.seeds))
    (folder / "runs").write_text(str(watched.runs))


def main(name: str, seconds: str, folder: str, *_: Any) -> None:
    way = _by_coverage if HAS_ATHERIS else _by_chance
    way(name, int(seconds), Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
