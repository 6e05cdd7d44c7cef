"""The pages are linted by proselint, which applies published guides to English usage.

`.proselintrc.json` says which of its checks run. Off are those that are wrong here: typographic quotes; hyphens after
"-ly" (early-…); ranges of dates (from 10:00 to 11:00); what cannot be compared, as a manifest is a noun here.
"""

from __future__ import annotations

import re
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
