"""How the command starts: without what is heavy; and its completion in bash."""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import tidestate as ts
from tests.helpers.checkout import ROOT
from tests.helpers.collected import TABLES
from tests.helpers.command import tidestate
from tests.helpers.process import LONG, some
from tests.helpers.worked_example import STREAM, example
from tidestate import agg
from tidestate.recovery import cli
from tidestate.recovery.cli.app import verbs
from tidestate.recovery.cli.group import VERBS, load_verb
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.pins import pin
from tidestate.statestore.spec.store import Parquet

HEAVY = {
    *("pyspark", "pandas", "duckdb", "rocksdict", "fsspec", "s3fs", "jinja2"),
    *("pyarrow.compute", "pyarrow.dataset", "pyarrow.parquet"),
}
"""What takes long to import, and looking at checkpoints does not need."""
STATE = {"pyarrow", "numpy", "tidestate.recovery.log.checkpoint"}
"""What the list of all verbs does not need either."""
WRITTEN = {"pyarrow.compute", "tidestate.operators"}
"""What it takes to print settings as one writes them."""
_VERBS = ("adopt", "bootstrap", "history", "messages", "report", "windows")
PLUG_IN = {
    *("tidestate.operators", "tidestate.operators.cli"),
    *(
        f"tidestate.operators.cli.{name}"
        for name in (
            *(
                "adopt",
                "bootstrap",
                "chaos",
                "diff",
                "doctor",
                "history",
                "messages",
                "plan",
                "report",
                "reprocess",
                "serve",
                "spark_address",
            ),
            *("window", "windows", "withdraw"),
        )
    ),
}
"""What is loaded for the line that the list has about the verb of another package."""


def loaded(arguments: list[str], **environment: str) -> set[str]:
    """The modules there are when the command has done its work."""
    program = (
        "import sys\nfrom tidestate.recovery.cli.main import main\nsys.argv[0] = 'tidestate'\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "print(*sys.modules, file=sys.stderr)\n"
    )
    command = [sys.executable, "-c", program, *arguments]
    environment = {**os.environ, **environment}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return set(done.stderr.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", some([["list"], ["list", "--json"], ["list", "--help"], ["show"], ["show", "--help"]], 2)
)
def test_looking_loads_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    example("retracting").standalone(checkpoint=tmp_path / "root", store=Parquet()).run(STREAM[:2])
    verb, *options = arguments
    modules = loaded([verb, str(tmp_path / "root"), *options])
    assert modules & (HEAVY | WRITTEN) == (WRITTEN if arguments == ["show"] else set())


def test_the_list_of_all_verbs_loads_none_of_ours() -> None:
    modules = loaded(["--help"])
    assert modules & (HEAVY | STATE) == set()
    assert {one for one in modules if one.startswith("tidestate.operators")} == PLUG_IN


@pytest.mark.long  # by the same code as the list of all verbs
def test_completing_a_verb_loads_none_of_ours() -> None:
    modules = loaded([], _TIDESTATE_COMPLETE="complete_bash", COMP_WORDS="tidestate re", COMP_CWORD="1")
    assert modules & (HEAVY | STATE) == set()
    assert {one for one in modules if one.startswith("tidestate.operators")} == PLUG_IN


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """An environment with the command on the path and an empty home."""
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "tidestate"
    command.write_text(f"#!{sys.executable}\nfrom tidestate.recovery.cli.main import main\nmain()\n")
    command.chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "HOME": str(home), "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}


def bash(script: str, environment: dict[str, str]) -> str:
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long  # in every run the two tests below
def test_bash_completes_verbs_and_options(shell: dict[str, str]) -> None:
    ask = (
        "source <(tidestate --show-completion); COMP_WORDS=({words}); COMP_CWORD={place}; "
        '_tidestate_completion tidestate; echo "${{COMPREPLY[@]}}"'
    )
    assert "restore" in bash(ask.format(words="tidestate re", place=1), shell).split()
    assert bash(ask.format(words="tidestate restore --par", place=2), shell).split() == ["--parallel"]


@pytest.mark.long
@pytest.mark.slow
def test_bash_completes_what_a_root_has(
    shell: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    first = (
        ts.stream(event_time="t")
        .group_by("k")
        .window(ts.tumbling("10 seconds"))
        .aggregate(n=agg.count())
        .named("first")
    )
    second = (
        first.allowed_lateness("0 seconds")
        .group_by()
        .window(ts.tumbling("1 minute"))
        .aggregate(total=agg.sum("n"))
        .allowed_lateness("0 seconds")
        .named("second")
    )
    second.standalone(checkpoint=root).run(TABLES[:3])
    pin(Checkpoint.open(root), 2, "before")

    lines = {
        f"show {root} ": {"1", "2", "3", "4"},
        f"state {root} --at ": {"1", "2", "3", "4"},
        f"diff {root} 1 ": {"1", "2", "3", "4"},
        f"rewind {root} --to ": {"1", "2", "3", "4"},
        f"unpin {root} ": {"before"},
        f"unpin {root} x": set(),
        f"late {root} --operator ": {"first", "second"},
        f"windows {root} --operator f": {"first"},
        f"state {root} --operator first --table g": {"groups"},
        f"show {tmp_path / 'none'} ": set(),
        "restore --par": {"--parallel"},
    }
    last = f"state {root} --operator first --table g"
    if LONG:  # in every run `test_completion_installs_itself_for_bash` has a real one
        place = len(last.split(" "))
        listed = " ".join(f"'{one}'" for one in ["tidestate", *last.split(" ")])
        script = f"source <(tidestate --show-completion); COMP_WORDS=({listed}); COMP_CWORD={place}; "
        found = bash(f'{script}_tidestate_completion tidestate; echo "${{COMPREPLY[@]}}"', shell)
        assert set(found.split()) == lines[last]
    monkeypatch.setenv("_TIDESTATE_COMPLETE", "complete_bash")  # as the function of bash does
    for line, words in some(lines.items(), 6):
        monkeypatch.setenv("COMP_WORDS", f"tidestate {line}")
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" "))))
        assert set(tidestate().stdout.split()) == words, line


def test_completion_installs_itself_for_bash(shell: dict[str, str]) -> None:
    assert "bash completion installed" in bash("tidestate --install-completion; true", shell)
    installed = (
        "source ~/.bashrc; COMP_WORDS=(tidestate lis); COMP_CWORD=1; _tidestate_completion tidestate; "
        "echo ${COMPREPLY}"
    )
    assert bash(installed, shell).split() == ["list"]


def test_each_verb_stands_with_its_module() -> None:
    for name, (module, _) in VERBS.items():
        assert load_verb(name).callback.__module__ == f"tidestate.recovery.cli.{module}"
    modules = {one.name for one in pkgutil.iter_modules(cli.__path__)} - {
        "app",
        "completion",
        "group",
        "main",
        "options",
        "plans",
        "printing",
        "progress_bar",
        "settings_in_words",
    }
    assert modules == {module for module, _ in VERBS.values()}
    assert {one.name or one.callback.__name__ for one in verbs.registered_commands if one.callback} == set(VERBS)
