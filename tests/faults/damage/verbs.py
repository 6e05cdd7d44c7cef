"""The verbs of the command and the readers of the library, asked about a root."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from tests.faults.damage.answers import SAYS_SO, Went, answered
from tests.helpers.process import SCRATCH
from tests.helpers.root_scans import scan_late, scan_panes, scan_state
from tidestate.operators.inspect.report.document import write_report
from tidestate.recovery.cli.main import app
from tidestate.recovery.log.checkpoint import Checkpoint

Reader = Callable[[str], Any]
_TIMES = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?|<dt>age</dt><dd>[^<]*</dd>")
_FINDINGS = range(10, 15)
"""How `verify` ends where it has found something."""
_LEFT_OUT = ("seconds", "rate", "predicted_s", "parallel", "age", "bytes", "files", "checkpoints", "delivered")
"""What no two runs have in common, or what damage may change: how long it took, how much there is to delete; and what
a sink has acknowledged, which it gets once more where the record of that is lost.
"""


def printed(root: str, *arguments: str) -> str:
    """What a verb prints. Raises what it raises."""
    done = CliRunner().invoke(app, [arguments[0], root, *arguments[1:]], env={"COLUMNS": "200"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    if done.exit_code in _FINDINGS or "cannot be read" in done.stderr:
        return SAYS_SO
    assert done.exit_code == 0, done.output
    return str(done.stdout)


def values(*arguments: str) -> Reader:
    """What a verb prints as JSON, without what is measured."""

    def asked(root: str) -> Any:
        text = printed(root, *arguments, "--json")
        lines = [text] if text == SAYS_SO else [_plain(json.loads(line)) for line in text.splitlines()]
        return lines[0] if len(lines) == 1 else lines

    return asked


def _plain(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _plain(value) for name, value in tree.items() if name not in _LEFT_OUT}
    return [_plain(one) for one in tree] if isinstance(tree, list) else tree


def rows(*arguments: str) -> Reader:
    """The rows that a verb writes to a file."""

    def asked(root: str) -> Any:
        with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
            output = Path(folder) / "rows.json"
            printed(root, *arguments, "--format", "json", "--output", str(output))
            answer = output.read_bytes()
            return SAYS_SO if arguments[0] == "history" and json.loads(answer)["unread"] else answer

    return asked


def verified(*options: str) -> Reader:
    """Findings, of abandoned checkpoints too, or how much is intact."""

    def asked(root: str) -> str:
        text = printed(root, "verify", *options)
        return text if text.startswith("intact") else SAYS_SO

    return asked


def _report(root: str) -> str:
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        page = Path(folder) / "report.html"
        if write_report(root, page, read_percent=100.0).findings:
            return SAYS_SO
        return _TIMES.sub("", page.read_text())


READERS: dict[str, Reader] = {
    "list": values("list"),
    "show": values("show"),
    "state": rows("state", "--table", "groups"),
    "windows": rows("windows"),
    "panes": rows("panes"),
    "late": rows("late"),
    "paths": lambda root: Checkpoint.open(root).pane_paths(),
    "scan": lambda root: scan_panes(root).to_table().to_pylist(),
    "scan late": lambda root: scan_late(root).to_table().to_pylist(),
    "report": _report,
    "verify": verified(),
    "verify data": verified("--read-data", "100"),
    "restore": values("restore"),
    "gc, dry": values("gc", "--newest", "2", "--grace", "0 seconds"),
}


def state_of(root: str, at: int | None = None) -> dict[str, list[str]]:
    """All state tables of all operators, as rows in an order of their own."""
    manifest = Checkpoint.open(root).chosen(at).manifest
    return {
        f"{name} {spec.name}": sorted(
            map(repr, scan_state(root, at, operator=name, table=spec.name).to_table().to_pylist())
        )
        for name, operator in manifest.operators.items()
        for spec in operator.tables
    }


def went(root: str, kept: Any = None) -> Went:
    """A job after it went on."""

    def panes() -> list[str]:
        return sorted(map(repr, scan_panes(root).to_table().drop_columns(["checkpoint"]).to_pylist()))

    return Went(state_of(root), answered(panes), kept)


def replaced(work: Path, pristine: Path) -> None:
    """The folder as it was made."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(pristine, work)
