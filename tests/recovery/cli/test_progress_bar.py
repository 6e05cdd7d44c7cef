"""Progress bars: drawn on a terminal, by every verb that reads much; nothing of them in what is printed."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from tests.helpers.checkout import ROOT
from tests.helpers.command import tidestate_here
from tests.helpers.forked import Forked
from tests.helpers.process import LONG, longer
from tests.helpers.spark_checkpoints import made
from tests.helpers.worked_example import STREAM, example
from tidestate.statestore.spec.store import Parquet
from tidestate.statestore.storage.prefetch import AT_ONCE, prefetch, prefetch_with_progress

pytestmark = pytest.mark.slow

VERBS = {
    "list": (["list", "ROOT"], "checkpoints"),
    "state": (["state", "ROOT", "--at", 7], "partitions"),
    "diff": (["diff", "ROOT", 3, 7], "partitions"),
    "panes": (["panes", "ROOT"], "checkpoints"),
    "late": (["late", "ROOT"], "checkpoints"),
    "history": (["history", "ROOT", "--key", "k=a", "--window", "1970-01-01T00:00:00"], "changes"),
    "verify": (["verify", "ROOT", "--read-data"], "files"),
    "gc": (["gc", "ROOT", "--newest", 2, "--grace", "0 seconds"], "checkpoints"),
    "report": (["report", "ROOT", "--output", "REPORT"], "windows"),
    "rewind": (["rewind", "FILES", "--to", 3], "input"),
    "rewind to a time": (["rewind", "FILES", "--to", "2999-01-01"], "checkpoints"),
    "repair": (["repair", "ROOT", "--to", "newest-good"], "files"),
    "resync": (["repair", "OTHER", "--resync-spark"], "checkpoints"),
    "fork": (["fork", "FILES", "FORK", "--at", 3], "checkpoints"),
    "restore": (["restore", "ROOT", "--at", 7], "rows"),
}
EACH_COUNT = {counted: name for name, (_, counted) in reversed(VERBS.items())}.values()
"""The first verb that counts each thing."""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A root of the worked example, one of a source of files, and one that Spark's log does not agree with."""
    folder = tmp_path_factory.mktemp("bars")
    runner = example("retracting").standalone(checkpoint=folder / "root", store=Parquet(), partitions=2)
    runner.run(STREAM, drain=True)
    made(str(folder / "files"))
    made(str(folder / "other"))
    (folder / "other/spark/metadata").write_bytes(b'{"id":"second"}')
    return {name.upper(): str(folder / name) for name in ("root", "files", "other", "fork", "report")}


def on_terminal(
    places: dict[str, str], *arguments: object, patience: float, rows_too: bool = False
) -> tuple[int, str, str]:
    """Exit code, standard output, and what a terminal got: standard error, with ``rows_too`` both."""
    ours, theirs = pty.openpty()
    where = {"terminal" if rows_too else "errors": theirs}
    given = [places.get(str(one), str(one)) for one in arguments]
    process = Forked("tests.children.barred", patience, *given, **where, COLUMNS="100", TERM="xterm")
    os.close(theirs)
    drawn: list[bytes] = []
    reader = threading.Thread(target=lambda: drawn.extend(_read(ours)))
    reader.start()
    printed, _ = process.communicate()
    reader.join()
    os.close(ours)
    return process.wait(), printed, b"".join(drawn).decode()


def _read(terminal: int) -> Iterator[bytes]:
    """All that comes, until nobody can write any more."""
    while True:
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:
            return
        if not data:
            return
        yield data


@pytest.mark.slow
@pytest.mark.parametrize("name", [*EACH_COUNT, *longer(*(name for name in VERBS if name not in EACH_COUNT))])
def test_a_verb_that_takes_long_has_a_bar_on_a_terminal(places: dict[str, str], name: str) -> None:
    arguments, counted = VERBS[name]
    code, printed, drawn = on_terminal(places, *arguments, "--json", patience=0)
    assert code == 0
    assert counted in drawn
    assert "━" in drawn
    lines = printed.splitlines()
    assert [json.loads(line) for line in lines]
    assert not {"━", "\x1b", "\r"} & set(printed)


@pytest.mark.slow
def test_nothing_of_a_bar_is_left_where_rows_are_printed_next_to_it(places: dict[str, str]) -> None:
    plain = tidestate_here("panes", places["ROOT"], "--format", "csv")
    assert (plain.returncode, plain.stderr) == (0, "")
    rows = plain.stdout.splitlines()
    _, _, both = on_terminal(places, "panes", "ROOT", "--format", "csv", patience=0, rows_too=True)
    assert "checkpoints" in both
    # A bar is rubbed out to the start of its line, then rows come.
    assert [line.rpartition("\x1b[2K")[2] for line in both.splitlines() if line.endswith(tuple(rows))] == rows


def test_what_takes_no_time_has_no_bar(places: dict[str, str]) -> None:
    code, printed, drawn = on_terminal(places, "list", "ROOT", "--json", patience=3600)
    assert code == 0
    assert len(printed.splitlines()) == 8
    assert "checkpoints" not in drawn
    assert "━" not in drawn


def test_reading_ahead_keeps_order_and_raises_in_its_turn() -> None:
    def act(number: int) -> int:
        if number % 7 == 3:
            raise ValueError(number)
        return 2 * number

    found: list[int | str] = []
    reported: list[tuple[str, int, int]] = []
    for number, read in prefetch_with_progress(lambda *one: reported.append(one), "numbers", act, range(40)):
        try:
            found.append(read())
        except ValueError:
            found.append(f"not {number}")
    assert found == [f"not {n}" if n % 7 == 3 else 2 * n for n in range(40)]
    assert reported == [("numbers", done, 40) for done in range(41)]


READER = """
import sys
from tidestate.recovery.log.checkpoint import Checkpoint
sys.setswitchinterval(1e-6)
checkpoint = Checkpoint.open(sys.argv[1])
print([read().manifest.id for _, read in checkpoint.load_each(checkpoint.ids())])
"""


@pytest.mark.slow
def test_threads_may_be_the_first_to_read_a_manifest(places: dict[str, str]) -> None:
    # msgspec builds what it knows of a type at the first decoding, guarded by nothing.
    for _ in range(8 if LONG else 1):
        done = subprocess.run(
            [sys.executable, "-c", READER, places["ROOT"]], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (0, f"{list(range(1, 9))}\n")


def test_no_more_is_read_ahead_than_was_reported() -> None:
    begun: list[int] = []
    reading = prefetch(begun.append, iter(range(10_000)))
    for _ in range(5):
        next(reading)[1]()
    reading.close()
    assert sorted(begun) == list(range(len(begun)))
    assert 5 <= len(begun) <= 5 + AT_ONCE


DROPPED = """
import threading
from tidestate.statestore.storage.prefetch import prefetch
reading = prefetch(len, ["x"] * 100)
next(reading)
with getattr(threading, "_shutdown_locks_lock", threading.Lock()):  # held while a thread starts
    del reading
"""


def test_what_was_read_ahead_may_be_dropped_while_a_thread_starts() -> None:
    subprocess.run([sys.executable, "-c", DROPPED], cwd=ROOT, timeout=60, check=True)
