"""S3 and what speaks its protocol (R2, Ceph, MinIO, Scaleway and others, which the probe tells apart), by s3fs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from tidestate.statestore.errors import UsageError
from tidestate.statestore.storage.dialects.dialect import (
    CONNECT_SECONDS,
    FRESH,
    SILENCE_SECONDS,
    Dialect,
    ErrorNames,
    SeenFile,
    Versions,
    age_when_answered,
    bounded_upload,
)

S3_TIMEOUTS = {
    "connect_timeout": CONNECT_SECONDS,
    "read_timeout": SILENCE_SECONDS,
    "retries": {"total_max_attempts": 1, "mode": "standard"},
}
"""botocore's, in seconds of silence. It does not retry: a create that it repeats would find its own object."""


def _connect(root: str, options: Mapping[str, Any]) -> Any:
    import fsspec
    from fsspec.config import conf

    settings = {**conf.get("s3", {}), **options}
    limits = {**S3_TIMEOUTS, **settings.get("config_kwargs", {})}
    fs = fsspec.filesystem("s3", **{**settings, **FRESH, "config_kwargs": limits})
    fs.retries = 1  # s3fs' own, on top of botocore's
    return fs


def _check(url: str) -> None:
    if "//" in url.partition("://")[2].strip("/"):
        raise UsageError(
            "a folder of the root has no name, and lists of S3 would not show what lies in it: write one slash",
            code="root-url",
            root=url,
        )


def _server(root: str, options: Mapping[str, Any]) -> str:
    """Of the S3 service where it is not Amazon's own."""
    from fsspec.config import conf

    configured = options.get("endpoint_url") or conf.get("s3", {}).get("endpoint_url")
    address = configured or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    return str(address or "")


def _exists(fs: Any, full: str) -> bool:
    return bool(fs.exists(full))


def _age_us(fs: Any, full: str) -> int | None:
    """S3 answers with the time of the change and with its own."""
    bucket, key, _ = fs.split_path(full)
    reply = fs.call_s3("head_object", Bucket=bucket, Key=key)
    date = reply["ResponseMetadata"].get("HTTPHeaders", {}).get("date")
    return age_when_answered(date, reply["LastModified"])


def _look(fs: Any, full: str) -> SeenFile:
    bucket, key, _ = fs.split_path(full)
    reply = fs.call_s3("head_object", Bucket=bucket, Key=key)
    return SeenFile(int(reply["ContentLength"]), str(reply["ETag"]), int(reply["LastModified"].timestamp()))


def _read_version(fs: Any, full: str, start: int, end: int, version: str) -> bytes:
    from fsspec.asyn import sync

    found: bytes = sync(fs.loop, _range, fs, full, f"bytes={start}-{end - 1}", version)
    return found


async def _range(fs: Any, full: str, span: str, version: str) -> bytes:
    bucket, key, _ = fs.split_path(full)
    reply = await fs._call_s3("get_object", Bucket=bucket, Key=key, Range=span, IfMatch=version)
    try:
        return bytes(await reply["Body"].read())
    finally:
        reply["Body"].close()


S3 = Dialect(
    scheme="s3",
    aliases=("s3a",),
    package="s3fs",
    extra="s3",
    connector="hadoop-aws",
    spark_settings=("spark.jars.packages=org.apache.hadoop:hadoop-aws:{hadoop}",),
    spark_server_settings=(
        "spark.hadoop.fs.s3a.endpoint={server}",
        "spark.hadoop.fs.s3a.path.style.access=true",
    ),
    environment=("AWS_",),
    lends=True,
    has_folders=False,
    atomic_create="if-none-match",
    races=False,
    # Before it sends a body, aiohttp waits for "100 Continue" without a limit.
    upload_limits=bounded_upload,
    exists=_exists,
    names=ErrorNames(
        passing=ErrorNames().passing | {"HTTPClientError", "ResponseParserError"},
        unsent=ErrorNames().unsent | {"ConnectTimeoutError", "ParamValidationError"},
        credentials=frozenset(
            {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "TokenRetrievalError"}
        ),
    ),
    throttled=frozenset({"SlowDown", "RequestLimitExceeded", "Throttling", "ThrottlingException", "TooManyRequests"}),
    # A reply to HEAD has no code, so s3fs takes the status for one: 400 is then a token that has expired.
    refused=frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "400"}),
    no_container=frozenset({"NoSuchBucket"}),
    age_us=_age_us,
    check=_check,
    versions=Versions(_look, _read_version),
    spelled=lambda rest: rest.strip("/"),
    hadoop=lambda url, options: url.replace("s3://", "s3a://", 1),
    connect=_connect,
    account=lambda root: "s3",
    server=_server,
)
