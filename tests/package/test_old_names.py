"""The package speaks the grammar of streams: no text of it names what `tidestate` exported before and does no more.

`old_names.txt` has a line for each: a name of before, a method of builders with a dot, an option with its sign.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.checkout import ROOT

NAMES = (Path(__file__).parent / "old_names.txt").read_text().split()
METHODS = [name[1:] for name in NAMES if name.startswith(".")]
OPTIONS = [name for name in NAMES if name.endswith("=")]
FUNCTIONS = [name for name in NAMES if name.isidentifier()]
UNMISTAKABLE = [name for name in FUNCTIONS if "_" in name or name.isupper()]
"""Those that are no words of English: they are old wherever they stand."""
CLASSES = [name for name in FUNCTIONS if name[0].isupper() and not name.isupper() and name != "Checkpoint"]
"""They stay inside: docstrings may name them, messages may not."""
CALLABLE = [name for name in FUNCTIONS if name[0].islower()]
CALLED = re.compile(
    rf"(?:(?<![\w.`])|\btidestate\.)(?:{'|'.join(CALLABLE)})\(|(?<!\w)(?:{'|'.join(METHODS)})\("
    rf"|\btidestate\.(?:{'|'.join(CALLABLE)})\b"
)
WORDS = re.compile(rf"(?<![\w.(-])(?:{'|'.join(UNMISTAKABLE)})(?![\w-])|(?<!\w)(?:{'|'.join(OPTIONS)})")
OF_CLASSES = re.compile(rf"\b(?:{'|'.join(CLASSES)})\b[(`]")
BARE = {name.strip(".=") for name in NAMES}
EXCEPTED = ("operators/inspect/on_spark.py", "operators/inspect/scan.py")
"""What `Root` reads with has the names of then, inside."""


def texts(path: Path) -> Iterator[tuple[int, str, bool]]:
    """String constants that are more than a name, each with its line, and whether it is a docstring."""
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    expressions = (node.value for node in nodes if isinstance(node, ast.Expr))
    docstrings = {id(value) for value in expressions if isinstance(value, ast.Constant)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"[ (=]", node.value):
            yield node.lineno, node.value, id(node) in docstrings


def old_names(text: str, *, documents: bool) -> list[str]:
    """Those that a text names, as they stand there."""
    if BARE.isdisjoint(re.findall(r"[A-Za-z_]\w*", text)):
        return []
    patterns = (CALLED, WORDS) if documents else (CALLED, WORDS, OF_CLASSES)
    return [match[0] for pattern in patterns for match in pattern.finditer(text)]


@pytest.mark.parametrize("package", ["operators", "recovery", "statestore", "tidestate"])
def test_no_text_names_what_is_gone(package: str) -> None:
    paths = {path.relative_to(ROOT).as_posix(): path for path in sorted((ROOT / package).rglob("*.py*"))}
    found = [
        f"{name}:{line}: {names}"
        for name, path in paths.items()
        if path.suffix in (".py", ".pyi") and name not in EXCEPTED
        for line, text, documents in texts(path)
        if (names := old_names(text, documents=documents))
    ]
    assert not found, "\n".join(found)


def test_texts_that_name_something_old_are_found() -> None:
    for text in ('give windowed(offset="o")', "say .late(…)", "the mode is DISCARDING", "take max_ of it", "keep=3"):
        assert old_names(text, documents=True)
    for text in ("left.join(right)", "`retain` old ones", "a session of offsets", 'code="advance-time"'):
        assert not old_names(text, documents=True)
    assert old_names("a `BufferProgress`", documents=False)
    assert not old_names("a `BufferProgress`", documents=True)
