"""The words of the project: plain English in the code, and one meaning for each public name.

The pages are the matter of `test_prose.py`.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.checkout import ROOT

PACKAGES = ("statestore", "recovery", "operators")

WORDS = frozenset({"alike", "anew", "beside", "besides", "near", "said", "shown", "told", "whoever"})
PHRASES = re.compile(r"\b(at work|(?:come|comes|coming|came) to)\b")
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")

LOGGER = "log"
"""Each module has its own."""


def dialect(text: str) -> Counter[str]:
    """The words that a native reader stumbles on, with their number; names are split into their parts."""
    words = Counter(part.lower() for part in _PART.findall(text))
    return Counter({word: words[word] for word in WORDS & words.keys()}) + Counter(
        PHRASES.findall(text.lower().replace("_", " "))
    )


def source(folder: str) -> str:
    return "\n".join(path.read_text() for path in sorted((ROOT / folder).rglob("*.py")))


def defined(path: Path) -> Iterator[str]:
    """The public names that a module defines itself: classes, functions and constants."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def homonyms() -> dict[str, list[str]]:
    """Each public name with more than one definition, and the modules that define it."""
    modules: defaultdict[str, list[str]] = defaultdict(list)
    for path in (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))):
        for name in sorted({name for name in defined(path) if not name.startswith("_") and name != LOGGER}):
            modules[name].append(str(path.relative_to(ROOT)))
    return {name: where for name, where in sorted(modules.items()) if len(where) > 1}


@pytest.mark.parametrize("folder", [*PACKAGES, "tools", "examples"])
def test_code_is_plain_english(folder: str) -> None:
    """Names, comments, docstrings and messages."""
    assert not dialect(source(folder))


def test_tests_are_plain_english() -> None:
    """Joins there are by what is near in time."""
    texts = [path.read_text() for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    assert not dialect("\n".join(texts)).keys() & (WORDS - {"near", "besides"})


def test_a_public_name_is_defined_once() -> None:
    assert not homonyms(), "two meanings for one name"


def test_the_glossary_has_each_term_once() -> None:
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", (ROOT / "docs" / "reference" / "glossary.md").read_text(), re.M)
    terms = Counter(term for row in rows for term in row.split(", ") if row != "term")
    assert len(terms) > 80
    assert not [term for term, count in terms.items() if count > 1]
