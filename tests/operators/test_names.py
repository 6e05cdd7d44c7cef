"""The public names are what they say, whatever was imported before, and no module of ours has two names."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate
from tests.helpers.checkout import ROOT
from tidestate import count, operators, recovery, statestore, tumbling, windowed
from tidestate.operators.spark.job import JobOnSpark


def test_every_name_is_there_and_none_is_a_module() -> None:
    for module in pkgutil.walk_packages(operators.__path__, "tidestate.operators."):
        importlib.import_module(module.name)
    found = {name: getattr(operators, name) for name in dir(operators)}
    assert not [name for name, value in found.items() if isinstance(value, types.ModuleType)]
    tree = ast.parse(Path(str(operators.__file__)).with_suffix(".pyi").read_text())
    typed = {one.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for one in node.names}
    assert typed - {None} == set(found)


@pytest.mark.slow
def test_a_star_import_brings_what_needs_no_spark() -> None:
    packages: list[types.ModuleType] = [statestore, recovery, operators, tidestate]
    program = (
        "import sys\n"
        "for package in sys.argv[1:]:\n"
        "    names = {}\n"
        "    exec(f'from {package} import *', names)\n"
        "    print('pyspark' in sys.modules, *(name for name in names if not name.startswith('__')))"
    )
    command = [sys.executable, "-c", program, *(one.__name__ for one in packages)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for package, line in zip(packages, done.stdout.splitlines(), strict=True):
        loaded, *names = line.split()
        public = dir(operators if package is tidestate else package)
        assert (loaded, {*names}) == ("False", {*public})
        assert sorted(names) == package.__all__


def test_the_package_has_the_names_of_the_operators() -> None:
    public = {*dir(operators), "operators", "recovery", "statestore"}
    assert {name for name in dir(tidestate) if not name.startswith("__")} == public
    assert "__version__" in dir(tidestate)
    assert not [name for name in dir(operators) if getattr(tidestate, name) is not getattr(operators, name)]
    for name in ("_x", "__wrapped__", "no_such_name"):
        with pytest.raises(AttributeError, match=name):
            getattr(tidestate, name)


@pytest.mark.long
def test_a_module_has_one_name() -> None:
    """In every run `tests.conftest` looks for a second name after each test, and `tests.package.test_package` in an
    environment that imports all modules.
    """
    program = (
        "import pkgutil, sys, tidestate\n"
        "for one in pkgutil.walk_packages(tidestate.__path__, 'tidestate.'):\n"
        "    __import__(one.name)\n"
        "print(len([name for name in sys.modules if name.startswith('tidestate.')]))\n"
        "print({'operators', 'recovery', 'statestore'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    count, strange = done.stdout.split("\n", 1)
    assert int(count) > 200
    assert strange.strip() == "set()"


def test_what_runs_prints_in_a_line(tmp_path: Path) -> None:
    job = windowed(event_time="t", name="job").window(tumbling("1 hour")).aggregate(n=count())
    rows = pa.table({"t": pa.array([0], pa.timestamp("us", "UTC"))})
    alone = job.standalone(checkpoint=tmp_path)
    assert repr(alone) == f"Standalone('job', checkpoint='{tmp_path}')"
    alone.run([rows])
    assert repr(alone) == f"Standalone('job', checkpoint='{tmp_path}', checkpoint_id=2)"
    assert repr(tidestate.Checkpoint.open(tmp_path)) == f"Checkpoint('{tmp_path}')"
    assert repr(tidestate.Harness(job, rows.schema)) == "Harness('job', checkpoint_id=1)"


def test_a_password_in_a_root_is_not_printed() -> None:
    job = windowed(event_time="t", name="job").window(tumbling("1 hour")).aggregate(n=count())
    root = "ftp://me:secret@host/flights"
    assert repr(job.standalone(checkpoint=root)) == "Standalone('job', checkpoint='ftp://host/flights')"
    spark_job = JobOnSpark(job, Any, root, tidestate.Parquet(), None, None)
    assert repr(spark_job) == "SparkJob('job', checkpoint='ftp://host/flights')"
