"""This process: which form tests take, its scratch folder, its caches."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import cycle, islice, product
from typing import Any

import pytest

from tidestate.statestore.files import footers
from tidestate.statestore.files.resident import clear_residents
from tidestate.statestore.storage import local
from tidestate.statestore.stores import opening

LONG = os.environ.get("TIDESTATE_LONG") == "1"
WIDE = os.environ.get("TIDESTATE_WIDE") == "1"
QUICK = os.environ.get("TIDESTATE_QUICK") == "1"
REMOTE = os.environ.get("TIDESTATE_REMOTE") == "1"
"""Whether tests of Spark run on Spark Connect."""


def examples(count: int) -> int:
    """Of so many examples of the long form those of this one, where each takes a job and not a function."""
    return count if LONG else max(2, count // 10)


def in_turn(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Cases in which each value of each axis has its turn; in the long form each value with all of the others."""
    values = [list(axis) for axis in axes]
    longest = max(map(len, values))
    return list(product(*values) if LONG else islice(zip(*map(cycle, values), strict=False), longest))


def longer(*cases: Any) -> list[Any]:
    """Cases of the long form, for the list of a parameter next to those of every run."""
    return [pytest.param(case, marks=pytest.mark.long) for case in cases]


def few(cases: Iterable[Any], *places: int) -> list[Any]:
    """All cases, of which those at these places are in every run, and the others in the long form alone."""
    return [case if place in places else _longer(case) for place, case in enumerate(cases)]


def each_third(cases: Iterable[Any]) -> list[Any]:
    """All cases, of which every third is in every run: where two values take turns, both come up."""
    return [_longer(case) if place % 3 else case for place, case in enumerate(cases)]


def _longer(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.long)


def some(cases: Iterable[Any], count: int) -> list[Any]:
    """So many of the cases, spread over all of them; in the long form all."""
    each = list(cases)
    return each if LONG else each[:: -(-len(each) // count)]


def _in_memory(folder: str = "/dev/shm", room: int = 4 << 30) -> str | None:
    """A file system in memory that has room and runs programs, where there is one."""
    if not os.access(folder, os.W_OK):
        return None
    about = os.statvfs(folder)
    return folder if about.f_bavail * about.f_frsize >= room and not about.f_flag & os.ST_NOEXEC else None


SCRATCH = _in_memory()
"""For tests that make thousands of small files and do not care whether they survive a power cut."""


def forget() -> None:
    """Empty the caches that live as long as the process, as a new process would find them."""
    opening._memory.clear()
    local._settled.clear()
    footers.clear_footers()
    clear_residents()
