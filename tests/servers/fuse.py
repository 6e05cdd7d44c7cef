"""Mounts in user space, as those of object storage. They take a kernel with FUSE and the right to mount."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import pytest

from tests.children.fuse_mount import unmount
from tests.helpers.checkout import ROOT

Mounted = Callable[..., Path]


@contextmanager
def mounted_folder(folder: Path, source: str, kind: str, *, links: str = "", number: int = 0) -> Iterator[Path]:
    """A mount in ``folder``, for as long as this context; ``links`` are those of `tests.children.fuse_mount`."""
    backing, target = folder / f"backing-{number}", folder / f"mount-{number}"
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
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "mounted\n":
            pytest.skip(f"no mount in user space here: {process.communicate()[1].strip().splitlines()[-1]}")
        yield target
    finally:
        unmount(target)
        process.kill()
        process.communicate()


@pytest.fixture
def fuse(tmp_path: Path) -> Iterator[Mounted]:
    """Mounts a folder by source and type: ``fuse("bucket", "fuse.gcsfuse")``, without hard links by default."""
    with ExitStack() as mounts:
        numbers = count()

        def mounted(source: str, kind: str, *, links: str = "") -> Path:
            return mounts.enter_context(mounted_folder(tmp_path, source, kind, links=links, number=next(numbers)))

        yield mounted
