"""Pane and ledger files with a wrong bit, or swapped: every reader says so, or answers exactly as before."""

from __future__ import annotations

import shutil
from collections import Counter
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.forked import Forked
from tests.helpers.hostile import run
from tests.helpers.process import LONG, longer
from tests.helpers.worked_example import STREAM, example
from tidestate import agg
from tidestate.operators.inspect.report.document import write_report
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import DataError
from tidestate.statestore.spec.store import Parquet

READERS = (
    ["panes"],
    ["late"],
    ["history", "--key", "k=a", "--window", "1970-01-01T00:00:00", "--json"],
    ["history", "--key", "k=b", "--window", "1970-01-01T00:00:00", "--json"],
    ["verify", "--read-data", "100", "--json"],
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outputs") / "root"
    example("retracting").standalone(checkpoint=folder, store=Parquet(), partitions=2).run(STREAM)
    return folder


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "root"))


def outputs(root: Path) -> list[Path]:
    found = list(Checkpoint.open(root).outputs())
    return [root / ref.path for output in found for ref in (*output.panes, *output.late)]


def footer_of(path: Path) -> int:
    return int.from_bytes(path.read_bytes()[-8:-4], "little") + 8


def flipped(root: Path, path: Path, step: int) -> Counter[str]:
    """What `history` makes of each ``step``-th bit of a footer."""
    bits = (path.stat().st_size - footer_of(path)) * 8, path.stat().st_size * 8
    process = Forked("tests.children.flipped", root, path, *bits, step)
    answered = [line.split(" ", 1)[1] for line in process.communicate()[0].splitlines()]
    assert process.returncode == 0, len(answered)
    assert len(answered) == len(range(*bits, step))
    return Counter(answered)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["panes", *longer("late")])
def test_a_wrong_bit_of_a_footer_is_noticed(root: Path, kind: str) -> None:
    files = [path for path in outputs(root) if path.relative_to(root).parts[0] == kind]
    for path in files if LONG else files[:1]:
        assert set(flipped(root, path, 3 if LONG else 1597)) == {"ours file-damaged"}


@pytest.mark.long
@pytest.mark.slow
def test_files_that_are_swapped_are_noticed(root: Path, tmp_path: Path) -> None:
    before = {tuple(reader): run(root, reader).output for reader in READERS}
    files = outputs(root)
    assert len(files) >= 5
    pairs = [*pairwise(files), (files[-1], files[0])]
    for one, other in pairs if LONG else [pairs[0], pairs[-1]]:
        first, second = one.read_bytes(), other.read_bytes()
        one.write_bytes(second)
        other.write_bytes(first)
        for reader in READERS:
            done = run(root, reader)
            if reader[0] == "verify":
                assert done.exit_code != 0
                assert (one.name in done.output, other.name in done.output) == (True, True)
            elif not isinstance(done.exception, DataError):
                assert done.exception is None
                assert done.output == before[tuple(reader)]
        if other == files[1]:
            assert write_report(root, tmp_path / "report.html", read_percent=100).findings == 2
        one.write_bytes(first)
        other.write_bytes(second)


def test_a_pane_file_in_place_of_another_is_not_passed_over(tmp_path: Path) -> None:
    """Its statistics say that it holds no such window, and they are another file's of the same size."""
    days = [pa.table({"t": [datetime(2026, 1, day, tzinfo=UTC)], "k": ["a"]}) for day in range(1, 9)]
    job = ts.stream(event_time="t").group_by("k").window(ts.tumbling("1 day")).aggregate(n=agg.count())
    job.standalone(checkpoint=tmp_path).run(days)
    files = outputs(tmp_path)
    shutil.copy(files[4], files[1])
    assert len({path.stat().st_size for path in files}) == 1
    done = run(tmp_path, ["history", "--key", "k=a", "--window", "2026-01-02T00:00:00", "--json"])
    assert isinstance(done.exception, DataError)
    assert done.exception.code == "file-damaged"
