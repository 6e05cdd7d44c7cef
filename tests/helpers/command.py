"""The command ``tidestate`` in a process of its own, and roots that it may damage."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.checkout import ROOT
from tests.helpers.worked_example import STREAM, example
from tidestate.statestore.spec.store import Parquet


def tidestate(
    *arguments: object, columns: int = 80, stdout: int = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidestate.recovery.cli.main", *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": str(columns), "NO_COLOR": "1", "TERM": "dumb"}
    return subprocess.run(
        command, cwd=ROOT, env=environment, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the worked example: a fence, six batches, a drain."""
    folder = tmp_path_factory.mktemp("cli") / "root"
    example("retracting").standalone(checkpoint=folder, store=Parquet(), partitions=2).run(STREAM, drain=True)
    return folder


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    """One that may be damaged."""
    for path in root.rglob("*"):
        if path.is_file():
            target = tmp_path / "copy" / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return tmp_path / "copy"
