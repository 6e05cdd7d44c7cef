"""The parquet store: opens without reading, reads what it needs, holds little, survives a crash at any I/O call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.helpers.checkout import ROOT
from tests.helpers.durable_store import DurableStore
from tests.helpers.lineage import advance
from tests.helpers.process import LONG
from tidestate.statestore.errors import TidestateError, UnavailableError
from tidestate.statestore.files import sortedfile
from tidestate.statestore.files.partition_log import PartitionLog
from tidestate.statestore.files.refs import PartitionState
from tidestate.statestore.spec.changes import Applied, TableChanges
from tidestate.statestore.spec.keyrange import key_range
from tidestate.statestore.spec.store import Parquet
from tidestate.statestore.spec.tables import Column, TableSpec
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.stores.parquet import ParquetStore
from tidestate.statestore.testing import Crash, FaultyObjects
from tidestate.statestore.testing.generated import applied, seeded_changes
from tidestate.statestore.testing.history import ModelHistory, check_store
from tidestate.statestore.testing.tables import SPECS
from tools.bench.stores import large

NUMBERS = TableSpec("numbers", (Column("k", "string"), Column("i", "int64")), (Column("v", "int64", combiner="sum"),))


def numbers(first: int, last: int) -> pa.Table:
    every = np.arange(first, last)
    return pa.table({"k": [f"{i // 100:04d}" for i in every], "i": every, "v": every}, schema=NUMBERS.schema)


@pytest.fixture
def filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Objects, PartitionState]:
    """A snapshot of 20,000 rows in about a hundred blocks, and a changelog over it."""
    monkeypatch.setattr(sortedfile, "BLOCK_BYTES", 4000)
    objects, eager = Objects(tmp_path / "root"), Parquet(snapshot_bytes=1)
    state = advance(objects, [NUMBERS], PartitionState(), {"numbers": TableChanges(put=numbers(0, 20_000))}, 1, eager)
    state = advance(objects, [NUMBERS], state, {"numbers": TableChanges(merge=numbers(500, 501))}, 2, eager)
    assert [ref.kind for ref in state.files] == ["snapshot", "changelog"]
    return objects, state


def test_opening_reads_nothing(filled: tuple[Objects, PartitionState]) -> None:
    watched = FaultyObjects(filled[0], at=10**9)
    store = ParquetStore([NUMBERS], watched, filled[1])
    assert store.applied == Applied(2, filled[1].lineage)
    assert watched.calls == 0
    store.close()


def test_a_look_up_reads_the_blocks_that_may_hold_it(
    filled: tuple[Objects, PartitionState], monkeypatch: Any
) -> None:
    read: list[int] = []
    whole = sortedfile.SortedFile._read
    monkeypatch.setattr(
        sortedfile.SortedFile, "_read", lambda self, blocks: read.extend(blocks) or whole(self, blocks)
    )
    store = ParquetStore([NUMBERS], *filled)
    asked = pa.table({"k": ["0005", "0150", "none"], "i": [500, 15_000, 1]})
    assert store["numbers"].lookup(asked).rows["v"].to_pylist() == [1000, 15_000, None]
    assert 2 <= len(set(read)) <= 4
    read.clear()
    assert not list(store["numbers"].scan(key_range((50,), (60,), prefix=("0100",))))
    (rows,) = store["numbers"].scan(key_range((10_050,), (10_060,), prefix=("0100",)))
    assert rows["i"].to_pylist() == [*range(10_050, 10_060)]
    assert len(set(read)) <= 3
    found = store["numbers"].ranges(pa.table({"k": ["0199", "0003"]}), pa.array([None, 398]), None)
    assert found.rows["i"].to_pylist() == [*range(19_900, 20_000), 398, 399]
    store.close()


def test_what_expired_is_dropped_by_file(tmp_path: Path) -> None:
    spec = TableSpec("w", (Column("end", "int64"), Column("k", "string")), (Column("n", "int64"),), "end")
    objects, state = Objects(tmp_path), PartitionState()
    for end in (10, 20, 30):
        rows = pa.table({"end": [end], "k": ["a"], "n": [end]})
        state = advance(objects, [spec], state, {"w": TableChanges(put=rows)}, end)
    state = advance(objects, [spec], state, {"w": TableChanges(expire=20)}, 40)
    assert [ref.first for ref in state.files] == [30]
    assert (state.lineage, state.sequence) == (state.files[0].segment, 30)


def test_a_change_is_seen_after_a_scan_that_kept_what_it_folded() -> None:
    store = ParquetStore([NUMBERS])
    for sequence in (1, 2, 3):
        store.apply({"numbers": TableChanges(merge=numbers(0, 9))}, Applied(sequence, str(sequence)))
        assert store["numbers"].settled is None
        (rows,) = store["numbers"].scan()
        assert store["numbers"].settled is not None
        assert rows["v"].to_pylist() == [sequence * value for value in range(9)]


def test_a_range_has_the_rows_at_the_edges_of_its_files(tmp_path: Path) -> None:
    """Files that cannot have rows of it are not read: those at its very ends can."""
    spec = TableSpec("w", (Column("end", "int64"), Column("k", "string")), (Column("n", "int64"),), "end")
    objects, state, ends = Objects(tmp_path), PartitionState(), (10, 20, 30)
    for end in ends:
        rows = pa.table({"end": [end], "k": ["a"], "n": [end]})
        state = advance(objects, [spec], state, {"w": TableChanges(put=rows)}, end)
    assert len(state.files) == len(ends)
    for low, high in product((9, 10, 11, 20, 30, 31), (10, 20, 21, 30, 31)):
        for lower, upper in (((low,), (high,)), ((low, "a"), (high, "a"))):
            table = ParquetStore([spec], objects, state)["w"]  # one that has read nothing
            found = [end for rows in table.scan(key_range(lower, upper)) for end in rows["end"].to_pylist()]
            assert found == [end for end in ends if low <= end < high], (lower, upper)


@pytest.mark.slow
def test_what_arrow_holds_of_large_state_keeps_to_its_budget(tmp_path: Path) -> None:
    """While it is written, folded, looked up and scanned. The next test counts all of a process."""
    default = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(default)
    pa.set_memory_pool(pool)
    try:
        facts = large(tmp_path, budget_mb=1, times=14)
    finally:
        pa.set_memory_pool(default)
    assert facts["state_mb"] >= 14
    assert facts["found"] == 1000
    assert pool.max_memory() < 10 << 20


@pytest.mark.long
@pytest.mark.slow
def test_state_twenty_times_the_budget_fits_into_the_budget_and_a_constant() -> None:
    """The constant: what Arrow and Parquet in use take, and the batches that are put in.

    With the system's allocator: Arrow's own keeps freed memory for a while, which is another constant.
    """
    budget, times, constant = 12, 21, 200
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}
    command = [sys.executable, "-c", LARGE, str(budget), str(times)]
    with_state = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment)
    facts = json.loads(with_state.stdout)
    assert facts["state_mb"] >= 20 * budget
    assert facts["resident_mb"][1] - facts["resident_mb"][0] < budget + constant < facts["state_mb"]
    assert facts["found"] == 1000


LARGE = """
import json, sys, tempfile
from itertools import product
from pathlib import Path
from tools.bench.stores import large
with tempfile.TemporaryDirectory() as folder:
    print(json.dumps(large(Path(folder), int(sys.argv[1]), int(sys.argv[2]))))
