"""The Orders and Shipments of the Samza design (SAMZA-552, case 2): exact outputs, in order, at their moments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.internals import set_time
from tests.helpers.orders_and_shipments import EXPECTED, MOMENTS, ORDERS, SHIPMENTS, TIMES, TUPLES, arriving, at
from tests.helpers.process import few, in_turn
from tidestate import OperatorStream
from tidestate.operators.describe.join import Join
from tidestate.statestore.errors import of_type
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB, StoreConfig

STORES: dict[str, StoreConfig] = {
    "memory": Memory(),
    "parquet": Parquet(max_levels=2, snapshot_bytes=1),
    "rocksdb": RocksDB(max_levels=2),
}


def outputs(
    description: OperatorStream, store: StoreConfig, folder: Path, partitions: int, restart: bool
) -> dict[str, list[tuple[Any, ...]]]:
    """What is observed, by the second at which it is: the clock goes by seconds, messages come at theirs."""
    schema = {"left": ORDERS, "right": SHIPMENTS}
    harness = description.harness(schema, store=store, folder=folder, partitions=partitions)
    found: dict[str, list[tuple[Any, ...]]] = {}
    for moment in MOMENTS:
        coming = arriving(moment)
        # Messages that come at a moment are in what is observed at it: the clock moves with them, not before.
        set_time(harness, at(moment))
        panes = [] if coming else [harness.advance_processing_time(at(moment))]
        panes += [harness.feed({side: rows}) for side, rows in coming.items()]
        if restart:
            harness.restart()
        names = ("id", "left_value", "right_cost")
        observed = [tuple(row[name] for name in names) for table in panes for row in table.to_pylist()]
        if observed:
            found[moment] = observed
    assert harness.finish().num_rows == 0
    assert harness.ledger().num_rows == 0
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("store", "example", "restart"), few(in_turn(STORES, EXPECTED, [True, False]), 1, 2))
def test_the_documents_examples(example: str, store: str, tmp_path: Path, restart: bool) -> None:
    description, expected = EXPECTED[example]
    assert outputs(description, STORES[store], tmp_path, 1, restart) == expected


@pytest.mark.parametrize("example", few(EXPECTED, 1))
def test_partitions_change_nothing_but_the_order_within_a_moment(example: str, tmp_path: Path) -> None:
    description, expected = EXPECTED[example]
    found = outputs(description, Memory(), tmp_path, 3, restart=False)
    assert {moment: sorted(rows) for moment, rows in found.items()} == {
        moment: sorted(rows) for moment, rows in expected.items()
    }


def layout(job: OperatorStream, side: str) -> str:
    return str(of_type(job.graph.description, Join).layout(side))


def test_the_layouts_are_those_of_the_matrix() -> None:
    assert [layout(TUPLES, side) for side in ("left", "right")] == ["<eq>_<offset>", "<eq>_<offset>"]
    assert [layout(TIMES, side) for side in ("left", "right")] == ["<eq>_<ts>_<offset>", "<eq>_<ts>_<offset>"]
