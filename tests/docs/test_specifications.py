"""What each document asks: every row has words, a place and a test, and the totals are those of the rows."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.helpers.checkout import ROOT

PAGE = ROOT / "docs" / "reference" / "specifications.md"
COUNTS = {"R": 37, "M": 39, "N": 23, "I": 38, "S": 125, "C": 6}
"""How many mechanisms each document asks for, by the first letter of their ids, in the order of the sections."""
NOT_YET = "not yet: "


class Row(NamedTuple):
    id: str
    mechanism: str
    quote: str
    here: str
    test: str


def rows() -> list[Row]:
    lines = [line for line in PAGE.read_text().splitlines() if re.match(r"\| [A-Z]\d+ \|", line)]
    return [Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in lines]


@cache
def functions(path: Path) -> set[str]:
    """Tests that a file defines, but for those that are not in every run."""
    tree = ast.parse(path.read_text())
    defined = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {
        node.name for node in defined if "pytest.mark.long" not in {ast.unparse(mark) for mark in node.decorator_list}
    }


def test_every_mechanism_has_one_row_in_its_section() -> None:
    assert [row.id for row in rows()] == [
        f"{letter}{number}" for letter, many in COUNTS.items() for number in range(1, many + 1)
    ]


@pytest.mark.parametrize("letter", COUNTS)
def test_every_row_has_words_a_place_and_a_test_in_every_run(letter: str) -> None:
    for row in (row for row in rows() if row.id.startswith(letter)):
        quote = re.fullmatch(r"“`?(.*?)`?”", row.quote)
        assert quote, row.id
        assert all(fragment.strip() for fragment in quote[1].split("…")), row.id
        assert len(quote[1]) <= 95, row.id
        assert row.mechanism, row.id
        assert "`" in row.here or "](" in row.here or row.here.startswith(NOT_YET), row.id
        named = re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)`", row.test)
        assert named, row.id
        assert named[2] in functions(ROOT / named[1]), (row.id, row.test)


def test_links_lead_to_headings() -> None:
    """`test_docs` follows links to pages alone."""
    for target, anchor in re.findall(r"\]\(([^)#]*)#([^)]+)\)", PAGE.read_text()):
        page = (PAGE.parent / target).resolve() if target else PAGE
        headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
        assert anchor in {
            re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings
        }, (
            target,
            anchor,
        )


def test_the_totals_are_those_of_the_rows() -> None:
    missing = sum(NOT_YET in row.here for row in rows())
    whole = len(rows())
    expected = f"{whole} asked for: {whole - missing} work, {missing} not yet or only in part."
    assert PAGE.read_text().splitlines()[-1] == expected
