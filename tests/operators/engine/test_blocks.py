"""Pieces of input: a task takes them by their numbers, whichever comes first, and what is counted once comes once."""

from __future__ import annotations

from itertools import permutations

import pyarrow as pa

import tidestate as ts
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.engine.micro_batch import Block, blocks_of, rows_by_partition, spans
from tidestate.operators.plan.classify import classify
from tidestate.operators.plan.plan import Plan
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import BEGINNING_US
from tidestate.statestore.spec.tables import TIME

SCHEMA = pa.schema([("t", TIME), ("k", pa.string()), ("place", pa.int64())])
PARTITIONS, TASKS = 4, 2
START = Context.between(BEGINNING_US, BEGINNING_US)


def plan() -> Plan:
    return bind_graph(ts.stream(event_time="t").deduplicate("k", within="1 minute").graph.description, SCHEMA).output


def batch(number: int) -> pa.Table:
    """Rows of ten keys, and one without a time."""
    places = [10 * number + place for place in range(11)]
    times = pa.array([*range(10), None], pa.int64()).cast(TIME)
    return pa.table({"t": times, "k": [f"k{place % 10}" for place in places], "place": places}, schema=SCHEMA)


def by_task(of: Plan) -> list[list[Block]]:
    """The pieces of three batches, by task."""
    made = [
        list(blocks_of(classify(of, batch(number), START, PARTITIONS), 0, number, spans(PARTITIONS, TASKS)))
        for number in range(3)
    ]
    return [[of_batch[task] for of_batch in made] for task in range(TASKS)]


def test_rows_are_in_the_order_of_the_input_whichever_piece_comes_first() -> None:
    of = plan()
    for arrived in by_task(of):
        expected = rows_by_partition(arrived)
        assert any(rows["place"].to_pylist()[0] < 10 and rows.num_rows > 2 for rows in expected.values())
        for rows in expected.values():
            numbers = [place // 10 for place in rows["place"].to_pylist()]
            assert numbers == sorted(numbers)
        for other in permutations(arrived):
            assert rows_by_partition(other) == expected


def test_ledger_rows_and_counters_reach_one_task() -> None:
    of = plan()
    arrived = by_task(of)
    blocks = [block for own in arrived for block in own]
    rejected = [row for block in blocks if block.rejected is not None for row in block.rejected["place"].to_pylist()]
    assert sorted(rejected) == [10, 20, 30]
    assert sum(block.counters.get("events", 0) for block in blocks) == 33
    assert [len(own) for own in arrived] == [3, 3]
    assert sorted(
        p for own in arrived for rows in rows_by_partition(own).values() for p in rows["place"].to_pylist()
    ) == sorted(10 * number + place for number in range(3) for place in range(10))
