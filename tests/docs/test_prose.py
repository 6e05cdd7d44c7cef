"""The pages are linted by proselint, which applies published guides to English usage, and are laid out as they look.

`.proselintrc.json` says which of its checks run. Off are those that are wrong here: typographic quotes; hyphens after
"-ly" (early-…); ranges of dates (from 10:00 to 11:00); what cannot be compared, as a manifest is a noun here.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from proselint.checks import __register__
from proselint.config import load_from
from proselint.registry import CheckRegistry
from proselint.tools import LintFile

from tests.helpers.checkout import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").rglob("*.md")])
CONFIG = load_from(ROOT / ".proselintrc.json")
CheckRegistry().register_many(__register__)

_CODE = re.compile(r"^ *```.*?^ *```|<!--.*?-->|(?<=\n\n)(?: {4}[^\n]*\n)+|`[^`]*`", re.S | re.M)
_HEADING = re.compile(r"^(#+ .*)$", re.M)


def prose(text: str) -> str:
    """A page without its code, on the same lines and in the same columns; a heading ends as a sentence does."""
    without_code = _CODE.sub(lambda code: re.sub(r"[^\n`]", " ", code.group()), text)
    return _HEADING.sub(r"\1.", without_code)


def findings(name: str, text: str) -> list[str]:
    """Line, check and message of each thing that proselint would have otherwise."""
    return [
        f"{line}: {check.check_path}: {check.message}"
        for check, (line, _) in LintFile(name, prose(text)).lint(CONFIG)
    ]


def test_prose_is_linted_and_code_is_not() -> None:
    page = "# The\n\nThe the `utilize` job.\n\n```python\nutilize = utilize\n```\n\nYou utilize it.\n"
    assert [line.partition(": There")[0].partition(": Use")[0] for line in findings("page.md", page)] == [
        "3: lexical_illusions",
        "9: misc.greylist",
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_are_plain_english(page: Path) -> None:
    assert findings(page.name, page.read_text()) == []


def flaws_of_layout(text: str) -> list[int]:
    """Lines that a site shows otherwise than meant: what does not begin after an empty line, and empty sections."""
    lines = ["", *text.rstrip("\n").split("\n"), "# end"]
    flaws, code, section = [], False, 0
    for number, (before, line) in enumerate(pairwise(lines), 1):
        level = 0 if code else len(line) - len(line.lstrip("#"))
        fence = line.startswith("```")
        indented = (
            line.startswith("    ") and not before.startswith((" ", "-", "*", ":::")) and not before[:1].isdigit()
        )
        begins = level or (fence and not code) or (indented and not code)
        if begins and before.strip() and line != lines[-1] and not before.startswith("<!--"):
            flaws.append(number)
        if level and section >= level:
            flaws.append(number)
        code ^= fence
        if line.strip():
            section = level
    return flaws


def test_a_flaw_of_layout_is_found() -> None:
    page = (
        "# Page\n\nText:\n    code\n\n## Empty\n\n## Next\nText\n```python\n# comment\n```\n- a\n    - b\n\n## Last\n"
    )
    assert flaws_of_layout(page) == [4, 8, 10, 17]


WRITTEN = [page for page in PAGES if page.parent.name != "reports"]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_are_laid_out_as_they_look(page: Path) -> None:
    assert flaws_of_layout(page.read_text()) == []
