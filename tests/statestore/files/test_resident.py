"""Small tables stay decoded: they read as their files do, never ahead of what is published, and within the budget."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.lineage import advance
from tidestate.statestore.errors import CorruptionError
from tidestate.statestore.files import resident
from tidestate.statestore.files.refs import PartitionState
from tidestate.statestore.files.resident import clear_residents, limit_of, resident_bytes
from tidestate.statestore.spec.changes import PUT, Layer, TableChanges
from tidestate.statestore.spec.store import Parquet
from tidestate.statestore.spec.tables import Column, TableSpec
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.stores.parquet import ParquetStore
from tidestate.statestore.table.fold import fold
from tidestate.statestore.table.layers import sorted_by_key
from tidestate.statestore.table.settling import is_settled_table, settled
from tidestate.statestore.table.validation import specs_by_name, validate_changes
from tidestate.statestore.testing.generated import changes, seeded_changes
from tidestate.statestore.testing.tables import SPECS

KEY, VALUE = (Column("end", "int64"), Column("k", "string")), Column("v", "double", combiner="sum")
SUMS = TableSpec("sums", KEY, (VALUE,), "end")


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    clear_residents()
    yield
    clear_residents()


def drawn_layers(spec: TableSpec, random: Random, many: int) -> list[Layer]:
    """The layers of ``many`` change sets, as segments hold them."""
    sets = ({spec.name: changes(spec, random, sequence)} for sequence in range(1, many + 1))
    return [layer for one in sets for layer in validate_changes(specs_by_name([spec]), one)[spec.name]]


@given(spec=st.sampled_from(SPECS), random=st.randoms(use_true_random=False), many=st.integers(0, 6))
def test_settled_layers_fold_to_the_same_rows(spec: TableSpec, random: Random, many: int) -> None:
    layers = drawn_layers(spec, random, many)
    once = settled(spec, layers)
    assert is_settled_table(once)
    assert str(rows_of(spec, once)) == str(rows_of(spec, layers))
    # Settled as they come they are the same, also in the order of their merges.
    half = len(layers) // 2
    in_turn = settled(spec, [*settled(spec, layers[:half]), *layers[half:]])
    assert [(layer.op, str(layer.rows.to_pylist())) for layer in in_turn] == [
        (layer.op, str(layer.rows.to_pylist())) for layer in once
    ]


def rows_of(spec: TableSpec, layers: list[Layer]) -> list[dict[str, object]]:
    return sorted_by_key(spec, fold(spec, layers)).to_pylist()


@pytest.mark.parametrize("seed", range(3))
def test_what_is_kept_reads_as_what_is_read_again(tmp_path: Path, seed: int) -> None:
    objects, state, often = Objects(tmp_path), PartitionState(), Parquet(max_levels=4)
    for sequence in range(1, 14):
        state = advance(objects, SPECS, state, seeded_changes(seed, sequence), sequence, often)
        kept = everything(objects, state)
        clear_residents()
        assert everything(objects, state) == kept


def everything(objects: Objects, state: PartitionState) -> list[str]:
    """All rows of all tables, in order and folded, and as they are."""
    store = ParquetStore(SPECS, objects, state)
    rows = [str([part.to_pylist() for part in store[spec.name].scan(folded=False)]) for spec in SPECS]
    rows += [str([part.to_pylist() for part in store[spec.name].scan()]) for spec in SPECS]
    store.close()
    return rows


def added(objects: Objects, state: PartitionState, sequence: int, value: float, **more: int) -> PartitionState:
    rows = pa.table({"end": [sequence], "k": ["a"], "v": [value]}, schema=SUMS.schema)
    return advance(objects, [SUMS], state, {"sums": TableChanges(merge=rows, **more)}, sequence)


def values(objects: Objects, state: PartitionState) -> list[float]:
    store = ParquetStore([SUMS], objects, state)
    found = [value for rows in store["sums"].scan() for value in rows["v"].to_pylist()]
    store.close()
    return found


def test_an_attempt_that_is_not_published_is_not_seen(tmp_path: Path) -> None:
    objects = Objects(tmp_path)
    base = added(objects, added(objects, PartitionState(), 1, 1.0), 2, 2.0)
    assert values(objects, base) == [1.0, 2.0]
    lost = added(objects, base, 3, 7.0)
    assert values(objects, base) == [1.0, 2.0]
    again = added(objects, base, 3, 3.0)
    assert values(objects, again) == [1.0, 2.0, 3.0]
    assert values(objects, lost) == [1.0, 2.0, 7.0]


def test_what_has_expired_comes_back_with_an_older_checkpoint(tmp_path: Path) -> None:
    objects = Objects(tmp_path)
    base = added(objects, added(objects, PartitionState(), 1, 1.0), 2, 2.0)
    later = added(objects, base, 3, 3.0, expire=1)
    assert values(objects, later) == [2.0, 3.0]
    assert values(objects, added(objects, later, 4, 4.0, expire=2)) == [3.0, 4.0]
    assert values(objects, base) == [1.0, 2.0]


@pytest.mark.parametrize("read_before", [False, True], ids=["not read yet", "read"])
def test_damage_is_noticed_though_the_rows_are_kept(tmp_path: Path, read_before: bool) -> None:
    objects = Objects(tmp_path)
    state = added(objects, added(objects, PartitionState(), 1, 1.0), 2, 2.0)
    if read_before:
        assert values(objects, state) == [1.0, 2.0]
    target = tmp_path / state.files[-1].path
    data = bytearray(target.read_bytes())
    data[len(data) // 2] ^= 1
    target.write_bytes(data)
    with pytest.raises(CorruptionError) as damaged:
        values(objects, state)
    assert damaged.value.code == "file-damaged"
    target.unlink()
    with pytest.raises(CorruptionError) as missing:
        values(objects, state)
    assert missing.value.code == "file-missing"


def test_tables_that_are_kept_stay_within_their_share_of_the_budget(tmp_path: Path) -> None:
    objects, config = Objects(tmp_path), Parquet(budget_bytes=1 << 20)
    rows = pa.table({"end": range(400), "k": ["a"] * 400, "v": [1.0] * 400}, schema=SUMS.schema)
    for number in range(40):
        spec = TableSpec(f"sums{number}", SUMS.key, SUMS.values, "end")
        state = advance(objects, [spec], PartitionState(), {spec.name: TableChanges(put=rows)}, 1, config)
        store = ParquetStore([spec], objects, state, budget_bytes=config.budget_bytes)
        assert store[spec.name].scan().__next__().num_rows == 400
        store.close()
        assert 0 < resident_bytes() <= limit_of(config.budget_bytes)
    large = pa.concat_tables([rows.set_column(0, "end", pa.array(range(at, at + 400))) for at in range(0, 4000, 400)])
    before = resident_bytes()
    advance(objects, [SUMS], PartitionState(), {"sums": TableChanges(put=large)}, 1, config)
    assert resident_bytes() == before


def test_kept_rows_do_not_keep_a_batch_alive() -> None:
    batch = pa.table({"end": range(100_000), "k": ["a"] * 100_000, "v": [1.0] * 100_000}, schema=SUMS.schema)
    few = resident.owned(batch.slice(10, 3))
    assert few.equals(batch.slice(10, 3))
    assert few.get_total_buffer_size() < 1000
    (layer,) = settled(SUMS, [Layer(PUT, batch.slice(10, 3))])
    assert layer.rows.get_total_buffer_size() < 1000
