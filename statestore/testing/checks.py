"""Every way of reading a store, compared with the model."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa

from tidestate.statestore.spec.keyrange import key_range
from tidestate.statestore.spec.store import StateStore, StateView
from tidestate.statestore.testing.generated import Question, RangeRequests
from tidestate.statestore.testing.model import StoreModel, TableModel, key_order
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


def check_store(store: StateStore, model: StoreModel, moment: str) -> None:
    """How far the store has come, its bounds, and all its rows by way of a snapshot."""
    promise(
        store.applied == model.applied,
        f"{moment}, `applied` is the last change set",
        found=store.applied,
        expected=model.applied,
    )
    bounds = dict(store.expired)
    promise(
        bounds == model.expired,
        f"{moment}, `expired` is the highest bound given",
        found=bounds,
        expected=model.expired,
    )
    snapshot = store.snapshot()
    promise(snapshot.keys() == model.tables.keys(), f"{moment}, a snapshot has every table", found=sorted(snapshot))
    for name, rows in model.tables.items():
        same_rows(rows.spec, snapshot[name], rows.snapshot(), f"{moment}, a snapshot is the live rows in key order")


def check_scan(store: StateView, model: TableModel, question: Question) -> None:
    """A scan of folded rows, and one of parts."""
    spec = model.spec
    reference = model.scan(question.lower, question.upper, prefix=question.prefix)
    batches = store[spec.name].scan(
        key_range(question.lower, question.upper, prefix=question.prefix), reverse=question.reverse
    )
    in_order = reference[::-1] if question.reverse else reference
    same_rows(spec, batches, in_order, f"a scan is the live rows within its bounds, in key order: {question}")
    keys = key_range(question.lower, question.upper, prefix=question.prefix)
    parts = [list(streamed(spec, [batch])) for batch in store[spec.name].scan(keys, folded=False)]
    same(
        model.folded([part for batch in parts for part in batch]),
        reference,
        f"with folded=False the parts of rows combine to the rows: {spec.name} {question}",
    )
    orders = [sorted(key_order(row[: len(spec.key)]) for row in batch) for batch in parts if batch]
    promise(
        all(before[-1] < after[0] for before, after in pairwise(orders)),
        f"with folded=False batches are of ranges of keys that follow each other: {spec.name} {question}",
    )


def check_lookup(store: StateView, model: TableModel, keys: Sequence[KeyRow]) -> None:
    """A look-up of keys, found and missing ones, in chunks."""
    spec = model.spec
    key_rows = pa.concat_tables([table(spec, keys[:1], keys_only=True), table(spec, keys[1:], keys_only=True)])
    answer = store[spec.name].lookup(key_rows)
    reference = model.lookup(keys)
    same(
        answer.found.to_pylist(),
        [row is not None for row in reference],
        f"`found` says for each key asked whether its row is there (table {spec.name})",
    )
    nulls: KeyRow = (None,) * len(spec.values)
    rows = [(*key, *nulls) if row is None else row for key, row in zip(keys, reference, strict=True)]
    same_rows(spec, [answer.rows], rows, "a look-up is aligned with its keys, null in all values where none is")


def check_ranges(store: StateView, model: TableModel, requests: RangeRequests) -> None:
    """Check that a store answers many ranges at once as the model does. Raises `BrokenPromise` where it differs."""
    spec = model.spec
    lower, upper = requests.bound(spec, requests.lower), requests.bound(spec, requests.upper)
    answer = store[spec.name].ranges(prefixes(spec, requests.prefixes, requests.width), lower, upper)
    check_schema(answer.rows, spec)
    promise(answer.request_index.type == pa.int64(), "`request_index` is int64", found=str(answer.request_index.type))
    pairs: list[Any] = list(zip(answer.request_index.to_pylist(), as_tuples(answer.rows), strict=True))
    reference = model.ranges([row[: requests.width] for row in requests.prefixes], requests.lower, requests.upper)
    same(
        pairs, reference, f"ranges are each request's live rows, by request and in key order: {spec.name} {requests}"
    )
