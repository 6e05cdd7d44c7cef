"""Volumes of Databricks, by the Files API: a folder below ``/Volumes/CATALOG/SCHEMA/VOLUME``.

A create is a PUT with ``overwrite=false``, which the service refuses with 409 where the name is taken. The mount of
the same path has no such create, so all is written by the API; large files are read through the mount if there
is one.
The SDK of Databricks finds host and credentials (variables, profiles, the notebook's own); requests are sent by
ourselves, once each, as the SDK sends one again for minutes and would find its own object.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tidestate.statestore.errors import UsageError
from tidestate.statestore.storage.dialects.dialect import (
    CONNECT_SECONDS,
    SILENCE_SECONDS,
    Dialect,
    ErrorNames,
    Reply,
    age_when_answered,
    below_in_folders,
)

FILES, DIRECTORIES = "/api/2.0/fs/files", "/api/2.0/fs/directories"
_VOLUME = re.compile(r"(/Volumes/[^/]+/[^/]+/[^/]+)(/.*)?")
_CHUNK_BYTES = 1 << 20
_PAGE = 1000
_TAKEN = {"", "ALREADY_EXISTS", "RESOURCE_ALREADY_EXISTS"}
_LIMITS = {"retry_timeout_seconds": CONNECT_SECONDS, "http_timeout_seconds": SILENCE_SECONDS}
"""For what the SDK asks by itself, such as for tokens; its own limits are minutes."""


class VolumesReplyError(OSError):
    """A reply of the Files API that is no success."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{status} {code}: {message}" if code else f"{status} {message}")
        self.status, self.code = status, code


class VolumesFiles:
    """The part of a file system of fsspec that `RemoteStorage` asks for. Names are full paths, ``/Volumes/…``."""

    mounts = Path("/")
    """Where Volumes are mounted, if they are."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        import requests
        from databricks.sdk.core import Config

        try:
            self._config = Config(**{**_LIMITS, **settings})
        except ValueError as error:
            raise VolumesReplyError(401, "", _first_line(error)) from error
        self._session = requests.Session()

    @staticmethod
    def _strip_protocol(url: str) -> str:
        return "/" + url.partition("://")[2].strip("/")

    @staticmethod
    def _parent(path: str) -> str:
        return path.rstrip("/").rpartition("/")[0]

    def invalidate_cache(self) -> None:
        """Do nothing: no list is kept."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite") -> None:
        """Write an object; with the mode ``create`` raise `FileExistsError` if the name is taken."""
        self._upload(path, value, overwrite=mode != "create")

    def put_file(self, local: str, path: str) -> None:
        """Send a local file, in one request."""
        with open(local, "rb") as file:
            self._upload(path, file, overwrite=True)

    def _upload(self, path: str, body: Any, *, overwrite: bool) -> None:
        try:
            self._ask("PUT", FILES, path, {"overwrite": str(overwrite).lower()}, data=body)
        except VolumesReplyError as error:
            if error.status == 409 and not overwrite and error.code in _TAKEN:
                raise FileExistsError(path) from error
            raise

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        """All bytes by the API, as a mount may not show yet what has just been created; a range through the mount."""
        if start is None and end is None:
            return bytes(self._ask("GET", FILES, path).content)
        first = start or 0
        found = self._range_of_mount(path, first, end)
        return self._range(path, first, end) if found is None else found

    def _range(self, path: str, start: int, end: int | None) -> bytes:
        until = "" if end is None else str(end - 1)
        try:
            reply = self._ask("GET", FILES, path, headers={"Range": f"bytes={start}-{until}"})
        except VolumesReplyError as error:
            if error.status != 416:
                raise
            return b""
        return bytes(reply.content if reply.status_code == 206 else reply.content[start:end])

    def _range_of_mount(self, path: str, start: int, end: int | None) -> bytes | None:
        if end is None:
            return None
        try:
            with open(self.mounts / path.lstrip("/"), "rb") as file:
                found = os.pread(file.fileno(), end - start, start)
        except OSError:
            return None
        return found if len(found) == end - start else None

    def get_file(self, path: str, local: str) -> None:
        """Fetch an object into a local file, through the mount if it has all of it."""
        size = self.info(path)["size"]
        mounted = self.mounts / path.lstrip("/")
        try:
            if mounted.stat().st_size == size:
                Path(local).write_bytes(mounted.read_bytes())
                return
        except OSError:
            pass  # there is no mount, or it does not show the object yet
        with self._ask("GET", FILES, path, stream=True) as reply, open(local, "wb") as file:
            for chunk in reply.iter_content(_CHUNK_BYTES):
                file.write(chunk)

    def cp_file(self, old: str, new: str) -> None:
        """By way of this process: the API has no copy."""
        self.pipe_file(new, self.cat_file(old))

    def rm_file(self, path: str) -> None:
        """Remove an object, or an empty folder whose name ends with a slash."""
        if path.endswith("/"):
            self.rmdir(path.rstrip("/"))
        else:
            self._ask("DELETE", FILES, path)

    def rmdir(self, path: str) -> None:
        """Remove a folder that has to be empty."""
        self._ask("DELETE", DIRECTORIES, path)

    def makedirs(self, path: str, exist_ok: bool = True) -> None:
        """Make a folder and those above it, below the Volume."""
        self._ask("PUT", DIRECTORIES, path)

    def info(self, path: str) -> dict[str, Any]:
        """Type and size of an object or folder. Raises `FileNotFoundError`."""
        try:
            headers = self._ask("HEAD", FILES, path).headers
        except FileNotFoundError:
            self._ask("HEAD", DIRECTORIES, path)
            return {"name": path, "type": "directory", "size": 0}
        return {"name": path, "type": "file", "size": int(headers["Content-Length"]), "headers": headers}

    def modified(self, path: str) -> datetime:
        """When an object was written, in whole seconds."""
        return parsedate_to_datetime(self.info(path)["headers"]["Last-Modified"])

    def entries(self, path: str) -> Iterator[tuple[str, bool]]:
        """The full names directly in a folder, and whether each is a folder. Raises `FileNotFoundError`."""
        token = ""
        while True:
            parameters = {"page_size": str(_PAGE)} | ({"page_token": token} if token else {})
            page = self._ask("GET", DIRECTORIES, path, parameters).json()
            for entry in page.get("contents", []):
                yield str(entry["path"]).rstrip("/"), bool(entry.get("is_directory"))
            token = page.get("next_page_token", "")
            if not token:
                return

    def ls(self, path: str, detail: bool = False) -> list[str]:
        """The full names directly in a folder."""
        return [name for name, _ in self.entries(path)]

    def _credentials(self) -> dict[str, str]:
        try:
            return dict(self._config.authenticate())
        except ValueError as error:
            raise VolumesReplyError(401, "", _first_line(error)) from error

    def _ask(
        self, method: str, api: str, path: str, parameters: Mapping[str, str] | None = None, **options: Any
    ) -> Any:
        """One request. Raises `FileNotFoundError`, `VolumesReplyError`, and what `requests` raises."""
        import requests

        headers = {**self._credentials(), **options.pop("headers", {})}
        if method == "PUT":
            headers["Content-Type"] = "application/octet-stream"
        try:
            reply = self._session.request(
                method,
                f"{self._config.host}{api}{quote(path)}",
                params=parameters,
                headers=headers,
                timeout=(CONNECT_SECONDS, SILENCE_SECONDS),
                allow_redirects=False,
                **options,
            )
        except requests.ConnectionError as error:
            if "NewConnectionError" in str(error):  # none was made, so nothing was sent
                raise ConnectionRefusedError(str(error)) from error
            raise
        if reply.ok:
            return reply
        if reply.status_code == 404:
            raise FileNotFoundError(path)
        raise _error_of(reply)


