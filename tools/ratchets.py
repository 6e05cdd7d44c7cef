"""Habits of the source that only get better: vague names, comments, short docstrings, backticks, constants.

A limit that holds at once would ask for a rewrite, and no limit lets every hurried change take a little. So today's
figures are written down in `tests/docs/ratchets.json`, and ``make check`` refuses worse ones.

    python -m tools.ratchets                          the figures of the source, next to those written down
    python -m tools.ratchets list short_docstrings    what a figure counts, line by line
    python -m tools.ratchets write                    write down what became better; a worse figure is refused
"""

from __future__ import annotations

import ast
import builtins
import gc
import io
import json
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
FIGURES = CHECKOUT / "tests" / "docs" / "ratchets.json"
GROUPS = {"product": ("statestore", "recovery", "operators", "tools"), "tests": ("tests",)}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


PRONOUNS = _words("""
    all another any anything both each either every everything few it less many more most much neither nobody none
    nothing one ones other others own same some something such that them these they this those what whatever which who
    whole whom whose
""")
"""They stand for a thing and do not say for which."""
ADVERBS = _words("""
    about again ahead alone apart at away back behind elsewhere hence here how into of off onto out so then thence
    there to when why with
""")
"""They say where, when or how. `by`, `now`, `on`, `over`, `until` and `where` are parameters of users, or terms."""
PLACEHOLDERS = _words("place places rest stuff thing things")
"""Nouns that fit every value, and so tell none of them from another."""
PARTICIPLES = _words("""
    been begun bought broken brought built caught chosen done drawn driven fallen fed felt forgotten found given gone
    grown held hidden kept known laid lent lost made meant met paid risen said seen sent shown spent spoken stood sunk
    sworn taken thought told torn understood unknown unseen woken won worn written
    arriving coming following going lacking lasting lying missing needing passing pending remaining running standing
    waiting
""")
"""Those that do not end in -ed, and those in -ing that are no nouns; `left` is a side of a join."""
NOT_PARTICIPLES = _words("embed exceed feed need proceed seed shed speed succeed")

MAX_SHORT_WORDS = 4
TO_A_TOOL = re.compile(r"#!|#:?\s*(noqa|type:|fmt:|ruff:|mypy:|pragma:)")
QUOTATION = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
DOTTED_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
NAMES_OF_OTHERS = frozenset({"DecimalAggregates", "addPyFile", "repartitionById", "to_pyarrow_dataset", "repo_url"})
"""Of Spark, deltalake and mkdocs: a rule, methods and a setting that comments speak of and no code of ours names."""

