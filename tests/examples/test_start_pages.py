"""The pages that a new user follows: their blocks run as they are printed, and print what the page has under them.

Blocks of ``python`` run in this process, in one namespace and an empty folder; of indented blocks the calls of
``tidestate`` run too. A block of ``text`` is what they have printed since the one before it.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tests.helpers.checkout import ROOT
from tidestate.operators.local.bootstrap import load_object
from tidestate.recovery.cli.main import app

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = ROOT / "docs" / "start"
TUTORIALS = ("orders-into-delta.md", "click-sessions.md", "join-and-daily-totals.md")
"""Each has the file in ``examples/`` of the same name."""
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```|(?<=\n\n)((?: {4}[^\n]+\n)+)", re.S | re.M)
CHANGING = re.compile(r"(?<![\d-])\d\d-\d\d \d\d:\d\d(?::\d\d)?|created \S+ \S+|\b\d+(?:\.\d+)?(?: ?ms| kB)\b| +")
"""Times of the clock, which lack the year or follow ``created``; how long it took; sizes; the width of columns."""


def example_of(page: str) -> Path:
    return ROOT / "examples" / f"{page.removesuffix('.md').replace('-', '_')}.py"


def blocks(page: Path) -> list[tuple[str, str]]:
    """Each with its kind, which is empty for one that is indented."""
    return [(kind, text or indented) for kind, text, indented in BLOCK.findall(page.read_text())]


def lines(text: str) -> list[str]:
    """Those that are not empty, without what changes from run to run."""
    return [CHANGING.sub(" ", line).strip() for line in text.splitlines() if line.strip()]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one, in which the page runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["job.py"])
    logging.getLogger("tidestate").setLevel(logging.ERROR)
    return tmp_path


def check(page: Path, **replaced: str) -> None:
    """Run the blocks of a page one after the other."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    printed = io.StringIO()
    compared = 0
    for kind, text in blocks(page):
        if kind == "python":
            for old, new in replaced.items():
                text = text.replace(old, new)
            with contextlib.redirect_stdout(printed):
                exec(compile(text, page.name, "exec"), namespace)
        elif kind == "":
            for line in re.findall(r"^ {4}(tidestate .*)", text, re.M):
                printed.write(command(line))
        elif kind == "text":
            assert lines(printed.getvalue()) == lines(text)
            printed, compared = io.StringIO(), compared + 1
    assert compared or page.name == "index.md"
    assert printed.getvalue() == ""


def command(line: str) -> str:
    done = CliRunner().invoke(app, line.split()[1:], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("page", TUTORIALS)
def test_a_tutorial_is_the_file_of_its_example(page: str) -> None:
    parts = "\n".join(text for kind, text in blocks(START / page) if kind == "python")
    assert [line for line in parts.splitlines() if line] == [
        line for line in example_of(page).read_text().splitlines() if line
    ]


@pytest.mark.slow
@pytest.mark.parametrize("page", ["first-job.md", *TUTORIALS])
def test_a_page_prints_what_it_has(page: str, folder: Path) -> None:
    check(START / page)


@pytest.mark.slow
def test_the_readme_prints_what_it_has(folder: Path) -> None:
    check(ROOT / "README.md", **{"/tmp/": f"{folder}/"})


# In every run each page runs without Spark, and `test_examples` has two examples on both.
@pytest.mark.long
@pytest.mark.parametrize("page", TUTORIALS)
def test_a_tutorial_has_the_same_panes_on_spark(page: str, tmp_path: Path, spark: SparkSession) -> None:
    example, runner = module(example_of(page)), module(ROOT / "examples" / "runner.py")
    alone = runner.run_alone(example.job, example.batches(), tmp_path / "alone")
    on_spark = runner.run_on_spark(example.job, example.batches(), tmp_path / "spark", spark)
    assert sorted(map(str, on_spark.select(alone.column_names).to_pylist())) == sorted(map(str, alone.to_pylist()))


def module(file: Path) -> ModuleType:
    load_object(f"{file}:__doc__")
    return sys.modules[file.stem]


def test_the_windows_of_structured_streaming_are_those_of_the_page(
    folder: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`structured-streaming.md` compares them; it asks for a session, which is this one, and changes its settings."""
    (text,) = [text for kind, text in blocks(ROOT / "docs" / "from" / "structured-streaming.md") if kind == "python"]
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    names = ("spark.sql.session.timeZone", "spark.sql.shuffle.partitions")
    before, printed = [spark.conf.get(name) for name in names], io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(text, "structured-streaming.md", "exec"), {"__name__": "__main__"})
    finally:
        for name, value in zip(names, before, strict=True):
            spark.conf.set(name, value)
    assert printed.getvalue() == "4\n"


def test_the_first_job_on_spark_prints_what_its_page_has(folder: Path, spark: SparkSession) -> None:
    check(START / "on-spark.md")


def test_the_job_of_the_front_page_runs(folder: Path, spark: SparkSession) -> None:
    """``index.md`` of the site, over a folder of files that a reader has."""
    flights = pa.table({"scheduled": [0, 8_000_000_000], "origin": ["EWR", "JFK"], "dep_delay": [2, 4]})
    times = flights["scheduled"].cast(pa.timestamp("us", "UTC"))
    (folder / "flights").mkdir()
    pq.write_table(flights.set_column(0, "scheduled", times), folder / "flights" / "1.parquet")
    check(ROOT / "docs" / "index.md", **{"/data/": f"{folder}/"})
    from deltalake import DeltaTable

    assert pq.read_table(DeltaTable(str(folder / "flights_per_hour")).file_uris())["flights"].to_pylist() == [1]
