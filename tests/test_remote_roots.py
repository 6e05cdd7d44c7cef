"""A whole job on remote storage: the same panes as on a local disk, one writer at a time, every store."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from operators import Memory, Parquet, RocksDB
from recovery.checkpoint import Checkpoint
from statestore.errors import FencedError
from statestore.store import StoreConfig
from tests.s3_server import s3_endpoint, s3_root  # noqa: F401  (fixtures)
from tests.test_standalone import STREAM, example

STORES = ["memory", "rocksdb", "parquet"]


def config(name: str, folder: Path) -> StoreConfig:
    small = {"max_levels": 3, "snapshot_bytes": 1}
    if name == "rocksdb":
        return RocksDB(cache_dir=str(folder / "cache"), **small)
    return {"memory": Memory, "parquet": Parquet}[name](**small)


@pytest.fixture(params=["s3", "memory"])
def root(request: pytest.FixtureRequest) -> str:
    if request.param == "s3":
        return str(request.getfixturevalue("s3_root"))
    return f"memory://{uuid.uuid4().hex}/root"


@pytest.mark.parametrize("name", STORES)
def test_a_job_gives_the_same_panes_as_on_a_local_disk(root: str, name: str, tmp_path: Path) -> None:
    job, found = example("retracting"), []
    expected = job.standalone(checkpoint=tmp_path / "root").run(STREAM, drain=True)
    for upto in (3, len(STREAM)):
        runner = job.standalone(checkpoint=root, store=config(name, tmp_path))
        found += runner.run(STREAM[:upto], drain=upto == len(STREAM)).to_pylist()
    assert found == expected.to_pylist()
    checkpoint = Checkpoint.open(root)
    assert checkpoint.marker.atomic_create == {"s3": "if-none-match", "memory": "lock"}[root.split(":")[0]]
    assert len(checkpoint.pane_paths()) == len({*checkpoint.pane_paths()}) > 3


def test_a_newer_run_fences_an_older_one(root: str) -> None:
    older = example().standalone(checkpoint=root).stream(STREAM)
    next(older)
    example().standalone(checkpoint=root).run(STREAM[:2])
    with pytest.raises(FencedError):
        list(older)
