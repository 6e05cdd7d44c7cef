"""Folders that are mounts: which by their type and which by what they do are fit for a root."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.servers.fuse import Mounted
from tests.servers.fuse import fuse as fuse
from tidestate.recovery.inspect.root_trial import try_root
from tidestate.statestore.errors import ConflictError, UsageError
from tidestate.statestore.storage import local_probe
from tidestate.statestore.storage.local_probe import check_folder, fault_of
from tidestate.statestore.storage.mounts import Mount, instead_of, mount_at, mounts_of, name_of, refusal_of
from tidestate.statestore.storage.objects import Objects

TABLE = r"""
/dev/vda / ext4 rw,relatime 0 0
tmpfs /dev/shm tmpfs rw 0 0
flights /mnt/gcs fuse.gcsfuse rw,nosuid 0 0
mountpoint-s3 /mnt/s3 fuse rw,nosuid 0 0
s3fs /mnt/s3fs fuse.s3fs rw 0 0
flights:daily /mnt/goofys fuse.goofys rw 0 0
blobfuse2 /mnt/blob fuse.blobfuse2 rw 0 0
blobfuse /mnt/old\040blob fuse rw 0 0
gdrive:x /mnt/rclone fuse.rclone rw 0 0
dbfs-fuse /dbfs fuse rw 0 0
server:/export /mnt/nfs nfs4 rw 0 0
//server/share /mnt/smb cifs rw 0 0
/dev/sdb1 /mnt/ntfs fuseblk rw 0 0
/dev/sdb1 /mnt/ntfs ntfs3 rw 0 0
me@host:/x /mnt/sshfs fuse.sshfs rw 0 0
short line
"""
MOUNTS = mounts_of(TABLE)

REFUSED = {
    "/mnt/gcs/jobs/a": ("Cloud Storage FUSE", "gs://flights/jobs/a"),
    "/mnt/s3/jobs": ("Mountpoint for Amazon S3", "s3://BUCKET/jobs"),
    "/mnt/s3fs": ("s3fs-fuse", "s3://BUCKET"),
    "/mnt/goofys/a": ("goofys", "s3://flights/daily/a"),
    "/mnt/blob/a": ("blobfuse2", "abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/a"),
    "/mnt/old blob/a": ("blobfuse", "abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/a"),
    "/mnt/rclone/a": ("rclone", "the URL of the bucket behind gdrive:x"),
    "/dbfs/tmp": ("DBFS", "/Volumes/CATALOG/SCHEMA/VOLUME"),
}
ASKED = ("/mnt/smb/a", "/mnt/ntfs/a", "/mnt/sshfs/a", "/mnt/nfs/a", "/home/me", "/dev/shm/a", "/mnt/gcs2/a")


@pytest.mark.parametrize("path", REFUSED)
def test_mounts_of_object_storage_are_known_by_their_type(path: str) -> None:
    refusal = refusal_of(path, mount_at(path, MOUNTS))
    assert refusal is not None
    assert (refusal.name, refusal.instead) == REFUSED[path]


@pytest.mark.parametrize("path", ASKED)
def test_other_mounts_are_not_refused_by_their_type(path: str) -> None:
    assert refusal_of(path, mount_at(path, MOUNTS)) is None


def test_a_folder_of_databricks_is_known_by_its_name_where_its_mount_says_nothing() -> None:
    refusal = refusal_of("/dbfs/tmp/x", Mount("none", "/dbfs", "fuse"))
    assert refusal is not None
    assert refusal.name == "DBFS"


def test_the_deepest_and_latest_mount_counts() -> None:
    assert mount_at("/mnt/ntfs/x/y", MOUNTS) == Mount("/dev/sdb1", "/mnt/ntfs", "ntfs3")
    assert mount_at("/mnt/gcsx", MOUNTS) == Mount("/dev/vda", "/", "ext4")
    assert mount_at("/", MOUNTS) == Mount("/dev/vda", "/", "ext4")
    assert mount_at("/x", []) is None


def test_words_for_what_has_turned_out_unfit() -> None:
    smb = mount_at("/mnt/smb", MOUNTS)
    assert name_of(smb) == "SMB (cifs)"
    assert "a mount by NFS" in instead_of(smb)
    assert name_of(mount_at("/mnt/gcs", MOUNTS)) == "Cloud Storage FUSE (fuse.gcsfuse)"
    assert name_of(None) == "a file system of unknown type"
    assert "NFS" in instead_of(None)


@pytest.fixture
def unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a file system whose type says nothing."""
    monkeypatch.setattr(local_probe, "mount_of", lambda _folder: Mount("drive", str(tmp_path), "fuse.drive"))
    return tmp_path


def test_a_file_system_of_unknown_type_that_does_all_is_fit(unknown: Path) -> None:
    Objects(unknown).create("m/1", b"first")
    with pytest.raises(ConflictError):
        Objects(unknown).create("m/1", b"second")
    assert Objects(unknown).names("", hidden=True) == ["m"]


