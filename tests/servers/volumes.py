"""Databricks' Files API over loopback: a Volume, in which ``overwrite=false`` is atomic.

No server that can be had does that: those that look before they write let several writers win. Import
``files_api`` into a test module; ``volume`` is a root in it, to which the environment leads.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterable, Iterator, MutableMapping, MutableSet
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from tidestate.statestore.storage import faults as storage_faults

VOLUME = "/Volumes/main/jobs/flights"
TOKEN = "a-token-of-tests"
FILES, FOLDERS = "/api/2.0/fs/files", "/api/2.0/fs/directories"
CODES = {
    400: "INVALID_PARAMETER_VALUE",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    416: "OUT_OF_RANGE",
    429: "REQUEST_LIMIT_EXCEEDED",
    500: "INTERNAL_ERROR",
    503: "TEMPORARILY_UNAVAILABLE",
}


class FilesOfFolder(MutableMapping[str, tuple[bytes, float]]):
    """The files of a Volume that is a folder here, so that a mount of it shows them too."""

    def __init__(self, volume: Path) -> None:
        self._volume = volume

    def _place(self, path: str) -> Path:
        return self._volume / path.removeprefix(f"{VOLUME}/")

    def __contains__(self, path: object) -> bool:
        return self._place(str(path)).is_file()

    def __getitem__(self, path: str) -> tuple[bytes, float]:
        place = self._place(path)
        return place.read_bytes(), place.stat().st_mtime

    def __setitem__(self, path: str, file: tuple[bytes, float]) -> None:
        self._place(path).write_bytes(file[0])

    def __delitem__(self, path: str) -> None:
        self._place(path).unlink()

    def __iter__(self) -> Iterator[str]:
        places = (place for place in self._volume.rglob("*") if place.is_file())
        return (f"{VOLUME}/{place.relative_to(self._volume).as_posix()}" for place in places)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class FoldersOfFolder(MutableSet[str]):
    """The folders of such a Volume."""

    def __init__(self, volume: Path) -> None:
        self._volume = volume

    def _place(self, path: str) -> Path:
        return self._volume / path.removeprefix(VOLUME).lstrip("/")

    def __contains__(self, path: object) -> bool:
        return str(path).startswith(VOLUME) and self._place(str(path)).is_dir()

    def add(self, path: str) -> None:
        self._place(path).mkdir(exist_ok=True)

    def update(self, paths: Iterable[str]) -> None:
        """Each after those above it."""
        for path in sorted(paths):
            self.add(path)

    def discard(self, path: str) -> None:
        self._place(path).rmdir()

    def __iter__(self) -> Iterator[str]:
        places = (place for place in self._volume.rglob("*") if place.is_dir())
        return iter((VOLUME, *(f"{VOLUME}/{place.relative_to(self._volume).as_posix()}" for place in places)))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class FilesApi(ThreadingHTTPServer):
    """A Volume in memory. ``faults`` has, by method, what happens to the next requests, one each: a status is
    answered in place of the service; ``before`` breaks the connection, the request never arrives; ``after`` breaks it
    when all is done; ``torn`` sends half of the reply.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Call)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        self.files: MutableMapping[str, tuple[bytes, float]] = {}
        self.folders: set[str] | FoldersOfFolder = {VOLUME}
        self.faults: dict[str, list[int | str]] = {}
        self.refused: set[str] = set()
        self.page = 1000
        self.ahead_s = 0.0
        self.log: list[tuple[str, str]] = []
        self.token = TOKEN

    def keep_in(self, volume: Path) -> None:
        """All of the Volume in a folder, from now on."""
        self.files, self.folders = FilesOfFolder(volume), FoldersOfFolder(volume)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client may hang up."""


class _Call(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each reply with a body waits 40 ms for an acknowledgement
    server: FilesApi

    def _handled(self) -> None:
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        waiting = self.server.faults.get(self.command, [])
        fault = waiting.pop(0) if waiting else None
        if fault == "before":
            return self._hang_up()
        path = unquote(url.path)
        if path == "/.well-known/databricks-config":
            return self._answer(200, {"Content-Type": "application/json"}, b'{"workspace_id": "1"}')
        self.server.log.append((self.command, path))
        if isinstance(fault, int):
            return self._answer(fault)
        parameters = {name: values[0] for name, values in parse_qs(url.query).items()}
        if self.headers.get("Authorization") != f"Bearer {self.server.token}":
            return self._answer(401)
        if any(path.endswith(name) for name in self.server.refused):
            return self._answer(403)
        with self.server.lock:  # one call after the other: a create looks and writes in one step
            status, headers, data = self._carried_out(path, parameters, body)
        if fault == "after":
            return self._hang_up()
        return self._answer(status, headers, data, torn=fault == "torn")

    do_GET = do_PUT = do_HEAD = do_DELETE = _handled  # noqa: N815

    def _carried_out(self, path: str, parameters: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        if path.startswith(FILES):
            return self._file(path.removeprefix(FILES), parameters, body)
        return self._folder(path.removeprefix(FOLDERS), parameters)

    def _file(self, path: str, parameters: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        files, parent = self.server.files, path.rpartition("/")[0]
        if self.command == "PUT":
            if parent not in self.server.folders:
                return 404, {}, b""
            if path in self.server.folders or (path in files and parameters.get("overwrite") != "true"):
                return 409, {}, b""
            files[path] = body, time.time() + self.server.ahead_s
            return 204, {}, b""
        if path not in files:
            return 404, {}, b""
        if self.command == "DELETE":
            del files[path]
            return 204, {}, b""
        data, changed = files[path]
        headers = {"Last-Modified": formatdate(changed, usegmt=True), "Content-Type": "application/octet-stream"}
        wanted = self.headers.get("Range")
        if wanted is None:
            return 200, headers, data
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        if int(first) >= len(data):
            return 416, {}, b""
        return 206, headers, data[int(first) : int(last) + 1 if last else None]

    def _folder(self, path: str, parameters: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        files, folders = self.server.files, self.server.folders
        if self.command == "PUT":
            if not path.startswith(f"{VOLUME}/") and path != VOLUME:
                return 404, {}, b""
            steps = path.split("/")
            ways = ["/".join(steps[:length]) for length in range(5, len(steps) + 1)]
            if any(way in files for way in ways):
                return 409, {}, b""
            folders.update(ways)
            return 204, {}, b""
        if path not in folders:
            return 404, {}, b""
        inside = sorted(name for name in (*files, *folders) if name.rpartition("/")[0] == path)
        if self.command == "DELETE":
            if inside or path == VOLUME:
                return 400, {}, b""
            folders.discard(path)
            return 204, {}, b""
        if self.command == "HEAD":
            return 200, {}, b""
        start, page = int(parameters.get("page_token", "0")), min(self.server.page, int(parameters["page_size"]))
        entries = [{"path": name, "is_directory": name in folders} for name in inside[start : start + page]]
        listed: dict[str, Any] = {"contents": entries} if entries else {}
        if start + page < len(inside):
            listed["next_page_token"] = str(start + page)
        return 200, {"Content-Type": "application/json"}, json.dumps(listed).encode()

    def _answer(
        self, status: int, headers: dict[str, str] | None = None, data: bytes = b"", *, torn: bool = False
    ) -> None:
        if status >= 400:
            data = json.dumps({"error_code": CODES[status], "message": f"made up: {status}"}).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if torn else data)
        if torn:
            self._hang_up()

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *args: Any) -> None:
        """Quiet."""


@pytest.fixture(scope="session")
def files_server() -> Iterator[FilesApi]:
    """One server for the session."""
    server = FilesApi()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def files_api(files_server: FilesApi, monkeypatch: pytest.MonkeyPatch) -> FilesApi:
    """The server with an empty Volume; the environment, which child processes inherit, leads there."""
    files_server.reset()
    monkeypatch.setenv("DATABRICKS_HOST", files_server.url)
    monkeypatch.setenv("DATABRICKS_TOKEN", TOKEN)
    monkeypatch.setattr(storage_faults, "FIRST_WAIT", 0.001)
    return files_server
