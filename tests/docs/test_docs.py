"""The documents say what the code does: blocks run, links lead somewhere, every code, verb and test is there."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.helpers.checkout import ROOT
from tests.helpers.forked import Forked
from tests.helpers.process import LONG
from tidestate.operators.describe.sides import AT, SIDE
from tidestate.operators.describe.windows import PANE_TIME
from tidestate.operators.plan.plan import OTHER_BOUNDS, PROCESSING_TIME, RESERVED
from tidestate.operators.rows.deduplicate import UNTIL
from tools.java import brief_options
from tools.reference import page

FRONT = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
DOCUMENTS = [*(ROOT / name for name in FRONT), *sorted((ROOT / "docs").rglob("*.md"))]
RUN_ELSEWHERE = {
    "index.md": "tests/examples/test_start_pages.py",
    "start/click-sessions.md": "tests/examples/test_start_pages.py",
    "start/first-job.md": "tests/examples/test_start_pages.py",
    "start/join-and-daily-totals.md": "tests/examples/test_start_pages.py",
    "start/on-spark.md": "tests/examples/test_start_pages.py",
    "start/orders-into-delta.md": "tests/examples/test_start_pages.py",
    "from/structured-streaming.md": "tests/examples/test_start_pages.py",
    "how-it-works/message-store.md": "tests/statestore/messages/test_messages.py",
    "how-to/embed-an-operator.md": "tests/operators/embedded/test_window_operator.py",
    "how-to/test-a-job.md": "tests/operators/local/test_harness.py",
}
"""Pages whose blocks another test runs: once is enough."""
WITH_OUTPUT = {
    f"how-to/{name}.md"
    for name in (
        "chain-operators",
        "count-and-global-windows",
        "deduplicate",
        "filter-and-compute",
        "join-by-lifetime",
        "join-by-session",
        "join-by-time",
        "join-by-windows",
        "join-streams",
        "late-data",
        "merge-streams",
        "messages",
        "sessions",
        "triggers",
        "watermarks",
        "windows",
    )
}
"""Pages whose blocks print what the comments at their ends say."""
OUTPUT = re.compile(r"(?:^# [^\n]*\n)+\Z", re.M)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.S | re.M)
RUN_HERE = [
    name
    for path in DOCUMENTS
    if (ROOT / "docs") in path.parents and (name := path.relative_to(ROOT / "docs").as_posix()) not in RUN_ELSEWHERE
    if BLOCK.search(path.read_text())
]
PACKAGES = ("statestore", "recovery", "operators", "tools")


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def sources() -> str:
    return "\n".join(path.read_text() for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


@pytest.mark.slow
def test_readme_blocks_run(tmp_path: Path) -> None:
    blocks = BLOCK.findall((ROOT / "README.md").read_text())
    program = "\n".join(blocks).replace("/tmp/readme-flights", str(tmp_path / "flights"))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert "'mean_delay': 3.0" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN_HERE)
def test_blocks_of_other_documents_run(name: str, tmp_path: Path) -> None:
    """In the long form by a Python that has nothing imported before."""
    blocks = BLOCK.findall((ROOT / "docs" / name).read_text())
    program, log = tmp_path / "blocks.py", tmp_path / "log"
    program.write_text("\n".join(blocks))
    log.touch()
    if LONG:
        with log.open("a") as errors:
            done = subprocess.run(
                [sys.executable, program], stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT, check=False
            )
        output, code = done.stdout, done.returncode
    else:
        running = Forked("tests.children.program", program, log=log, JAVA_TOOL_OPTIONS=brief_options())
        output, _ = running.communicate()
        code = running.returncode
    assert code == 0, log.read_text()
    if name in WITH_OUTPUT:
        written = "".join(comment.group() for block in blocks if (comment := OUTPUT.search(block)))
        assert output.splitlines() == [line.removeprefix("# ") for line in written.splitlines()]


def test_blocks_that_are_run_elsewhere_are() -> None:
    for name, test in RUN_ELSEWHERE.items():
        assert name.rpartition("/")[2] in (ROOT / test).read_text(), name


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", document.read_text())
    missing = [t for t in targets if "://" not in t and not (document.parent / t).exists()]
    assert not missing


def test_the_map_names_every_folder_and_paths_that_exist() -> None:
    text = (ROOT / "docs" / "internals" / "map.md").read_text()
    paths = re.findall(r"`((?:statestore|recovery|operators|tests|tools|docs|examples)/[\w/.-]*)`", text)
    assert not [name for name in paths if not (ROOT / name).exists()]
    for package in ("statestore", "recovery", "operators"):
        (table,) = re.findall(rf"^\| `{package}/` \|.*?\n\n", text, re.M | re.S)
        named = set(re.findall(r"`(\w+)/`", table.split("\n", 1)[1]))
        folders = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
        assert named == folders


@cache
def text_of_all_tests() -> str:
    return "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_named_files_and_tests_exist(document: Path) -> None:
    text = document.read_text()
    files = re.findall(r"`((?:tests|tools|docs|examples)/[\w/.-]+\.\w+)`", text)
    assert not [name for name in files if not (ROOT / name).exists()]
    tests = re.findall(r"`(test_\w+)`", text)
    assert not [name for name in tests if f"def {name}(" not in text_of_all_tests()]


def test_every_error_code_is_documented_and_no_other() -> None:
    raised = set(re.findall(r'code="([a-z-]+)"', sources())) | set(
        re.findall(r'"(spark-[a-z]+(?:-[a-z]+)*)",\n', (ROOT / "recovery" / "log" / "spark_log.py").read_text())
    )
    documented = set(re.findall(r"`([a-z]+(?:-[a-z]+)*)`", (ROOT / "docs" / "reference" / "errors.md").read_text()))
    assert raised - documented == set()
    assert {code for code in documented if "-" in code} - raised == set()


def test_the_reference_of_the_command_is_what_the_code_says() -> None:
    assert (ROOT / "docs" / "reference" / "cli.md").read_text() == page(), "python -m tools.reference"


def test_every_reserved_name_is_listed() -> None:
    page = (ROOT / "docs" / "reference" / "semantics.md").read_text().partition("## Names that are taken")[2]
    assert not [
        name
        for name in {*RESERVED, *OTHER_BOUNDS, SIDE, AT, PANE_TIME, PROCESSING_TIME, UNTIL}
        if f"`{name}`" not in page
    ]
