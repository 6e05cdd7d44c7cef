"""Objects written several at a time: durable at the end of the block, and no error is lost."""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import UnavailableError
from tidestate.statestore.storage import write_behind
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.storage.write_behind import WriteBehind


def test_all_are_there_at_the_end(tmp_path: Path) -> None:
    with WriteBehind(tmp_path) as objects:
        for number in range(100):
            objects.put(f"{number % 7}/{number}", b"%d" % number)
    assert all(Objects(tmp_path).read(f"{number % 7}/{number}") == b"%d" % number for number in range(100))


def test_each_is_synced_before_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = Objects.put

    def put(self: Objects, path: str, data: Any) -> None:
        real(self, path, data)
        synced.append(path)

    monkeypatch.setattr(Objects, "put", put)
    with WriteBehind(tmp_path) as objects:
        for number in range(40):
            objects.put(f"a/{number}", b"x")
    assert sorted(synced) == sorted(f"a/{number}" for number in range(40))


def test_they_are_written_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(4, timeout=10)
    monkeypatch.setattr(Objects, "put", lambda *_: together.wait())
    with WriteBehind(tmp_path) as objects:
        for number in range(4):
            objects.put(str(number), b"")
    assert not together.broken


@pytest.mark.parametrize("failing", [0, 3, 9])
def test_an_error_is_raised_at_the_end_at_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    def put(_self: Objects, path: str, _data: Any) -> None:
        if path == str(failing):
            raise UnavailableError("the disk is full", code="storage", path=path)

    monkeypatch.setattr(Objects, "put", put)
    with pytest.raises(UnavailableError, match="full"):
        write_ten(tmp_path)


def test_the_error_of_the_block_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def put(*_: Any) -> None:
        raise UnavailableError("the disk is full", code="storage")

    monkeypatch.setattr(Objects, "put", put)
    with pytest.raises(ValueError, match="first"):
        write_ten(tmp_path, then=ValueError("first"))


def write_ten(root: Path, then: Exception | None = None) -> None:
    with WriteBehind(root) as objects:
        for number in range(10):
            objects.put(str(number), b"")
        if then is not None:
            raise then


def test_what_waits_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_behind, "BEHIND_BYTES", 10)
    with WriteBehind(tmp_path) as objects:
        for number, size in enumerate([4, 4, 4, 11, 10, 0]):
            objects.put(str(number), b"x" * size)
            assert objects._bytes <= 10
    assert [len(Objects(tmp_path).read(str(number))) for number in range(6)] == [4, 4, 4, 11, 10, 0]


def test_a_block_ends_after_all_writes_though_one_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    def put(_self: Objects, path: str, _data: Any) -> None:
        if path == "0":
            raise UnavailableError("the disk is full", code="storage", path=path)
        time.sleep(0.01)
        ended.append(path)

    monkeypatch.setattr(Objects, "put", put)
    with pytest.raises(UnavailableError, match="full"):
        write_ten(tmp_path)
    assert sorted(ended) == [str(number) for number in range(1, 10)]


def test_blocks_after_each_other_share_their_threads_and_a_fork_has_its_own(tmp_path: Path) -> None:
    def written(name: str) -> bool:
        with WriteBehind(tmp_path) as objects:
            objects.put(name, b"x")
        return Objects(tmp_path).read(name) == b"x"

    assert written("first")
    threads = {thread.ident for thread in threading.enumerate()}
    assert written("second")
    assert threads <= {thread.ident for thread in threading.enumerate()}
    child = multiprocessing.get_context("fork").Process(target=lambda: sys.exit(not written("of the child")))
    child.start()
    child.join(30)
    assert child.exitcode == 0


@pytest.mark.parametrize("pieces", [1, 30], ids=["small", "large"])
def test_what_a_writer_is_given_is_there_at_the_end(tmp_path: Path, pieces: int) -> None:
    """Small, it is put with the others; large, it goes to the disk as it comes."""
    piece = bytes(range(256)) * 400
    with WriteBehind(tmp_path) as objects:
        with objects.writer("a/b") as sink:
            for _ in range(pieces):
                sink.write(piece)
            sink.flush()
        if pieces > 1:
            assert (tmp_path / "a/b").stat().st_size == sink.bytes
    assert Objects(tmp_path).read("a/b") == piece * pieces
    assert (sink.bytes, sink.checksum) == (len(piece) * pieces, checksum(piece * pieces))


@pytest.mark.parametrize("pieces", [1, 30], ids=["small", "large"])
def test_nothing_is_under_the_name_after_an_error(tmp_path: Path, pieces: int) -> None:
    with WriteBehind(tmp_path) as objects, pytest.raises(RuntimeError):
        write_and_fail(objects, pieces)
    assert Objects(tmp_path).names("a") == []


def write_and_fail(objects: Objects, pieces: int) -> None:
    with objects.writer("a/b") as sink:
        for _ in range(pieces):
            sink.write(bytes(100_000))
        raise RuntimeError