def _first_line(error: ValueError) -> str:
    """Of an error of the SDK, which goes on with all settings."""
    return (str(error).strip().splitlines() or ["no credentials"])[0]


def _error_of(reply: Any) -> VolumesReplyError:
    try:
        body = json.loads(reply.content or b"{}")
    except ValueError:
        body = {}
    code, message = body.get("error_code", ""), body.get("message", "") or reply.reason
    return VolumesReplyError(reply.status_code, str(code), str(message))


def _check(url: str) -> None:
    if _VOLUME.fullmatch(url.partition("://")[2]) is None:
        raise UsageError(
            "the root lies in no Volume, and other folders of DBFS have no atomic create: write "
            "/Volumes/CATALOG/SCHEMA/VOLUME/path",
            code="root-url",
            root=url,
        )


def _connect(root: str, options: Mapping[str, Any]) -> VolumesFiles:
    return VolumesFiles(options)


def _reply(error: BaseException) -> Reply | None:
    return Reply(error.code or None, error.status) if isinstance(error, VolumesReplyError) else None


def _has_volume(fs: VolumesFiles, full: str) -> bool:
    volume = _VOLUME.fullmatch(full)
    try:
        fs.info(volume[1] if volume else full)
    except FileNotFoundError:
        return False
    return True


def _put_file(fs: VolumesFiles, local: str, full: str, limits: Mapping[str, Any]) -> None:
    fs.put_file(local, full)


def _age_us(fs: VolumesFiles, full: str) -> int | None:
    headers = fs.info(full)["headers"]
    return age_when_answered(headers.get("Date"), parsedate_to_datetime(headers["Last-Modified"]))


def _server(root: str, options: Mapping[str, Any]) -> str:
    return str(options.get("host") or os.environ.get("DATABRICKS_HOST") or "")


VOLUMES = Dialect(
    scheme="dbfs",
    package="databricks.sdk",
    extra="databricks",
    connector="Databricks, whose Spark has dbfs:/",
    environment=("DATABRICKS_",),
    lends=True,
    has_folders=True,
    atomic_create="overwrite-false",
    races=True,
    put_file=_put_file,
    reply=_reply,
    names=ErrorNames(
        passing=ErrorNames().passing | {"RequestException"},
        unsent=ErrorNames().unsent | {"ConnectTimeout"},
    ),
    throttled=frozenset({"REQUEST_LIMIT_EXCEEDED", "RESOURCE_EXHAUSTED", "TEMPORARILY_UNAVAILABLE"}),
    has_container=_has_volume,
    listed=VolumesFiles.ls,
    below=below_in_folders,
    age_us=_age_us,
    check=_check,
    hadoop=lambda url, options: url.replace("dbfs://", "dbfs:", 1),
    connect=_connect,
    account=lambda root: "dbfs",
    server=_server,
)
