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
from tidestate import Aggregation, agg, operators, recovery, statestore
from tidestate.operators.describe.join_choices import JoinRetention
from tidestate.operators.spark.job import JobOnSpark
from tidestate.recovery.log.checkpoint import Checkpoint

NAMESPACES = ("agg", "fn", "sinks", "stores", "testing", "trigger", "watermark")


def stub_of(module: types.ModuleType) -> ast.Module:
    return ast.parse(Path(str(module.__file__)).with_suffix(".pyi").read_text())


def imported_names(stub: ast.Module) -> list[str]:
    return [str(one.asname) for node in stub.body if isinstance(node, ast.ImportFrom) for one in node.names]


def test_every_name_is_there_and_none_is_a_module() -> None:
    for module in pkgutil.walk_packages(operators.__path__, "tidestate.operators."):
        importlib.import_module(module.name)
    found = {name: getattr(operators, name) for name in dir(operators)}
    assert not [name for name, value in found.items() if isinstance(value, types.ModuleType)]
    assert {*imported_names(stub_of(operators))} == set(found)


def test_a_namespace_is_imported_in_each_way() -> None:
    for name in NAMESPACES:
        module = importlib.import_module(f"tidestate.{name}")
        assert getattr(tidestate, name) is module
        assert dir(module) == module.__all__ == sorted(imported_names(stub_of(module)))
        with pytest.raises(AttributeError, match=f"'tidestate.{name}' has no attribute 'no_such_name'"):
            module.no_such_name  # noqa: B018


def test_every_name_of_a_namespace_is_there_and_says_what_it_is() -> None:
    modules = [getattr(tidestate, name) for name in NAMESPACES]
    assert {module.__name__: len(module.__all__) > 4 and bool(module.__doc__) for module in modules} == {
        f"tidestate.{name}": True for name in NAMESPACES
    }
    values = {f"{module.__name__}.{name}": getattr(module, name) for module in modules for name in module.__all__}
    assert [name for name, value in values.items() if not value.__doc__ or not callable(value)] == []


@pytest.mark.parametrize("name", ["operators", *NAMESPACES])
def test_a_type_checker_sees_what_is_there(name: str) -> None:
    """Names that a stub imports as others, `max_` as `max`, are public by its ``__all__`` alone."""
    module = importlib.import_module(f"tidestate.{name}")
    stub = stub_of(module)
    assigned = [node.value for node in stub.body if isinstance(node, ast.Assign | ast.AugAssign)]
    listed = [name for value in assigned for name in ast.literal_eval(value)]
    assert sorted(listed) == sorted(imported_names(stub)) == module.__all__


def test_what_a_name_stands_for() -> None:
    assert tidestate.agg.max("v") == agg.max("v")
    assert tidestate.agg.list("v") == agg.list("v")
    assert tidestate.Retention(offsets=5).of_side() == JoinRetention(messages=5)
    assert tidestate.watermark.buffers(origin="o", sequence="s", watermark="w").origin == "o"
    streams = [tidestate.stream(name, event_time="t") for name in "ab"]
    assert isinstance(tidestate.union(*streams), tidestate.OperatorStream)
    assert isinstance(tidestate.merge(*streams), tidestate.MergedStreams)


@pytest.mark.long
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
        public = [*dir(operators), *NAMESPACES] if package is tidestate else dir(package)
        assert (loaded, {*names}) == ("False", {*public})
        assert sorted(names) == package.__all__


def test_the_package_has_the_names_of_the_operators() -> None:
    public = {*dir(operators), *NAMESPACES, "operators", "recovery", "statestore"}
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


def hourly() -> Aggregation:
    windows = tidestate.stream(event_time="t").group_by().window(tidestate.tumbling("1 hour"))
    return windows.aggregate(n=agg.count()).named("job")


def test_what_runs_prints_in_a_line(tmp_path: Path) -> None:
    job = hourly()
    rows = pa.table({"t": pa.array([0], pa.timestamp("us", "UTC"))})
    alone = job.standalone(checkpoint=tmp_path)
    assert repr(alone) == f"Standalone('job', checkpoint='{tmp_path}')"
    alone.run([rows])
    assert repr(alone) == f"Standalone('job', checkpoint='{tmp_path}', checkpoint_id=2)"
    assert repr(Checkpoint.open(tmp_path)) == f"Checkpoint('{tmp_path}')"
    assert repr(job.harness(rows.schema)) == "Harness('job', checkpoint_id=1)"


def test_a_password_in_a_root_is_not_printed() -> None:
    job = hourly()
    root = "ftp://me:secret@host/flights"
    assert repr(job.standalone(checkpoint=root)) == "Standalone('job', checkpoint='ftp://host/flights')"
    spark_job = JobOnSpark(job.graph.description, Any, root, tidestate.stores.Parquet(), None, None)
    assert repr(spark_job) == "SparkJob('job', checkpoint='ftp://host/flights')"
