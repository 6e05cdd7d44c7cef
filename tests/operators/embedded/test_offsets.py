"""The window operator by hand over windows of offsets: each message once, late ones, what is forgotten, a rebuild."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.operator_messages import (
    SCHEMA,
    STORES,
    Message,
    Receiver,
    exact_median,
    operator,
    plain,
    store_config,
    table,
    take,
)
from tests.helpers.process import few, in_turn
from tidestate import Aggregation, agg
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import StoreName
from tidestate.statestore.stores.opening import _memory

TOTAL = 80
WINDOWS = {
    "tumbling": ts.offset_windows(8),
    "hopping": ts.offset_windows(9, 3, late=20),
    "sessions": ts.offset_sessions(3, late=9),
}


def job(windows: str, key: str | None = "k", mode: str = "retracting") -> Aggregation:
    """A count, a sum, and a median over whole rows, kept by the message store."""
    middle = agg.apply_rows(exact_median, columns=["v"], result_type=pa.float64(), per_group=True)
    made = ts.stream(offset="at", origin="part").group_by(*([key] if key else [])).window(WINDOWS[windows])
    return made.aggregate(n=agg.count(), total=agg.sum("v"), middle=middle).accumulation(mode)


def batches(seed: int) -> list[list[Message]]:
    """Offsets of one origin, each once, some early, some late, some very."""
    chance = random.Random(seed)
    places = {at: at + chance.choice([0, 0, 0, chance.randint(0, 12), chance.randint(0, 60)]) for at in range(TOTAL)}
    ordered = sorted(range(TOTAL), key=lambda at: places[at])
    made = [Message("x", at, at, chance.choice("abc"), chance.randint(-9, 9)) for at in ordered]
    return [made[start : start + 10] for start in range(0, TOTAL, 10)]


@pytest.mark.slow
@pytest.mark.parametrize(("windows", "store", "key"), few(in_turn(WINDOWS, STORES, ["k", None])))
def test_each_offset_once_and_the_panes_of_the_harness(
    tmp_path: Path, store: StoreName, windows: str, key: str | None
) -> None:
    description, stream = job(windows, key), batches(11)
    harness = description.harness(SCHEMA, folder=tmp_path / "harness")
    wanted = [row for batch in stream for row in plain(harness.feed(table(sorted(batch))))] + plain(harness.finish())
    receiver = Receiver()
    for number, batch in enumerate(stream):
        # A process each: what came before comes again, and is known.
        with operator(description, tmp_path / "hand", store_config(store, tmp_path / "cache")) as running:
            again = stream[number - 1] if number else []
            running.add_messages(table(batch + again[:3]))
            running.flush()
            take(running, receiver)
            running.flush()
        _memory.clear()
    with operator(description, tmp_path / "hand", store_config(store, tmp_path / "cache")) as running:
        assert running.layout is not None
        assert not running.layout.by_time
        kept = running.get_messages()
        assert 0 < kept.num_rows < TOTAL  # what windows are past is forgotten
        assert running.counters["accepted"] == harness.counters()["accepted"]
        assert running.counters["duplicates"] > 5
        running.drain()
        take(running, receiver)
    # Windows that fire in one batch are in any order.
    assert sorted(receiver.panes) == sorted(wanted)
    assert windows == "sessions" or any(row[-3] == "late" for row in wanted)


def test_lost_messages_are_put_back(tmp_path: Path) -> None:
    description, stream = job("tumbling"), batches(5)
    store = store_config("parquet", tmp_path / "cache")
    with operator(description, tmp_path / "hand", store) as running:
        for batch in stream:
            running.add_messages(table(batch))
        running.flush()
        before, known = running.get_messages(), running.replay_from().to_pylist()[0]
        running.rebuild(table([m for m in batch if m.at >= known["start_offset"]]) for batch in stream)
        after = running.get_messages()
    assert before.num_rows > 0
    assert set(plain(before)) <= set(plain(after))


def test_a_second_origin_is_refused_and_nothing_of_it_taken(tmp_path: Path) -> None:
    store = store_config("memory", tmp_path)
    with operator(job("tumbling"), tmp_path / "hand", store) as running:
        running.add_messages(table([Message("x", 1, 1, "a", 1)]))
        with pytest.raises(UsageError, match="several-origins"):
            running.add_messages(table([Message("y", 2, 1, "a", 1)]))
        running.flush()
    with operator(job("tumbling"), tmp_path / "hand", store) as running:
        with pytest.raises(UsageError, match="several-origins"):
            running.add_messages(table([Message("y", 2, 1, "a", 1)]))
        assert running.counters["accepted"] == 1
