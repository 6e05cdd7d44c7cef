"""NFS: a real server, and mounts of it that are clients of their own, on demand."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.helpers.races import processes_race, threads_race
from tests.servers.nfs import MountedNfs, NfsLine, NfsServer
from tests.servers.nfs import nfs as nfs
from tests.servers.nfs import nfs_line as nfs_line
from tests.servers.nfs import nfs_server as nfs_server
from tidestate.recovery.inspect.root_trial import try_root
from tidestate.statestore.errors import CommitUnknownError, ConflictError, NotFoundError
from tidestate.statestore.storage.objects import Objects

pytestmark = pytest.mark.long
HOSTS = 5


@pytest.fixture
def root() -> str:
    """The name of a folder that no test has had."""
    return f"root-{uuid.uuid4().hex[:12]}"


def test_all_of_it(nfs: MountedNfs, nfs_server: NfsServer, root: str) -> None:
    objects, other = Objects(nfs() / root), Objects(nfs() / root)
    objects.create("m/1", b"first")
    assert (nfs_server.files / root / "m/1").read_bytes() == b"first"
    with objects.writer("m/2") as sink:
        sink.write(b"streamed")
    objects.put("m/sub/x", b"0123456789")
    assert other.names("m", hidden=True) == ["1", "2", "sub"]
    assert other.read("m/2") == b"streamed"
    with other.open_input("m/sub/x") as source:
        source.seek(7)
        assert source.read(10) == b"789"
    with pytest.raises(ConflictError):
        other.create("m/1", b"second")
    assert objects.names("m", hidden=True) == ["1", "2", "sub"]
    other.move("m", "moved/m")
    assert objects.names("moved/m") == ["1", "2", "sub"]
    other.delete("moved/m/1")
    with pytest.raises(NotFoundError):
        objects.read("moved/m/1")
    other.clear("moved")
    assert objects.names("") == []


def test_fifty_threads_race_on_five_hosts(nfs: MountedNfs, root: str) -> None:
    hosts = [Objects(nfs() / root) for _ in range(HOSTS)]
    assert len(threads_race(hosts[0], 50, 3, hosts=hosts)) == 3


def test_processes_race_on_five_hosts(nfs: MountedNfs, root: str) -> None:
    hosts = [Objects(nfs() / root) for _ in range(HOSTS)]
    assert len(processes_race(hosts[0], 2 * HOSTS, 20, hosts=hosts)) == 20


@pytest.mark.parametrize("carried_out", [True, False])
def test_a_link_that_is_sent_again(nfs: MountedNfs, nfs_line: NfsLine, root: str, carried_out: bool) -> None:
    """A hard mount: after the line broke the server makes the link, or finds it there."""
    objects, other = Objects(nfs(nfs_line.port) / root), Objects(nfs() / root)
    objects.create("m/1", b"first")
    waiting = nfs_line.lose if carried_out else nfs_line.drop
    waiting += ["2", "3"]
    objects.create("m/2", b"mine")
    with objects.writer("m/3") as sink:
        sink.write(b"streamed")
    assert waiting == []
    assert (other.read("m/2"), other.read("m/3")) == (b"mine", b"streamed")
    with pytest.raises(ConflictError):
        objects.create("m/1", b"of another")
    assert other.read("m/1") == b"first"
    assert other.names("m", hidden=True) == ["1", "2", "3"]


@pytest.mark.parametrize("carried_out", [True, False])
def test_a_link_that_nobody_confirms(nfs: MountedNfs, nfs_line: NfsLine, root: str, carried_out: bool) -> None:
    """A soft mount, whose line does not come back: another host sees what was carried out."""
    objects, other = Objects(nfs(nfs_line.port, soft=True) / root), Objects(nfs() / root)
    objects.create("m/1", b"first")
    (nfs_line.lose if carried_out else nfs_line.drop).append("2")
    with pytest.raises(CommitUnknownError):
        objects.create("m/2", b"mine")
    assert other.exists("m/2") == carried_out
    assert [age_us >= 0 for _, age_us in other.unfinished("m")] == [True]


def test_a_doctor_finds_it_fit(nfs: MountedNfs, root: str) -> None:
    mount: Path = nfs()
    trial = try_root(str(mount / root))
    assert trial.fit, [check for check in trial.checks if check.holds is False]
    assert trial.storage.startswith("fuse.libnfs, mounted at ")
    assert Objects(mount).names(root, hidden=True) == []
