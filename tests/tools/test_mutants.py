"""Mutants: all of them fit the sources as they are, each names a test that exists, and some are really tried."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.helpers.checkout import ROOT
from tests.helpers.process import LONG
from tools.mutants import __main__ as command
from tools.mutants.mutant import Mutant, NotApplicableError, every, layers
from tools.mutants.trial import Tried

CHEAPEST = ("create-replaces", "manifest-replaced", "threads-turned-around")
"""One of each package; each takes a second, and one is tried in the default form."""
FEWEST = 60
PAGE = ROOT / "docs" / "internals" / "reports" / "mutants.md"


@cache
def functions(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


@cache
def inherited() -> set[str]:
    """Those of the contract of a store, whose classes test files inherit."""
    return {name for path in (ROOT / "statestore" / "testing").glob("contract_*.py") for name in functions(path)}


def test_each_mutant_fits_the_sources_as_they_are() -> None:
    """Where a refactoring has moved what one replaces, the mutant has to follow."""
    found = every()
    assert len(found) >= FEWEST
    assert [name for name, times in Counter(one.name for one in found).items() if times > 1] == []
    for one in found:
        assert one.applied(ROOT) != (ROOT / one.file).read_text()


def test_mutants_are_of_every_package() -> None:
    packages = Counter(one.file.split("/")[0] for one in every())
    assert set(packages) == {"statestore", "recovery", "operators"}
    assert all(layers().values())


def test_each_catcher_is_a_test() -> None:
    for one in every():
        assert one.test.rpartition("::")[2] in functions(ROOT / one.catcher.partition("::")[0]) | inherited()


def test_the_page_has_each_mutant_and_its_catcher() -> None:
    """``python -m tools.mutants run --draw docs`` writes it."""
    rows = re.findall(r"^\| ([\w-]+) \| (.+) \| `([\w:]+)` \|$", PAGE.read_text(), re.M)
    assert rows == [(one.name, one.breaks, one.test) for one in every()]


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "some.py").write_text("one = 1\ntwo = 1\n")
    for old, new in (("three", "3"), (" = 1", " = 2"), ("one = 1", "one =")):
        with pytest.raises(NotApplicableError, match="odd: "):
            Mutant("odd", "Nothing.", "some.py", old, new, "tests/test_some.py::test_some").applied(tmp_path)


def test_only_all_of_them_are_a_page(tmp_path: Path) -> None:
    run = CliRunner().invoke(command.app, ["run", "--only", CHEAPEST[0], "--draw", str(tmp_path)])
    assert run.exit_code == 2
    assert CliRunner().invoke(command.app, ["run", "--only", "none-of-them"]).exit_code == 2


@pytest.mark.slow
@pytest.mark.long
def test_some_are_caught_and_one_that_is_not_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cheapest = [one for one in every() if one.name in (CHEAPEST if LONG else CHEAPEST[:1])]
    other = "tests/recovery/log/test_checkpoint.py::test_no_checkpoint_here"
    blind = Mutant("blind", "Nothing that this test looks at.", *as_they_are(cheapest[0]), other)
    lost = Mutant("lost", "Nothing: there is no such test.", *as_they_are(cheapest[0]), f"{other}_at_all")
    found = tried([*cheapest, blind, lost], monkeypatch)
    assert found == {
        **dict.fromkeys((one.name for one in cheapest), "caught"),
        "blind": "survived",
        "lost": "no test ran",
    }


def as_they_are(one: Mutant) -> tuple[str, str, str]:
    return one.file, one.old, one.new


def tried(mutants: list[Mutant], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The verdicts of the command, which must end with 1 as not all are caught."""
    found: list[Tried] = []
    monkeypatch.setattr(command, "every", lambda: mutants)
    real = command.try_each
    monkeypatch.setattr(command, "try_each", lambda *asked: found.extend(real(*asked)) or found)
    assert CliRunner().invoke(command.app, ["run"]).exit_code == 1
    return {one.mutant.name: one.verdict for one in found}
