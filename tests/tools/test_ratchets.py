"""Each figure on a made-up source, and what a ratchet allows."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest

from tools.ratchets import (
    GROUPS,
    RATCHETS,
    Finding,
    Index,
    Source,
    Survey,
    code_lines,
    complaints,
    improved,
    is_vague,
    names,
    quotations,
    short_docstrings,
)


def source(text: str, path: str = "operators/engine/sample.py") -> Source:
    return Source(path, dedent(text))


def test_a_name_is_counted_once_in_its_function_or_class() -> None:
    module = """
        CONSTANT = [row for row in ()]

        class Reader(Base):
            size: int

            def __init__(self, path: str) -> None:
                self.path = path
                self.path = path
                path.kept = 1

            def read(self) -> None:
                for found in sorted(self.path, key=lambda one: one):
                    found = [at for at in found]
                try:
                    with open(self.path) as file:
                        match file:
                            case [first, *rest]:
                                pass
                except OSError as error:
                    pass
        """
    counted = sorted(name.text for name in names(source(module).tree))
    assert counted == sorted(["row", "size", "path", "path", "found", "one", "at", "file", "first", "rest", "error"])


def test_pronouns_participles_and_the_like_are_vague_alone() -> None:
    vague = ["one", "_found", "at", "place", "known", "stored", "whole_", "there", "waiting"]
    assert [name for name in vague if not is_vague(name)] == []
    clear = ["sink", "found_rows", "seed", "feed", "left", "where", "setting", "placement", "is_closed"]
    assert [name for name in clear if is_vague(name)] == []


def test_comments_are_counted_against_lines_of_code() -> None:
    sample = source("""
        '''Docstring # no comment,
        of two lines.'''
        #!shebang

        # Why it is so:
        TEXT = "# no comment"  # and this
        OTHER = 1  # noqa: E501
        """)
    assert [comment.text for comment in sample.comments] == ["# Why it is so:", "# and this"]
    assert code_lines(sample) == 2


def test_public_docstrings_of_four_words_are_short() -> None:
    module = """
        '''One two three four.'''
        class Reader:
            '''One two three four five.'''
            def read(self):
                '''Reads.'''
                def inner():
                    '''Inner.'''
            def _read(self):
                '''Private.'''
            def bare(self): ...
        class _Reader:
            def read(self):
                '''Private.'''
        """
    found = list(short_docstrings(ast.parse(dedent(module).lstrip())))
    assert found == [Finding(1, ": One two three four."), Finding(4, "read: Reads.")]


PROJECT = source("""
    '''See `Reader.size`, ``code``,
    `Reader.lost` and `one` more.'''
    import pyarrow as pa
    from fsspec import AbstractFileSystem

    class Base:
        def open(self, mode): ...

    class Reader(Base):
        size: int
        def __init__(self): self.path = ""

    class Files(AbstractFileSystem): ...
    LIMIT = 1  # not `LIMITS`
    """)
INDEX = Index([PROJECT], ["configuration-changed"], ["operators/engine/sample.py", "operators/engine"])


@pytest.mark.parametrize(
    "text",
    [
        *("Reader", "size", "LIMIT", "mode=", "--mode", "open(mode)", ".open(…)", "Reader.path", "Reader.open"),
        *("sample.Reader", "operators.engine.sample", "tidestate.operators.engine.sample.Base.open", "ValueError"),
        *("pa.Table", "Files.anything", "path.size", "configuration-changed", "engine/sample.py", "engine/"),
    ],
)
def test_names_of_the_project_resolve(text: str) -> None:
    assert INDEX.resolves(text)


@pytest.mark.parametrize(
    "text", ["Writer", "Reader.lost", "sample.Writer", "path.lost", "make check", "configuration-lost", "other.py"]
)
def test_names_that_are_gone_do_not(text: str) -> None:
    assert not INDEX.resolves(text)


def test_single_backticks_of_docstrings_and_comments_are_names() -> None:
    quoted = list(quotations(PROJECT))
    assert quoted == [
        Finding(2, "Reader.size"),
        Finding(3, "Reader.lost"),
        Finding(3, "one"),
        Finding(15, "LIMITS"),
    ]
    assert [text.text for text in quoted if not INDEX.resolves(text.text)] == ["Reader.lost", "one", "LIMITS"]


def test_constants_of_two_modules_are_repeated_unless_a_test_file_has_them() -> None:
    paths = ["tools/a.py", "tools/b.py", "tools/test_c.py"]
    survey = Survey([source("LIMIT = 1\n_OWN = 1\nlog = 1\n", path) for path in paths], INDEX)
    assert survey.findings["repeated_constants"] == [("tools/b.py", Finding(1, "LIMIT"))]


def test_shares_are_rounded() -> None:
    text = "def read(path, one, two_rows):\n    # Why.\n    return path\n\n\ndef write():\n    pass\n"
    figures = Survey([source(text)], INDEX).figures()
    assert figures == {
        "vague_names": 333.3,
        "comments": 25.0,
        "short_docstrings": 0,
        "unresolved_backticks": 0,
        "repeated_constants": 0,
    }


BASELINE = {"vague_names": 90.0, "comments": 2.0, "short_docstrings": 10, "unresolved_backticks": 0}


def changed(**figures: float) -> dict[str, dict[str, float]]:
    baselines = {group: {**BASELINE, "repeated_constants": 3.0} for group in GROUPS}
    return {**baselines, "product": {**baselines["product"], **figures}}


def test_a_tiny_change_of_a_share_and_a_small_gain_are_let_through() -> None:
    figures = changed(vague_names=90.1, comments=1.99, short_docstrings=5)
    assert list(complaints(figures, changed())) == []


@pytest.mark.parametrize(
    ("name", "figure", "what_to_do"),
    [
        ("vague_names", 90.2, "`python -m tools.ratchets list vague_names`"),
        ("comments", 1.98, "add comments that say why"),
        ("short_docstrings", 11, "`python -m tools.ratchets list short_docstrings`"),
        ("unresolved_backticks", 1, "`python -m tools.ratchets list unresolved_backticks`"),
        ("vague_names", 88.9, "`python -m tools.ratchets write`"),
        ("comments", 2.11, "`python -m tools.ratchets write`"),
        ("short_docstrings", 4, "`python -m tools.ratchets write`"),
    ],
)
def test_a_worse_figure_and_one_that_is_much_better_are_told(name: str, figure: float, what_to_do: str) -> None:
    (complaint,) = complaints(changed(**{name: figure}), changed())
    assert complaint.startswith(f"product, {name}: {figure:g} {RATCHETS[name].unit}")
    assert what_to_do in complaint


def test_only_what_is_better_is_written_down() -> None:
    figures = changed(vague_names=91.0, comments=2.01, short_docstrings=9)
    assert improved(figures, changed()) == changed(comments=2.01, short_docstrings=9)
