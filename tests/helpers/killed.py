"""A child of `tests.children` that is killed before a manifest, and another one that goes on to the end."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.helpers.checkout import ROOT
from tools.demo.child import Child


def killed(module: str, folder: Path, *arguments: str, death: int) -> None:
    """``module FOLDER *arguments``, which says ``paused`` before manifest ``death`` if that is a further argument."""
    command = [sys.executable, "-m", module, str(folder), *arguments]
    child = Child([*command, str(death)], folder / "log", cwd=ROOT)
    child.wait_for(lambda event: event["event"] == "paused")
    child.kill()
    child = Child(command, folder / "log", cwd=ROOT)
    child.wait_for(lambda event: event["event"] == "done")
    child.finish()
