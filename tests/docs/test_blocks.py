"""Every block of code on the site runs, or says why it does not; calls of the command are as the command has them.

A block marked ``python`` runs, see `tests/docs/test_docs.py`. In front of any other stands a comment with the reason,
``<!-- not run: REASON -->``: which test runs such lines, or whose server or place they need.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import typer

from tests.helpers.checkout import ROOT
from tidestate.recovery.cli.main import app

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NO_CODE = ("", "text", "json")
"""What blocks that show an output or a file are marked with."""
OF_OTHERS = re.compile(r"\b(server|broker|bucket|cluster|warehouse|account|deployment)\b")
_BLOCK = re.compile(
    r"(?:^[ ]*<!-- not run(?: here)?: (?P<reason>[^\n]+?) -->\n+)?"
    r"^(?P<indent>[ ]*)(?P<fence>```+)(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=indent)(?P=fence)$",
    re.S | re.M,
)
_COMMAND = re.compile(r"^ {4}(tidestate [^\n]+(?:\\\n[^\n]+)*)", re.M)


@dataclass(frozen=True)
class Block:
    """A block that is not run: where it begins, and why."""

    page: str
    line: int
    language: str
    reason: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line} ({self.language}): {self.reason or 'NO REASON'}"


def blocks_not_run() -> Iterator[Block]:
    for path in PAGES:
        text = path.read_text()
        for block in _BLOCK.finditer(text):
            language = block["language"].strip()
            runs = language == "python" and not block["indent"]
            if not runs and language not in NO_CODE:
                line = text.count("\n", 0, block.start("fence")) + 1
                yield Block(path.relative_to(ROOT).as_posix(), line, language, block["reason"] or "")


def commands() -> Iterator[tuple[str, str]]:
    """Calls of the command in indented blocks, and the pages that have them."""
    for path in PAGES:
        for call in _COMMAND.findall(path.read_text()):
            yield path.relative_to(ROOT).as_posix(), call.replace("\\\n", " ")


def test_a_block_that_is_not_run_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    found = list(blocks_not_run())
    with capsys.disabled():
        print(f"\n{len(found)} blocks are not run:", *found, sep="\n  ")
    unmarked = [str(one) for one in found if not one.reason]
    assert unmarked == []


def test_a_reason_is_a_test_that_runs_such_lines_or_a_place_of_others() -> None:
    for block in blocks_not_run():
        tests = re.findall(r"tests/[\w/]+\.py", block.reason)
        assert [name for name in tests if not (ROOT / name).exists()] == [], str(block)
        assert tests or OF_OTHERS.search(block.reason) or not block.reason, str(block)


@pytest.mark.parametrize(("page", "call"), list(commands()))
def test_a_command_on_a_page_is_one(page: str, call: str) -> None:
    """Its verb and its options exist, and their values are of their kind; nothing is run."""
    program, *arguments = shlex.split(re.split(r" [|>;]|&&", call)[0], comments=True)
    if "…" in call or "[" in call or arguments[0].startswith("-") or arguments[0].isupper():
        return  # a form, not a call
    group = typer.main.get_group(app)
    with typer.Context(group, info_name=program) as context:
        verb = group.get_command(context, arguments[0])
        assert verb is not None, page
        verb.make_context(arguments[0], arguments[1:], context)
