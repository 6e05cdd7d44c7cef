"""Which code reads state: what this process has registered, never what a root names."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle
from typer.testing import CliRunner

import tidestate as ts
from tests.helpers.checkout import ROOT
from tests.helpers.process import longer
from tidestate import agg
from tidestate.operators.bind.graph import bind_graph
from tidestate.recovery.cli.main import app
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import IncompatibleError, TidestateError
from tidestate.statestore.spec import combiners
from tidestate.statestore.spec.combiners import ENTRY_POINTS, Starts, registered, registrations
from tidestate.statestore.spec.tables import Column, Group, TableSpec

LIBRARY = """
import pathlib
import pyarrow as pa
import pyarrow.compute as pc
from tidestate.operators.describe.merge_accumulation import accumulation as accumulate

pathlib.Path(__file__).with_suffix(".ran").touch()
widest = accumulate(
    name="{name}", columns=["v"], state={{"most": pa.int64()}}, lift=lambda rows: rows.rename_columns(["most"]),
    merge=lambda old, new: pa.table({{"most": pc.max_element_wise(old["most"], new["most"])}}),
    result=lambda rows: rows["most"], result_type=pa.int64(),
)
"""


def written(root: Path, name: str) -> None:
    """A root whose state needs a combiner of this name to be folded."""
    widest = agg.accumulate(
        name=name,
        columns=["v"],
        state={"most": pa.int64()},
        lift=lambda rows: rows.rename_columns(["most"]),
        merge=lambda old, new: pa.table({"most": pc.max_element_wise(old["most"], new["most"])}),
        result=lambda rows: rows["most"],
        result_type=pa.int64(),
    )
    job = ts.stream(event_time="t").group_by("k").window(ts.tumbling("1 hour")).aggregate(widest=widest).named("job")
    rows = pa.table({"t": pa.array([1, 2], pa.timestamp("us", "UTC")), "k": ["a", "a"], "v": [3, 5]})
    job.standalone(checkpoint=str(root)).run([rows, rows])


def state(root: Path, *options: str, path: str = "", cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """``tidestate state`` in a process that has registered nothing."""
    command = [sys.executable, "-m", "tidestate.recovery.cli.main", "state", str(root), "--json", *options]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([path, str(ROOT)])}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_no_module_is_imported_because_a_root_names_it(tmp_path: Path) -> None:
    written(tmp_path / "root", "stranger:widest")
    (tmp_path / "stranger.py").write_text(LIBRARY.format(name="stranger:widest"))
    done = state(tmp_path / "root", path=str(tmp_path))
    assert not (tmp_path / "stranger.ran").exists()
    assert done.returncode == 3, done.stderr
    reported = " ".join(done.stderr.split())
    assert all(word in reported for word in ("[combiner]", "name=stranger:widest", "--import MODULE", ENTRY_POINTS))


@pytest.mark.long
@pytest.mark.slow
def test_a_module_of_the_current_folder_can_be_imported(tmp_path: Path) -> None:
    written(tmp_path / "root", "of-here")
    (tmp_path / "here.py").write_text(LIBRARY.format(name="of-here"))
    done = state(tmp_path / "root", "--import", "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert '"5"' in done.stdout or "5" in done.stdout
    assert (tmp_path / "here.ran").exists()
    missing = CliRunner().invoke(app, ["state", str(tmp_path / "root"), "--import", "nowhere"])
    assert isinstance(missing.exception, TidestateError)
    assert missing.exception.code == "import-failed"


@pytest.mark.slow
@pytest.mark.parametrize("works", [True, *longer(False)])
def test_an_installed_package_offers_combiners(tmp_path: Path, works: bool) -> None:
    written(tmp_path / "root", "of-a-package")
    about = tmp_path / "site" / "offering-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: offering\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        f"[{ENTRY_POINTS}]\nof-a-package = offering:widest\nother = missing:one\n"
    )
    body = LIBRARY.format(name="of-a-package") if works else "raise RuntimeError('broken')"
    (tmp_path / "site" / "offering.py").write_text(body)
    done = state(tmp_path / "root", path=str(tmp_path / "site"))
    assert done.returncode == (0 if works else 3), done.stderr
    assert works or "package=offering" in done.stderr


def test_nothing_durable_names_a_module() -> None:
    schema = pa.schema({"t": pa.timestamp("us", "UTC"), "k": pa.string(), "v": pa.int64()})
    job = ts.stream(event_time="t").group_by("k").window(ts.tumbling("1 hour"))
    described = job.aggregate(about=agg.count_distinct_approx("v"), tally=agg.count_by_value("v")).named("job")
    names = [
        group.combiner
        for plan in bind_graph(described.graph.description, schema).plans.values()
        for t in plan.tables
        for group in t.groups
    ]
    assert "tidestate-hll" in names
    assert not [name for name in names if ":" in name or "." in name]


def test_no_manifest_names_a_module_of_ours(tmp_path: Path) -> None:
    job = ts.stream(event_time="t").group_by("k").window(ts.tumbling("1 hour"))
    described = (
        job.aggregate(about=agg.count_distinct_approx("v"), tally=agg.count_by_value("v"))
        .named("job")
        .accumulation("retracting")
    )
    rows = pa.table({"t": pa.array([0], pa.timestamp("us", "UTC")), "k": ["a"], "v": [1]})
    described.standalone(checkpoint=tmp_path).run([rows], drain=True)
    texts = [path.read_text() for path in (tmp_path / "manifests").iterdir()]
    assert "tidestate-hll" in texts[-1]
    assert not [found for text in texts for found in re.findall(r"\b(?:operators|recovery|statestore)\.\w+", text)]


@pytest.mark.parametrize("name", ["tidestate-cancel", *longer("tidestate-hll", "tidestate-theta-values")])
def test_ours_are_entry_points_of_our_own_package(name: str) -> None:
    program = "import sys; from tidestate.statestore.spec.combiners import registered; "
    program += "assert 'tidestate.operators' not in sys.modules; "
    program += f"registered('{name}', 1)"
    subprocess.run([sys.executable, "-c", program], check=True)


def _first(rows: pa.Table, starts: Starts) -> pa.Table:
    return rows.take(pa.array(starts))


def test_a_worker_learns_the_combiners_of_its_driver() -> None:
    spec = TableSpec("n", (Column("k", "int64"),), (Column("v", "int64"),), groups=(Group(("v",), "the-first"),))
    assert registrations([spec]) == ()
    agg.register_combiner("the-first")(_first)
    try:
        sent = cloudpickle.dumps(registrations([spec, spec]))
    finally:
        del combiners._registered["the-first", 1]
    with pytest.raises(IncompatibleError):
        registered("the-first", 1)
    try:
        (known,) = pickle.loads(sent)
        assert registered("the-first", 1) is known.function
    finally:
        del combiners._registered["the-first", 1]


def test_a_round_takes_its_combiners_along(tmp_path: Path) -> None:
    written(tmp_path / "root", "taken-along")
    head = Checkpoint.open(tmp_path / "root").head()
    assert head is not None
    tables = head.manifest.operators["job"].tables
    assert [(one.name, one.version) for one in registrations(tables)] == [("taken-along", 1)]
