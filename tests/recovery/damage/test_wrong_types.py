"""Pane and ledger files with columns of other types, and checksums that fit: readers answer in words."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.hostile import check_answers, put
from tests.helpers.process import LONG, in_turn
from tests.helpers.worked_example import STREAM, example
from tidestate.operators.inspect.report.document import write_report
from tidestate.recovery.log.checkpoint import Checkpoint, manifest_path
from tidestate.statestore.checksums import checksum
from tidestate.statestore.files.tails import tail_of
from tidestate.statestore.spec.store import Parquet

NO_TEXT = pa.Array.from_buffers(
    pa.string(), 1, [None, pa.py_buffer((0).to_bytes(4, "little") + (1).to_bytes(4, "little")), pa.py_buffer(b"\xff")]
)
VALUES = [
    pa.array(["x"]),
    pa.array([1.5]),
    pa.array([None], pa.int64()),
    NO_TEXT,
    pa.array([[1]]),
    pa.array([0], pa.timestamp("us", "UTC")),
    pa.array([{"a": 1}]),
    pa.array([b"\xff"], pa.binary()),
    pa.array([None], pa.null()),
    pa.array([True]),
    pa.array([2**63 - 1], pa.int64()),
]
COLUMNS = {"panes": ("window_start", "window_end", "kind", "n"), "late": ("t", "reason", "watermark")}
READERS = {
    "panes": [["panes", "--since", "1970-01-01"]],
    "late": [["late", "--window", "1970-01-01"], ["late", "--format", "json", "--output", os.devnull]],
}
HISTORY = ["history", "--key", "k=a", "--window", "1970-01-01T00:00:00"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("types") / "root"
    example("retracting").standalone(checkpoint=folder, store=Parquet(), partitions=2).run(STREAM)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", COLUMNS)
def test_columns_of_other_types(root: Path, kind: str, tmp_path: Path) -> None:
    number = next(one.id for one in Checkpoint.open(root).outputs() if getattr(one, kind))
    tree = json.loads((root / manifest_path(number)).read_bytes())["manifest"]
    path = root / tree[kind][0]["path"]
    was = path.read_bytes(), (root / manifest_path(number)).read_bytes()
    rows = pq.read_table(path)
    cases = in_turn(COLUMNS[kind], VALUES if LONG else VALUES[:5])
    for place, (name, value) in enumerate([*cases, *((name, None) for name in COLUMNS[kind])]):
        if value is None:
            other = rows.drop_columns([name])
        else:
            other = rows.set_column(rows.column_names.index(name), name, value.take(pa.array([0] * len(rows))))
        pq.write_table(other, path)
        data = path.read_bytes()
        tree[kind][0] |= {"bytes": len(data), "checksum": checksum(data), "tail": tail_of(data)}
        put(root, number, json.dumps(tree).encode())
        readers = [*READERS[kind], HISTORY]
        check_answers(root, readers if LONG else readers[place % len(readers) :][:1])
    write_report(root, tmp_path / "report.html")
    path.write_bytes(was[0])
    (root / manifest_path(number)).write_bytes(was[1])


def test_the_whole_root_is_as_it_was(root: Path, tmp_path: Path) -> None:
    assert check_answers(Path(shutil.copytree(root, tmp_path / "copy")), [HISTORY, ["panes"], ["late"]]) == set()
