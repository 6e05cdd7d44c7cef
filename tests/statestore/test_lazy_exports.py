"""Names that a stub imports are a module's when they are first used."""

from __future__ import annotations

import importlib
import math
import sys
import types
import zipfile
from pathlib import Path

import pytest

SOURCE = """
from tidestate.statestore import lazy_exports

lazy_exports.export(__name__, __file__)
"""
STUB = """
from heavy.parts import build as build
from math import floor as floor
from math import trunc as cut
"""
FILES = {
    "lazy_module.py": SOURCE,
    "lazy_module.pyi": STUB,
    "lazy_package/__init__.py": SOURCE,
    "lazy_package/__init__.pyi": STUB,
}


@pytest.fixture(params=["lazy_module", "lazy_package"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["folder", "zip"])
def module(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> types.ModuleType:
    """As a file or a package, in a folder or in an archive."""
    place = tmp_path / "sources.zip" if request.param == "zip" else tmp_path
    if request.param == "zip":
        with zipfile.ZipFile(place, "w") as archive:
            for path, text in FILES.items():
                archive.writestr(path, text)
    else:
        (tmp_path / "lazy_package").mkdir()
        for path, text in FILES.items():
            (tmp_path / path).write_text(text)
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)


def test_a_name_is_what_the_module_of_its_import_has(module: types.ModuleType) -> None:
    assert module.floor is math.floor
    assert module.cut is math.trunc
    assert dir(module) == module.__all__ == ["build", "cut", "floor"]


def test_what_is_imported_as_another_has_that_name_alone(module: types.ModuleType) -> None:
    with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'trunc'"):
        module.trunc  # noqa: B018


def test_a_module_is_loaded_when_its_name_is_used(module: types.ModuleType) -> None:
    with pytest.raises(ModuleNotFoundError, match="heavy"):  # and not before
        module.build  # noqa: B018
