"""What a root, or another place, may be called. Pure."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from tidestate.statestore.errors import UsageError
from tidestate.statestore.secrets import has_password

if TYPE_CHECKING:
    from os import PathLike

_DISKS_ARE_VOLUMES = sys.platform == "darwin"
"""On macOS the disks of a laptop have paths that begin as those of Databricks do."""

_HALF_A_URL = re.compile(r"([a-z][a-z0-9+.-]+):/(?!/)")
_LOCAL_SCHEMES = ("file", "local", "dbfs")
"""Those whose URLs may have one slash alone."""


def checked_root(root: str | PathLike[str]) -> str:
    """A root as text, of a Volume of Databricks with its scheme: its path alone would be that of a mount.

    Raises `UsageError` for what names no place: an empty text would be the current folder.
    """
    url = _url(root)
    if url is None:
        raise UsageError(
            "a root must be a path or a URL: give one that is not empty", code="root-url", root=repr(root)
        )
    if (half := _HALF_A_URL.match(url)) and half[1] not in _LOCAL_SCHEMES:
        raise UsageError(
            "this is half a URL, and would be a local folder of that name: write two slashes behind the colon, as in "
            "s3://bucket/path, or ./ before it if it is one",
            code="root-url",
            root=url,
        )
    if url.startswith("dbfs:/"):
        return f"dbfs:///{url.removeprefix('dbfs:').lstrip('/')}"
    return f"dbfs://{url}" if url.startswith("/Volumes/") and not _DISKS_ARE_VOLUMES else url


def check_public(url: str) -> None:
    """Raise `UsageError` (``root-secret``) for a URL with a password, which no error may quote."""
    if has_password(url):
        raise UsageError(
            "a root must not contain a password, as roots are written to logs and into other roots: put it into "
            "the environment or into the configuration of fsspec",
            code="root-secret",
            scheme=url.partition("://")[0],
        )


def checked_place(place: str | PathLike[str], what: str) -> str:
    """A folder or table as text; errors call it ``what``. Raises `UsageError` as `checked_root`."""
    url = _url(place)
    if url is None:
        raise UsageError(
            f"{what} must be a path or a URL, such as /data/flights", code="argument", found=repr(place)[:100]
        )
    return url


def _url(place: str | PathLike[str]) -> str | None:
    """A path or URL as text; None of what is none."""
    url = place if isinstance(place, str) else getattr(place, "__fspath__", lambda: None)()
    return url if isinstance(url, str) and url.strip() else None
