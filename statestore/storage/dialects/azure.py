"""Azure Blob Storage and Data Lake Storage, by adlfs.

A create carries ``If-None-Match: *``. Azure's SDK tries again by itself, the first time after 15 s; here it sends a
request once, and has time limits of ours. adlfs makes another error of some answers and leaves others as they are, so
each is read from the error of the SDK behind it. A root is spelled as Hadoop spells it, ``abfs://container@account
.dfs.core.windows.net/path``, or without an account, which then comes from the environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from tidestate.statestore.errors import UsageError
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

_PLACE = re.compile(
    r"(?P<container>[^@/]+)@(?P<account>[a-z0-9-]+)\.(?:dfs|blob)\."
    r"(?P<cloud>core\.windows\.net|core\.usgovcloudapi\.net|core\.chinacloudapi\.cn|fabric\.microsoft\.com)"
    r"(?P<path>/.*)?",
    re.DOTALL,
)
"""A container of a named account, in the clouds that Microsoft runs: no other host may get its users' tokens."""


def _spelled(rest: str) -> str:
    rest = rest.strip("/")
    place = _PLACE.fullmatch(rest)
    if place is None:
        return rest
    return f"{place['container']}@{place['account']}.dfs.{place['cloud']}{place['path'] or ''}"


def _check(url: str) -> None:
    rest = url.partition("://")[2]
    if "@" in rest.partition("/")[0] and _PLACE.fullmatch(rest.strip("/")) is None:
        raise UsageError(
            "the root names no account of Azure: write abfs://container@account.dfs.core.windows.net/path",
            code="root-account",
            root=url,
        )


def _connection_string(options: Mapping[str, Any]) -> Mapping[str, str]:
    text = str(options.get("connection_string") or os.environ.get("AZURE_STORAGE_CONNECTION_STRING") or "")
    pairs = (part.partition("=") for part in text.split(";"))
    return {name.strip().lower(): value for name, _, value in pairs if value}


