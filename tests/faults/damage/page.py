"""The golden table of docs/internals/reports/damage.md: what a case may answer, by kind of file and fault."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from tests.faults.damage.harm import FAULTS
from tests.faults.damage.matrix import ROOTS, WAY_OUT, Answers, Case

NAME = "damage"
"""The comments around the table."""
COLUMNS: dict[str, tuple[str, ...]] = {
    "list, show": ("list", "show"),
    "state": ("state", "windows", "messages", "diff", "restore"),
    "panes, late": ("panes", "late", "paths", "scan", "scan late"),
    "history, report": ("history", "report"),
    "verify": ("verify", "verify data"),
    "gc, pin, fork": ("gc, dry", "gc", "pin", "unpin", "fork"),
    "rewind, repair, rescale": ("rewind", "repair", "rescale"),
    "start": ("start memory", "start parquet", "start rocksdb", "a new sink", "process"),
    WAY_OUT: (WAY_OUT,),
}
Cells = dict[str, frozenset[str]]
"""What may be answered, by column."""
Golden = dict[tuple[str, str, str], Cells]
"""Cells by root, kind and fault."""


def cells_of(answers: Answers) -> Cells:
    """By column; a column in which nothing was asked is left out."""
    found = {
        column: frozenset(answers[name] for name in names if name in answers) for column, names in COLUMNS.items()
    }
    return {column: words for column, words in found.items() if words}


def golden(found: Iterable[tuple[Case, Answers]]) -> Golden:
    """All that was answered."""
    table: dict[tuple[str, str, str], dict[str, frozenset[str]]] = defaultdict(dict)
    for case, answers in found:
        row = table[case.root, case.kind, case.fault]
        for column, words in cells_of(answers).items():
            row[column] = row.get(column, frozenset()) | words
    return dict(table)


def drawn(table: Golden) -> str:
    """As Markdown; faults with the same answers share a row."""
    lines = []
    for root, subject in ROOTS.items():
        rows: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
        for kind in dict.fromkeys(kind for kind, _ in subject.kinds):
            for fault in FAULTS:
                if cells := table.get((root, kind, fault)):
                    rows[kind, tuple(_cell(cells, column) for column in COLUMNS)].append(fault)
        used = [place for place in range(len(COLUMNS)) if any(cells[place] for _, cells in rows)]
        headings = [list(COLUMNS)[place] for place in used]
        lines += [f"### {root[0].upper()}{root[1:]}", ""] if rows else []
        lines += [f"| file | fault | {' | '.join(headings)} |", f"|---|---|{'---|' * len(used)}"] if rows else []
        for (kind, cells), faults in rows.items():
            lines.append(f"| {kind} | {', '.join(faults)} | {' | '.join(cells[place] for place in used)} |")
        lines += [""] if rows else []
    return "\n".join(lines)


def _cell(cells: Mapping[str, frozenset[str]], column: str) -> str:
    return " ".join(sorted(cells.get(column, ())))


def read(page: str) -> Golden:
    """The table of a page."""
    text = page.partition(f"<!-- {NAME} -->\n")[2].partition(f"<!-- /{NAME} -->")[0]
    names = {f"{name[0].upper()}{name[1:]}": name for name in ROOTS}
    found: Golden = {}
    root, headings = "", []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("### "):
            root = names[line.removeprefix("### ")]
        elif cells[0] == "file":
            headings = cells[2:]
        elif line.startswith("|") and not line.startswith("|---"):
            words = {column: frozenset(cell.split()) for column, cell in zip(headings, cells[2:], strict=True)}
            for fault in cells[1].split(", "):
                found[root, cells[0], fault] = words
    return found


def missing(table: Golden, case: Case, answers: Answers) -> dict[str, frozenset[str]]:
    """What a case answers that the table does not say."""
    row = table.get((case.root, case.kind, case.fault), {})
    extra = {column: words - row.get(column, frozenset()) for column, words in cells_of(answers).items()}
    return {column: words for column, words in extra.items() if words}