NAMED_BY = {
    ast.Name: "id",
    ast.Attribute: "attr",
    ast.arg: "arg",
    ast.ExceptHandler: "name",
    ast.MatchAs: "name",
    ast.MatchStar: "name",
}
"""Where each node that binds a name has it; ``Name`` and ``Attribute`` do so where their context says it."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
# Made once: a union or a set that is put together for each of a million nodes takes most of the time.
BINDING = frozenset({ast.Store, type(None)})
"""Contexts in which a name gets a value; parameters have none."""
SCOPE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
COMPREHENSION = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
LEAVES = frozenset({ast.Name, ast.Constant, ast.alias})
"""The usual nodes that have no other below them, but for the context of a name."""
VAGUE = PRONOUNS | ADVERBS | PLACEHOLDERS | PARTICIPLES


@dataclass(frozen=True)
class Finding:
    """A line of a file, and what is there."""

    line: int
    text: str


@dataclass(frozen=True)
class Source:
    """A file of Python by its path in the checkout, read once for all figures."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return walk(self.tree)

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @cached_property
    def comments(self) -> list[Finding]:
        """The comments for a reader; those to a tool say nothing."""
        if "#" not in self.text:
            return []
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        comments = [token for token in tokens if token.type == tokenize.COMMENT]
        return [Finding(token.start[0], token.string) for token in comments if not TO_A_TOOL.match(token.string)]

    @cached_property
    def docstrings(self) -> list[ast.Constant]:
        """Strings that are statements: of modules, classes and functions, and of the constant or field above."""
        statements = [node.value for node in self.nodes if isinstance(node, ast.Expr)]
        return [node for node in statements if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def children(node: ast.AST) -> list[ast.AST]:
    """What `ast.iter_child_nodes` gives but contexts of names, in half of its time: there are a million nodes."""
    nodes: list[ast.AST] = []
    if type(node) in LEAVES:
        return nodes
    for field in node._fields:
        value = getattr(node, field, None)
        if isinstance(value, list):
            nodes += [item for item in value if isinstance(item, ast.AST)]
        elif isinstance(value, ast.AST) and field != "ctx":
            nodes.append(value)
    return nodes


def walk(tree: ast.AST) -> list[ast.AST]:
    """A node and all below it, level by level."""
    nodes = [tree]
    for node in nodes:
        nodes += children(node)
    return nodes


# Names


def is_vague(name: str) -> bool:
    """Whether a name is a pronoun, a participle or the like, alone: it could be the name of anything."""
    word = name.strip("_")
    regular = len(word) > 3 and word.endswith("ed") and word.isalpha() and word not in NOT_PARTICIPLES
    return regular or word in VAGUE


def names(tree: ast.Module) -> list[Finding]:
    """The parameters and local variables of each function and the attributes of each class, each counted once there.

    A comprehension belongs to its function, or to itself in a module; other names of a module are not looked at.
    """
    scopes: list[dict[str, int]] = []
    _collect_names(tree, scopes, None, None)
    return [Finding(line, name) for scope in scopes for name, line in scope.items() if name.strip("_")]


def _collect_names(
    parent: ast.AST, scopes: list[dict[str, int]], scope: dict[str, int] | None, attributes: dict[str, int] | None
) -> None:
    for node in children(parent):
        inner, owner = scope, attributes
        if isinstance(node, SCOPE) or (scope is None and isinstance(node, COMPREHENSION)):
            inner = {}
            scopes.append(inner)
        if isinstance(node, ast.ClassDef):
            owner = inner
        if bound := bound_name(node):
            if isinstance(node, ast.Attribute):
                variables = attributes if ast.unparse(node.value) == "self" else None
            else:
                variables = scope
            if variables is not None and bound not in ("self", "cls"):
                variables.setdefault(bound, getattr(node, "lineno", 0))
        _collect_names(node, scopes, inner, owner)


def bound_name(node: ast.AST) -> str | None:
    """The name of a variable, parameter or attribute that a node gives a value to."""
    field = NAMED_BY.get(type(node))
    if field is None or type(getattr(node, "ctx", None)) not in BINDING:
        return None
    name: str | None = getattr(node, field)
    return name


# Comments and docstrings


def code_lines(source: Source) -> int:
    """Lines with code: not empty, not only a comment, not of a docstring."""
    codeless = {number for number, line in enumerate(source.lines, 1) if line.lstrip()[:1] in ("", "#")}
    for node in source.docstrings:
        codeless.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(source.lines) - len(codeless)


def short_docstrings(tree: ast.Module) -> Iterator[Finding]:
    """Docstrings of four words or fewer that are public: of a module, and of classes, methods and functions in it."""
    documented: list[tuple[str, ast.Module | ast.ClassDef | Function]] = [("", tree)]
    while documented:
        name, node = documented.pop()
        docstring = ast.get_docstring(node) or ""
        if 0 < len(docstring.split()) <= MAX_SHORT_WORDS:
            yield Finding(getattr(node, "lineno", 1), f"{name}: {docstring}")
        if isinstance(node, ast.Module | ast.ClassDef):
            members = [child for child in node.body if isinstance(child, Function | ast.ClassDef)]
            documented += [(child.name, child) for child in members if not child.name.startswith("_")]


# Backticks


def quotations(source: Source) -> Iterator[Finding]:
    """What docstrings and comments have in single backticks; double ones hold code."""
    passages = [Finding(node.lineno, str(node.value)) for node in source.docstrings]
    for passage in [*passages, *source.comments]:
        for match in QUOTATION.finditer(passage.text):
            yield Finding(passage.line + passage.text.count("\n", 0, match.start()), match[1])


class Index:
    """The names that sources define or import, and those that belong to a class or module."""

    def __init__(self, sources: Iterable[Source], codes: Iterable[str] = (), files: Iterable[str] = ()) -> None:
        self.foreign = {*dir(builtins), *NAMES_OF_OTHERS}
        self.names = {"tidestate", *codes}
        self.members: defaultdict[str, set[str]] = defaultdict(set)
        self.bases: defaultdict[str, set[str]] = defaultdict(set)
        self.files = [f"/{file}" for file in files]
        for source in sources:
            self._add(source)

    def resolves(self, quotation: str) -> bool:
        """Whether a text names something: ``name``, ``owner.name``, ``name(…)``, ``name=``, ``--name`` or a file."""
        path = f"/{quotation.strip('/')}"
        # Most texts have neither of these, and the files are many.
        if re.search("[/.]", quotation) and any(file.endswith(path) for file in self.files):
            return True
        call = quotation.partition("(")[0] if quotation.endswith(")") else quotation
        name = call.removesuffix("=").removeprefix(".").removeprefix("tidestate.")
        if name.startswith("--"):
            name = name.removeprefix("--").replace("-", "_")
        if self._has_name(name) or not DOTTED_NAME.fullmatch(name):
            return self._has_name(name)
        parts = name.split(".")
        return (
            len(parts) > 1
            and self._has_name(parts[0])
            and all(self.has(owner, member) for owner, member in pairwise(parts))
        )

    def _has_name(self, name: str) -> bool:
        return name in self.names or name in self.foreign

    def has(self, owner: str, member: str) -> bool:
        """Whether a class, its bases or a module have a member; of a variable, whether anything has it."""
        if owner not in self.members:
            return owner in self.foreign or member in self.names
        lineage, seeds = {owner}, [owner]
        while seeds:
            kind = seeds.pop()
            if member in self.members.get(kind, ()) or kind in self.foreign:
                return True
            seeds += self.bases[kind] - lineage
            lineage |= self.bases[kind]
        return False

    def _add(self, source: Source) -> None:
        modules = source.path.rpartition(".")[0].removesuffix("/__init__").split("/")
        for package, module in pairwise(modules):
            self.members[package].add(module)
        self._add_members(modules[-1], source.tree)
        self.names.update(modules)
        for node in source.nodes:
            if name := bound_name(node):
                self.names.add(name)
            elif isinstance(node, Function):
                self.names.add(node.name)
            elif isinstance(node, ast.ClassDef):
                self.bases[node.name].update(
                    ast.unparse(base).partition("[")[0].split(".")[-1] for base in node.bases
                )
                self._add_members(node.name, node)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                self._add_imported(node)

    def _add_members(self, owner: str, node: ast.Module | ast.ClassDef) -> None:
        """Of a module what it defines and imports, of a class its fields, methods and what these set on ``self``."""
        self.names.add(owner)
        members = self.members[owner]
        for statement in node.body:
            if isinstance(statement, Function | ast.ClassDef):
                members.add(statement.name)
                if isinstance(statement, Function) and isinstance(node, ast.ClassDef):
                    stores = [child for child in walk(statement) if isinstance(child, ast.Attribute)]
                    members.update(name for store in stores if (name := bound_name(store)))
            elif isinstance(statement, ast.ImportFrom):
                members.update(alias.asname or alias.name for alias in statement.names)
            else:
                members.update(name for child in walk(statement) if (name := bound_name(child)))

    def _add_imported(self, node: ast.Import | ast.ImportFrom) -> None:
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        packages = {module.partition(".")[0] for module in modules}
        ours = {"", "tidestate", *(folder for folders in GROUPS.values() for folder in folders)}
        if not packages & ours:
            self.foreign |= packages | {(alias.asname or alias.name).partition(".")[0] for alias in node.names}


# Constants


def constants(tree: ast.Module) -> Iterator[Finding]:
    """The public names in capitals that a module gives a value to."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for name in {target.id for target in targets if isinstance(target, ast.Name)}:
                if name.isupper() and not name.startswith("_"):
                    yield Finding(node.lineno, name)


# Figures


@dataclass(frozen=True)
class Ratchet:
    """A figure that goes in one direction only.

    `tolerance` is what a tiny edit may do to a share. A figure that is better by more than `much` has to be written
    down, so that what was won is kept; less may wait, as branches that all change one file are in each other's way.
    """

    unit: str
    rises: bool = False
    digits: int = 0
    tolerance: float = 0
    much: float = 5

    def loss(self, figure: float, baseline: float) -> float:
        """By how much a figure is worse than what is written down; below 0 it is better."""
        return round(baseline - figure if self.rises else figure - baseline, 6)  # a difference of floats

    def is_worse(self, figure: float, baseline: float) -> bool:
        return self.loss(figure, baseline) > self.tolerance

    def is_much_better(self, figure: float, baseline: float) -> bool:
        return -self.loss(figure, baseline) > self.much


RATCHETS = {
    "vague_names": Ratchet("of 1,000 names", digits=1, tolerance=0.1, much=1.0),
    "comments": Ratchet("lines to 100 of code", rises=True, digits=2, tolerance=0.01, much=0.1),
    "short_docstrings": Ratchet("docstrings"),
    "unresolved_backticks": Ratchet("texts"),
    "repeated_constants": Ratchet("definitions"),
}
COMMAND = "python -m tools.ratchets"


class Survey:
    """The files of a group, and what the figures count in them."""

    def __init__(self, sources: list[Source], index: Index) -> None:
        self.sources = sources
        self.findings: dict[str, list[tuple[str, Finding]]] = {name: [] for name in RATCHETS}
        self.names = self.lines = 0
        constant_paths: dict[str, str] = {}
        for source in sources:
            bound = names(source.tree)
            self.names += len(bound)
            self.lines += code_lines(source)
            # No test file is imported, so its constants are its own.
            public = [] if Path(source.path).name.startswith("test_") else list(constants(source.tree))
            for name, findings in {
                "vague_names": [name for name in bound if is_vague(name.text)],
                "comments": source.comments,
                "short_docstrings": list(short_docstrings(source.tree)),
                "unresolved_backticks": [text for text in quotations(source) if not index.resolves(text.text)],
                "repeated_constants": [
                    constant
                    for constant in public
                    if constant_paths.setdefault(constant.text, source.path) != source.path
                ],
            }.items():
                self.findings[name] += [(source.path, finding) for finding in findings]

    def figures(self) -> dict[str, float]:
        """Each figure, rounded as it is written down."""
        counts = {name: len(findings) for name, findings in self.findings.items()}
        shares = {
            "vague_names": 1000 * counts["vague_names"] / max(self.names, 1),
            "comments": 100 * counts["comments"] / max(self.lines, 1),
        }
        return {
            name: round(shares[name], ratchet.digits) if name in shares else counts[name]
            for name, ratchet in RATCHETS.items()
        }


def survey() -> dict[str, Survey]:
    """The product and the tests of this checkout, with one index of the names of both."""
    sources = {
        group: [source for folder in folders for source in read_sources(folder, ".py")]
        for group, folders in GROUPS.items()
    }
    stubs = [*read_sources("tidestate", ".pyi"), *read_sources("operators", ".pyi")]
    codes = re.findall(r"`([a-z]+(?:-[a-z]+)*)`", (CHECKOUT / "docs" / "reference" / "errors.md").read_text())
    index = Index([*stubs, *(source for group in sources.values() for source in group)], codes, files_and_folders())
    return {group: Survey(files, index) for group, files in sources.items()}


def read_sources(folder: str, suffix: str) -> list[Source]:
    """The files of a folder of the checkout, in the order of their paths."""
    paths = sorted((CHECKOUT / folder).rglob(f"*{suffix}"))
    return [Source(path.relative_to(CHECKOUT).as_posix(), path.read_text()) for path in paths]


def files_and_folders() -> Iterator[str]:
    """The paths of the checkout; what is hidden or was built is no part of it."""
    for top in CHECKOUT.iterdir():
        if top.is_file():
            yield top.name
        elif not top.name.startswith(".") and top.name not in ("build", "dist"):
            yield from (path.relative_to(CHECKOUT).as_posix() for path in [top, *top.rglob("*")])


def read_figures(path: Path = FIGURES) -> dict[str, dict[str, float]]:
    """The figures that are written down, by group."""
    groups: dict[str, dict[str, float]] = json.loads(path.read_text())
    return groups


def complaints(figures: dict[str, dict[str, float]], baselines: dict[str, dict[str, float]]) -> Iterator[str]:
    """What is worse than written down, and what is so much better that it should be written down."""
    for group, name in ((group, name) for group in GROUPS for name in RATCHETS):
        ratchet, figure, baseline = RATCHETS[name], figures[group][name], baselines[group][name]
        change = f"{group}, {name}: {figure:g} {ratchet.unit}, {baseline:g} written down"
        if ratchet.is_worse(figure, baseline):
            better = "add comments that say why" if ratchet.rises else f"`{COMMAND} list {name}` says where"
            yield f"{change}; it may not get {'lower' if ratchet.rises else 'higher'}: {better}"
        elif ratchet.is_much_better(figure, baseline):
            yield f"{change}; keep what was won: `{COMMAND} write`"


def improved(
    figures: dict[str, dict[str, float]], baselines: dict[str, dict[str, float]]
) -> dict[str, dict[str, float]]:
    """What to write down: each figure where it is better than before."""
    return {
        group: {
            name: figures[group][name]
            if ratchet.loss(figures[group][name], baselines[group][name]) < 0
            else baselines[group][name]
            for name, ratchet in RATCHETS.items()
        }
        for group in GROUPS
    }


def main(arguments: list[str]) -> int:
    """Print the figures, list what one counts, or write down what became better; 1 where one is worse, or better and
    not written down.
    """
    gc.disable()  # nothing of a million nodes is garbage, and to look for it takes a fifth of the time
    surveys = survey()
    if arguments[:1] == ["list"]:
        for group, files in surveys.items():
            for path, finding in files.findings[arguments[1]]:
                print(f"{group}: {path}:{finding.line}: {finding.text}")
        return 0
    figures = {group: files.figures() for group, files in surveys.items()}
    baselines = read_figures()
    if arguments == ["write"]:
        FIGURES.write_text(json.dumps(improved(figures, baselines), indent=2) + "\n")
    for group, name in ((group, name) for group in GROUPS for name in RATCHETS):
        print(f"{group:8} {name:21} {figures[group][name]:7g} {RATCHETS[name].unit} ({baselines[group][name]:g})")
    complained = list(complaints(figures, read_figures()))
    print(*complained, sep="\n")
    return int(bool(complained))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
