"""What this host caches lies in folders of one user alone."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.table_model import NAMED
from tidestate.statestore.errors import TidestateError, UnavailableError, UsageError
from tidestate.statestore.files.refs import PartitionState
from tidestate.statestore.spec.store import RocksDB
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.storage.private import make_private, of_this_user
from tidestate.statestore.stores.opening import open_store


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    return tmp_path / "tmp"


def use_rocks(root: Path) -> None:
    with open_store(RocksDB(), Objects(root), "job", [NAMED], PartitionState()):
        pass


def use_copies(_root: Path) -> None:
    objects = Objects("memory://private")
    with objects.writer("a") as sink:
        sink.write(b"data")
    objects.delete("a")


USES: dict[str, Callable[[Path], None]] = {"tidestate-rocksdb": use_rocks, "tidestate-copies": use_copies}


def _linked(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "elsewhere")


def _open_to(mode: int) -> Callable[[Path], None]:
    def made(folder: Path) -> None:
        folder.mkdir()
        folder.chmod(mode)

    return made


def _of_another(folder: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a folder away")
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)


FOREIGN: dict[str, Callable[[Path], None]] = {
    "a link": _linked,
    "a dangling link": lambda folder: folder.symlink_to(folder.parent / "nowhere"),
    "a file": lambda folder: folder.write_bytes(b""),
    "read by the group": _open_to(0o740),
    "written by all": _open_to(0o1702),
    "of another user": _of_another,
}


@pytest.mark.parametrize("name", USES)
def test_caches_are_made_for_one_user(tmp_path: Path, temporary: Path, name: str) -> None:
    USES[name](tmp_path / "root")
    (made,) = temporary.iterdir()
    assert made.name == f"{name}-{os.getuid()}"
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    USES[name](tmp_path / "root")


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("case", FOREIGN)
def test_a_cache_that_is_not_ours_is_refused_untouched(tmp_path: Path, temporary: Path, name: str, case: str) -> None:
    FOREIGN[case](of_this_user(name))
    before = {path: path.lstat().st_mtime_ns for path in temporary.rglob("*")}
    with pytest.raises(UsageError, match=f"TMPDIR.*{name}") as refused:
        USES[name](tmp_path / "root")
    assert refused.value.code == "folder-shared"
    assert {path: path.lstat().st_mtime_ns for path in temporary.rglob("*")} == before


def test_a_folder_of_your_choice_is_private_too(tmp_path: Path) -> None:
    store = RocksDB(cache_dir=str(tmp_path / "of" / "mine"))
    with open_store(store, Objects(tmp_path / "root"), "job", [NAMED], PartitionState()):
        pass
    assert stat.S_IMODE((tmp_path / "of" / "mine").stat().st_mode) == 0o700
    (tmp_path / "of" / "mine").chmod(0o755)
    opening = open_store(store, Objects(tmp_path / "root"), "job", [NAMED], PartitionState())
    with pytest.raises(UsageError, match="chmod 700"), opening:
        pass


def test_no_place_for_a_cache_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UnavailableError, match="cache_dir") as refused:
        make_private(tmp_path / "file" / "cache")
    assert isinstance(refused.value, TidestateError)
    assert refused.value.code == "cache-folder"


def test_a_host_without_a_temporary_folder_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nowhere"])
    with pytest.raises(UnavailableError, match="no-temporary-folder"):
        of_this_user("tidestate-copies")
