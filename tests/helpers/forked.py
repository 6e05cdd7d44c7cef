"""A module run as ``python -m`` does, by a fork of a process that has the package imported."""

from __future__ import annotations

import gc
import os
import runpy
import signal
import subprocess
import sys
from multiprocessing.connection import Connection
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, TextIO

from tests.helpers.checkout import ROOT
from tests.helpers.command import FORKS
from tests.helpers.plain_reports import plain_reports
from tools.demo.child import Child


class Forked:
    """What is used of `subprocess.Popen`: a process in a group of its own, its output and input as text."""

    def __init__(
        self,
        module: str,
        *arguments: object,
        log: Path | None = None,
        errors: int | None = None,
        terminal: int | None = None,
        **environment: str,
    ) -> None:
        """Errors go to the end of a ``log``, or to a descriptor; to a ``terminal`` output goes too."""
        read, output = FORKS.Pipe(duplex=False)
        source, write = FORKS.Pipe(duplex=False)
        self.stdout, self.stdin = _text(read, "r"), _text(write, "w")
        given = (module, [*map(str, arguments)], source, output, os.environ | environment, log)
        self._process = FORKS.Process(target=_run, args=(*given, _Passed(errors), _Passed(terminal)))
        self._process.start()
        source.close()
        output.close()

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


class _Passed:
    """A descriptor, or none, that the fork gets."""

    def __init__(self, descriptor: int | None) -> None:
        self.descriptor = descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (None if self.descriptor is None else DupFd(self.descriptor),)


def _received(passed: Any) -> _Passed:
    return _Passed(None if passed is None else passed.detach())


def _text(end: Connection, mode: str) -> TextIO:
    descriptor = os.dup(end.fileno())
    end.close()
    return open(descriptor, mode)


def _run(
    module: str,
    arguments: list[str],
    source: Connection,
    output: Connection,
    environment: dict[str, str],
    log: Path | None,
    errors: _Passed,
    terminal: _Passed,
) -> None:
    gc.freeze()  # what it has from its parent is no garbage
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(source.fileno(), 0)
    os.dup2(output.fileno() if terminal.descriptor is None else terminal.descriptor, 1)
    last = errors.descriptor if log is None else os.open(log, os.O_WRONLY | os.O_APPEND)
    if (last := terminal.descriptor if last is None else last) is not None:
        os.dup2(last, 2)
    source.close()
    output.close()
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, *arguments]
    plain_reports(arguments)
    sys.modules.pop(module, None)  # as in a new process: `runpy` warns of a module that is imported already
    runpy.run_module(module, run_name="__main__", alter_sys=True)
