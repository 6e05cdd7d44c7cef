"""Storage that is neither local nor S3: memory for tests, and schemes that must show what they can."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.helpers.schemes import Honest, Shelf
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import ConflictError, IncompatibleError, NotFoundError, UnavailableError, UsageError
from tidestate.statestore.storage import faults as storage_faults
from tidestate.statestore.storage.objects import Objects


class Foldered(Honest):
    """It has real folders, as a server for files has."""

    protocol = "foldered"

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        if self._parent(path) not in self.pseudo_dirs:
            raise FileNotFoundError(path)
        super().pipe_file(path, value, mode=mode)


class Careless(Shelf):
    protocol = "careless"

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        super().pipe_file(path, value)


class Racy(Shelf):
    """Looks, then writes; that is enough for one writer."""

    protocol = "racy"

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        if mode == "create" and self.exists(path):
            raise FileExistsError(path)
        threading.Event().wait(0.01)
        super().pipe_file(path, value)


class Readable(Shelf):
    protocol = "readable"

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        raise NotImplementedError


class Broken(Shelf):
    protocol = "broken"
    calls: ClassVar[list[str]] = []

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        self.calls.append(path)
        raise TimeoutError("no answer")


KINDS = (Honest, Foldered, Careless, Racy, Readable, Broken)


@pytest.fixture(autouse=True)
def _schemes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(storage_faults, "FIRST_WAIT", 0.001)
    for kind in KINDS:
        fsspec.register_implementation(kind.protocol, kind, clobber=True)
    yield
    for kind in (*KINDS, MemoryFileSystem):
        kind.store.clear()
        kind.pseudo_dirs[:] = [""]


@pytest.fixture
def open_root(tmp_path: Path) -> Callable[[str], Objects]:
    return lambda root: Objects(root, copies=str(tmp_path / "copies"))


@pytest.mark.parametrize("scheme", ["memory", "honest", "foldered"])
def test_all_of_it(open_root: Callable[[str], Objects], scheme: str) -> None:
    objects = open_root(f"{scheme}://some/root/")
    assert objects.root == f"{scheme}://some/root"
    assert objects.locate("m/1") == f"{scheme}://some/root/m/1"
    objects.create("m/1", b"first")
    objects.put("m/sub/x", b"0123456789")
    with objects.writer("m/2") as sink:
        sink.write(b"streamed")
    assert (sink.bytes, sink.checksum) == (8, checksum(b"streamed"))
    assert Objects(objects.root).read("m/1") == b"first"
    assert objects.map("m/2").to_pybytes() == b"streamed"
    with objects.open_input("m/sub/x") as source:
        source.seek(7)
        assert source.read(10) == b"789"
    assert objects.names("m") == ["1", "2", "sub"]
    assert objects.names("nowhere") == []
    assert (objects.exists("m/1"), objects.exists("m"), objects.exists("m/3")) == (True, True, False)
    with pytest.raises(ConflictError, match=r"\[exists\]"):
        objects.create("m/1", b"second")
    for read in (objects.read, objects.map, objects.open_input):
        with pytest.raises(NotFoundError, match="no-object"):
            read("m/3")
    objects.delete("m/1")
    objects.delete("m/1")
    assert objects.names("m") == ["2", "sub"]


@pytest.mark.parametrize("scheme", ["memory", "honest"])
def test_a_writer_that_fails_leaves_nothing(open_root: Callable[[str], Objects], scheme: str, tmp_path: Path) -> None:
    objects = open_root(f"{scheme}://some/root")
    with pytest.raises(ZeroDivisionError), objects.writer("a") as sink:
        sink.write(b"half" * (1 // 0))
    assert objects.names("") == []
    assert list((tmp_path / "copies").iterdir()) == []


def test_memory_is_raced_for_and_one_wins(open_root: Callable[[str], Objects]) -> None:
    objects = open_root("memory://race")
    assert objects.atomic_create == "lock"
    racers, rounds = 8, 100
    barrier = threading.Barrier(racers)
    wins: list[tuple[int, bytes]] = []

    def race(me: int) -> None:
        for number in range(rounds):
            barrier.wait()
            try:
                objects.create(f"m/{number}", f"{me}".encode())
                wins.append((number, f"{me}".encode()))
            except ConflictError:
                pass

    threads = [threading.Thread(target=race, args=(me,)) for me in range(racers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(number for number, _ in wins) == list(range(rounds))
    assert all(objects.read(f"m/{number}") == data for number, data in wins)


def test_memory_leaves_no_copies_for_another_process(open_root: Callable[[str], Objects], tmp_path: Path) -> None:
    objects = open_root("memory://root")
    objects.put("a", b"mine")
    assert objects.map("a", 4).to_pybytes() == b"mine"
    MemoryFileSystem.store.clear()
    objects.put("a", b"next")
    assert objects.map("a", 4).to_pybytes() == b"next"
    assert not (tmp_path / "copies").exists()


def test_an_honest_scheme_is_asked_once_and_left_clean(open_root: Callable[[str], Objects]) -> None:
    Honest.creates.clear()
    objects = open_root("honest://asked/once")
    assert objects.atomic_create == "probed"
    objects.names("")
    assert Honest.creates == []
    objects.create("a", b"first")
    asked = len(Honest.creates)
    assert asked > 10
    open_root("honest://asked/once").create("b", b"second")
    assert len(Honest.creates) == asked + 1
    assert objects.names("") == ["a", "b"]


@pytest.mark.parametrize("scheme", ["careless", "racy", "readable"])
def test_a_scheme_without_an_atomic_create_is_refused(open_root: Callable[[str], Objects], scheme: str) -> None:
    objects = open_root(f"{scheme}://root")
    for _ in range(2):
        with pytest.raises(UsageError) as caught:
            objects.create("m/1", b"data")
        assert (caught.value.code, caught.value.context) == ("no-atomic-create", {"scheme": scheme})
        assert "on a local path or on s3" in caught.value.message
    assert list(fsspec.get_filesystem_class(scheme).store) == []


def test_a_scheme_that_does_not_answer_is_unavailable_not_unfit(open_root: Callable[[str], Objects]) -> None:
    with pytest.raises((UnavailableError, NotFoundError)) as caught:
        open_root("broken://root").create("m/1", b"data")
    assert caught.value.code == "storage"


def test_what_may_pass_is_tried_again_within_bounds(open_root: Callable[[str], Objects]) -> None:
    Broken.calls.clear()
    with pytest.raises(UnavailableError) as caught:
        open_root("broken://root").put("a", b"data")
    assert caught.value.context == {"path": "a", "reason": "TimeoutError"}
    assert "did not answer" in caught.value.message
    assert len(Broken.calls) == storage_faults.ATTEMPTS


def test_local_copies_of_another_root_are_another_s(open_root: Callable[[str], Objects]) -> None:
    one, two = open_root("honest://one"), open_root("honest://two")
    one.put("a", b"one")
    two.put("a", b"two")
    assert one.map("a", 3).to_pybytes() == b"one"
    assert two.map("a", 3).to_pybytes() == b"two"


def test_a_scheme_whose_package_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(protocol: str) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "get_filesystem_class", missing)
    with pytest.raises(UsageError) as caught:
        Objects("s3://bucket/root")
    assert caught.value.code == "storage-package"
    assert "pip install 'tidestate[s3]'" in caught.value.message


@pytest.mark.parametrize("root", ["s3://", "s3:///", "memory://", "nonsense://x"])
def test_a_root_that_is_no_place_is_refused(root: str) -> None:
    with pytest.raises(UsageError, match="root-url"):
        Objects(root)


LOCAL = "/data/root"


@pytest.mark.parametrize(
    ("root", "base"),
    [
        *((LOCAL, base) for base in (LOCAL, "file:///data/x", "s3://bucket/x", "memory://x", "/data/a::b")),
        *((f"s3://bucket/{n}", base) for n, base in enumerate((LOCAL, "s3://other/x"))),
        ("honest://x", "honest://y"),
        ("honest://x", LOCAL),
    ],
)
def test_bases_in_storage_that_a_fork_may_name(root: str, base: str) -> None:
    assert Objects(root, bases=[base]).bases == (base,)


@pytest.mark.parametrize(
    "base",
    [
        "http://somewhere/x",
        "github://org:repo@main/x",
        "ftp://x",
        "honest://x",
        "simplecache::http://x",
        "file::http://x",
        "memory://x::http://y",
        "s3://bucket::http://x",
        "S3://bucket/x",
        "http://x/s3://y",
        " s3://x",
        "://x",
    ],
)
def test_a_base_of_another_scheme_is_not_opened(base: str) -> None:
    for root in (LOCAL, "s3://bucket/x", "memory://x"):
        with pytest.raises(IncompatibleError) as refused:
            Objects(root, bases=[LOCAL, base])
        assert refused.value.code == "base-scheme"
