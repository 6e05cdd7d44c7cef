"""The command ``tidestate`` in a process of its own, and roots that it may damage."""

from __future__ import annotations

import gc
import io
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.helpers.checkout import ROOT
from tests.helpers.plain_reports import plain_reports
from tests.helpers.worked_example import STREAM, example
from tidestate.recovery.cli.main import app, main
from tidestate.statestore.spec.store import Parquet

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([__name__, "tidestate.recovery.cli.main", "tests.twins.streams", "tools.demo.job"])
"""A start of Python with these imports takes half a second of processor time, a fork that has them a tenth."""


def json_lines(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """What a verb printed with ``--json``."""
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def tidestate(
    *arguments: object, columns: int | None = None, stdout: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, into a pipe or on a terminal of so many ``columns``.

    ``stdout`` is a descriptor it writes to, which takes a new Python.
    """
    command = [*map(str, arguments)]
    environment = {**os.environ, **_terminal(columns)}
    if stdout is not None:
        program = [sys.executable, "-m", "tidestate.recovery.cli.main", *command]
        pipe = subprocess.PIPE
        return subprocess.run(program, cwd=ROOT, env=environment, stdout=stdout, stderr=pipe, text=True, check=False)
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / name for name in ("stdout", "stderr")]
        process = FORKS.Process(target=_run, args=(command, environment, outputs))
        process.start()
        process.join()
        assert process.exitcode is not None
        return subprocess.CompletedProcess(command, process.exitcode, *(path.read_text() for path in outputs))


def tidestate_here(*arguments: object, columns: int | None = None) -> subprocess.CompletedProcess[str]:
    """The command in this process, in a fifth of the time that a fork takes: where what it prints is in question, and
    not its descriptors or signals.
    """
    command, errors, code = [*map(str, arguments)], io.StringIO(), 0
    with (
        tempfile.TemporaryFile("w+") as output,
        mock.patch.dict(os.environ, _terminal(columns)),
        mock.patch.object(sys, "argv", ["tidestate", *command]),
    ):
        try:
            with redirect_stdout(output), redirect_stderr(errors):
                main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        output.seek(0)
        return subprocess.CompletedProcess(command, code, output.read(), errors.getvalue())


def _terminal(columns: int | None) -> dict[str, str]:
    """The variables of a pipe, or of a terminal of so many ``columns``."""
    plain = {"NO_COLOR": "1", "TERM": "dumb"}
    return plain if columns is None else plain | {"COLUMNS": str(columns), "LINES": "25", "TTY_COMPATIBLE": "1"}


def json_here(*arguments: object) -> list[dict[str, Any]]:
    """What a verb prints with ``--json``, run in this process: where streams and exit codes are not in question."""
    errors = io.StringIO()
    with tempfile.TemporaryFile("w+") as output:
        with redirect_stdout(output), redirect_stderr(errors):
            code = app([*map(str, arguments)], standalone_mode=False)
        assert (code or 0, errors.getvalue()) == (0, "")
        output.seek(0)
        return [json.loads(line) for line in output]


def _run(command: list[str], environment: dict[str, str], outputs: list[Path]) -> None:
    gc.freeze()  # what it has from its parent is no garbage
    for descriptor, path in enumerate(outputs, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["tidestate", *command]
    plain_reports(command)
    main()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the worked example: a fence, six batches, a drain."""
    folder = tmp_path_factory.mktemp("cli") / "root"
    example("retracting").standalone(checkpoint=folder, store=Parquet(), partitions=2).run(STREAM, drain=True)
    return folder


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    """One that may be damaged."""
    for path in root.rglob("*"):
        if path.is_file():
            target = tmp_path / "copy" / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return tmp_path / "copy"
