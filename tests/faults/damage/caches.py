"""What a host keeps of a root for itself: the folders of the RocksDB store, and copies of remote objects."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import fsspec

from tests.faults.damage.answers import Went
from tests.faults.damage.subjects import FOLDED, KEPT, NEXT, Subject
from tests.faults.damage.verbs import went
from tests.helpers.schemes import Honest
from tests.helpers.worked_example import STREAM, example
from tidestate.statestore.spec.store import RocksDB, StoreConfig
from tidestate.statestore.storage.private import of_this_user


def make_rocksdb(folder: Path, seed: int = 0) -> None:
    """A root, and what the RocksDB store keeps of it."""
    store = RocksDB(cache_dir=str(folder / "cache"))
    job = example("retracting").standalone(checkpoint=folder / "root", store=store, partitions=2)
    job.run(STREAM[: 5 - seed])


def _rocksdb(root: str, _store: StoreConfig) -> Went:
    store = RocksDB(cache_dir=str(Path(root).parent / "cache"))
    example("retracting").standalone(checkpoint=root, store=store).run([*STREAM, KEPT, NEXT])
    return went(root)


_shelves: dict[str, dict[str, Any]] = {}
"""What storage has, by the folder with copies of it."""


def make_copies(folder: Path, seed: int = 0) -> None:
    """A root on remote storage, whose objects are copied when they are read."""
    fsspec.register_implementation("honest", Honest, clobber=True)
    with mock.patch.object(tempfile, "tempdir", str(folder)):
        job = example("retracting").standalone(checkpoint=_url(folder), store=FOLDED, partitions=2)
        job.run(STREAM[: 5 - seed])
        went(_url(folder))
        of_this_user("tidestate-copies").rename(folder / "copies")
    _shelves[_url(folder)] = dict(Honest.store)


def _copies(root: str, _store: StoreConfig) -> Went:
    folder = Path(root).parent
    Honest.store.clear()
    Honest.store.update(_shelves[_url(folder)])
    with mock.patch.object(tempfile, "tempdir", str(folder)):
        (folder / "copies").rename(of_this_user("tidestate-copies"))
        example("retracting").standalone(checkpoint=_url(folder), store=FOLDED).run([*STREAM, KEPT, NEXT])
        return went(_url(folder))


def _url(folder: Path) -> str:
    return f"honest://{folder.name}/root"


CACHES = (
    Subject(
        "RocksDB's folders",
        make_rocksdb,
        (
            ("CURRENT", r".*/CURRENT"),
            ("its manifest", r".*/MANIFEST-.*"),
            ("a table file", r".*\.sst"),
            ("options", r".*/OPTIONS-.*"),
            ("identity", r".*/IDENTITY"),
            ("its log, lock and settings", r".*/(LOG.*|LOCK|.*\.log|rocksdict.*)"),
        ),
        {},
        _rocksdb,
        {},
        stores=("rocksdb",),
        below="cache",
    ),
    Subject(
        "copies of remote objects",
        make_copies,
        (("a copy", r"[0-9a-f]{32}"),),
        {},
        _copies,
        {},
        stores=("parquet",),
        below="copies",
    ),
)
