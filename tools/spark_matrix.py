"""The tests of Spark on one Spark after another: ``python -m tools.spark_matrix``, by ``make spark-matrix``.

Each Spark gets an environment under ``.venvs/``: of this Python it has PySpark alone, and finds the rest where this
process has it; of another Python it has all the rest in the same versions. A run of the usual tests is written to
docs/reference/compatibility.md, and to docs/start/install.md which Spark passed on which Python at which commit.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import venv
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "compatibility.md"
SUMMARY = ROOT / "docs" / "start" / "install.md"
ENVIRONMENTS = ROOT / ".venvs"
SPARKS = ("3.5.0", "3.5.9", "4.0.5", "4.1.4", "4.2.1", "4.3.0")
"""The oldest, and the newest of each minor version when this line was written."""
TESTS = (
    "compat preflight job reset general chains joins merging rescale bootstrap direct_scan scan_reader progress "
    "messages questions sinks s3 kafka kill jobs_killed"
)
UV = str(Path(sys.executable).with_name("uv"))
HERE = ".".join(map(str, sys.version_info[:2]))
BEGIN, END = "<!-- spark-matrix -->\n", "<!-- end of spark-matrix -->"
HEADINGS = ("Spark", "Python", "Java", "Scala", "tests", "passed", "skipped", "failed", "commit")
_FACTS = """
import json, pyspark, sys
from pathlib import Path
from tools.java import java_home, java_version
(scala,) = Path(pyspark.__file__).parent.glob("jars/scala-library-*.jar")
found = [pyspark.__version__, "{}.{}.{}".format(*sys.version_info), java_version(java_home())]
print(json.dumps([*map(str, found), scala.stem.removeprefix("scala-library-")]))
"""


@dataclass(frozen=True)
class Row:
    """What one run found, in the order of the headings."""

    spark: str
    python: str
    java: str
    scala: str
    tests: str
    passed: str
    skipped: str
    failed: str
    commit: str

    @property
    def key(self) -> tuple[tuple[int, ...], ...]:
        """Of the Spark and the Python, by which rows are ordered; one of the same tests is replaced."""
        return tuple(tuple(map(int, text.split("."))) for text in (self.spark, self.python.rpartition(".")[0]))


def environment(spark: str, python: str) -> Path:
    """The Python of an environment with this Spark, made if it is not there."""
    folder = ENVIRONMENTS / f"spark-{spark}-python-{python}"
    executable, done = folder / "bin" / "python", folder / "installed"
    if done.exists():
        return executable
    print(f"==> making {folder.relative_to(ROOT)} (Spark is 400 MB: a minute or two)", flush=True)
    install = [UV, "pip", "install", "--quiet", "--python", str(executable)]
    if python == HERE:
        venv.create(folder)
        (site,) = folder.glob("lib/python*/site-packages")
        (ours,) = (path for path in map(Path, sys.path) if path.name == "site-packages")
        subprocess.run([*install, f"pyspark=={spark}"], check=True)
        (site / "rest.pth").write_text(f"import site; site.addsitedir({str(ours)!r})\n")
    else:
        subprocess.run([f"python{python}", "-m", "venv", str(folder)], check=True)
        versions = folder / "versions.txt"
        versions.write_text(_installed_here())
        wanted = ["--constraint", str(versions), "--editable", f"{ROOT}[dev]", f"pyspark=={spark}"]
        subprocess.run([*install, *wanted], check=True)
    done.touch()
    return executable


def _installed_here() -> str:
    freeze = [sys.executable, "-m", "pip", "freeze", "--exclude-editable", "--disable-pip-version-check"]
    lines = subprocess.run(freeze, check=True, capture_output=True, text=True).stdout.splitlines()
    return "\n".join(line for line in lines if not line.startswith(("pyspark==", "py4j==")))


def run(spark: str, python: str, name: str, tests: list[str]) -> Row:
    """Run these test files, which the row calls ``name``; the output of pytest is printed."""
    executable = str(environment(spark, python))
    facts = subprocess.run([executable, "-c", _FACTS], check=True, capture_output=True, text=True, cwd=ROOT)
    print(f"==> Spark {spark}, Python {python}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *tests]
        subprocess.run(command, check=False, cwd=ROOT)
        suite = ET.parse(report).getroot().find("testsuite")
    assert suite is not None
    count = {name: int(suite.attrib[name]) for name in ("tests", "skipped", "failures", "errors")}
    failed = count["failures"] + count["errors"]
    passed = count["tests"] - failed - count["skipped"]
    spark, python, java, scala = json.loads(facts.stdout)
    return Row(spark, python, java, scala, name, str(passed), str(count["skipped"]), str(failed), _commit())


def _commit() -> str:
    git = ["git", "-C", str(ROOT)]
    name = subprocess.run([*git, "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True, check=True)
    written = [f":!{page.relative_to(ROOT)}" for page in (PAGE, SUMMARY)]
    status = [*git, "status", "--porcelain", "--", ".", *written]
    changed = subprocess.run(status, capture_output=True, text=True, check=True).stdout
    return name.stdout.strip() + (" and changes" if changed else "")


def rows_of(page: str) -> list[Row]:
    """The rows that the page of compatibility has."""
    lines = _split(page)[1].splitlines()[2:]
    return [Row(*line.strip("| ").split(" | ")) for line in lines]


def with_rows(page: str, found: Iterable[Row]) -> str:
    """That page with these rows in place of those of the same Spark, Python and tests."""
    rows = {(row.key, row.tests): row for row in (*rows_of(page), *found)}
    head, _, tail = _split(page)
    return head + table(HEADINGS, (astuple(rows[key]) for key in sorted(rows))) + tail


def with_summary(page: str, rows: Iterable[Row]) -> str:
    """The page of the installation with the commit at which each Spark passed on each Python."""
    passed = {row.key: row.commit if row.failed == "0" else "fails" for row in rows}
    sparks, pythons = (sorted({key[place] for key in passed}) for place in (0, 1))
    lines = [(_text(one), *(passed.get((one, python), "") for python in pythons)) for one in sparks]
    head, _, tail = _split(page)
    return head + table(("Spark", *(f"Python {_text(one)}" for one in pythons)), lines) + tail


def _text(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def _split(page: str) -> tuple[str, str, str]:
    """What is before the table, with the line that announces it, the table, and what follows."""
    head, begin, rest = page.partition(BEGIN)
    rows, end, tail = rest.partition(END)
    return head + begin, rows, end + tail


def table(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table in Markdown, with a heading for each column."""
    lines = [f"| {' | '.join(line)} |\n" for line in (headings, *rows)]
    return "".join([lines[0], "|", "---|" * len(headings), "\n", *lines[1:]])


