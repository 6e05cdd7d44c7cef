"""Objects under a root: one winner per name, whole bytes, errors in our words, nothing outside the root."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.races import processes_race, threads_race
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import ConflictError, CorruptionError, NotFoundError, UnavailableError, UsageError
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.storage.sink import ObjectSink


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return Objects(tmp_path)


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_what_is_put_is_read(objects: Objects, tmp_path: Path) -> None:
    objects.put("a/b/c.bin", b"bytes")
    objects.put("a/b/d.bin", pa.py_buffer(b"buffer"))
    assert objects.read("a/b/c.bin") == b"bytes"
    assert objects.read("a/b/d.bin") == b"buffer"
    assert objects.map("a/b/d.bin").to_pybytes() == b"buffer"
    assert (tmp_path / "a/b/c.bin").read_bytes() == b"bytes"
    assert objects.locate("a/b/c.bin") == str(tmp_path / "a/b/c.bin")
    assert objects.url("a/b/c.bin") == f"file://{tmp_path}/a/b/c.bin"
    assert objects.atomic_create == "link"


def test_an_empty_object_is_an_object(objects: Objects) -> None:
    objects.create("empty", b"")
    assert objects.read("empty") == b""
    assert objects.map("empty").size == 0
    assert objects.exists("empty")


def test_names_are_sorted_and_hide_what_is_unfinished(objects: Objects, tmp_path: Path) -> None:
    for name in ("m/10", "m/9", "m/sub/1", "other"):
        objects.put(name, b"")
    (tmp_path / "m/.9.0123abcd").write_bytes(b"left by a crash")
    assert objects.names("m") == ["10", "9", "sub"]
    assert objects.names("nowhere") == []


def test_what_is_not_there(objects: Objects) -> None:
    for read in (objects.read, objects.map, objects.open_input):
        with pytest.raises(NotFoundError) as caught:
            read("a/b")
        assert (caught.value.code, caught.value.context) == ("no-object", {"path": "a/b"})
    assert not objects.exists("a/b")


def test_a_name_is_taken_once(objects: Objects, tmp_path: Path) -> None:
    objects.create("m/1", b"first")
    with pytest.raises(ConflictError) as caught:
        objects.create("m/1", b"second")
    assert (caught.value.code, caught.value.context) == ("exists", {"path": "m/1"})
    assert objects.read("m/1") == b"first"
    assert files_below(tmp_path) == ["m/1"]


def test_many_threads_race_and_one_wins(objects: Objects, tmp_path: Path) -> None:
    assert sorted(threads_race(objects, racers=16, rounds=15, name="new/{}/manifest")) == list(range(15))
    assert files_below(tmp_path) == sorted(f"new/{number}/manifest" for number in range(15))


def test_many_processes_race_and_one_wins(objects: Objects, tmp_path: Path) -> None:
    assert sorted(processes_race(objects, racers=4, rounds=40)) == list(range(40))
    assert objects.names("m") == sorted(map(str, range(40)))
    assert len(files_below(tmp_path)) == 40


def test_put_never_overwrites(objects: Objects) -> None:
    objects.put("a", b"first")
    with pytest.raises(UnavailableError) as caught:
        objects.put("a", b"second")
    assert caught.value.context == {"path": "a", "reason": "EEXIST"}
    assert objects.read("a") == b"first"


@pytest.mark.parametrize("path", ["blocked/x", "blocked/x/y"])
def test_a_file_where_a_folder_should_be(objects: Objects, tmp_path: Path, path: str) -> None:
    (tmp_path / "blocked").write_bytes(b"a file")
    for write in (objects.put, objects.create):
        with pytest.raises(UnavailableError) as caught:
            write(path, b"data")
        assert (caught.value.code, caught.value.context) == ("storage", {"path": path, "reason": "ENOTDIR"})
    assert files_below(tmp_path) == ["blocked"]


def test_a_root_that_is_a_file_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "root").write_bytes(b"")
    with pytest.raises(UnavailableError, match="not a directory"):
        Objects(tmp_path / "root").create("tidestate.json", b"{}")


def test_what_is_no_file_is_no_object(objects: Objects, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
    (tmp_path / "device").symlink_to("/dev/zero")
    acts: list[Callable[[str], object]] = [objects.read, objects.map, objects.open_input, objects.size]
    for kind in ("folder", "pipe", "socket", "device"):
        for act in acts:
            with pytest.raises(CorruptionError, match=rf"found a {kind} where a file should be.*\[not-a-file\]"):
                act(kind)


def test_a_link_that_leads_to_itself_is_unavailable(objects: Objects, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for act in (objects.read, objects.map, objects.open_input, objects.size):
        with pytest.raises(UnavailableError) as caught:
            act("loop")
        assert caught.value.context == {"path": "loop", "reason": "ELOOP"}


@pytest.mark.parametrize("path", ["../outside", "a/../../outside", "/etc/passwd", "a/..", ".."])
def test_paths_stay_below_the_root(objects: Objects, path: str) -> None:
    acts: list[Callable[[str], object]] = [objects.read, objects.map, objects.open_input, objects.exists]
    for act in (*acts, objects.names, objects.locate, objects.url, objects.delete, objects.writer):
        with pytest.raises(UsageError, match="path-outside"):
            act(path)
    for write in (objects.put, objects.create):
        with pytest.raises(UsageError, match="path-outside"):
            write(path, b"")


def test_a_scheme_nobody_knows_is_refused() -> None:
    with pytest.raises(UsageError, match="nonsense"):
        Objects("nonsense://x")


@pytest.mark.parametrize("root", [None, "", "  ", b"bytes", 5])
def test_what_names_no_place_is_no_root(root: object) -> None:
    with pytest.raises(UsageError, match="root-url"):
        Objects(root)  # type: ignore[arg-type]


def test_a_full_path_needs_no_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> str:
        raise FileNotFoundError

    monkeypatch.setattr(os, "getcwd", gone)
    assert Objects(tmp_path).root == str(tmp_path)
    with pytest.raises(UsageError, match="folder-gone"):
        Objects("relative")


def test_a_root_may_be_a_url_a_path_or_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Objects(tmp_path / "r").put("a", b"data")
    monkeypatch.chdir(tmp_path)
    for root in (f"file://{tmp_path}/r", str(tmp_path / "r"), "r", "./r", f"{tmp_path}/r/"):
        assert Objects(root).read("a") == b"data"
        assert os.path.samefile(Objects(root).root, tmp_path / "r")


def test_the_root_is_made_when_something_is_written(tmp_path: Path) -> None:
    objects = Objects(tmp_path / "new/root")
    assert not (tmp_path / "new").exists()
    objects.create("a", b"data")
    assert objects.read("a") == b"data"


def test_a_sink_counts_and_checks_what_passes(objects: Objects, tmp_path: Path) -> None:
    with objects.writer("big/one") as sink:
        assert sink.write(b"first ") == 6
        assert sink.write(pa.py_buffer(b"second")) == 6
        sink.flush()
        assert (sink.tell(), sink.closed) == (12, False)
        assert not objects.exists("big/one")
        assert objects.names("big") == []
    assert sink.closed
    assert (sink.bytes, sink.checksum) == (12, checksum(b"first second"))
    assert objects.read("big/one") == b"first second"
    assert files_below(tmp_path) == ["big/one"]
    with pytest.raises(ValueError, match="closed"):
        sink.write(b"late")


def test_arrow_writes_into_a_sink(objects: Objects) -> None:
    table = pa.table({"a": range(100_000)})
    with objects.writer("table.parquet") as sink, pq.ParquetWriter(sink, table.schema) as writer:
        writer.write_table(table)
    assert sink.checksum == checksum(objects.read("table.parquet"))
    with objects.writer("table.arrow") as sink, pa.ipc.new_file(pa.PythonFile(sink, mode="w"), table.schema) as out:
        out.write_table(table)
    assert sink.checksum == checksum(objects.read("table.arrow"))
    assert pq.read_table(objects.open_input("table.parquet")) == table
    assert pa.ipc.open_file(objects.open_input("table.arrow")).read_all() == table


def test_a_writer_that_fails_leaves_nothing(objects: Objects, tmp_path: Path) -> None:
    def fill(sink: ObjectSink) -> None:
        sink.write(b"half of it")
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"), objects.writer("a/b") as sink:
        fill(sink)
    assert sink.closed
    assert files_below(tmp_path) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_unavailable_through_arrow_too(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.open", lambda path, mode: os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb"))
    table = pa.table({"a": range(1_000_000)})
    with (
        pytest.raises(UnavailableError) as caught,
        objects.writer("a") as sink,
        pa.ipc.new_file(pa.PythonFile(sink, mode="w"), table.schema) as out,
    ):
        out.write_table(table)
    assert caught.value.context == {"path": "a", "reason": "ENOSPC"}
    assert files_below(tmp_path) == []


def test_a_writer_never_overwrites(objects: Objects, tmp_path: Path) -> None:
    objects.put("a", b"first")
    with pytest.raises(UnavailableError) as caught, objects.writer("a") as sink:
        sink.write(b"second")
    assert caught.value.context == {"path": "a", "reason": "EEXIST"}
    assert objects.read("a") == b"first"
    assert files_below(tmp_path) == ["a"]


def test_a_writer_that_cannot_confirm_its_name_takes_it_back(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path) -> None:
        raise OSError(5, "Input/output error")

    (tmp_path / "a").mkdir()
    monkeypatch.setattr("tidestate.statestore.storage.local._sync_folder", fail)
    with pytest.raises(UnavailableError), objects.writer("a/b") as sink:
        sink.write(b"data")
    assert files_below(tmp_path) == []


def test_an_input_is_read_here_and_there(objects: Objects) -> None:
    objects.put("a", b"0123456789")
    with objects.open_input("a") as source:
        source.seek(4)
        assert source.read(3) == b"456"
        assert source.size() == 10


def test_what_is_deleted_is_gone_and_may_be_deleted_again(objects: Objects) -> None:
    objects.put("a/b", b"data")
    objects.delete("a/b")
    assert not objects.exists("a/b")
    objects.delete("a/b")
    objects.delete("never/was")


def test_a_folder_is_cleared_with_all_that_is_in_it(objects: Objects) -> None:
    for name in ("a/1", "a/b/2", "a/b/.hidden", "a1", "other"):
        objects.put(name, b"data")
    objects.clear("a")
    assert (objects.names(""), objects.exists("a"), objects.exists("a/b/2")) == (["a1", "other"], False, False)
    objects.clear("a")


def test_nothing_is_removed_through_a_link(objects: Objects, tmp_path: Path) -> None:
    other = Objects(tmp_path / "other")
    other.put("a/b/file", b"data")
    objects.put("own/file", b"data")
    (Path(objects.root) / "a").symlink_to(tmp_path / "other" / "a")
    assert [objects.linked(folder) for folder in ("a/b", "a", "own", "")] == [True, True, False, False]
    assert objects.read("a/b/file") == b"data"
    for remove in (
        lambda: objects.delete("a/b/file"),
        lambda: objects.move("a/b", "c"),
        lambda: objects.clear("a/b"),
    ):
        with pytest.raises(UsageError) as caught:
            remove()
        assert caught.value.code == "folder-linked"
    assert other.read("a/b/file") == b"data"
    objects.delete("a")  # the link itself is ours
    assert not objects.exists("a")
    assert other.read("a/b/file") == b"data"
