"""Names of local files as Spark's file source writes them: it identifies files by these texts alone."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

LEGAL = "_-!.~'()*,;:$&+=@/"
"""Characters that Java does not escape in the path of a URL, in addition to letters and digits."""


def file_url(path: str | os.PathLike[str]) -> str:
    """The URL of a local file as Java makes it: letters beyond ASCII are not escaped."""
    characters = os.path.abspath(os.path.expanduser(path))
    return "file://" + "".join(char if _is_kept(char) else quote(char, safe=LEGAL) for char in characters)


def local_file(url: str) -> Path | None:
    """The local file of a URL; None for any other URL."""
    parts = urlsplit(url.replace("?", "%3F").replace("#", "%23"))
    return Path(unquote(parts.path)) if parts.scheme == "file" and parts.netloc == "" else None


def _is_kept(char: str) -> bool:
    """Whether a character is beyond ASCII, and neither a space nor a control character."""
    return ord(char) > 0x9F and not char.isspace()