def refusing(number: int) -> Callable[..., None]:
    def link(source: object, target: object) -> None:
        raise OSError(number, os.strerror(number))

    return link


def replacing(source: Path, target: Path) -> None:
    target.write_bytes(source.read_bytes())


def racing(source: Path, target: Path) -> None:
    """Looks, then writes: right for one after the other."""
    taken = target.exists()
    local_probe.threading.Event().wait(0.02)
    if taken:
        raise FileExistsError(errno.EEXIST, "exists")
    target.write_bytes(source.read_bytes())


LINKS = {
    "refuses hard links (operation not permitted)": refusing(errno.EPERM),
    "refuses hard links (operation not supported)": refusing(errno.EOPNOTSUPP),
    "refuses hard links (function not implemented)": refusing(errno.ENOSYS),
    "lets a hard link replace a file": replacing,
    "lets two writers link the same name": racing,
}


@pytest.mark.parametrize("fault", LINKS)
def test_a_file_system_is_refused_by_what_its_links_do(
    unknown: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(os, "link", LINKS[fault])
    with pytest.raises(UsageError) as caught:
        Objects(unknown).create("m/1", b"data")
    assert (caught.value.code, caught.value.context["mounted"]) == ("no-atomic-create", "fuse.drive")
    assert f"fuse.drive {fault}, so a checkpoint could be lost: use a local disk, NFS" in caught.value.message
    assert Objects(unknown).names("", hidden=True) in ([], ["m"])


def test_a_file_system_is_refused_by_what_its_other_calls_do(unknown: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "rename", refusing(errno.EEXIST))
    assert fault_of(unknown) == "does not rename over a file (file exists)"
    monkeypatch.setattr(Path, "rename", lambda source, target: None)
    assert fault_of(unknown) == "does not rename over a file"
    monkeypatch.setattr("builtins.open", lambda path, mode: os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY), "wb"))
    assert fault_of(unknown) == "creates a file that is there already"


def test_nfs_without_links_is_refused_when_a_name_is_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_probe, "mount_of", lambda _folder: Mount("server:/x", str(tmp_path), "nfs4"))
    objects = Objects(tmp_path)
    objects.create("m/1", b"first")
    monkeypatch.setattr(os, "link", refusing(errno.EOPNOTSUPP))
    with pytest.raises(UsageError, match="nfs4 refuses hard links") as caught:
        objects.create("m/2", b"second")
    assert caught.value.code == "no-atomic-create"
    with pytest.raises(UsageError, match="nfs4 refuses hard links"), objects.writer("m/3") as sink:
        sink.write(b"third")
    assert objects.names("m", hidden=True) == ["1"]


def test_a_system_without_a_list_of_mounts_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_probe, "_MOUNTS", tmp_path / "nothing")
    check_folder(tmp_path)
    monkeypatch.setattr(os, "link", refusing(errno.EPERM))
    with pytest.raises(UsageError, match="a file system of unknown type refuses hard links"):
        check_folder(tmp_path.parent)


def test_a_real_mount_of_a_bucket_is_refused_with_its_url(fuse: Mounted) -> None:
    mount = fuse("flights", "fuse.gcsfuse")
    (mount / "there").write_bytes(b"by another")
    with pytest.raises(UsageError) as caught:
        Objects(mount / "jobs").create("m/1", b"data")
    assert caught.value.code == "no-atomic-create"
    assert caught.value.message.endswith("use gs://flights/jobs")
    trial = try_root(str(mount / "jobs"))
    assert (trial.fit, [check.name for check in trial.checks]) == (False, ["create"])
    assert os.listdir(mount) == ["jobs", "there"]


def test_a_real_mount_of_unknown_type_is_known_by_what_it_does(fuse: Mounted) -> None:
    mount = fuse("drive", "fuse.drive")
    with pytest.raises(UsageError, match=r"fuse\.drive refuses hard links \(operation not permitted\)"):
        Objects(mount).create("m/1", b"data")
    assert list((mount / "m").iterdir()) == []
    linking = Objects(fuse("drive", "fuse.drive", links="links"))
    linking.create("m/1", b"first")
    with pytest.raises(ConflictError):
        linking.create("m/1", b"second")
    assert linking.read("m/1") == b"first"


@pytest.mark.parametrize("links", ["lost", "repeated"])
def test_a_link_whose_reply_is_lost_is_looked_up(fuse: Mounted, links: str) -> None:
    """On a real mount, as NFS: the link is made, and its reply says something else."""
    objects = Objects(fuse("server:/export", "fuse.server", links=links))
    objects.create("manifests/1", b"mine")
    assert objects.read("manifests/1") == b"mine"
    with pytest.raises(ConflictError):
        objects.create("manifests/1", b"another")
    with objects.writer("manifests/2") as sink:
        sink.write(b"streamed")
    assert objects.names("manifests", hidden=True) == ["1", "2"]
