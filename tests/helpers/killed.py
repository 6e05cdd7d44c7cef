"""A child of `tests.children` that is killed before a manifest, and another one that goes on to the end."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.forked import ForkedChild


def killed(module: str, folder: Path, *arguments: str, death: int) -> None:
    """``module FOLDER *arguments``, which says ``paused`` before manifest ``death`` if that is a further argument."""
    command = (module, folder, *arguments)
    child = ForkedChild(*command, death, log=folder / "log")
    child.wait_for(lambda event: event["event"] == "paused")
    child.kill()
    child = ForkedChild(*command, log=folder / "log")
    child.wait_for(lambda event: event["event"] == "done")
    child.finish()