def _account_elsewhere(options: Mapping[str, Any]) -> str:
    """The account that options, a connection string or the environment name."""
    named = options.get("account_name") or _connection_string(options).get("accountname")
    return str(named or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME") or "")


def _connect(root: str, options: Mapping[str, Any]) -> Any:
    import fsspec
    from fsspec.config import conf

    settings = {**conf.get("abfs", {}), **conf.get("az", {}), **options}
    place, account = _PLACE.fullmatch(root.partition("://")[2]), _account_elsewhere(settings)
    connected = _connection_string(settings).get("accountname", "")
    if place is not None and connected not in ("", place["account"]):
        raise UsageError(
            "the connection string is of another account than the root: correct one of them",
            code="root-account",
            root=root,
            found=connected,
        )
    if place is not None:
        settings["account_name"] = place["account"]
        if place["cloud"] != "core.windows.net":
            settings.setdefault("account_host", f"{place['account']}.blob.{place['cloud']}")
    elif not account and "blobendpoint" not in _connection_string(settings):
        raise UsageError(
            "the root and the environment name no account of Azure: write "
            "abfs://container@account.dfs.core.windows.net/path, or set AZURE_STORAGE_ACCOUNT_NAME",
            code="root-account",
            root=root,
        )
    fs = fsspec.filesystem("abfs", **{**settings, **FRESH})
    # adlfs passes no settings on to Azure's client, so its own is made once more, with ours.
    client = fs.service_client
    fs.service_client = type(client)(
        client.url,
        credential=client.credential,
        retry_total=0,
        connection_timeout=CONNECT_SECONDS,
        read_timeout=SILENCE_SECONDS,
    )
    return fs


def _server(root: str, options: Mapping[str, Any]) -> str:
    if _PLACE.fullmatch(root.partition("://")[2]) and "blobendpoint" not in _connection_string(options):
        return ""
    return _connection_string(options).get("blobendpoint") or _account_elsewhere(options)


def _hadoop(url: str, options: Mapping[str, Any]) -> str:
    """With TLS, and with the account: Hadoop has no other place for it."""
    rest = url.partition("://")[2]
    container, _, path = rest.partition("/")
    account = _account_elsewhere(options)
    if "@" in container or not account:
        return f"abfss://{rest}"
    return f"abfss://{container}@{account}.dfs.core.windows.net/{path}"


def _reply(error: BaseException) -> Reply | None:
    # adlfs raises "no such file" while it handles the SDK's error, and does not always say from which.
    origin = error if hasattr(error, "status_code") else error.__cause__ or error.__context__
    status = getattr(origin, "status_code", None)
    if not isinstance(status, int):
        return None
    code = getattr(origin, "error_code", None)
    return Reply(str(getattr(code, "value", code)) if code else None, status)


def _run(fs: Any, act: Any, *arguments: Any) -> Any:
    from fsspec.asyn import sync

    return sync(fs.loop, act, fs, *arguments)


async def _list(fs: Any, full: str) -> list[str]:
    container, key, _ = fs.split_path(full)
    async with fs.service_client.get_container_client(container=container) as client:
        found = client.walk_blobs(name_starts_with=f"{key.rstrip('/')}/" if key else "", delimiter="/")
        return [f"{container}/{entry.name}" async for entry in found]


async def _find(fs: Any, full: str) -> list[tuple[str, bool]]:
    """The objects below a folder, and whether each stands for a folder, the folder itself included."""
    container, key, _ = fs.split_path(full)
    own = key.rstrip("/")
    async with fs.service_client.get_container_client(container=container) as client:
        found = [entry async for entry in client.list_blobs(name_starts_with=own, include=["metadata"])]
    below = [entry for entry in found if not own or entry.name == own or entry.name.startswith(f"{own}/")]
    return [(f"{container}/{entry.name}", _is_folder(entry)) for entry in below]


def _is_folder(entry: Any) -> bool:
    """Hadoop and accounts with folders mark them so, in either case of letters."""
    marks = {name.lower(): value for name, value in (entry.metadata or {}).items()}
    return bool(entry.name.endswith("/") or marks.get("hdi_isfolder", "").lower() == "true")


async def _list_first(fs: Any, full: str) -> None:
    async with fs.service_client.get_container_client(container=fs.split_path(full)[0]) as client:
        async for _ in client.list_blobs(results_per_page=1):
            return


def _has_container(fs: Any, full: str) -> bool:
    try:
        _run(fs, _list_first, full)
    except Exception as error:
        if getattr(error, "status_code", None) == 404:
            return False
        raise
    return True


def _names(fs: Any, full: str) -> list[str]:
    found: list[str] = _run(fs, _list, full)
    return found


def _below(fs: Any, full: str) -> Below:
    entries: list[tuple[str, bool]] = _run(fs, _find, full)
    files = [name for name, is_folder in entries if not is_folder and name != full]
    # A folder can be removed when nothing is in it, so the deepest first.
    return Below(files, sorted((name for name, is_folder in entries if is_folder), reverse=True))


async def _look_up(fs: Any, full: str) -> tuple[str | None, Any]:
    container, key, _ = fs.split_path(full)
    replies: list[Any] = []
    async with fs.service_client.get_blob_client(container, key) as blob:
        properties = await blob.get_blob_properties(raw_response_hook=replies.append)
    return replies[-1].http_response.headers.get("Date"), properties.last_modified


def _age_us(fs: Any, full: str) -> int | None:
    return age_when_answered(*_run(fs, _look_up, full))


def _copy(fs: Any, old: str, new: str) -> None:
    """By way of this process: Azure's own copy may go on after its reply."""
    data = fs.cat_file(old)
    fs.pipe_file(new, data, **bounded_upload(len(data)))


AZURE = Dialect(
    scheme="abfs",
    aliases=("abfss", "az"),
    package="adlfs",
    extra="azure",
    connector="hadoop-azure",
    spark_settings=(
        "spark.jars.packages=org.apache.hadoop:hadoop-azure:{hadoop}",
        "spark.hadoop.fs.azure.account.key.{account}=KEY",
    ),
    environment=("AZURE_",),
    lends=True,
    has_folders=False,
    atomic_create="if-none-match",
    races=False,
    upload_limits=bounded_upload,
    reply=_reply,
    names=ErrorNames(
        passing=ErrorNames().passing
        | {"ServiceRequestError", "ServiceResponseError", "IncompleteReadError", "DecodeError"},
        credentials=frozenset({"CredentialUnavailableError", "ClientAuthenticationError"}),
    ),
    throttled=frozenset({"ServerBusy", "OperationTimedOut"}),
    taken=frozenset({"BlobAlreadyExists"}),
    no_container=frozenset({"ContainerNotFound", "ContainerBeingDeleted", "ContainerDisabled"}),
    has_container=_has_container,
    listed=_names,
    below=_below,
    copy=_copy,
    age_us=_age_us,
    check=_check,
    spelled=_spelled,
    hadoop=_hadoop,
    connect=_connect,
    account=lambda root: (root.partition("://")[2].partition("/")[0].partition("@")[2]) or "abfs",
    server=_server,
)
