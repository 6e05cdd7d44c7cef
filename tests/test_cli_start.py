"""How the command starts: without what is heavy; and its completion in bash."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from operators import Parquet
from recovery.cli import VERBS, app
from tests.test_standalone import STREAM, example

ROOT = Path(__file__).parents[1]
HEAVY = ("pyspark", "pandas", "duckdb", "rocksdict", "fsspec", "s3fs", "jinja2", "operators.plan", "pyarrow.dataset")


@pytest.mark.parametrize("arguments", [["--help"], ["list", "ROOT"], ["show", "ROOT"]])
def test_nothing_heavy_is_loaded(arguments: list[str], tmp_path: Path) -> None:
    example("retracting").standalone(checkpoint=tmp_path / "root", store=Parquet()).run(STREAM[:2])
    program = (
        "import sys\nfrom recovery.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        f"heavy = set({HEAVY!r}) & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    given = [str(tmp_path / "root") if one == "ROOT" else one for one in arguments]
    command = [sys.executable, "-c", program, *given]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """An environment with the command on the path and an empty home."""
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "tidemark"
    command.write_text(f"#!{sys.executable}\nfrom recovery.cli import main\nmain()\n")
    command.chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "HOME": str(home), "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}


def bash(script: str, environment: dict[str, str]) -> str:
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_bash_completes_verbs_and_options(shell: dict[str, str]) -> None:
    ask = (
        "source <(tidemark --show-completion); COMP_WORDS=({words}); COMP_CWORD={place}; "
        '_tidemark_completion tidemark; echo "${{COMPREPLY[@]}}"'
    )
    assert "restore" in bash(ask.format(words="tidemark re", place=1), shell).split()
    assert bash(ask.format(words="tidemark restore --par", place=2), shell).split() == ["--parallel"]


def test_completion_installs_itself_for_bash(shell: dict[str, str]) -> None:
    assert "bash completion installed" in bash("tidemark --install-completion; true", shell)
    installed = (
        "source ~/.bashrc; COMP_WORDS=(tidemark lis); COMP_CWORD=1; _tidemark_completion tidemark; echo ${COMPREPLY}"
    )
    assert bash(installed, shell).split() == ["list"]


def test_each_verb_stands_with_its_module() -> None:
    for module, verbs in VERBS.items():
        program = (
            f"import recovery.commands.{module}\nfrom recovery.commands.app import app\n"
            "print(*(one.name or one.callback.__name__ for one in app.registered_commands))"
        )
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
        assert set(verbs) <= set(done.stdout.split())
    assert {one for verbs in VERBS.values() for one in verbs} == {
        one.name or one.callback.__name__ for one in app.registered_commands if one.callback
    }
