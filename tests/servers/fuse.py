"""Mounts in user space, as those of object storage. They take a kernel with FUSE and the right to mount."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.children.fuse_mount import unmount
from tests.helpers.checkout import ROOT

Mounted = Callable[..., Path]


@pytest.fixture
def fuse(tmp_path: Path) -> Iterator[Mounted]:
    """Mounts a folder by source and type: ``fuse("bucket", "fuse.gcsfuse")``; ``links`` are those of
    `tests.children.fuse_mount`, none by default.
    """
    mounts: list[tuple[Path, subprocess.Popen[str]]] = []

    def mounted(source: str, kind: str, *, links: str = "") -> Path:
        backing, target = tmp_path / f"backing-{len(mounts)}", tmp_path / f"mount-{len(mounts)}"
        backing.mkdir()
        target.mkdir()
        command = [sys.executable, "-m", "tests.children.fuse_mount", str(backing), str(target), source, kind]
        process = subprocess.Popen(
            [*command, *filter(None, [links])],
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        mounts.append((target, process))
        assert process.stdout is not None
        if process.stdout.readline() != "mounted\n":
            pytest.skip(f"no mount in user space here: {process.communicate()[1].strip().splitlines()[-1]}")
        return target

    yield mounted
    for target, process in mounts:
        unmount(target)
        process.kill()
        process.communicate()
