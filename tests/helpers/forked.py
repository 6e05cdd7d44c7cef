"""A module run as ``python -m`` does, by a fork of a process that has the package imported."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TextIO

from tests.helpers.checkout import ROOT
from tests.helpers.command import FORKS
from tools.demo.child import Child


class Forked:
    """What is used of `subprocess.Popen`: a process in a group of its own, its output and input as text."""

    def __init__(self, module: str, *arguments: object, log: Path | None = None) -> None:
        read, self._output = FORKS.Pipe(duplex=False)
        self._input, write = FORKS.Pipe(duplex=False)
        self.stdout, self.stdin = _text(read, "r"), _text(write, "w")
        given = (module, [*map(str, arguments)], self._input, self._output, dict(os.environ), log)
        self._process = FORKS.Process(target=_run, args=given)
        self._process.start()
        self._input.close()
        self._output.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def wait(self) -> int:
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode

    def communicate(self) -> tuple[str, None]:
        """Its whole output, when it has ended."""
        self.stdin.close()
        with self.stdout:
            output = self.stdout.read()
        self.wait()
        return output, None


class ForkedChild(Child):
    """A `Child` that is a fork."""

    def __init__(self, module: str, *arguments: object, log: Path) -> None:
        self._log = log
        log.touch()
        self._process: subprocess.Popen[str] = Forked(module, *arguments, log=log)  # type: ignore[assignment]


def forked(module: str, *arguments: object) -> int:
    """Run it to its end; its exit code, that of a signal negative."""
    process = Forked(module, *arguments)
    process.communicate()
    return process.wait()


def _text(end: Connection, mode: str) -> TextIO:
    descriptor = os.dup(end.fileno())
    end.close()
    return open(descriptor, mode)


def _run(
    module: str,
    arguments: list[str],
    input_: Connection,
    output: Connection,
    environment: dict[str, str],
    log: Path | None,
) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(input_.fileno(), 0)
    os.dup2(output.fileno(), 1)
    if log is not None:
        os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), 2)
    input_.close()
    output.close()
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
