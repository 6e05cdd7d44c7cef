"""The command where the system has less than usual: no streams, no threads, no working folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.checkout import ROOT
from tests.helpers.collected import run
from tests.helpers.process import LONG
from tidestate import agg
from tidestate.recovery.cli import main
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import error_page


@pytest.mark.slow
def test_without_standard_streams_a_verb_does_its_work_and_ends_with_its_code(tmp_path: Path) -> None:
    run(tmp_path / "root", 5)

    def code(*arguments: str) -> int:
        command = f'exec "{sys.executable}" -m tidestate.recovery.cli.main "$@" <&- >&- 2>&-'
        return subprocess.run(["sh", "-c", command, "sh", *arguments], cwd=ROOT, check=False).returncode

    root = str(tmp_path / "root")
    assert code("gc", root, "--newest", "2", "--grace", "0 seconds", "--confirm") == 0
    assert len(Checkpoint.open(root).ids()) == 2
    if LONG:
        assert code("panes", root, "--format", "json") == 0
    assert code("list", str(tmp_path / "none")) == 4


@pytest.mark.long
@pytest.mark.slow
def test_in_a_folder_that_was_removed_full_paths_work_and_others_say_why(tmp_path: Path) -> None:
    run(tmp_path / "root", 1)
    (tmp_path / "gone").mkdir()

    def listed(root: str) -> subprocess.CompletedProcess[str]:
        program = f"import os; os.rmdir('{tmp_path}/gone')\nfrom tidestate.recovery.cli.main import main\nmain()"
        (tmp_path / "gone").mkdir(exist_ok=True)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", program, "list", root]
        cwd = tmp_path / "gone"
        return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)

    whole = listed(str(tmp_path / "root"))
    assert (whole.returncode, whole.stderr) == (0, "")
    refused = listed("root")
    assert (refused.returncode, refused.stderr.count("\n")) == (5, 1)
    assert "[folder-gone]" in refused.stderr


def test_a_system_without_threads_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def app() -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(main, "app", app)
    with pytest.raises(SystemExit) as caught:
        main.main()
    assert caught.value.code == 5
    assert "[no-threads]" in capsys.readouterr().err


EACH = """
import json, sys
from tidestate.recovery.cli.main import main
for arguments in map(json.loads, sys.argv[1:]):
    sys.argv = ["tidestate", *arguments]
    try:
        main()
    except SystemExit as end:
        assert not end.code
    print("---")
"""
"""One verb after the other, each followed by a line."""


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["latin-1", "ascii"] if LONG else ["latin-1"])
def test_any_key_is_printed_whatever_standard_output_can_write(tmp_path: Path, encoding: str) -> None:
    key, root = "żółć→😀", str(tmp_path)
    job = (
        ts.stream(event_time="t")
        .group_by("k")
        .window(ts.tumbling("10 seconds"))
        .aggregate(n=agg.count())
        .allowed_lateness("0 seconds")
    )
    times = pa.array([1_000_000, 30_000_000, 2_000_000]).cast(pa.timestamp("us", tz="UTC"))
    rows = pa.table({"t": times, "k": [key] * 3})
    job.standalone(checkpoint=root).run([rows.slice(0, 2), rows.slice(2)])

    history = ["history", root, "--key", f"k={key}", "--window", "1970-01-01T00:00:00"]
    verbs = [["panes", root], history, [*history, "--json"]]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    command = [sys.executable, "-c", EACH, *map(json.dumps, verbs)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    panes, table, rows, _ = done.stdout.decode(encoding).split("---\n")
    escaped = key.encode(encoding, "backslashreplace").decode(encoding)
    assert escaped in panes
    assert escaped in table
    (row,) = [json.loads(line) for line in rows.splitlines()]
    assert key in str(row)


def test_on_a_terminal_an_error_is_followed_by_the_address_of_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scripts read one line. A terminal that wraps must not break the address either, so both are written whole."""

    def ended() -> None:
        with pytest.raises(SystemExit) as end:
            main.main()
        assert end.value.code == main.EXIT_NOT_FOUND

    monkeypatch.setattr(sys, "argv", ["tidestate", "list", str(tmp_path / "none")])
    monkeypatch.setenv("FORCE_COLOR", "1")
    ended()
    (line,) = capsys.readouterr().err.splitlines()
    ours, terminal = os.openpty()
    with os.fdopen(ours, "rb", 0) as screen, os.fdopen(terminal, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "20")
        ended()
        stderr.flush()
        printed = b""
        while printed.count(b"\n") < 2:  # a read of a terminal may end after one of the writes
            printed += screen.read(4096)
        first, second = printed.decode().splitlines()
    assert first == line
    assert second == f"\x1b[2msee {error_page('no-checkpoint')}\x1b[0m"
