"""What a root may be called. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidestate.statestore.errors import UsageError

if TYPE_CHECKING:
    from os import PathLike


def checked_root(root: str | PathLike[str]) -> str:
    """A root as text. Raises `UsageError` for what names no place: an empty text would be the current folder."""
    url = root if isinstance(root, str) else getattr(root, "__fspath__", lambda: None)()
    if isinstance(url, str) and url.strip():
        return url
    raise UsageError("a root is a path or a URL: give one that is not empty", code="root-url", root=repr(root))
