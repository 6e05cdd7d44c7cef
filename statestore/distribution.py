"""The distribution this code comes in: its name, its version, and how its extras are installed."""

from __future__ import annotations

from functools import cache

NAME = "tidestate"
"""On the package index. Every text that recommends an installation is made by `install`."""


def install(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install '{NAME}[{extra}]'"


@cache
def version() -> str:
    """The installed version; ``unknown`` where the code runs from a folder that was never installed."""
    from importlib.metadata import PackageNotFoundError  # takes a while to import
    from importlib.metadata import version as installed

    try:
        return installed(NAME)
    except PackageNotFoundError:
        return "unknown"
