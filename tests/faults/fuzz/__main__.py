"""``python -m tests.faults.fuzz run --target NAME --seconds 60``: any bytes, given to a reader of durable bytes."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.faults.fuzz.guided import HAS_ATHERIS
from tests.faults.fuzz.targets import TARGETS
from tests.helpers.process import SCRATCH
from tools.bench.table import as_json, commit, insert

CORPUS = Path(__file__).parent / "corpus"
MOST_KEPT, MOST_BYTES = 40, 6000
"""Inputs that are kept of a target, and bytes of the largest."""
PAGE, NAME = "RELIABILITY.md", "fuzz"
HEADINGS = ("target", "inputs", "kept", "found")
app = typer.Typer(help="Any bytes in the place of durable ones: the right value, or an error of ours.")


@dataclass(frozen=True)
class Fuzzed:
    """How many inputs a target had, and what it died of, empty if of nothing."""

    target: str
    inputs: int
    kept: int
    found: str = ""


@app.command("list")
def list_targets() -> None:
    """The readers."""
    print("\n".join(TARGETS))


@app.command()
def run(
    target: Annotated[list[str] | None, typer.Option(metavar="NAME", help="May be repeated; by default all.")] = None,
    seconds: Annotated[int, typer.Option(min=1, help="For each target.")] = 60,
    keep: Annotated[bool, typer.Option("--keep", help="Keep small inputs that reached something new.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a target.")] = False,
    draw: Annotated[Path | None, typer.Option(help=f"Put the figures into {PAGE} of this folder.")] = None,
) -> None:
    """Fuzz them one after the other. Ends with 1 if one raises anything but our errors, hangs or dies."""
    if unknown := sorted(set(target or ()) - TARGETS.keys()):
        raise typer.BadParameter(f"no such target: {', '.join(unknown)}; list names them")
    if draw is not None and target:
        raise typer.BadParameter("a page has the figures of all targets")
    at, names = commit(), [name for name in TARGETS if not target or name in target]
    columns = (TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    found = []
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=len(names))
        for name in names:
            progress.update(bar, description=name)
            found.append(fuzzed(name, seconds, keep=keep))
            progress.advance(bar)
    rows = [(one.target, one.inputs, one.kept, one.found) for one in found]
    if draw is not None:
        insert(draw / PAGE, NAME, _section(at, seconds, found))
    if json:
        print("\n".join(as_json({**dict(zip(HEADINGS, row, strict=True)), "commit": at}) for row in rows))
    else:
        table = Table(*HEADINGS, box=None, pad_edge=False, header_style="bold")
        for row in rows:
            table.add_row(*(f"{one:,}" if isinstance(one, int) else one for one in row))
        Console().print(table, markup=False)
    if any(one.found for one in found):
        sys.exit(1)


def fuzzed(name: str, seconds: int, *, keep: bool = False) -> Fuzzed:
    """Fuzz one target in a process of its own. What it died of is kept next to this command's output."""
    with _folder(name) as folder:
        command = [sys.executable, "-m", "tests.faults.fuzz.guided", name, str(seconds), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, errors="replace")
        runs = folder / "runs"
        inputs = int(runs.read_text()) if runs.exists() else 0
        kept = _keep(name, folder / "found") if keep else 0
        if done.returncode == 0:
            return Fuzzed(name, inputs, kept)
        data = (folder / "last").read_bytes() if (folder / "last").exists() else b""
        place = Path(tempfile.gettempdir()) / f"fuzz-{name}-{hashlib.sha256(data).hexdigest()[:12]}"
        place.write_bytes(data)
        lines = [line for line in done.stderr.splitlines() if "Error" in line or "Exception" in line]
        return Fuzzed(name, inputs, kept, f"{lines[-1][:160] if lines else f'ended with {done.returncode}'}: {place}")


@contextmanager
def _folder(name: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=SCRATCH) as made:
        folder = Path(made)
        (folder / "found").mkdir()
        corpus = CORPUS / name
        shutil.copytree(corpus, folder / "corpus") if corpus.exists() else (folder / "corpus").mkdir()
        yield folder


def _keep(name: str, found: Path) -> int:
    """The smallest ones; returns how many are kept of this target then."""
    corpus = CORPUS / name
    corpus.mkdir(parents=True, exist_ok=True)
    new = sorted((path.read_bytes() for path in found.iterdir()), key=len)
    for data in new[: max(0, MOST_KEPT - len(list(corpus.iterdir())))]:
        if len(data) <= MOST_BYTES:
            (corpus / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    return len(list(corpus.iterdir()))


def _section(at: str, seconds: int, found: list[Fuzzed]) -> str:
    how = "guided by coverage (atheris)" if HAS_ATHERIS else "changed at random"
    inputs, wrong = sum(one.inputs for one in found), sum(bool(one.found) for one in found)
    lines = [
        f"Commit {at}, `python -m tests.faults.fuzz run --seconds {seconds} --draw docs`: {inputs:,} inputs {how}, "
        f"{len(found)} targets, {wrong} of them with a fault.",
        "",
        "| target | inputs | |",
        "|---|---:|---|",
        *(f"| {one.target} | {one.inputs:,} | {one.found} |" for one in found),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    app()
