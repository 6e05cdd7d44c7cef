"""A real PostgreSQL over loopback, where the machine has one: Debian's ``apt-get install postgresql``.

Import ``postgres`` into a test module.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.servers.ports import free_port

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
WHY_NOT = "there is no PostgreSQL on this machine: apt-get install postgresql"
_SETTINGS = ("fsync=off", "unix_socket_directories=", "listen_addresses=127.0.0.1")


def _as_user() -> dict[str, Any]:
    """It refuses to run as root."""
    if os.getuid() != 0:
        return {}
    user = pwd.getpwnam("nobody")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


class Postgres:
    """A new cluster in a folder, which any user of the machine may read the parents of."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._data, self._log = folder, folder / "data", folder / "log"
        self._data.mkdir(parents=True)
        self._as = _as_user()
        if self._as:
            os.chown(self._data, self._as["user"], self._as["group"])
        self._run("initdb", "-D", self._data, "-A", "trust", "-U", "postgres", "-N", "-E", "UTF8")
        self._port = free_port()
        self.uri = f"postgresql://postgres@127.0.0.1:{self._port}/postgres"
        self.start()

    def _run(self, program: str, *arguments: object) -> None:
        command = [str(PROGRAMS[-1] / program), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", **self._as)
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        settings = [word for one in (*_SETTINGS, f"port={self._port}") for word in ("-c", one)]
        command = [str(PROGRAMS[-1] / "postgres"), "-D", str(self._data), *settings]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/", **self._as)
        while True:
            try:
                self.rows("SELECT 1")
                return
            except Exception:
                assert self._process.poll() is None, self._log.read_text()
                time.sleep(0.05)

    def stop(self) -> None:
        """At once, with the connections that are open."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait()

    def kill(self) -> None:
        """SIGKILL to it and to the processes of its connections."""
        everyone = [self._process.pid, *map(int, self._children())]
        for pid in everyone:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        while any(Path(f"/proc/{pid}").exists() for pid in everyone):
            time.sleep(0.01)

    def _children(self) -> list[str]:
        pid = self._process.pid
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._folder)

    def rows(self, statement: str) -> Sequence[Any]:
        from adbc_driver_postgresql import dbapi

        with dbapi.connect(self.uri) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def run(self, statements: str) -> None:
        from adbc_driver_postgresql import dbapi

        with dbapi.connect(self.uri, autocommit=True) as connection, connection.cursor() as cursor:
            for one in statements.split(";"):
                cursor.execute(one)


@cache
def _of_process() -> Postgres:
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    return Postgres(folder)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One server for all test modules of a process, as it takes seconds to make: tables have names of their own."""
    if not PROGRAMS:
        pytest.skip(WHY_NOT)
    yield _of_process()
    if _of_process.cache_info().currsize:  # pytest ends a fixture once for each module that imports it
        _of_process().close()
        _of_process.cache_clear()
