"""Workers that lack the package get it as docs/how-to/run-on-a-cluster.md says: as a wheel, or packed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.helpers.checkout import ROOT
from tests.helpers.other_python import other_python
from tests.helpers.spark_inputs import job, sample, write
from tests.helpers.spark_runs import output
from tests.servers.spark_cluster import SPARK
from tools.demo.child import Child
from tools.java import brief_options, java_home

pytestmark = [pytest.mark.spark, pytest.mark.slow]
TABLES = sample(3, 60)
SCRIPT = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})  # not by PYTHONPATH, which Spark hands on to the workers
from tests.children.packed_environment import main
main(*sys.argv[1:])
"""


FROM_ZIP = """
import sys
sys.path.insert(0, sys.argv[1])
import pyarrow as pa
import tidestate
import tidestate.operators.spark.tasks
grouped = tidestate.stream(event_time="t").group_by("k").window(tidestate.tumbling("1 second"))
job = grouped.aggregate(n=tidestate.agg.count())
rows = pa.table({"t": pa.array([0, 5_000_000], pa.timestamp("us", "UTC")), "k": ["a", "b"]})
_ = job.standalone(checkpoint=sys.argv[2]).run([rows], drain=True)
print(tidestate.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, check=True, capture_output=True, cwd=ROOT)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Root and input of the job, as arguments."""
    for number, table in enumerate(TABLES):
        write(tmp_path / "input", number, table)
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", brief_options())  # of every Java: half the time
    return [str(tmp_path / "root"), str(tmp_path / "input")]


def is_exact(tmp_path: Path) -> None:
    """The same panes and ledger as without Spark."""
    job().standalone(checkpoint=tmp_path / "alone").run(TABLES, drain=True)
    for kind in ("panes", "late"):
        assert list(output(tmp_path / "root", kind).values()) == list(output(tmp_path / "alone", kind).values())


@pytest.mark.long
def test_a_wheel_is_imported_as_a_zip(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a Python that lacks the package: what its tasks import, and a job."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    sent = shutil.copy(wheel, tmp_path / "tidestate.zip")
    command = [other_python(tmp_path / "python", libraries=True), "-c", FROM_ZIP, str(sent), str(tmp_path / "root")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, f"{sent}/tidestate/__init__.py"), done.stderr
    assert sum(map(len, output(tmp_path / "root", "panes").values())) == 2


@pytest.mark.long
def test_a_wheel_that_the_job_sends(
    wheel: Path, given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers that lack the package are refused in every run too: `tests.spark.test_preflight`."""
    monkeypatch.setenv("PYSPARK_PYTHON", other_python(tmp_path / "python", libraries=True))
    sent = shutil.copy(wheel, tmp_path / "tidestate.zip")  # Spark imports from no file named .whl
    command = [sys.executable, "-m", "tests.children.sent_package", *given, sent]
    child = Child(command, tmp_path / "log", cwd=ROOT)
    without = child.wait_for(lambda event: event["event"] in ("refused", "finished"))
    assert without == {"event": "refused", "code": "worker-package", "written": False}
    assert child.wait_for(lambda event: event["event"] in ("refused", "finished")) == {"event": "finished"}
    child.finish()
    is_exact(tmp_path)


@pytest.fixture
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A local cluster has the folders of its executors below SPARK_HOME."""
    home = tmp_path / "spark"
    home.mkdir()
    for name in ("bin", "jars", "python"):
        (home / name).symlink_to(SPARK / name)
    monkeypatch.setenv("SPARK_HOME", str(home))


@pytest.mark.long
@pytest.mark.usefixtures("_home")
def test_a_packed_environment(wheel: Path, given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment, packed = tmp_path / "made", tmp_path / "env.tar.gz"
    venv.create(environment, symlinks=True, with_pip=True)
    python = str(environment / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", str(wheel)], check=True, cwd=tmp_path)
    pack = [sys.executable, "-m", "venv_pack", "-p", str(environment), "-o", str(packed), "--compress-level", "1"]
    subprocess.run(pack, check=True, capture_output=True)
    shutil.rmtree(environment)  # what the workers have, they have of the archive
    for name, value in {"JAVA_HOME": java_home(), "SPARK_LOCAL_IP": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    for name in ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    settings = {
        "spark.executor.memory": "512m",
        "spark.pyspark.driver.python": sys.executable,
        "spark.pyspark.python": "./env/bin/python",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    submit = [
        str(SPARK / "bin" / "spark-submit"),
        "--master",
        "local-cluster[1,2,512]",
        "--archives",
        f"{packed}#env",
    ]
    submit += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    child = Child([*submit, str(script), *given], tmp_path / "log", cwd=ROOT)
    workers = child.wait_for(lambda event: event["event"] == "workers")
    assert {Path(workers[what]).is_relative_to(tmp_path / "spark" / "work") for what in ("python", "package")} == {
        True
    }
    assert child.wait_for(lambda event: event["event"] in ("refused", "finished")) == {"event": "finished"}
    child.finish()
    is_exact(tmp_path)
