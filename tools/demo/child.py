"""A child process that can be killed: its own process group, its events as JSON lines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Event = dict[str, Any]


class ChildFailedError(Exception):
    """The child ended by itself when it should not have; the text is the end of its log."""


class Child:
    """A process in a group of its own, so that SIGKILL reaches Python, the JVM and Spark's workers."""

    def __init__(self, command: list[str], log: Path, cwd: Path | None = None) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                cwd=cwd,
            )

    def tell(self, *words: object) -> None:
        """A line of JSON, for a child that reads such."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()

    def events(self) -> Iterator[Event]:
        """Its events until it ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                yield json.loads(line)

    def wait_for(self, wanted: Callable[[Event], bool], see: Callable[[Event], None] = lambda _event: None) -> Event:
        """The first wanted event; ``see`` gets all up to it. Raises `ChildFailedError` if the child ends before."""
        for event in self.events():
            see(event)
            if wanted(event):
                return event
        self._process.wait()
        raise ChildFailedError(self._log.read_text()[-4000:])

    def kill(self) -> None:
        """Send SIGKILL to the process and all that it has started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._close()

    @property
    def pid(self) -> int:
        """Of the process, and of its group."""
        return self._process.pid

    def wait(self) -> int:
        """Its exit code, once it has ended; its events are read elsewhere."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait()

    def finish(self) -> None:
        """End its input and wait for the end. Raises `ChildFailedError` unless it ended well."""
        if self._close() != 0:
            raise ChildFailedError(self._log.read_text()[-4000:])

    def _close(self) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.read()
        self._process.stdout.close()
        return self._process.wait()
