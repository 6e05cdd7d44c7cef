"""The distribution has one name, and every text that recommends an installation builds it from there."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

import tidestate
from tests.helpers.checkout import ROOT
from tidestate.statestore import distribution

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXTRA = re.compile(rf"(\w[\w.-]*)\[({'|'.join(PROJECT['optional-dependencies'])})\]")


def test_the_name_is_that_of_the_distribution() -> None:
    assert distribution.NAME == PROJECT["name"] == tidestate.__name__
    assert list(PROJECT["scripts"]) == [distribution.NAME]


def test_no_source_spells_out_what_to_install() -> None:
    sources = [
        path for name in ("statestore", "recovery", "operators", "tools") for path in (ROOT / name).rglob("*.py")
    ]
    assert len(sources) > 200
    assert not {str(path): found for path in sources if (found := EXTRA.findall(path.read_text()))}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_recommend_our_own_package_and_extras_that_exist(document: Path) -> None:
    for recommended in re.findall(r"pip install ([^`\n]+?) *(?:#.*)?(?:`|\n)", document.read_text()):
        found = re.fullmatch(rf"'?{distribution.NAME}(?:\[([\w,]+)\])?'?", recommended)
        assert found is not None, recommended
        extras = found[1].split(",") if found[1] else []
        assert {*extras} <= {*PROJECT["optional-dependencies"]}


def test_the_version_is_that_of_the_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    assert distribution.version() == tidestate.__version__ == version(distribution.NAME)

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    assert distribution.version.__wrapped__() == "unknown"
