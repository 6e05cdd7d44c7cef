"""What the extras install fits together."""

from __future__ import annotations

import tomllib
import warnings
from importlib.metadata import requires

import pandas
import pytest
from packaging.requirements import Requirement
from pyspark.sql.pandas.utils import require_minimum_pandas_version

from tests.helpers.checkout import ROOT

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def required(texts: list[str], name: str) -> Requirement:
    (requirement,) = (one for one in map(Requirement, texts) if one.name == name)
    return requirement


def test_the_extra_for_spark_has_a_pandas_that_pyspark_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = required(EXTRAS["spark"], "pandas").specifier
    for text in requires("pyspark") or ():
        needed = Requirement(text)
        if needed.name == "pandas":
            assert all(version in needed.specifier for version in ("2.2.0", "2.3.3") if version in ours)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for version in ("2.2.0", pandas.__version__):
            assert version in ours
            monkeypatch.setattr(pandas, "__version__", version)
            require_minimum_pandas_version()
    assert "3.0.0" not in ours
    monkeypatch.setattr(pandas, "__version__", "3.0.0")
    with pytest.warns(FutureWarning, match="does not yet fully support"):  # if none comes, the bound may go
        require_minimum_pandas_version()


def test_pandas_has_the_same_bounds_wherever_it_is_asked_for() -> None:
    asked = [(name, Requirement(text)) for name, texts in EXTRAS.items() for text in texts]
    bounds = {name: requirement.specifier for name, requirement in asked if requirement.name == "pandas"}
    assert bounds == dict.fromkeys(("spark", "connect"), required(EXTRAS["spark"], "pandas").specifier)
