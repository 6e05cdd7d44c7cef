"""What each reader answers when one file of a root is deleted, emptied, cut or swapped with another.

``python -m tests.helpers.every_file`` prints the table of docs/DAMAGE.md.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from typer.testing import CliRunner

from tests.helpers.process import SCRATCH, forget
from tests.helpers.worked_example import STREAM, batch, example
from tidestate.operators import Parquet
from tidestate.operators.inspect.report.document import write_report
from tidestate.recovery.cli.main import app
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.pins import pin
from tidestate.recovery.moves.rewind import rewind
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.errors import TidestateError

SAME, SAYS_SO = "=", "says so"
FAULTS = ("deleted", "emptied", "cut", "swapped")
STORE = Parquet(max_levels=2, snapshot_bytes=1)
KEPT = batch([(46, "a", 1), (47, "b", 2), (30, "b", 3)])
NEXT = batch([(80, "a", 1), (81, "b", 2)])
KINDS = (
    ("the marker", r"tidestate\.json"),
    ("a manifest below the boundary, pinned", r"manifests/0*3\.json"),
    ("the oldest manifest that is kept", r"manifests/0*6\.json"),
    ("a manifest in the middle", r"manifests/0*(7|8|9)\.json"),
    ("the manifest before the newest", r"manifests/0*10\.json"),
    ("the newest manifest", r"manifests/0*11\.json"),
    ("the boundary", r"gc/boundary/.*"),
    ("the output index", r"gc/outputs/.*"),
    ("a pin", r"pins/.*\.json"),
    ("the mark of a pin", r"pins/.*\.held"),
    ("a changelog segment", r"data/.*\.changelog\..*"),
    ("a folded state file", r"data/.*\.(run|snapshot)-.*"),
    ("a pane file", r"panes/.*"),
    ("a ledger file", r"late/.*"),
    ("what a sink has acknowledged", r"delivered/.*"),
    ("how far drivers have come", r"reached/.*"),
    ("another file", r".*"),
)
_TIMES = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?|<dt>age</dt><dd>[^<]*</dd>")
Answer: TypeAlias = str
"""``SAME``, the code of an error, ``SAYS_SO`` where the answer names what cannot be read, else ``silent``."""


def make_root(folder: Path) -> Path:
    """A root with one of everything: collected and pinned checkpoints, an abandoned one, panes, rejections."""
    root = folder / "root"
    job = example("retracting").standalone(checkpoint=root, store=STORE)
    job.run(STREAM[:5])
    pin(Checkpoint.open(root), 3, "release")
    collect(Checkpoint.open(root), CheckpointRetention(keep=1, grace_us=0))
    job.run(STREAM)
    rewind(Checkpoint.open(root), 6)
    again = example("retracting").standalone(checkpoint=root, store=STORE)
    again.run([*STREAM, KEPT])
    return root


def kind_of(name: str) -> str:
    return next(kind for kind, pattern in KINDS if re.fullmatch(pattern, name))


def damage(root: Path, name: str, fault: str) -> bool:
    """Do that to a file; False where there is nothing to swap it with."""
    path = root / name
    data = path.read_bytes()
    if fault == "deleted":
        path.unlink()
    elif fault == "emptied":
        path.write_bytes(b"")
    elif fault == "cut":
        path.write_bytes(data[: len(data) // 2])
    else:
        others = sorted(p for p in path.parent.iterdir() if p != path and p.is_file() and p.read_bytes() != data)
        if not others:
            return False
        other = others[0]
        path.write_bytes(other.read_bytes())
        other.write_bytes(data)
    return True


def _rows(table: pa.Table) -> list[Any]:
    return table.to_pylist()


def _command(*arguments: str) -> Callable[[Path], Any]:
    def answered(root: Path) -> Any:
        with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
            output = Path(folder) / "rows.json"
            given = [arguments[0], str(root), *arguments[1:], "--format", "json", "--output", str(output)]
            done = CliRunner().invoke(app, given, env={"COLUMNS": "80"})
            if done.exception is not None and not isinstance(done.exception, SystemExit):
                raise done.exception
            assert done.exit_code == 0, done.output
            answer = output.read_bytes()
            return SAYS_SO if arguments[0] == "history" and json.loads(answer)["unread"] else answer

    return answered


def _paths(root: Path) -> list[str]:
    return [str(Path(path).relative_to(root)) for path in Checkpoint.open(root).pane_paths()]


def _report(root: Path) -> str:
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        page = Path(folder) / "report.html"
        if write_report(root, page, read_percent=100.0).findings:
            return SAYS_SO
        return _TIMES.sub("", page.read_text().replace(str(root), "root"))


def _sink(root: Path) -> list[Any]:
    """What a new sink gets of a job that goes on: the job begins where it was, its panes and those to come."""
    got: list[Any] = []
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        copy = shutil.copytree(root, Path(folder) / "copy")
        job = example("retracting").standalone(checkpoint=copy, sink=lambda panes, _: got.extend(_rows(panes)))
        job.run([*STREAM, KEPT, NEXT], drain=True)
    return got


READERS: dict[str, Callable[[Path], Any]] = {
    "panes": _command("panes"),
    "late": _command("late"),
    "paths": _paths,
    "state": _command("state", "--table", "groups"),
    "diff": _command("diff", "6", "11", "--table", "groups"),
    "history": _command("history", "--key", "k=a", "--window", "1970-01-01T00:00:00"),
    "report": _report,
    "sink": _sink,
}


def ask(root: Path, whole: dict[str, Any]) -> dict[str, Answer]:
    """What each reader answers, held against what it answers of the whole root."""
    found = {}
    for name, reader in READERS.items():
        forget()
        try:
            answered = reader(root)
        except TidestateError as error:
            found[name] = error.code
        else:
            found[name] = SAME if answered == whole[name] else SAYS_SO if answered == SAYS_SO else "silent"
    return found


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def outcomes(root: Path) -> Iterator[tuple[str, str, dict[str, Answer]]]:
    """Each file and fault with what the readers answer."""
    forget()
    whole = {name: reader(root) for name, reader in READERS.items()}
    for name in files(root):
        for fault in FAULTS:
            with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
                copy = shutil.copytree(root, Path(folder) / "root")
                if damage(copy, name, fault):
                    yield name, fault, ask(copy, whole)


def table(root: Path) -> str:
    """As Markdown: a row a kind of file and fault, a column a reader; codes that differ by file, all of them."""
    cells: dict[tuple[str, str], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for name, fault, answers in outcomes(root):
        for reader, answer in answers.items():
            cells[kind_of(name), fault][reader].add(answer)
    order = [kind for kind, _ in KINDS]
    lines = [f"| file | fault | {' | '.join(READERS)} |", f"|---|---|{'---|' * len(READERS)}"]
    for kind, fault in sorted(cells, key=lambda cell: (order.index(cell[0]), FAULTS.index(cell[1]))):
        row = cells[kind, fault]
        lines.append(f"| {kind} | {fault} | {' | '.join(', '.join(sorted(row[reader])) for reader in READERS)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=SCRATCH) as made:
        print(table(make_root(Path(made))))
