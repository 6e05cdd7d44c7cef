"""Which rows are known: by all columns of the identity; the first of a batch passes, what is remembered does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from tidestate.statestore.messages.identities import first_of_each, remember, unknown_rows
from tidestate.statestore.spec.changes import Applied
from tidestate.statestore.spec.tables import Column, TableSpec
from tidestate.statestore.stores.memory import MemoryStore

SEEN = TableSpec(
    "seen", (Column("origin", "string"), Column("offset", "int64")), (Column("until", "int64"),), "until"
)
IDENTITIES = [("a", 1), ("a", 2), ("b", 1), ("a", 1), ("b", 1), ("b", 3)]


def rows(identities: list[tuple[str, int]]) -> pa.Table:
    """Each with its place, as what else a row has."""
    origins, offsets = zip(*identities, strict=True)
    return pa.table({"origin": origins, "offset": offsets, "place": range(len(identities))})


def passing(store: MemoryStore, asked: pa.Table) -> list[int]:
    return unknown_rows(store, SEEN, asked)["place"].to_pylist()


def test_the_first_row_of_each_identity_passes() -> None:
    assert first_of_each(rows(IDENTITIES).select(SEEN.key_names)).tolist() == [0, 1, 2, 0, 2, 5]
    candidates = np.array([False, True, True, True, True, False])
    assert first_of_each(rows(IDENTITIES).select(SEEN.key_names), candidates).tolist() == [3, 1, 2, 3, 2, 6]
    assert passing(MemoryStore([SEEN]), rows(IDENTITIES)) == [0, 1, 2, 5]


def test_what_is_remembered_does_not_pass_until_it_is_forgotten() -> None:
    store, first = MemoryStore([SEEN]), rows(IDENTITIES[:3])
    added = remember(SEEN, first, pa.array([10, 20, 30]), 10)
    store.apply({"seen": replace(added, expire=10)}, Applied(1, "one"))
    # The first was forgotten in the step that saw it.
    assert passing(store, rows(IDENTITIES)) == [0, 5]
    store.expire("seen", 20)
    assert passing(store, rows(IDENTITIES)) == [0, 1, 5]
