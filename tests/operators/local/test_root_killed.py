"""Real SIGKILL of a job whose root is on HDFS, on NFS, or in a Volume of Databricks, at each side of a commit; on
demand. The next process gives exactly the output.
"""

from __future__ import annotations

import shutil
import signal
import uuid
from collections import Counter
from pathlib import Path

import pytest

from tests.children.standalone import PARTITIONS, SETTING, store_config, stream
from tests.helpers import evidence
from tests.helpers.forked import Forked
from tests.helpers.process import forget
from tests.servers.hdfs import hdfs_root, hdfs_server  # noqa: F401  (fixtures)
from tests.servers.nfs import nfs, nfs_server  # noqa: F401  (fixtures)
from tests.servers.volumes import VOLUME, files_api, files_server  # noqa: F401  (fixtures)
from tests.twins import streams
from tests.twins.naive import Twin
from tidestate.statestore.errors import NotFoundError
from tidestate.statestore.storage.local import is_local
from tidestate.statestore.storage.objects import Objects

pytestmark = [pytest.mark.long, pytest.mark.slow]


@pytest.fixture(params=["volumes", "hdfs", "nfs"])
def root(request: pytest.FixtureRequest) -> str:
    """A root that is not there yet."""
    if request.param == "hdfs":
        return str(request.getfixturevalue("hdfs_root"))
    if request.param == "nfs":
        return str(request.getfixturevalue("nfs")() / uuid.uuid4().hex)
    request.getfixturevalue("files_api")
    return f"{VOLUME}/flights/root"


def download(objects: Objects, folder: Path, below: str = "") -> None:
    """All of a root as files."""
    if is_local(objects.root):
        shutil.copytree(objects.root, folder)
        return
    for name in objects.names(below, hidden=True):
        path = f"{below}/{name}".lstrip("/")
        try:
            data = objects.read(path)
        except NotFoundError:  # a folder
            download(objects, folder, path)
        else:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)


@pytest.mark.parametrize("death", ["before-manifest:7", "after-manifest:7"])
def test_killed_at_a_side_of_the_commit(root: str, tmp_path: Path, death: str) -> None:
    process = Forked("tests.children.standalone", root, "parquet", tmp_path / "cache", death)
    output, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert output.endswith(f"{death.replace(':', ' ')}\n")
    forget()
    streams.run(SETTING, stream(), root, store_config("parquet", tmp_path / "cache"), PARTITIONS)
    download(Objects(root), tmp_path / "root")
    twin = Twin(SETTING).run(stream())
    assert evidence.panes(tmp_path / "root") == [Counter(panes) for panes in twin.panes]
    assert evidence.ledger(tmp_path / "root", streams.SCHEMA.names) == Counter(twin.ledger)
