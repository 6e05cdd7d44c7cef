"""Every way of reading a store, compared with the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tidestate.statestore.spec.keyrange import key_range
from tidestate.statestore.spec.store import StateStore, StateView
from tidestate.statestore.testing.generated import Question, RangeRequests
from tidestate.statestore.testing.model import StoreModel, TableModel
from tidestate.statestore.testing.rows import (
    KeyRow,
    as_tuples,
    check_schema,
    prefixes,
    promise,
    same,
    same_rows,
    streamed,
    table,
)


def check_store(store: StateStore, model: StoreModel, when: str) -> None:
    """How far the store has come, its bounds, and all its rows by way of a snapshot."""
    promise(
        store.applied == model.applied,
        f"{when}, `applied` is the last change set",
        found=store.applied,
        expected=model.applied,
    )
    found = dict(store.expired)
    promise(
        found == model.expired, f"{when}, `expired` is the highest bound given", found=found, expected=model.expired
    )
    snapshot = store.snapshot()
    promise(snapshot.keys() == model.tables.keys(), f"{when}, a snapshot has every table", found=sorted(snapshot))
    for name, rows in model.tables.items():
        same_rows(rows.spec, snapshot[name], rows.snapshot(), f"{when}, a snapshot is the live rows in key order")


def check_scan(store: StateView, model: TableModel, asked: Question) -> None:
    """A scan of folded rows, and one of parts."""
    spec = model.spec
    expected = model.scan(asked.lower, asked.upper, prefix=asked.prefix)
    found = store[spec.name].scan(key_range(asked.lower, asked.upper, prefix=asked.prefix), reverse=asked.reverse)
    in_order = expected[::-1] if asked.reverse else expected
    same_rows(spec, found, in_order, f"a scan is the live rows within its bounds, in key order: {asked}")
    loose = store[spec.name].scan(key_range(asked.lower, asked.upper, prefix=asked.prefix), folded=False)
    same(
        model.folded(list(streamed(spec, loose))),
        expected,
        f"with folded=False the parts of rows combine to the rows: {spec.name} {asked}",
    )


def check_lookup(store: StateView, model: TableModel, keys: Sequence[KeyRow]) -> None:
    """A look-up of keys, found and missing ones, in chunks."""
    spec = model.spec
    asked = pa.concat_tables([table(spec, keys[:1], keys_only=True), table(spec, keys[1:], keys_only=True)])
    found = store[spec.name].lookup(asked)
    expected = model.lookup(keys)
    same(
        found.found.to_pylist(),
        [row is not None for row in expected],
        f"`found` says for each key asked whether its row is there (table {spec.name})",
    )
    missing: KeyRow = (None,) * len(spec.values)
    aligned = [(*key, *missing) if row is None else row for key, row in zip(keys, expected, strict=True)]
    same_rows(spec, [found.rows], aligned, "a look-up is aligned with its keys, null in all values where none is")


def check_ranges(store: StateView, model: TableModel, asked: RangeRequests) -> None:
    """Check that a store answers many ranges at once as the model does. Raises `BrokenPromise` where it differs."""
    spec = model.spec
    lower, upper = asked.bound(spec, asked.lower), asked.bound(spec, asked.upper)
    found = store[spec.name].ranges(prefixes(spec, asked.prefixes, asked.width), lower, upper)
    check_schema(found.rows, spec)
    promise(found.request_index.type == pa.int64(), "`request_index` is int64", found=str(found.request_index.type))
    pairs: list[Any] = list(zip(found.request_index.to_pylist(), as_tuples(found.rows), strict=True))
    expected = model.ranges([row[: asked.width] for row in asked.prefixes], asked.lower, asked.upper)
    same(pairs, expected, f"ranges are each request's live rows, by request and in key order: {spec.name} {asked}")
