"""``python -m tests.faults.fuzz run --target NAME --seconds 60``: any bytes, given to a reader of durable bytes."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
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
MOST_KEPT, MOST_BYTES = 40, 16_000
"""Inputs that are kept of a target, and their bytes together."""
PAGE, NAME = "fuzzing.md", "fuzz"
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
        for one in fuzzed(names, seconds, keep=keep):
            progress.update(bar, description=one.target, advance=1)
            found.append(one)
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


def fuzzed(names: Sequence[str], seconds: int, *, keep: bool = False) -> Iterator[Fuzzed]:
    """Fuzz targets in processes of their own. What one died of is kept in a file."""
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=SCRATCH) as made:
        for name in names:
            folder, corpus = Path(made) / name, CORPUS / name
            (folder / "found").mkdir(parents=True)
            shutil.copytree(corpus, folder / "corpus") if corpus.exists() else (folder / "corpus").mkdir()
        command = [sys.executable, "-m", "tests.faults.fuzz.guided", str(seconds), made, *names]
        with subprocess.Popen(command) as process:
            for name in names:
                folder = Path(made) / name
                while not (folder / "ended").exists() and process.poll() is None:
                    time.sleep(0.1)
                kept = _keep(name, folder / "found") if keep else len(list((folder / "corpus").iterdir()))
                yield Fuzzed(name, int(_text(folder / "runs") or 0), kept, _found(name, folder))


def _found(name: str, folder: Path) -> str:
    """What it died of, and where that is."""
    ended = _text(folder / "ended")
    if ended == "0":
        return ""
    data = (folder / "last").read_bytes() if (folder / "last").exists() else b""
    place = Path(tempfile.gettempdir()) / f"fuzz-{name}-{hashlib.sha256(data).hexdigest()[:12]}"
    place.write_bytes(data)
    lines = [line for line in _text(folder / "output").splitlines() if "Error" in line or "Exception" in line]
    return f"{lines[-1][:160] if lines else f'ended with {ended}'}: {place}"


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _keep(name: str, found: Path) -> int:
    """The smallest ones; returns how many are kept of this target then."""
    corpus = CORPUS / name
    corpus.mkdir(parents=True, exist_ok=True)
    kept = {path.read_bytes() for path in corpus.iterdir()}
    for data in sorted((path.read_bytes() for path in found.iterdir()), key=len):
        if len(kept | {data}) <= MOST_KEPT and sum(map(len, kept | {data})) <= MOST_BYTES:
            (corpus / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
            kept.add(data)
    return len(list(corpus.iterdir()))


def _section(at: str, seconds: int, found: list[Fuzzed]) -> str:
    how = "guided by coverage (atheris)" if HAS_ATHERIS else "changed at random"
    inputs, wrong = sum(one.inputs for one in found), sum(bool(one.found) for one in found)
    lines = [
        f"Commit {at}, `python -m tests.faults.fuzz run --seconds {seconds} --draw docs/internals/reports`: "
        f"{inputs:,} inputs {how}, {len(found)} targets, {wrong} of them with a fault.",
        "",
        "| target | inputs | |",
        "|---|---:|---|",
        *(f"| {one.target} | {one.inputs:,} | {one.found} |" for one in found),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    app()
