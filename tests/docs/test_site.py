"""The site has every page, every public name and an anchor for every error. ``make site`` finds dead links."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from importlib import import_module

import pytest
from mkdocs.config import load_config
from mkdocs.structure.files import get_files
from mkdocs.structure.nav import get_navigation

from tests.helpers.checkout import ROOT
from tidestate.statestore.errors import ERROR_CODES, UsageError, error_page
from tools import site

DOCS = ROOT / "docs"
NAMESPACES = ("agg", "fn", "sinks", "stores", "testing", "trigger", "watermark")
NAV = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
ERRORS = (DOCS / "reference" / "errors.md").read_text()
DECISIONS = sorted(path.name for path in (DOCS / "internals" / "decisions").glob("[0-9]*.md"))


def test_every_page_is_in_the_nav_once_and_every_decision_in_its_index() -> None:
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    decisions = {f"internals/decisions/{name}" for name in DECISIONS}
    named = Counter(re.findall(r"^ *- (?:[^:\n]+: )?([\w/-]+\.md)$", NAV, re.M))
    assert set(named) == pages - decisions
    assert max(named.values()) == 1


def test_decisions_are_numbered_without_a_gap_and_in_their_index() -> None:
    assert [int(name[:4]) for name in DECISIONS] == [*range(1, len(DECISIONS) + 1)]
    for number, name in enumerate(DECISIONS, 1):
        assert (DOCS / "internals" / "decisions" / name).read_text().startswith(f"# {number}. ")
    index = (DOCS / "internals" / "decisions" / "index.md").read_text()
    assert re.findall(r"\]\((\d[\w-]+\.md)\)", index) == DECISIONS


def test_every_public_name_is_on_a_page_of_the_api() -> None:
    pages = [path.read_text() for path in (DOCS / "reference" / "api").glob("*.md")]
    taken = Counter(re.findall(r"^::: tidestate\.([\w.]+)$", "\n".join(pages), re.M))
    public = {*import_module("tidestate.operators").__all__}
    for namespace in NAMESPACES:
        if namespace not in taken:  # one by one
            public |= {f"{namespace}.{name}" for name in import_module(f"tidestate.{namespace}").__all__}
    assert taken.keys() - set(NAMESPACES) == public
    assert max(taken.values()) == 1


def test_every_error_code_has_one_anchor() -> None:
    anchors = Counter(re.findall(r'<a id="([a-z-]+)"></a>`([a-z-]+)`', ERRORS))
    assert all(anchor == code for anchor, code in anchors)
    assert max(anchors.values()) == 1
    first_cells = re.findall(r"^\|([^|]+)\|", ERRORS, re.M)
    codes = {code for cell in first_cells for code in re.findall(r"`([a-z]+(?:-[a-z]+)*)`", cell)}
    assert {anchor for anchor, _ in anchors} == codes


def test_an_error_ends_with_the_address_of_its_code() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"{project['urls']['Documentation']}reference/errors/" == ERROR_CODES
    with pytest.raises(UsageError) as raised:
        raise UsageError("a window is missing", code="no-window")
    assert str(raised.value) == "a window is missing [no-window]"
    assert raised.value.__notes__ == [f"see {error_page('no-window')}"]


def test_llms_txt_has_every_page_of_the_nav_and_what_it_is_about() -> None:
    config = site.on_config(load_config(str(ROOT / "mkdocs.yml"), plugins=[], hooks=[]))
    title, _, summary, _, about, *lines = site.contents(get_navigation(get_files(config), config), config)
    assert (title, summary) == ("# tidestate", "> Durable window state for PySpark")
    assert about.startswith("Durable window state for PySpark. ")
    assert [line for line in lines if line.startswith("## ")][-1] == "## Optional"
    address = re.escape(config.site_url or "")
    pages = [line for line in lines if line and not line.startswith("#")]
    assert [line for line in pages if not re.match(rf"- \[[^\]]+\]\({address}[\w/-]*/\)", line)] == []
    front = 1  # it is the summary
    assert len(pages) == len(re.findall(r"[\w/-]+\.md$", NAV, re.M)) - front
    assert f"- [Drop duplicates]({config.site_url}how-to/deduplicate/)" in "\n".join(pages)


def test_what_a_page_is_about_is_its_first_sentence_of_prose() -> None:
    code = "```python\nx = 1\n\ny = 2\n```\n\n"
    page = f"# Title\n\n<!-- made -->\n\n{code}| a |\n|---|\n\n1. one\n\nA [page](x.md#y)\nof **two** lines. More.\n"
    assert site.plain(site.paragraph(page)) == "A page of two lines. More."
