"""Which tests the long form alone needs to have: what each runs of the product, two others run in every run.

    pip install pytest-cov
    make test ARGS="--ignore=tests/docs --cov=statestore --cov=operators --cov=recovery --cov-branch \
      --cov-context=test --cov-report= --junitxml=report.xml"
    python -m tools.bounded_form .coverage report.xml --keep 1200

It adds to tests/long_form.txt, the slowest first, until the rest takes as many seconds as one wants to keep. A branch
that is run is not yet a promise that is checked: so the catcher of a mutant and what the documents name stay, and
somebody reads what is added. What other processes run is not measured, so tests of these are not chosen.
"""

from __future__ import annotations

import argparse
import re
import sqlite3
from collections import Counter
from collections.abc import Set
from functools import cache
from pathlib import Path

from tools.mutants.mutant import every
from tools.mutants.trial import ROOT
from tools.slow_tests import seconds_by_test

LIST = ROOT / "tests" / "long_form.txt"
WITNESSES = 2
"""So many tests of every run take each branch that a test of the long form takes."""
LEAST_CASE_S, LEAST_TEST_S = 0.3, 2.0
"""What takes less is kept: a case, or a test without another case, whose promise may be in no other test."""
FEWEST = 800
"""A test that takes fewer branches here starts a process, or reads texts: a job takes some thousands."""
_FOLDERS = ("conformance", "docs", "examples", "faults", "golden", "package", "tools")
ON_PURPOSE = (*(f"tests/{folder}/" for folder in _FOLDERS), "kill", "spark", "::Test", "test_runners")
"""Tests of what is killed, of tasks of Spark, of files of earlier versions, of examples, and others whose cases are a
list of promises.
"""
_NAMED = re.compile(r"tests/[\w/]+\.py::[\w:]+")


def branches_by_test(coverage: Path) -> dict[str, set[int]]:
    """The branches that each test has taken, as numbers, by the id of the test. Coverage documents these tables."""
    branches: dict[str, set[int]] = {}
    numbers: dict[tuple[int, int, int], int] = {}
    with sqlite3.connect(coverage) as connection:
        query = "select context, file_id, fromno, tono from arc join context on context.id = context_id"
        for context, *branch in connection.execute(query):
            if not context:
                continue  # of what is imported
            number = numbers.setdefault(tuple(branch), len(numbers))
            branches.setdefault(context.rpartition("|")[0], set()).add(number)
    return branches


@cache
def proved_by() -> frozenset[str]:
    """The tests, or single cases of them, that catch a mutant or that a document names."""
    catchers = {mutant.catcher for mutant in every()}
    pages = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")]
    named = {test for page in pages for test in _NAMED.findall(page.read_text())}
    return frozenset(catchers | named)


def chosen(seconds: dict[str, float], branches: dict[str, set[int]], kept: Set[str], keep_s: float) -> list[str]:
    """The tests to leave out, so that the others take `keep_s` seconds, or as near to it as the witnesses allow."""
    taken_by = Counter(branch for test in branches for branch in branches[test])
    cases = Counter(map(_function, branches))
    left_out, total_s = [], sum(seconds.values())
    for test in sorted(branches, key=lambda test: -seconds.get(test, 0)):
        function = _function(test)
        if total_s <= keep_s:
            break
        if seconds.get(test, 0) < (LEAST_CASE_S if cases[function] > 1 else LEAST_TEST_S):
            continue
        if {function, test} & kept or any(part in test for part in ON_PURPOSE) or len(branches[test]) < FEWEST:
            continue
        if all(taken_by[branch] > WITNESSES for branch in branches[test]):
            left_out.append(test)
            taken_by.subtract(branches[test])
            cases[function] -= 1
            total_s -= seconds[test]
    return left_out


def _function(test: str) -> str:
    return test.partition("[")[0]


def _by_id(seconds: dict[str, float], tests: set[str]) -> dict[str, float]:
    """The seconds of a report, which has modules and classes joined by dots, by the ids of tests."""
    by_report = {_reported(test): test for test in tests}
    return {by_report[name]: took for name, took in seconds.items() if name in by_report}


def _reported(test: str) -> str:
    file, _, name = test.partition(".py::")
    *classes, last = name.partition("[")[0].split("::")
    return ".".join([file.replace("/", "."), *classes]) + "::" + last + name[len(name.partition("[")[0]) :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("coverage", type=Path)
    parser.add_argument("report", type=Path)
    parser.add_argument("--keep", type=float, required=True, metavar="SECONDS", help="what the other tests may take")
    arguments = parser.parse_args()
    branches = branches_by_test(arguments.coverage)
    report = seconds_by_test(arguments.report)
    seconds = _by_id(report, set(branches))
    rest_s = sum(report.values()) - sum(seconds.values())
    tests = chosen(seconds, branches, proved_by(), arguments.keep - rest_s)
    for test in tests:
        print(f"{seconds[test]:9.1f}  {test}")
    print(f"{len(tests)} tests of {sum(seconds[test] for test in tests):.0f} s of {sum(report.values()):.0f} s")
    LIST.write_text("\n".join(sorted({*LIST.read_text().splitlines(), *tests})) + "\n")


if __name__ == "__main__":
    main()
