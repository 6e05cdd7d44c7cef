"""Trying mutants: a copy of the checkout, one fault in it at a time, and what its catcher says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import msgspec

from tools.mutants.forks import Asked
from tools.mutants.mutant import Mutant

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("tidestate", "statestore", "recovery", "operators", "tests", "tools", "docs", "pyproject.toml", "README.md")
"""What tests read. The folders in `tidestate/` are links, and stay links: they lead to the copies next to them."""
FAILED, UNKNOWN = 1, 4
"""Pytest ends with these if tests have failed, and if there is no such test; with 2 if one could not be collected."""

Verdict = Literal["caught", "survived", "no test ran", "hangs", "fails without it"]


@dataclass(frozen=True)
class Tried:
    """A mutant, and whether its catcher failed with it."""

    mutant: Mutant
    verdict: Verdict
    seconds: float = 0.0


@dataclass(frozen=True)
class _Ended:
    """A run of pytest: its code, None if it was killed; tests that failed, and all tests, by class path and name."""

    code: int | None
    failed: frozenset[tuple[str, str]] = frozenset()
    tests: frozenset[tuple[str, str]] = frozenset()


class Trial:
    """A copy of the checkout in ``folder``, with at most one fault in it. The checkout itself is never changed."""

    def __init__(self, folder: Path, limit_s: int) -> None:
        self._folder, self._limit_s = folder / "copy", limit_s
        self._report, self._changes = folder / "report.xml", 0
        self._folder.mkdir()
        for name in COPIED:
            _copy(ROOT / name, self._folder / name)
        environment = {**os.environ, "PYTHONPATH": str(self._folder), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "tools.mutants.forks"]
        pipe = subprocess.PIPE
        self._forks = subprocess.Popen(command, cwd=self._folder, env=environment, stdin=pipe, stdout=pipe)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._forks.communicate()  # the end of its input ends it

    def unchanged(self, mutants: Sequence[Mutant]) -> list[Tried]:
        """The mutants whose catcher fails, or does not run, on the sources as they are: it would prove nothing."""
        catchers = list(dict.fromkeys(one.catcher for one in mutants))
        ended = [self._pytest(catchers, self._limit_s * len(catchers))]
        if ended[0].code == UNKNOWN:  # one of them is no test, so none has run
            ended = [self._pytest([one], self._limit_s) for one in catchers]
        tests = frozenset(place for one in ended for place in one.tests)
        failed = frozenset(place for one in ended for place in one.failed)
        wrong = []
        for one in mutants:
            if not _named(one, tests):
                wrong.append(Tried(one, "no test ran"))
            elif _named(one, failed):
                wrong.append(Tried(one, "fails without it"))
        return wrong

    def tried(self, mutant: Mutant) -> Tried:
        """Whether the catcher fails with this fault. An error at import or collection is no failure of a test."""
        began = time.monotonic()
        with self._changed(mutant):
            ended = self._pytest([mutant.catcher], self._limit_s)
        return Tried(mutant, _verdict(mutant, ended), time.monotonic() - began)

    @contextmanager
    def _changed(self, mutant: Mutant) -> Iterator[None]:
        """The fault in its file, under a time of its own: Python compares that with the one of what it compiled."""
        path, self._changes = self._folder / mutant.file, self._changes + 1
        text, was = path.read_text(), path.stat()
        path.write_text(mutant.applied(self._folder))
        os.utime(path, (was.st_atime, was.st_mtime + 10 * self._changes))
        try:
            yield
        finally:
            path.write_text(text)
            os.utime(path, (was.st_atime, was.st_mtime))

    def _pytest(self, tests: Sequence[str], limit_s: float) -> _Ended:
        """Run these tests on the copy."""
        self._report.unlink(missing_ok=True)
        options = ["-q", "-p", "no:cacheprovider", "--timeout=0", f"--junitxml={self._report}"]
        stdin, stdout = self._forks.stdin, self._forks.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(msgspec.json.encode(Asked([*options, *tests], limit_s)) + b"\n")
        stdin.flush()
        return _read(msgspec.json.decode(stdout.readline(), type=int | None), self._report)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns(".*_cache"))
    else:
        shutil.copy2(source, target)


def _read(code: int | None, report: Path) -> _Ended:
    if code is None or not report.exists():
        return _Ended(code)
    cases = list(ET.parse(report).getroot().iter("testcase"))
    ran = [one for one in cases if one.find("skipped") is None and one.find("error") is None]
    return _Ended(
        code,
        frozenset(_place(one) for one in ran if one.find("failure") is not None),
        frozenset(_place(one) for one in ran),
    )


def _place(case: ET.Element) -> tuple[str, str]:
    return case.get("classname", ""), case.get("name", "")


def _named(mutant: Mutant, among: frozenset[tuple[str, str]]) -> bool:
    """Whether its catcher is among these tests, with any parameters if it names none."""
    where, name = mutant.reported
    return any(one == where and (test == name or test.startswith(f"{name}[")) for one, test in among)


def _verdict(mutant: Mutant, ended: _Ended) -> Verdict:
    if ended.code is None:
        return "hangs"
    if not _named(mutant, ended.tests):
        return "no test ran"
    return "caught" if ended.code == FAILED and _named(mutant, ended.failed) else "survived"
