"""Runs pytest again and again, each time in a fork of this process, which has loaded libraries and nothing of ours.

To load them takes longer than most tests do. ``python -m tools.mutants.forks``, in the folder whose tests it runs: a
line of JSON asks for a run, and a line answers it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import msgspec
import pytest

LIBRARIES = (
    "hypothesis.stateful",
    "pyarrow.compute",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "pyspark.sql",
    "rocksdict",
)
LOOKS_EVERY_S = 0.02


class Asked(msgspec.Struct, frozen=True):
    """What pytest is called with, and after how many seconds it is killed."""

    arguments: list[str]
    limit_s: float


def main() -> None:
    import_module("tidestate")  # which names the allocator before Arrow is loaded
    for name in LIBRARIES:
        import_module(name)
    for line in sys.stdin:
        asked = msgspec.json.decode(line, type=Asked)
        print(msgspec.json.encode(_code(asked)).decode(), flush=True)


def _code(asked: Asked) -> int | None:
    """What pytest ended with; None if it was killed. What it has started ends with it."""
    child = os.fork()
    if not child:
        _run(asked.arguments)
    until, code = time.monotonic() + asked.limit_s, None
    while code is None and time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if ended else None
        time.sleep(0 if ended else LOOKS_EVERY_S)
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        return code  # nothing is left of it
    if code is None:
        os.waitpid(child, 0)
    return code


def _run(arguments: Sequence[str]) -> NoReturn:
    code = 99
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        # It would rewrite the assertions of plugins that are loaded already.
        quiet = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        code = int(pytest.main([*quiet, *arguments]))
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
