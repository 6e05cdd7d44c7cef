"""The carried cases. In every run are those of the documents that this project follows, of which the stores take
turns: that they answer the same is what their contract proves; and of other systems every fifth case. Of the joins,
whose cases take ten times as long as others, every second one is of the long form: `tests.operators.joins` compares
joins with a naive program. In the long form all run in each store.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.bench import Bench
from tests.conformance.case import Case, read
from tests.conformance.harness import STORES, folder
from tests.conformance.report import lines_of
from tests.conformance.run import run
from tests.helpers.checkout import CASES
from tests.helpers.process import LONG

TURNS = (*["memory"] * 3, "parquet", *["memory"] * 11, "rocksdb", *["memory"] * 4)
"""Of cases in the default form: a RocksDB is opened at each step, which takes longer than the step."""


DOCUMENTS = ("malhar", "nebulastream", "samza")


def in_every_run(peer: str, store: str) -> Iterator[Case]:
    joins = 0
    for number, case in enumerate(read(CASES / f"{peer}.json")):
        joins += case.kind == "join"
        second = case.kind == "join" and joins % 2 == 0
        other = peer not in DOCUMENTS and number % 5
        if TURNS[number % len(TURNS)] == store and not second and not other:
            yield case


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("peer", sorted(path.stem for path in CASES.glob("*.json")))
@pytest.mark.parametrize("store", sorted(STORES))
def test_no_case_fails(store: str, peer: str) -> None:
    failed, skipped = [], set()
    for case in read(CASES / f"{peer}.json") if LONG else in_every_run(peer, store):
        with folder() as room:
            result = run(case, Bench(STORES[store](), room))
        failed += [line for failure in result.failures for line in lines_of(failure)]
        if result.status == "skipped":
            skipped.add(result.feature)
    assert not failed, "\n".join(failed)
    assert skipped == set()
