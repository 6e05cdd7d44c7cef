"""What others expect around a package says the same as `pyproject.toml`: for conda, citations, GitHub, pre-commit."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from tests.helpers.checkout import ROOT
from tools.release import TAG, left_to_do

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
RECIPE = ROOT / "conda" / "meta.yaml"
CONDA_NAMES = {"xxhash": "python-xxhash"}
"""Where conda-forge calls a package otherwise."""
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
FILES = (RECIPE, ROOT / "CITATION.cff", ROOT / "SECURITY.md", *TEMPLATES)


def parsed(path: Path) -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load(path.read_text())
    return tree


def recipe() -> dict[str, Any]:
    """The recipe with its variables filled in."""
    variables = {"PYTHON": "python"}
    lines = []
    for line in RECIPE.read_text().splitlines():
        if (assigned := re.fullmatch(r'\{% set (\w+) = "([^"]+)" %\}', line)) is not None:
            variables[assigned[1]] = assigned[2]
        else:
            lines.append(re.sub(r"\{\{ (\w+) \}\}", lambda name: variables[name[1]], line))
    tree: dict[str, Any] = yaml.safe_load("\n".join(lines))
    return tree


def for_conda(texts: list[str]) -> set[tuple[str, str]]:
    """Names and bounds."""
    found = [Requirement(text) for text in texts]
    return {(CONDA_NAMES.get(one.name, one.name), str(one.specifier)) for one in found}


def asked(lines: list[str]) -> set[tuple[str, str]]:
    return {(one.name, str(one.specifier)) for one in map(Requirement, lines)}


def test_the_recipe_asks_for_what_the_package_asks_for() -> None:
    tree = recipe()
    python = ("python", PROJECT["requires-python"])
    requirements = tree["requirements"]
    assert asked(requirements["run"]) == for_conda(PROJECT["dependencies"]) | {python}
    build = for_conda(PYPROJECT["build-system"]["requires"])
    assert asked(requirements["host"]) == build | {python, ("pip", "")}
    extras = PROJECT["optional-dependencies"]
    assert asked(requirements["run_constrained"]) == for_conda(
        [line for extra in ("spark", "s3", "gcs", "azure", "hdfs", "databricks") for line in extras[extra]]
    )
    assert tree["build"]["entry_points"] == [f"{name} = {target}" for name, target in PROJECT["scripts"].items()]
    facts = (tree["package"]["name"], str(tree["package"]["version"]), tree["about"]["license"])
    assert facts == (PROJECT["name"], PROJECT["version"], PROJECT["license"])
    assert tree["about"]["summary"] == PROJECT["description"]


def test_the_citation_is_of_this_version() -> None:
    tree = parsed(ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= tree.keys()
    facts = (tree["title"], tree["version"], tree["license"], tree["abstract"], tree["keywords"])
    names = ("name", "version", "license", "description", "keywords")
    assert facts == tuple(PROJECT[name] for name in names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_addresses_are_those_of_the_project(path: Path) -> None:
    found = re.findall(r"https://[\w.]*github[\w.]*/[\w./-]*", path.read_text())
    ours = PROJECT["urls"]["Repository"], PROJECT["urls"]["Documentation"]
    assert [url for url in found if not url.startswith(ours)] == []


def test_templates_of_issues_are_forms() -> None:
    assert len(TEMPLATES) == 3
    for path in TEMPLATES:
        tree = parsed(path)
        if path.name == "config.yml":
            assert all(link.keys() == {"name", "url", "about"} for link in tree["contact_links"])
            continue
        assert {"name", "description", "body"} <= tree.keys()
        ids = [part["id"] for part in tree["body"]]
        assert len(set(ids)) == len(ids)
        assert {part["type"] for part in tree["body"]} <= {"textarea", "input"}
        assert all(part["attributes"]["label"] for part in tree["body"])


def test_pre_commit_runs_the_programs_of_the_development_environment() -> None:
    """Of their versions, so that no second one must be kept equal."""
    (local,) = parsed(ROOT / ".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"
    installed = {Requirement(text).name for text in PROJECT["optional-dependencies"]["dev"]}
    makefile = (ROOT / "Makefile").read_text()
    for hook in local["hooks"]:
        program = Path(hook["entry"].split()[0])
        assert (hook["language"], str(program.parent)) == ("system", ".venv/bin")
        assert {"ruff": "ruff", "lint-imports": "import-linter"}[program.name] in installed
        assert f"$(VENV)/bin/{program.name}" in makefile


def test_what_is_left_of_a_release_is_in_order() -> None:
    version = PROJECT["version"]
    first, *rest = left_to_do("12ab", "# Changelog\n\n## Unreleased\n")
    assert f"`## {version}`" in first
    assert rest == list(left_to_do("12ab", f"# Changelog\n\n## {version}, today\n"))
    assert [step.split()[0] for step in rest] == ["git", "git", "twine", "make", "send"]
    assert f"v{version}" == TAG
    assert rest[-1].endswith("12ab")
