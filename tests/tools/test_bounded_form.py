"""What the tool leaves to the long form, and that the list of it names tests that exist."""

from __future__ import annotations

import ast
import sqlite3
from functools import cache
from pathlib import Path

from tests.helpers.checkout import ROOT
from tools.bounded_form import FEWEST, LIST, WITNESSES, branches_by_test, chosen, proved_by

SLOW, CHEAP = "tests/a/test_x.py::test_slow[1]", "tests/a/test_x.py::test_cheap"
JOB = set(range(FEWEST))
"""The branches that a job takes."""
OTHERS = {f"tests/a/test_y.py::test_{number}": JOB for number in range(WITNESSES)}
SECONDS = {SLOW: 9.0, CHEAP: 0.1, **dict.fromkeys(OTHERS, 0.1)}


@cache
def functions(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def test_a_branch_that_enough_others_take_is_left_to_them() -> None:
    assert chosen(SECONDS, {SLOW: JOB, **OTHERS}, set(), 1) == [SLOW]


def test_a_branch_that_too_few_others_take_keeps_its_test() -> None:
    assert chosen(SECONDS, {SLOW: JOB | {FEWEST}, **OTHERS}, set(), 1) == []
    fewer = dict(list(OTHERS.items())[1:])
    assert chosen(SECONDS, {SLOW: JOB, **fewer}, set(), 1) == []


def test_two_that_take_the_same_are_not_both_left_out() -> None:
    twice = "tests/a/test_x.py::test_slow[2]"
    fewer = dict(list(OTHERS.items())[1:])
    branches = {SLOW: JOB, twice: JOB, **fewer}
    assert chosen({**SECONDS, twice: 8.0}, branches, set(), 1) == [SLOW]


def test_what_proves_something_stays_and_so_does_what_takes_no_time_or_is_not_measured() -> None:
    branches = {SLOW: JOB, CHEAP: JOB, **OTHERS}
    assert chosen(SECONDS, branches, {"tests/a/test_x.py::test_slow"}, 0) == []
    assert chosen(SECONDS, {SLOW: {1}, **OTHERS}, set(), 0) == [], "of a process that is not measured"
    killed = "tests/a/test_x.py::test_killed"
    assert chosen({**SECONDS, killed: 9.0}, {killed: JOB, **OTHERS}, set(), 0) == []


def test_no_more_is_left_out_than_was_asked_for() -> None:
    assert chosen(SECONDS, {SLOW: JOB, **OTHERS}, set(), sum(SECONDS.values())) == []


def test_branches_are_read_by_test(tmp_path: Path) -> None:
    """Of its set-up and of itself, from the tables that coverage writes."""
    with sqlite3.connect(tmp_path / "coverage") as connection:
        connection.executescript(
            "create table context (id integer, context text);"
            "create table arc (file_id integer, context_id integer, fromno integer, tono integer);"
            "insert into context values (1, ''), (2, 'tests/a.py::test_x|setup'), (3, 'tests/a.py::test_x|run');"
            "insert into arc values (1, 1, 1, 2), (1, 2, 1, 2), (1, 3, 2, 3), (2, 3, 1, 2);"
        )
    assert {test: len(branches) for test, branches in branches_by_test(tmp_path / "coverage").items()} == {
        "tests/a.py::test_x": 3
    }


def test_a_single_case_that_proves_something_stays() -> None:
    assert chosen(SECONDS, {SLOW: JOB, **OTHERS}, {SLOW}, 0) == []


def test_the_list_names_tests_that_are_there_and_none_that_proves_something() -> None:
    tests = LIST.read_text().splitlines()
    assert tests
    for test in tests:
        function = test.partition("[")[0]
        assert function.rpartition("::")[2] in functions(ROOT / test.partition("::")[0]), test
        assert not {function, test} & proved_by(), test
