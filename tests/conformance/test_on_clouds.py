"""The carried cases with their roots in remote storage: its creates, lists and reads serve every kind of job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.bench import Bench
from tests.conformance.case import Case, read
from tests.conformance.harness import STORES, Schemas, public
from tests.conformance.report import lines_of
from tests.conformance.run import run
from tests.helpers.checkout import CASES
from tests.servers.clouds import (  # noqa: F401  (fixtures)
    Cloud,
    azure_endpoint,
    cloud,
    fronts,
    gcs_endpoint,
    s3_endpoint,
)
from tests.servers.hdfs import hdfs_root, hdfs_server  # noqa: F401  (fixtures)
from tests.servers.nfs import MountedNfs, nfs, nfs_server  # noqa: F401  (fixtures)
from tests.servers.volumes import VOLUME, files_api, files_server  # noqa: F401  (fixtures)
from tidestate import OperatorStream

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(1800)]

COPIES = {"checkpoint", "restore"}
"""Steps of a case that copy the folder of its root."""
PEERS = sorted(path.stem for path in CASES.glob("*.json"))


def without_copies(peer: str) -> Iterator[Case]:
    for case in read(CASES / f"{peer}.json"):
        if not any(COPIES & step.keys() for step in case.steps):
            yield case


def no_case_fails(peer: str, folder: Path, root: str) -> None:
    def opened(job: OperatorStream, schema: Schemas, store: Any, below: Path) -> Any:
        # A harness for each step of a case has a root of its own below that of the test.
        return public(job, schema, store, f"{root}/{below.relative_to(folder).as_posix()}")  # type: ignore[arg-type]

    failed, ran = list[str](), 0
    for number, case in enumerate(without_copies(peer)):
        result = run(case, Bench(STORES["parquet"](), folder / str(number), opened))
        failed += [line for failure in result.failures for line in lines_of(failure)]
        ran += result.status != "skipped"
    assert not failed, "\n".join(failed)
    assert ran


@pytest.mark.parametrize("peer", PEERS)
def test_no_case_fails(cloud: Cloud, tmp_path: Path, peer: str) -> None:  # noqa: F811
    no_case_fails(peer, tmp_path, cloud.root)


@pytest.mark.parametrize("peer", PEERS)
def test_no_case_fails_on_hdfs(hdfs_root: str, tmp_path: Path, peer: str) -> None:  # noqa: F811
    no_case_fails(peer, tmp_path, hdfs_root)


@pytest.mark.usefixtures("files_api")
@pytest.mark.parametrize("peer", PEERS)
def test_no_case_fails_in_a_volume(tmp_path: Path, peer: str) -> None:
    no_case_fails(peer, tmp_path, f"{VOLUME}/cases")


@pytest.mark.parametrize("peer", PEERS)
def test_no_case_fails_on_nfs(nfs: MountedNfs, tmp_path: Path, peer: str) -> None:  # noqa: F811
    no_case_fails(peer, tmp_path, str(nfs() / f"cases-{peer}"))
