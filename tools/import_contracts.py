"""Contracts of import-linter that are ours: no circles, short chains, and purity by a marker in the docstring."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grimp
from importlinter import Contract, ContractCheck, fields, output

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "tidestate"
MARKER = re.compile(r"\bPure\b")
Imports = Mapping[str, Sequence[str]]
"""The modules that each module imports."""


class NoCircles(Contract):  # type: ignore[misc]
    """No modules of a package import each other in a circle, and a chain of imports has at most ``longest`` modules.

    Imports inside functions and under ``TYPE_CHECKING`` count, where the graph has them.
    """

    type_name = "no_circles"
    packages = fields.ListField(subfield=fields.StringField())
    longest = fields.IntegerField()

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:
        """Look at each package by itself."""
        packages: Any = self.packages
        limit: Any = self.longest
        found = []
        for package in packages:
            imports = imports_within(graph, package)
            found += [f"a circle: {', '.join(sorted(one))}" for one in circles(imports) if len(one) > 1]
            if len(chain := longest_chain(imports)) > limit:
                found.append(f"a chain of {len(chain)} modules, {limit} are allowed: {' > '.join(chain)}")
        return ContractCheck(kept=not found, metadata={"found": found})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print the circles of imports, and the chains that are too long."""
        for line in check.metadata["found"]:
            output.print_error(line)


class PureByMarker(Contract):  # type: ignore[misc]
    """A module whose docstring says *Pure*, or which lies in a package whose docstring does, reaches none of the
    ``forbidden_modules``, whatever it imports. What only a type checker imports does nothing, and does not count.
    """

    type_name = "pure_by_marker"
    forbidden_modules = fields.ListField(subfield=fields.StringField())

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:
        """Look for a chain from each marked module to each that is forbidden."""
        names: Any = self.forbidden_modules
        graph = grimp.build_graph(PACKAGE, include_external_packages=True, exclude_type_checking_imports=True)
        forbidden = [name for name in names if name in graph.modules]
        chains = (graph.find_shortest_chain(one, name) for one in marked(graph.modules) for name in forbidden)
        found = [" > ".join(one) for one in chains if one]
        return ContractCheck(kept=not found, metadata={"found": found})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print the chains of imports from a pure module to one that is not."""
        for line in check.metadata["found"]:
            output.print_error(line)


def marked(modules: set[str]) -> Iterator[str]:
    """Modules that call themselves pure."""
    pure = {name for name in sorted(modules) if name.split(".")[0] == PACKAGE and MARKER.search(docstring(name))}
    packages = tuple(f"{name}." for name in pure if path_of(name).name == "__init__.py")
    return (name for name in sorted(modules) if name in pure or name.startswith(packages))


def docstring(module: str) -> str:
    """Of a module of the package."""
    return ast.get_docstring(ast.parse(path_of(module).read_text())) or ""


def path_of(module: str) -> Path:
    """The file of a module of the package."""
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def imports_within(graph: grimp.ImportGraph, package: str) -> Imports:
    """What the modules of a package import of each other."""
    own = {name for name in graph.modules if name == package or name.startswith(f"{package}.")}
    return {name: sorted(graph.find_modules_directly_imported_by(name) & own) for name in sorted(own)}


def circles(imports: Imports) -> list[list[str]]:
    """Modules that reach each other, together; a module that is in no circle is alone. Tarjan's algorithm: those that
    a group imports come before it.
    """
    groups: list[list[str]] = []
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    waiting: list[str] = []

    def visit(name: str) -> None:
        number[name] = lowest[name] = len(number)
        waiting.append(name)
        for other in imports[name]:
            if other not in number:
                visit(other)
            if other in waiting:
                lowest[name] = min(lowest[name], lowest[other])
        if lowest[name] == number[name]:
            place = waiting.index(name)
            groups.append(waiting[place:])
            del waiting[place:]

    for name in imports:
        if name not in number:
            visit(name)
    return groups


def longest_chain(imports: Imports) -> list[str]:
    """The longest chain of imports, from the module at its top; a circle counts as one module."""
    below: dict[str, list[str]] = {}
    for group in circles(imports):
        others = [below[other] for name in group for other in imports[name] if other not in group]
        chain = [group[0], *max(others, key=len, default=[])]
        below.update((name, chain) for name in group)
    return max(below.values(), key=len, default=[])
