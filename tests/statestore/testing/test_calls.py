"""Calls of the operating system: each is counted, its hook sees what is there, and what the hook raises counts."""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tidestate.statestore.errors import UnavailableError
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.testing.calls import Call, Calls
from tidestate.statestore.testing.faults import Crash, When
from tidestate.statestore.testing.power import Disk

DATA = b"0123456789"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder that exists before any call is traced."""
    made = tmp_path / "top"
    made.mkdir()
    return made


def nothing(_call: Call, _when: When) -> None: ...


def test_a_create_call_by_call(folder: Path) -> None:
    seen: list[tuple[str, str, When]] = []
    sizes: list[int] = []

    def hook(call: Call, when: When) -> None:
        assert call.number == len({one[:2] for one in seen} | {(call.name, f"{call.path}")})
        seen.append((call.name, call.path, when))
        if call.name == "write":
            sizes.append((folder / call.path).stat().st_size)

    with Calls(folder, hook) as calls:
        Objects(folder / "root").create("a", DATA)
    assert sizes == [0, 5, 10]
    names = [name for name, _, when in seen if when == "after"]
    assert names == ["mkdir", "fsync", "open", "write", "fsync", "link", "unlink", "fsync"]
    assert calls.count == len(names)
    linked = [path for name, path, _ in seen if name == "link"]
    assert linked == ["root/a", "root/a"]


def test_what_is_elsewhere_or_only_read_does_not_count(folder: Path) -> None:
    with Calls(folder, nothing) as calls:
        (folder.parent / "elsewhere").write_bytes(DATA)
        (folder.parent / "other").mkdir()
        os.rename(folder.parent / "elsewhere", folder.parent / "other" / "b")
        assert calls.count == 0
        os.rename(folder.parent / "other" / "b", folder / "b")
        assert calls.count == 1
        assert (folder / "b").read_bytes() == DATA
        assert calls.count == 1


def test_a_tree_that_is_removed(folder: Path) -> None:
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "c").write_bytes(DATA)
    seen: list[tuple[str, str]] = []
    with Calls(folder, lambda call, when: seen.append((call.name, call.path)) if when == "before" else None):
        shutil.rmtree(folder / "a")
    assert sorted(seen) == [("rmdir", "a"), ("rmdir", "a/b"), ("unlink", "a/c")]


def test_what_a_hook_raises_is_an_error_of_the_system(folder: Path) -> None:
    def full(call: Call, when: When) -> None:
        if (call.name, when) == ("write", "during"):
            raise OSError(errno.ENOSPC, "no space left on device")

    with Calls(folder, full), pytest.raises(UnavailableError, match="no space"):
        Objects(folder).put("a", DATA)
    assert (folder / "a").read_bytes() == DATA[:5]


def test_who_dies_before_a_call_has_not_made_it(folder: Path) -> None:
    def dies(call: Call, when: When) -> None:
        if (call.name, when) == ("link", "before"):
            raise Crash("here")

    with Calls(folder, dies), pytest.raises(Crash):
        Objects(folder).create("a", DATA)
    assert not (folder / "a").exists()


def test_all_is_as_it_was_afterwards(folder: Path) -> None:
    before = builtins.open, io.open, os.fsync, os.link, os.unlink, os.mkdir
    with Calls(folder, nothing):
        assert builtins.open is not before[0]
    with pytest.raises(Crash), Calls(folder, nothing):
        raise Crash("inside")
    assert (builtins.open, io.open, os.fsync, os.link, os.unlink, os.mkdir) == before


def test_one_call_at_a_time(folder: Path) -> None:
    inside: list[Call] = []

    def hook(call: Call, when: When) -> None:
        if when == "before":
            assert inside == []
            inside.append(call)
        elif when == "after":
            assert inside.pop() == call

    with Calls(folder, hook) as calls, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: (folder / str(number)).write_bytes(DATA), range(40)))
    assert calls.count == 80
    assert {path.read_bytes() for path in folder.iterdir()} == {DATA}


def test_what_a_power_cut_leaves_of_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(folder)
    monkeypatch.setattr(os, "fsync", disk.fsync)
    left: list[list[str]] = []

    def hook(call: Call, when: When) -> None:
        if (call.name, when) == ("fsync", "after"):
            left.append(list(disk.left()))

    with Calls(folder, hook):
        Objects(folder / "root").create("a", DATA)
    assert left == [["root"], ["root"], ["root", "root/a"]]
    assert disk.left() == {"root": None, "root/a": DATA}
    assert disk.synced((folder / "root" / "a").stat().st_ino) == DATA


def test_who_goes_on_after_a_death_has_what_was_durable_then(folder: Path) -> None:
    for name in ("a", "b", "c"):
        (folder / name).write_bytes(DATA)
    disk, before = Disk(folder), {"a": DATA, "gone": b"1", "f": None, "f/c": b"2"}
    disk.resume(before, {"c": DATA})
    assert disk.left() == before
    handle = os.open(folder, os.O_RDONLY)
    disk.fsync(handle)
    os.close(handle)
    assert disk.left() == {"a": DATA, "b": b"", "c": DATA}  # names as they are now; who has synced the bytes of b?


def test_what_is_apart_does_not_count(folder: Path) -> None:
    seen: list[Call] = []
    Objects(folder).create("alive/0.json", b"{}")
    with Calls(folder, lambda call, _when: seen.append(call), left_out=("alive",)) as calls:
        Objects(folder).create("alive/1.json", b"{}")
        assert (calls.count, seen) == (0, [])
        Objects(folder).create("m/alive", b"{}")
    assert {call.path.split("/")[0] for call in seen} == {"", "m"}
