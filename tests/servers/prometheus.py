"""A real Prometheus over loopback, where the machine has one: Debian's ``apt-get install prometheus``."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.servers.ports import free_port

PROGRAM = shutil.which("prometheus")
WHY_NOT = "there is no Prometheus on this machine: apt-get install prometheus"
INTERVAL = "500ms"
"""Between two scrapes, and two evaluations of the rules."""
_START_S = 15.0


class Prometheus:
    """It scrapes ``target``, a host and port, and evaluates the alerts of ``rules``."""

    def __init__(self, folder: Path, target: str, rules: Path) -> None:
        every = {"scrape_interval": INTERVAL, "scrape_timeout": INTERVAL, "evaluation_interval": INTERVAL}
        jobs = [{"job_name": "tests", "static_configs": [{"targets": [target]}]}]
        settings = {"global": every, "rule_files": [str(rules)], "scrape_configs": jobs}
        (folder / "prometheus.yml").write_text(json.dumps(settings))
        address = f"127.0.0.1:{free_port()}"
        self._url, self._log = f"http://{address}", folder / "log"
        command = [
            str(PROGRAM),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)

    def wait(self) -> None:
        """Until it answers."""
        end = time.monotonic() + _START_S
        while time.monotonic() < end and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self._url}/-/ready"):
                    return
            except OSError:
                time.sleep(0.05)
        raise AssertionError(self._log.read_text())

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its API."""
        with urllib.request.urlopen(f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}") as answer:
            found: Mapping[str, Any] = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each sample that an expression has now."""
        found = self.ask("query", query=expression)["result"]
        return [(one["metric"], float(one["value"][1])) for one in found]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


@contextmanager
def prometheus(folder: Path, target: str, rules: Path) -> Iterator[Prometheus]:
    """One that answers, until the end of the block."""
    server = Prometheus(folder, target, rules)
    try:
        server.wait()
        yield server
    finally:
        server.close()
