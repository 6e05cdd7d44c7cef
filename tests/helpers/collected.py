"""A root whose old checkpoints are collected, and all that must stay."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.forks import JOB
from tests.helpers.process import LONG
from tests.helpers.spark_inputs import sample
from tidestate.operators.engine.delivery import read_rows
from tidestate.recovery.inspect.rows import Wanted, state_rows
from tidestate.recovery.inspect.verify import verify
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.spec.store import Parquet

STORE = Parquet(max_levels=3, snapshot_bytes=1)
TABLES = sample(14, 60)
NOW = CheckpointRetention(newest=3, grace="0 seconds")


def run(root: object, batches: int, **more: Any) -> None:
    JOB.standalone(checkpoint=root, store=STORE, **more).run(TABLES[:batches])


@pytest.fixture
def root(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """After ten batches. A copy of the first one, but in the long form: hours later that has old checkpoints."""
    if LONG:
        run(tmp_path / "root", 10)
        return tmp_path / "root"
    return Path(shutil.copytree(_first(tmp_path_factory.getbasetemp()), tmp_path / "root"))


@cache
def _first(folder: Path) -> Path:
    run(folder / "collected", 10)
    return folder / "collected"


def observed(checkpoint: Checkpoint) -> list[tuple[int, list[Any]]]:
    """Panes and ledgers of all checkpoints that put something out."""
    found = []
    for output in checkpoint.outputs():
        refs = (*output.panes, *output.late)
        if refs:
            tables = [pa.Table.from_pylist(_rows(checkpoint, ref)) for ref in refs]
            found.append((output.id, [table.to_pylist() for table in tables]))
    return found


def _rows(checkpoint: Checkpoint, ref: Any) -> list[Any]:
    schema = pq.read_schema(checkpoint.objects.locate(ref.path))
    return read_rows(checkpoint, (ref,), schema).to_pylist()


def state(checkpoint: Checkpoint, manifest: Manifest) -> list[Any]:
    found = []
    for name, operator in manifest.operators.items():
        for spec in operator.tables:
            rows = pa.concat_tables(state_rows(checkpoint, operator, spec, Wanted())).to_pylist()
            found.append((name, spec.name, rows))
    return found


def whole(root: object) -> None:
    report = verify(Checkpoint.open(root), read_percent=100)  # type: ignore[arg-type]
    assert report.findings == ()


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
