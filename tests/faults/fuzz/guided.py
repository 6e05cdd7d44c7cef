"""Processes that fuzz targets, guided by coverage where atheris is installed, and die of what they find.

``python -m tests.faults.fuzz.guided SECONDS FOLDER TARGET ...``: one process after the other, forked from one that
has loaded all there is. In ``FOLDER/TARGET`` are the input that was tried ``last``, those that reached something new
(``found``), how many there were (``runs``), what the process printed (``output``), and how it ``ended``.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from random import Random

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

    watched, seeds = _Watched(name, folder), folder / "seeds"
    seeds.mkdir(exist_ok=True)
    for number, data in enumerate(watched.seeds):
        (seeds / f"{number:04d}").write_bytes(data)

    def one(data: bytes) -> None:
        watched(bytes(data))
        if watched.runs % 100 == 0:
            (folder / "runs").write_text(str(watched.runs))

    limits = [f"-max_total_time={seconds}", "-max_len=65536", "-rss_limit_mb=0", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *limits, str(folder / "found"), str(seeds)], one)
    atheris.Fuzz()


def _by_chance(name: str, seconds: int, folder: Path) -> None:
    from tests.faults.fuzz.bytes_of import varied

    watched, chance, until = _Watched(name, folder), Random(time.time_ns()), time.monotonic() + seconds
    while time.monotonic() < until:
        watched(varied(chance, watched.seeds))
    (folder / "runs").write_text(str(watched.runs))


def _load() -> None:
    if not HAS_ATHERIS:
        importlib.import_module("tests.faults.fuzz.targets")
        return
    import atheris

    with atheris.instrument_imports(include=list(GUIDED)):
        importlib.import_module("tests.faults.fuzz.targets")


def main(seconds: str, folder: str, *names: str) -> None:
    _load()
    from tests.faults.fuzz import material

    for name in names:
        place = Path(folder) / name
        process = os.fork()
        if not process:
            output = os.open(place / "output", os.O_WRONLY | os.O_CREAT)
            os.dup2(output, 1)
            os.dup2(output, 2)
            material.SCRATCH = str(place)  # it is removed with all else: this process ends without cleaning up
            try:
                (_by_coverage if HAS_ATHERIS else _by_chance)(name, int(seconds), place)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(process, 0)
        (place / "ended").write_text(str(os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    main(*sys.argv[1:])
