"""The file of a report, which is replaced by a newer one, and by which no other file is."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tidestate.statestore.errors import UsageError

MARK = "<!-- tidestate report -->"
"""Identifies a file as a report."""


def check_report_output(path: Path) -> None:
    """Raise `UsageError` unless a report can be written here, in place of an older one at most."""
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(
            "the report must be a file in an existing folder: choose another path", code="report-output", path=path
        )
    if path.exists():
        with path.open("rb") as file:
            if MARK.encode() not in file.read(200):
                raise UsageError(
                    "this file exists and is not a report, so it is not replaced: choose another name",
                    code="report-output",
                    path=path,
                )


def replace_report(path: Path, data: bytes) -> None:
    """Replace the file atomically: readers see the old report or the new one."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
