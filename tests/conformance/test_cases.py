"""Every carried case; none is skipped. In every run the stores take turns: that they answer the same is what their
contract proves. Of the joins, whose cases take ten times as long as others, every second one is of the long form:
`tests.operators.joins` compares joins with a naive program.
"""

from __future__ import annotations

import pytest

from tests.conformance.bench import Bench
from tests.conformance.case import read
from tests.conformance.harness import STORES, folder
from tests.conformance.report import lines_of
from tests.conformance.run import run
from tests.helpers.checkout import CASES
from tests.helpers.process import LONG

TURNS = (*["memory"] * 3, "parquet", *["memory"] * 11, "rocksdb", *["memory"] * 4)
"""Of cases in the default form: a RocksDB is opened at each step, which takes longer than the step."""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("peer", sorted(path.stem for path in CASES.glob("*.json")))
@pytest.mark.parametrize("store", sorted(STORES))
def test_no_case_fails(store: str, peer: str) -> None:
    failed, skipped, joins = [], set(), 0
    for number, case in enumerate(read(CASES / f"{peer}.json")):
        if not LONG and TURNS[number % len(TURNS)] != store:
            continue
        joins += case.kind == "join"
        if not LONG and case.kind == "join" and joins % 2 == 0:
            continue
        with folder() as room:
            result = run(case, Bench(STORES[store](), room))
        failed += [line for failure in result.failures for line in lines_of(failure)]
        if result.status == "skipped":
            skipped.add(result.feature)
    assert not failed, "\n".join(failed)
    assert skipped == set()
