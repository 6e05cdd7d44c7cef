"""Names of local files as Spark's source of files writes them. It knows files by these texts alone."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

LEGAL = "_-!.~'()*,;:$&+=@/"
"""What Java leaves as it is in the path of a URL, with letters and digits."""


def file_url(path: str | os.PathLike[str]) -> str:
    """The URL of a local file: as Java makes it, so letters beyond ASCII stay as they are."""
    whole = os.path.abspath(os.path.expanduser(path))
    return "file://" + "".join(one if _stays(one) else quote(one, safe=LEGAL) for one in whole)


def local_file(url: str) -> Path | None:
    """The local file of a URL; None where it is elsewhere."""
    parts = urlsplit(url.replace("?", "%3F").replace("#", "%23"))
    return Path(unquote(parts.path)) if parts.scheme == "file" and parts.netloc == "" else None


def _stays(one: str) -> bool:
    """Whether it is beyond ASCII, and neither a space nor a control."""
    return ord(one) > 0x9F and not one.isspace()
