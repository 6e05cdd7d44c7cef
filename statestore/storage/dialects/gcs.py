"""Google Cloud Storage, by gcsfs.

A create carries ``ifGenerationMatch=0``. gcsfs tries again by itself, up to six times and half a minute, so it would
find its own object; here it sends a request once. Of a reply it keeps little: 403 is a bare ``OSError``, 404 the same
error for a missing object and a missing bucket, so lists are asked of the service's own JSON API.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from types import MethodType
from typing import Any

from tidestate.statestore.storage.dialects.dialect import (
    CONNECT_SECONDS,
    FRESH,
    SILENCE_SECONDS,
    Below,
    Dialect,
    ErrorNames,
    Reply,
    age_when_answered,
    bounded_upload,
)

_WHOLE_BYTES = 32 << 20
"""Up to here a file is sent in one request: a resumable upload without its last answer looks like no bucket."""

_RETRIED = ("_request", "_get_file_request", "_get_file_concurrent")
"""The methods of gcsfs that it calls again by itself."""

_OBJECTS = "b/{}/o"
_OBJECT = "b/{}/o/{}"


def _connect(root: str, options: Mapping[str, Any]) -> Any:
    import aiohttp
    import fsspec
    from fsspec.config import conf

    limits = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS)
    # The size that a reply names is compared: gcsfs' form of an upload ends early where the bytes hold its boundary.
    own = {"requests_timeout": limits, "consistency": "size", **conf.get("gs", {}), **conf.get("gcs", {})}
    fs = fsspec.filesystem("gs", **{**own, **options, **FRESH})
    for name in _RETRIED:
        once = getattr(getattr(type(fs), name, None), "__wrapped__", None)
        if once is not None:
            setattr(fs, name, MethodType(once, fs))
    return fs


def _server(root: str, options: Mapping[str, Any]) -> str:
    from fsspec.config import conf

    configured = options.get("endpoint_url") or conf.get("gs", {}).get("endpoint_url")
    return str(configured or os.environ.get("STORAGE_EMULATOR_HOST") or "")


def _reply(error: BaseException) -> Reply | None:
    kind, text = type(error).__name__, str(error)
    if kind == "HttpError":
        code = str(getattr(error, "code", None))
        return Reply(None, int(code)) if code.isdigit() else None
    if isinstance(error, OSError) and text.startswith("Forbidden"):
        return Reply("Forbidden", 403)
    if isinstance(error, ValueError) and text.startswith("Bad Request"):
        return Reply("BadRequest", 400)
    if kind == "ProxyError":  # gcsfs makes it of a 502
        return Reply("BadGateway", 502)
    status = getattr(error, "status", None)
    return Reply(None, status) if isinstance(status, int) else None


def _pages(fs: Any, full: str, **parameters: str) -> Iterator[Mapping[str, Any]]:
    """Of the list of what is below a folder. `FileNotFoundError` if there is no such bucket."""
    bucket, key, _ = fs.split_path(full)
    prefix = f"{key.rstrip('/')}/" if key else ""
    token = ""
    while True:
        found = fs.call("GET", _OBJECTS, bucket, prefix=prefix, pageToken=token or None, json_out=True, **parameters)
        yield found
        token = found.get("nextPageToken", "")
        if not token:
            return


def _names(fs: Any, full: str) -> list[str]:
    bucket, pages = fs.split_path(full)[0], list(_pages(fs, full, delimiter="/"))
    objects = [item["name"] for page in pages for item in page.get("items", [])]
    folders = [prefix for page in pages for prefix in page.get("prefixes", [])]
    return [f"{bucket}/{name}" for name in (*objects, *folders)]


def _below(fs: Any, full: str) -> Below:
    bucket = fs.split_path(full)[0]
    return Below.of(f"{bucket}/{item['name']}" for page in _pages(fs, full) for item in page.get("items", []))


def _has_container(fs: Any, full: str) -> bool:
    bucket = fs.split_path(full)[0]
    try:
        fs.call("GET", _OBJECTS, bucket, maxResults=1)
    except FileNotFoundError:
        return False
    return True


def _put_file(fs: Any, local: str, full: str, limits: Mapping[str, Any]) -> None:
    size = os.path.getsize(local)
    if size <= _WHOLE_BYTES:
        with open(local, "rb") as file:
            fs.pipe_file(full, file.read(), **limits)
        return
    try:
        fs.put_file(local, full, **limits)
    except FileNotFoundError:
        # Nobody else uses the name, and a resumable upload makes an object when all of it is there.
        if fs.info(full)["size"] != size:
            raise


def _age_us(fs: Any, full: str) -> int | None:
    bucket, key, _ = fs.split_path(full)
    headers, body = fs.call("GET", _OBJECT, bucket, key)
    return age_when_answered(headers.get("Date"), datetime.fromisoformat(json.loads(body)["updated"]))


_NUMBERS = {
    "block.size": 64 << 20,
    "inputstream.inplace.seek.limit": 8 << 20,
    "inputstream.min.range.request.size": 2 << 20,
    "outputstream.buffer.size": 8 << 20,
    "rewrite.max.chunk.size": 512 << 20,
}
"""Defaults of Google's connector. From 3.5 on Hadoop has the same settings among its own defaults, for a connector of
its own and in words, such as ``64m``, which is no number to Google's.
"""

GCS = Dialect(
    scheme="gs",
    aliases=("gcs",),
    package="gcsfs",
    extra="gcs",
    connector="gcs-connector",
    spark_settings=(
        "spark.jars.packages=com.google.cloud.bigdataoss:gcs-connector:hadoop3-2.2.26",
        "spark.hadoop.fs.gs.impl=com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
        "spark.hadoop.fs.AbstractFileSystem.gs.impl=com.google.cloud.hadoop.fs.gcs.GoogleHadoopFS",
        *(f"spark.hadoop.fs.gs.{name}={number}" for name, number in _NUMBERS.items()),
        "spark.hadoop.google.cloud.auth.service.account.json.keyfile=KEY.json",
    ),
    spark_server_settings=("spark.hadoop.fs.gs.storage.root.url={server}",),
    environment=("GOOGLE_", "GCSFS_", "CLOUDSDK_", "STORAGE_EMULATOR_HOST"),
    lends=True,
    has_folders=False,
    atomic_create="if-generation-match",
    races=False,
    upload_limits=bounded_upload,
    put_file=_put_file,
    reply=_reply,
    names=ErrorNames(
        passing=ErrorNames().passing | {"TransportError", "ServerTimeoutError", "ChecksumError"},
        unsent=ErrorNames().unsent | {"TransportError"},
        credentials=frozenset({"DefaultCredentialsError", "RefreshError"}),
    ),
    has_container=_has_container,
    listed=_names,
    below=_below,
    age_us=_age_us,
    spelled=lambda rest: rest.strip("/"),
    connect=_connect,
    account=lambda root: "gs",
    server=_server,
)
