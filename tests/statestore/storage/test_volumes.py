"""Volumes of Databricks, by a server of ours that speaks the Files API and creates atomically."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.races import processes_race, threads_race
from tests.servers.volumes import VOLUME, FilesApi
from tests.servers.volumes import files_api as files_api
from tests.servers.volumes import files_server as files_server
from tidestate.recovery.inspect.root_trial import try_root
from tidestate.statestore import roots
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import (
    CommitUnknownError,
    ConflictError,
    NotFoundError,
    UnavailableError,
    UsageError,
)
from tidestate.statestore.storage import faults as storage_faults
from tidestate.statestore.storage.dialects.volumes import VolumesFiles
from tidestate.statestore.storage.objects import Objects

ROOT = f"{VOLUME}/some/root"
OPENED = Callable[[], Objects]


@pytest.fixture
def opened(files_api: FilesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OPENED:
    """Opens the root, whose probe is done: a test that breaks requests breaks its own."""
    monkeypatch.setattr(storage_faults, "LONGEST_WAIT", 0.01)

    def opened() -> Objects:
        return Objects(ROOT, copies=str(tmp_path / "copies"))

    opened().create("probed", b"")
    files_api.log.clear()
    return opened


@pytest.mark.parametrize("spelled", [ROOT, f"{ROOT}/", f"dbfs:{ROOT}", f"dbfs://{ROOT}"])
def test_one_spelling_for_one_place(files_api: FilesApi, spelled: str) -> None:
    objects = Objects(spelled)
    assert objects.root == f"dbfs://{ROOT}"
    assert objects.atomic_create == "overwrite-false"
    assert objects.locate("m/1") == f"dbfs:{ROOT}/m/1"


def test_disks_of_a_laptop_are_no_volumes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roots, "_DISKS_ARE_VOLUMES", True)
    assert Objects(ROOT).root == ROOT
    assert Objects(f"dbfs:{ROOT}").root == f"dbfs://{ROOT}"


@pytest.mark.parametrize("root", ["dbfs:///Volumes/main/jobs", "dbfs:/tmp/x", "/Volumes/main"])
def test_a_root_in_no_volume_is_refused(root: str) -> None:
    with pytest.raises(UsageError, match="root-url"):
        Objects(root)


def test_all_of_it(opened: OPENED, files_api: FilesApi) -> None:
    objects = opened()
    files_api.page = 2
    objects.create("m/1", b"first")
    objects.put("m/sub/x y%é", b"0123456789")
    with objects.writer("m/2") as sink:
        sink.write(b"streamed")
    assert (sink.bytes, sink.checksum) == (8, checksum(b"streamed"))
    assert opened().read("m/1") == b"first"
    assert objects.map("m/2").to_pybytes() == b"streamed"
    with objects.open_input("m/sub/x y%é") as source:
        source.seek(7)
        assert source.read(10) == b"789"
    objects.put("m/3", b"third")
    assert objects.names("m") == ["1", "2", "3", "sub"]
    assert objects.names("nowhere") == []
    assert (objects.exists("m/1"), objects.exists("m"), objects.exists("m/9")) == (True, True, False)
    assert objects.size("m/2") == 8
    with pytest.raises(ConflictError, match=r"\[exists\]"):
        objects.create("m/1", b"second")
    for read in (objects.read, objects.map, objects.open_input, objects.size, objects.age_us):
        with pytest.raises(NotFoundError, match="no-object"):
            read("m/9")
    objects.move("m", "moved/m")
    assert objects.names("moved/m") == ["1", "2", "3", "sub"]
    assert not objects.exists("m")
    objects.delete("moved/m/1")
    objects.delete("moved/m/1")
    assert objects.names("moved/m") == ["2", "3", "sub"]
    objects.clear("moved")
    objects.clear("moved")
    assert objects.names("") == ["probed"]


def test_the_age_is_by_the_clock_of_the_service(opened: OPENED, files_api: FilesApi) -> None:
    objects = opened()
    files_api.ahead_s = -3600
    objects.put("old", b"")
    age_us = objects.age_us("old")
    assert age_us is not None
    assert age_us // 1_000_000 in (3600, 3601)


def test_fifty_threads_race(opened: OPENED) -> None:
    won = threads_race(opened(), 50, 2)
    assert len(won) == 2


@pytest.mark.long
def test_processes_race(opened: OPENED) -> None:
    assert len(processes_race(opened(), 3, 20)) == 20


LOST = ["after", "torn", 500, 503, 429]


@pytest.mark.parametrize("fault", LOST)
def test_a_create_whose_reply_is_lost_is_won(opened: OPENED, files_api: FilesApi, fault: int | str) -> None:
    files_api.faults["PUT"] = [fault, fault]
    objects = opened()
    objects.create("n", b"write id of mine")
    assert objects.read("n") == b"write id of mine"


@pytest.mark.parametrize("fault", LOST)
def test_a_create_whose_reply_is_lost_is_not_won_where_another_was_first(
    opened: OPENED, files_api: FilesApi, fault: int | str
) -> None:
    objects = opened()
    objects.create("n", b"write id of another")
    files_api.faults["PUT"] = [fault]
    with pytest.raises(ConflictError):
        objects.create("n", b"write id of mine")
    assert objects.read("n") == b"write id of another"


def test_a_create_that_nobody_answers_is_unknown(opened: OPENED, files_api: FilesApi) -> None:
    objects = opened()
    files_api.faults = {"PUT": ["after", *["before"] * 20], "GET": ["before"] * 20}
    with pytest.raises(CommitUnknownError, match="commit-unknown"):
        objects.create("n", b"write id of mine")
    files_api.faults.clear()
    with pytest.raises(ConflictError):
        objects.create("n", b"another write id")


@pytest.mark.long
def test_a_service_that_is_not_there(opened: OPENED, files_api: FilesApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_faults, "ATTEMPTS", 2)
    monkeypatch.setenv("DATABRICKS_HOST", "http://127.0.0.1:1")
    monkeypatch.setattr(storage_faults, "PATIENCE", 0.1)
    with pytest.raises(UnavailableError, match="storage"):
        opened().create("n", b"write id of mine")


def test_without_credentials(opened: OPENED, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABRICKS_TOKEN")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UnavailableError, match="storage refused access") as caught:
        opened().read("n")
    assert "default auth" in caught.value.message


@pytest.mark.parametrize("fault", ["before", "after", "torn", 500, 503, 429])
def test_a_read_that_fails_is_tried_again(opened: OPENED, files_api: FilesApi, fault: int | str) -> None:
    objects = opened()
    objects.put("n", b"content of some length")
    files_api.faults["GET"] = [fault, fault]
    assert objects.read("n") == b"content of some length"
    files_api.faults["GET"] = [fault]
    assert objects.names("") == ["n", "probed"]


def test_access_that_is_refused_is_not_tried_again(opened: OPENED, files_api: FilesApi) -> None:
    objects = opened()
    objects.put("n", b"")
    files_api.refused = {"/n"}
    files_api.log.clear()
    for act in (lambda: objects.read("n"), lambda: objects.create("n", b"mine"), lambda: objects.size("n")):
        with pytest.raises((UnavailableError, CommitUnknownError), match="storage refused access"):
            act()
    assert len([path for _, path in files_api.log if path.endswith("/n")]) <= 5


def test_credentials_that_expire_in_the_middle(
    opened: OPENED, files_api: FilesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = opened()
    objects.create("1", b"first")
    files_api.token = "the-next-token"
    with pytest.raises((UnavailableError, CommitUnknownError), match="storage refused access"):
        objects.create("2", b"second")
    monkeypatch.setenv("DATABRICKS_TOKEN", "the-next-token")
    objects.create("2", b"second")
    assert objects.names("") == ["1", "2", "probed"]


def test_a_volume_that_is_not_there(files_api: FilesApi) -> None:
    objects = Objects("/Volumes/main/jobs/nothing/root")
    for act in (lambda: objects.create("n", b"mine"), lambda: objects.read("n")):
        with pytest.raises(UnavailableError, match="no such bucket or folder"):
            act()


def test_a_read_through_the_mount(
    opened: OPENED, files_api: FilesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = opened()
    data = os.urandom(100_000)
    objects.put("whole", data)
    objects.put("ranges", data)
    monkeypatch.setattr(VolumesFiles, "mounts", tmp_path)
    mounted = tmp_path / ROOT.lstrip("/")
    mounted.mkdir(parents=True)
    (mounted / "whole").write_bytes(data)
    (mounted / "ranges").write_bytes(data)
    files_api.log.clear()
    assert objects.map("whole", len(data)).to_pybytes() == data
    with objects.open_input("ranges", len(data)) as source:
        source.seek(50_000)
        assert source.read(10) == data[50_000:50_010]
    assert [method for method, _ in files_api.log if method == "GET"] == []
    # A mount that shows less than there is does not count.
    for name in ("torn", "behind"):
        objects.put(name, data)
        (mounted / name).write_bytes(data[:100])
    assert objects.map("torn", len(data)).to_pybytes() == data
    with objects.open_input("behind", len(data)) as source:
        source.seek(50_000)
        assert source.read(10) == data[50_000:50_010]


@pytest.mark.long
def test_a_doctor_finds_it_fit(opened: OPENED, files_api: FilesApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidestate.recovery.inspect.root_trial.RACING_PROCESSES", 1)
    trial = try_root(ROOT)
    assert trial.fit, [check for check in trial.checks if check.holds is False]
    assert trial.storage == "dbfs"
    assert opened().names("") == ["probed"]