def main() -> None:
    """Run the tests on each Spark; fail if one of them did."""
    parser = argparse.ArgumentParser(prog="python -m tools.spark_matrix")
    parser.add_argument("--sparks", default=" ".join(SPARKS), help="versions of PySpark")
    parser.add_argument("--pythons", default=HERE, help="such as '3.11 3.12': python3.12 is on the path")
    parser.add_argument("--only", default=TESTS, help="some of the usual tests, such as 'job reset'")
    parser.add_argument("--install", action="store_true", help="make the environments, and run nothing")
    parser.add_argument("tests", nargs="*", help="files and options of pytest instead; the page is not written")
    chosen, options = parser.parse_known_args()
    given = [*chosen.tests, *options]
    tests = given or [f"tests/spark/test_{name}.py" for name in chosen.only.split()]
    name = "all of them" if chosen.only == TESTS else ", ".join(chosen.only.split())
    found = []
    for python in chosen.pythons.split():
        for spark in chosen.sparks.split():
            if chosen.install:
                environment(spark, python)
                continue
            found.append(run(spark, python, name, tests))
            if not given:
                PAGE.write_text(with_rows(PAGE.read_text(), found))
                SUMMARY.write_text(with_summary(SUMMARY.read_text(), rows_of(PAGE.read_text())))
    if found:
        print(table(HEADINGS, map(astuple, found)))
    sys.exit(any(row.failed != "0" for row in found))


if __name__ == "__main__":
    main()