"""


SEED, STEPS = 5, 11
OFTEN = Parquet(max_levels=2, snapshot_bytes=500, budget_bytes=1 << 20)


def run(objects: Objects, history: ModelHistory, steps: range) -> None:
    store = DurableStore(SPECS, objects, OFTEN)
    check_store(store, history.now, "when it is opened")
    for sequence in steps:
        history.apply(store, seeded_changes(SEED, sequence), applied(sequence))
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_crash_at_any_io_call_loses_nothing_and_repeats_nothing(tmp_path: Path, when: Any) -> None:
    watched = FaultyObjects(Objects(tmp_path / "counted"), at=10**9)
    run(watched, ModelHistory(SPECS), range(1, STEPS))
    calls = watched.calls
    assert calls > 60
    for at in range(1, calls + 1, 1 if LONG else 29):
        root = tmp_path / f"{when}-{at}"
        history = ModelHistory(SPECS)
        with pytest.raises(Crash):
            run(FaultyObjects(Objects(root), at=at, crash=True, when=when), history, range(1, STEPS))
        again = DurableStore(SPECS, Objects(root), OFTEN)
        # What was applied is there; the change set on its way is there whole or not at all.
        done = history.now.applied.sequence
        assert again.applied.sequence in (done, done + 1)
        if again.applied.sequence > done:
            history.add(seeded_changes(SEED, done + 1), applied(done + 1))
        again.close()
        run(Objects(root), history, range(again.applied.sequence + 1, STEPS))


@pytest.mark.parametrize("when", ["before", "during"])
def test_storage_that_refuses_any_call_leaves_nothing_half_applied(tmp_path: Path, when: Any) -> None:
    objects = Objects(tmp_path / "root")
    history = ModelHistory(SPECS)
    run(objects, history, range(1, 5))
    changes = seeded_changes(SEED, 5)
    refused = 0
    for at in range(1, 200):
        faulty = FaultyObjects(objects, at=at, when=when)
        try:
            store = DurableStore(SPECS, faulty, OFTEN)
            store.apply(changes, applied(5))
        except UnavailableError:
            refused += 1
        else:
            store.close()
            break
        check_store(DurableStore(SPECS, objects, OFTEN), history.now, f"after call {at} was refused")
    assert refused > 3


def test_a_spill_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ParquetStore([NUMBERS], budget_bytes=1000)
    store.apply({"numbers": TableChanges(put=numbers(0, 500))}, Applied(1, "one"))
    before = pa.concat_tables(list(store["numbers"].scan()))

    def refuse(*_: Any, **__: Any) -> None:
        raise UnavailableError("storage refused", code="storage", path="x", reason="ENOSPC")

    monkeypatch.setattr("tidestate.statestore.stores.parquet.fold_into", refuse)
    with pytest.raises(TidestateError, match="ENOSPC"):
        store.apply({"numbers": TableChanges(merge=numbers(0, 500))}, Applied(2, "two"))
    assert store.applied == Applied(1, "one")
    assert pa.concat_tables(list(store["numbers"].scan())).equals(before)
    monkeypatch.undo()
    store.apply({"numbers": TableChanges(merge=numbers(0, 500))}, Applied(2, "two"))
    assert pa.concat_tables(list(store["numbers"].scan()))["v"].to_pylist() == [2 * i for i in range(500)]
    store.close()


def test_many_checkpoints_of_one_open_window_stay_flat(tmp_path: Path) -> None:
    """The long form is ``python -m tools.bench stores checkpoints``."""
    objects, state = Objects(tmp_path), PartitionState()
    sizes = []
    for number in range(1, 301):
        log = PartitionLog(objects, [NUMBERS], Parquet(), "flat", 0, 1, f"{number:032x}")
        state = log.append(state, {"numbers": TableChanges(merge=numbers(0, 50))}, number)
        sizes.append((len(state.files), sum(ref.bytes for ref in state.files)))
    assert max(files for files, _ in sizes) <= 12
    assert max(size for _, size in sizes[150:]) <= 1.2 * max(size for _, size in sizes[:150])
