"""A whole job on remote storage: the same panes as on a local disk, one writer at a time, every store."""

from __future__ import annotations

import uuid
from pathlib import Path

import fsspec
import pytest

from tests.helpers.moves import fork
from tests.helpers.process import few, in_turn
from tests.helpers.schemes import Honest
from tests.helpers.worked_example import STREAM, example
from tests.servers.s3 import s3_endpoint, s3_root  # noqa: F401  (fixtures)
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import FencedError, IncompatibleError
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB, StoreConfig

PLACES = ["s3", "memory"]
STORES = ["memory", "rocksdb", "parquet"]


def config(name: str, folder: Path) -> StoreConfig:
    small = {"max_levels": 3, "snapshot_bytes": 1}
    if name == "rocksdb":
        return RocksDB(cache_dir=str(folder / "cache"), **small)
    return {"memory": Memory, "parquet": Parquet}[name](**small)


@pytest.fixture(params=few(PLACES, 1))
def root(request: pytest.FixtureRequest) -> str:
    if request.param == "s3":
        return str(request.getfixturevalue("s3_root"))
    return f"memory://{uuid.uuid4().hex}/root"


@pytest.mark.slow
@pytest.mark.parametrize(("root", "name"), few(in_turn(PLACES, STORES), 1, 2), indirect=["root"])
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


@pytest.mark.slow
def test_a_newer_run_fences_an_older_one(root: str) -> None:
    older = example().standalone(checkpoint=root).stream(STREAM)
    next(older)
    example().standalone(checkpoint=root).run(STREAM[:2])
    with pytest.raises(FencedError):
        list(older)


@pytest.mark.slow
@pytest.mark.parametrize(("root", "outwards"), few(in_turn(PLACES, (True, False)), 1), indirect=["root"])
def test_a_fork_may_lie_in_another_kind_of_storage(root: str, outwards: bool, tmp_path: Path) -> None:
    """A folder forked from remote storage, and the reverse."""
    first, second = (str(tmp_path / "one"), root) if outwards else (root, str(tmp_path / "one"))
    example("retracting").standalone(checkpoint=first).run(STREAM[:3])
    fork(first, second)
    example("retracting").standalone(checkpoint=second).run(STREAM, drain=True)
    example("retracting").standalone(checkpoint=tmp_path / "whole").run(STREAM, drain=True)
    heads = [Checkpoint.open(one).head() for one in (second, tmp_path / "whole")]
    went_on, whole = (one.manifest for one in heads if one is not None)
    assert went_on.totals == whole.totals


def test_a_fork_that_could_not_be_read_is_not_begun(tmp_path: Path) -> None:
    fsspec.register_implementation("honest", Honest, clobber=True)
    root = f"honest://{uuid.uuid4().hex}"
    example("retracting").standalone(checkpoint=root).run(STREAM[:3])
    with pytest.raises(IncompatibleError) as refused:
        fork(root, tmp_path / "fork")
    assert refused.value.code == "base-scheme"
    assert Checkpoint.open(root).objects.names("pins") == []
    assert not (tmp_path / "fork").exists()
    assert fork(root, f"{root}-fork").checkpoint_id == 4
