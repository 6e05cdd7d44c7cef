"""Every carried case on every store; none is skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.bench import Bench
from tests.conformance.case import read
from tests.conformance.harness import STORES, folder
from tests.conformance.report import lines_of
from tests.conformance.run import run

CASES = Path(__file__).parents[1] / "conformance" / "cases"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("peer", sorted(path.stem for path in CASES.glob("*.json")))
@pytest.mark.parametrize("store", sorted(STORES))
def test_no_case_fails(store: str, peer: str) -> None:
    failed, skipped = [], set()
    for case in read(CASES / f"{peer}.json"):
        with folder() as room:
            result = run(case, Bench(STORES[store](), room))
        failed += [line for failure in result.failures for line in lines_of(failure)]
        if result.status == "skipped":
            skipped.add(result.feature)
    assert not failed, "\n".join(failed)
    assert skipped == set()
