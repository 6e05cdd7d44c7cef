"""What long runs have found, a line of JSON each in a file, so that they can be ended and gone on with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tools.bench.table import as_json


def read(path: Path | None) -> list[dict[str, Any]]:
    """The lines; none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path and path.exists() else []


def add(path: Path | None, row: dict[str, Any]) -> None:
    """A line more, if there is a file to be kept."""
    if path is not None:
        with path.open("a") as file:
            file.write(as_json(row) + "\n")


def commits(rows: list[dict[str, Any]]) -> str:
    """Those at which the lines were made."""
    return ", ".join(dict.fromkeys(one["commit"] for one in rows))
