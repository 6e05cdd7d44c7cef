"""The process in which Spark runs a job (`tests.children.commanded_job`), from outside."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.helpers.checkout import ROOT
from tools.demo.child import Child


class Driver:
    """One process of ``module``; after it was killed, the next one."""

    def __init__(self, folder: Path, module: str, source: str, jars: str = "") -> None:
        self.log = folder / "driver.log"
        self._command = [sys.executable, "-m", module, source]
        self._jars = jars
        self._begin()

    def _begin(self) -> None:
        self._child = Child([*self._command, self._jars], self.log, cwd=ROOT)
        self._jars = self._child.wait_for(lambda event: event["event"] == "ready")["jars"] or ""

    def tell(self, *words: object) -> None:
        self._child.tell(*words)

    def heard(self, until: str) -> dict[str, Any]:
        """What it says when it has done what it was asked for, with the checkpoints that a sink got meanwhile."""
        delivered: dict[int, int] = {}

        def see(event: dict[str, Any]) -> None:
            if event["event"] == "delivered":
                delivered[event["checkpoint"]] = event["rows"]

        return self._child.wait_for(lambda event: event["event"] in (until, "refused"), see) | {"sink": delivered}

    def ask(self, *words: object, until: str) -> dict[str, Any]:
        self.tell(*words)
        return self.heard(until)

    def start(self, root: str, *pause: str, **options: Any) -> dict[str, Any]:
        return self.ask("start", root, *pause, options, until="started")

    def goes_on(self, root: str, **options: Any) -> dict[str, Any]:
        """To the end of the input and of time."""
        assert self.start(root, **options)["event"] == "started"
        self.ask("settle", until="settled")
        return self.ask("drain", until="stopped")

    def kill(self) -> None:
        self._child.kill()
        self.again()

    def again(self) -> None:
        """A new process, after the one before has ended."""
        self._begin()

    def finish(self) -> None:
        self._child.finish()
