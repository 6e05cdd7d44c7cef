"""The format is open: golden files stay readable, other tools read the state, any store continues any other's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers import evidence
from tests.helpers.golden_state import EXPECTED_KINDS, EXPECTED_SUMS, GOLDEN, KINDS, SPECS, SUMS, T, write
from tests.helpers.process import in_turn
from tests.helpers.worked_example import STREAM, example
from tidestate.statestore.files.refs import PartitionState
from tidestate.statestore.spec.store import StateStore, StoreConfig
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.stores.opening import open_store
from tidestate.stores import Memory, Parquet, RocksDB

STORES = ("memory", "rocksdb", "parquet")


def config(name: str, folder: Path) -> StoreConfig:
    if name == "rocksdb":
        return RocksDB(cache_dir=str(folder / "cache"))
    return {"memory": Memory(), "parquet": Parquet()}[name]


def golden() -> PartitionState:
    return msgspec.json.decode((GOLDEN / "partition.json").read_bytes(), type=PartitionState)


@contextmanager
def opened(name: str, root: Path, state: PartitionState, folder: Path) -> Iterator[StateStore]:
    with open_store(config(name, folder), Objects(root), "golden", SPECS, state) as store:
        yield store


def check_rows(store: StateStore) -> None:
    snapshot = {name: pa.concat_tables(list(rows)) for name, rows in store.snapshot().items()}
    assert snapshot["sums"].schema.equals(SUMS.schema)
    assert [tuple(row.values()) for row in snapshot["sums"].to_pylist()] == [(T[1], *row) for row in EXPECTED_SUMS]
    found = snapshot["kinds"].to_pylist(maps_as_pydicts=None)
    assert found == EXPECTED_KINDS
    assert snapshot["kinds"].schema.equals(KINDS.schema)


@pytest.mark.parametrize("name", STORES)
def test_golden_files_of_version_1_are_read(name: str, tmp_path: Path) -> None:
    with opened(name, GOLDEN, golden(), tmp_path) as store:
        check_rows(store)


@pytest.mark.parametrize("name", STORES)
def test_what_is_written_today_is_read_the_same(name: str, tmp_path: Path) -> None:
    state = write(tmp_path / "root")
    with opened(name, tmp_path / "root", state, tmp_path) as store:
        check_rows(store)
    kinds = [(ref.table, ref.kind, ref.rows) for ref in state.files]
    assert kinds == [(ref.table, ref.kind, ref.rows) for ref in golden().files]


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), in_turn(STORES, STORES[1:] + STORES[:1]))
def test_a_checkpoint_written_with_one_store_continues_with_any_other(
    first: str, second: str, tmp_path: Path
) -> None:
    expected = tmp_path / "expected"
    example("retracting").standalone(checkpoint=expected).run(STREAM, drain=True)
    root = tmp_path / "root"
    for name, upto in ((first, 4), (second, len(STREAM))):
        job = example("retracting").standalone(checkpoint=root, store=config(name, tmp_path / name))
        job.run(STREAM[:upto], drain=upto == len(STREAM))
    assert evidence.panes(root) == evidence.panes(expected)


@pytest.mark.parametrize("first", STORES)
@pytest.mark.parametrize("second", STORES)
def test_a_snapshot_of_one_store_loads_into_any_other(first: str, second: str, tmp_path: Path) -> None:
    empty = PartitionState()
    with (
        opened(first, GOLDEN, golden(), tmp_path / "first") as source,
        open_store(config(second, tmp_path / "second"), Objects(tmp_path), "other", SPECS, empty) as target,
    ):
        target.load(source.snapshot(), source.applied, source.expired)
        check_rows(target)
        assert (target.applied, dict(target.expired)) == (source.applied, dict(source.expired))


# From here on no code of ours reads: only json, pyarrow, DuckDB and pandas, by the words of docs/reference/format.md.


def plain_files(table: str) -> tuple[list[pa.Table], int | None]:
    """The rows of a table's files, oldest first, each with an ``op``; and its expiry bound."""
    state = json.loads((GOLDEN / "partition.json").read_bytes())
    found = []
    for ref in state["files"]:
        if ref["table"] == table:
            path = GOLDEN / ref["path"]
            snapshot = ref.get("kind") == "snapshot"
            rows = pq.ParquetFile(path).read() if path.suffix == ".parquet" else pa.ipc.open_file(path).read_all()
            put = pa.array([1] * rows.num_rows, pa.int8())
            found.append(rows.add_column(0, "__op", put) if snapshot else rows)
    return found, state["expired"].get(table)


FOLD = """
    with ranked as (
        -- Newer files lie over older ones; within a file come deletes (2), then puts (1), then merges (0).
        select *, file * 3 + 2 - __op as layer from rows where epoch_us("end") > $expired
    ),
    visible as (
        select *, max(layer) filter (__op <> 0) over (partition by "end", k) as base from ranked
    )
    select k, sum(n) as n, min(low) as low, max(high) as high, arg_max(item, price) as item
    from visible where __op <> 2 and (base is null or layer >= base)
    group by "end", k order by "end", k
"""


def test_duckdb_folds_the_state_by_the_words_of_the_format() -> None:
    files, expired = plain_files("sums")
    # Parquet calls the items of a list "element", Arrow "item": the one column that does not simply fit together.
    files = [t.drop_columns("seen").append_column("file", pa.array([i] * t.num_rows)) for i, t in enumerate(files)]
    rows = pa.concat_tables(files, promote_options="permissive")
    with duckdb.connect() as session:
        session.register("rows", rows)
        found = session.execute(FOLD, {"expired": expired}).fetchall()
    assert found == [(k, n, low, high, item) for k, n, low, high, _, _, _, item in EXPECTED_SUMS]


def test_pandas_folds_the_state_by_the_words_of_the_format() -> None:
    files, expired = plain_files("sums")
    rows = pd.concat([t.to_pandas().assign(file=i) for i, t in enumerate(files)], ignore_index=True)
    rows = rows[rows["end"] > pd.Timestamp(expired, unit="us", tz="UTC")]
    rows["layer"] = rows["file"] * 3 + 2 - rows["__op"]
    based = rows[rows["__op"] != 0].groupby(["end", "k"])["layer"].max().rename("base")
    rows = rows.join(based, on=["end", "k"])
    rows = rows[(rows["__op"] != 2) & (rows["base"].isna() | (rows["layer"] >= rows["base"]))]
    folded = rows.groupby(["end", "k"]).agg(n=("n", "sum"), low=("low", "min"), high=("high", "max"))
    expected = {k: (n, low, high) for k, n, low, high, *_ in EXPECTED_SUMS}
    assert {k: tuple(row) for (_, k), row in folded.iterrows()} == expected


def test_plain_pyarrow_reads_puts_and_deletes() -> None:
    files, _ = plain_files("kinds")
    state: dict[Any, dict[str, Any]] = {}
    for rows in files:
        for row in rows.to_pylist():
            key = tuple(row[name] for name in KINDS.key_names)
            state.pop(key, None)
            if row.pop("__op") == 1:
                state[key] = row
    assert sorted(state.values(), key=lambda row: row["i8"]) == EXPECTED_KINDS


def test_the_folded_file_holds_its_own_index() -> None:
    (ref,) = (ref for ref in golden().files if ref.kind == "snapshot")
    file = pq.ParquetFile(GOLDEN / ref.path)
    assert file.metadata.num_rows == ref.rows
    assert b"tidestate.index" in file.metadata.metadata
    assert duckdb.sql(f"select k, n from '{GOLDEN / ref.path}' order by k").fetchall() == [("a", 11), ("é", 4)]
