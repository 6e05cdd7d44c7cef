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
from tidestate import OperatorStream

COPIES = {"checkpoint", "restore"}
"""Steps of a case that copy the folder of its root."""
PEERS = sorted(path.stem for path in CASES.glob("*.json"))


def without_copies(peer: str) -> Iterator[Case]:
    for case in read(CASES / f"{peer}.json"):
        if not any(COPIES & step.keys() for step in case.steps):
            yield case


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("peer", PEERS)
def test_no_case_fails(cloud: Cloud, tmp_path: Path, peer: str) -> None:  # noqa: F811
    def opened(job: OperatorStream, schema: Schemas, store: Any, folder: Path) -> Any:
        # A harness for each step of a case has a root of its own below that of the test.
        return public(job, schema, store, f"{cloud.root}/{folder.relative_to(tmp_path).as_posix()}")  # type: ignore[arg-type]

    failed, ran = list[str](), 0
    for number, case in enumerate(without_copies(peer)):
        result = run(case, Bench(STORES["parquet"](), tmp_path / str(number), opened))
        failed += [line for failure in result.failures for line in lines_of(failure)]
        ran += result.status != "skipped"
    assert not failed, "\n".join(failed)
    assert ran
