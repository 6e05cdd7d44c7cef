"""Real SIGKILL of a job whose root is in a remote store: at each side of a commit, and while the request of a commit
is on its way. The next process gives exactly the output.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections import Counter
from pathlib import Path

import pytest

from tests.children.standalone import PARTITIONS, SETTING, store_config, stream
from tests.helpers import evidence
from tests.helpers.forked import Forked
from tests.helpers.process import few, forget
from tests.servers.clouds import (  # noqa: F401  (fixtures)
    Cloud,
    azure_endpoint,
    cloud,
    fronts,
    gcs_endpoint,
    s3_endpoint,
)
from tests.twins import streams
from tests.twins.naive import Twin
from tidestate.statestore.storage.objects import Objects

pytestmark = pytest.mark.slow
SEVENTH = re.compile(rb"manifests(/|%2[Ff])0*7\b")


def download(objects: Objects, folder: Path, below: str = "") -> None:
    """All of a root as files."""
    for name in objects.names(below, hidden=True):
        path = f"{below}/{name}".lstrip("/")
        try:
            data = objects.read(path)
        except Exception:  # a folder
            download(objects, folder, path)
        else:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)


def check_exact(cloud: Cloud, folder: Path) -> None:  # noqa: F811
    forget()
    streams.run(SETTING, stream(), cloud.root, store_config("parquet", folder / "cache"), PARTITIONS)
    download(Objects(cloud.root), folder / "root")
    twin = Twin(SETTING).run(stream())
    assert evidence.panes(folder / "root") == [Counter(panes) for panes in twin.panes]
    assert evidence.ledger(folder / "root", streams.SCHEMA.names) == Counter(twin.ledger)


def begun(cloud: Cloud, folder: Path, *death: str) -> Forked:  # noqa: F811
    return Forked("tests.children.standalone", cloud.root, "parquet", folder / "cache", *death)


@pytest.mark.parametrize("death", few(["before-manifest:7", "after-manifest:7"]))
def test_killed_at_a_side_of_the_commit(cloud: Cloud, tmp_path: Path, death: str) -> None:  # noqa: F811
    process = begun(cloud, tmp_path, death)
    output, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert output.endswith(f"{death.replace(':', ' ')}\n")
    check_exact(cloud, tmp_path)


@pytest.mark.parametrize("death", few(["before", "after"], 1))
def test_killed_while_the_commit_is_on_its_way(cloud: Cloud, tmp_path: Path, death: str) -> None:  # noqa: F811
    """The request is carried out, before or after its writer has died; nobody reads the reply."""
    process, carried_out = begun(cloud, tmp_path), threading.Event()

    def witness(moment: str, request: bytes) -> None:
        if SEVENTH.search(request) and b'"batch"' in request:
            if moment == death:
                os.kill(process.pid, signal.SIGKILL)
            if moment == "after":
                carried_out.set()

    cloud.proxy.witness = witness
    output, _ = process.communicate()
    assert output.endswith("before-manifest 7\n"), "it died between the two moments of this commit"
    assert carried_out.wait(60)
    cloud.proxy.reset()
    assert any(name.lstrip("0").startswith("7") for name in Objects(cloud.root).names("manifests"))
    check_exact(cloud, tmp_path)
