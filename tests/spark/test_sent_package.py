"""Workers of a cluster that lack the package get it as a wheel, as docs/CLUSTERS.md says."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.checkout import ROOT
from tests.helpers.other_python import other_python
from tests.helpers.spark_inputs import job, sample, write
from tests.helpers.spark_runs import output
from tools.demo.child import Child

pytestmark = [pytest.mark.spark, pytest.mark.slow]
TABLES = sample(3, 60)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, check=True, capture_output=True, cwd=ROOT)
    (found,) = folder.glob("*.whl")
    return found


def begun(tmp_path: Path, what: Path, python: str, monkeypatch: pytest.MonkeyPatch) -> Child:
    """The job over its input, with this Python for the workers."""
    for number, table in enumerate(TABLES):
        write(tmp_path / "input", number, table)
    monkeypatch.setenv("PYSPARK_PYTHON", python)
    monkeypatch.setenv("SPARK_WORKER_DIR", str(tmp_path / "work"))
    command = [sys.executable, "-m", "tests.children.sent_package"]
    command += [str(tmp_path / "root"), str(tmp_path / "input"), str(what)]
    return Child(command, tmp_path / "log", cwd=ROOT)


def is_exact(tmp_path: Path) -> None:
    """The same panes and ledger as without Spark."""
    job().standalone(checkpoint=tmp_path / "alone").run(TABLES, drain=True)
    for kind in ("panes", "late"):
        assert list(output(tmp_path / "root", kind).values()) == list(output(tmp_path / "alone", kind).values())


def test_a_wheel_that_the_job_sends(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = other_python(tmp_path / "python", libraries=True)
    sent = shutil.copy(wheel, tmp_path / "tidestate.zip")  # Spark imports from no file named .whl
    child = begun(tmp_path, Path(sent), python, monkeypatch)
    without = child.wait_for(lambda event: event["event"] in ("refused", "finished"))
    assert without == {"event": "refused", "code": "worker-package", "written": False}
    assert child.wait_for(lambda event: event["event"] in ("refused", "finished")) == {"event": "finished"}
    child.finish()
    is_exact(tmp_path)
