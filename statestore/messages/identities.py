"""Known once: which rows took part already, the first of each in a batch, and until when each is remembered. Pure.

A table of identities has the identity as its key, and as its expiry column the position up to which it is remembered:
a time, or an offset. A row that comes back after that is refused for its age by who reads it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from tidestate.statestore.arrays import Flags, Numbers, Values
from tidestate.statestore.errors import expect
from tidestate.statestore.spec.arrowtypes import positions
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.table.sorting import lasts, ranks, shared_ranks


def is_known(view: StateView, identities: TableSpec, rows: pa.Table) -> Flags:
    """Which ``rows`` are in the table. Shape ``(rows,)``; one look-up of all their identities."""
    return np.asarray(view[identities.name].lookup(rows.select(identities.key_names)).found, bool)


def first_of_each(identities: pa.Table, candidates: Flags | None = None) -> Numbers:
    """The first candidate (default: of all rows) with the identity of each row; the number of rows where none has."""
    numbers, count = ranks(identities)
    places = np.arange(len(numbers)) if candidates is None else np.flatnonzero(candidates)
    first = np.full(count, len(numbers))
    first[numbers[places[::-1]]] = places[::-1]  # of several the last assignment stays
    return first[numbers]


def unknown_rows(view: StateView, identities: TableSpec, rows: pa.Table) -> pa.Table:
    """The first row of each identity that is not in the table, in order."""
    once = first_of_each(rows.select(identities.key_names)) == np.arange(rows.num_rows)
    rows = rows if once.all() else rows.filter(pa.array(once))
    known = is_known(view, identities, rows)
    return rows.filter(pa.array(~known)) if known.any() else rows


def known_rows(view: StateView, table: TableSpec) -> pa.Table:
    """All rows of a table, say of identities, in the order of their keys."""
    return pa.concat_tables([table.schema.empty_table(), *view[table.name].scan()])


def without_stored(view: StateView, identities: TableSpec, known: pa.Table, stored: Iterable[str]) -> pa.Table:
    """Those ``known`` rows of a table of identities whose identity none of the tables ``stored`` has."""
    names = identities.key_names
    parts = [part.select(names) for table in stored for part in view[table].scan()]
    stored_rows = pa.concat_tables([known.schema.empty_table().select(names), *parts])
    # Equal identities have one rank in both tables; a rank that no stored row has is missing there.
    (known_ranks, stored_ranks), count = shared_ranks([known.select(names), stored_rows])
    return known.filter(pa.array((lasts(stored_ranks, count) < 0)[known_ranks]))


def remember(identities: TableSpec, rows: pa.Table, until: Values, bound: int | None) -> TableChanges:
    """Add the identities of ``rows``, each remembered ``until`` a position, but for those that expire in the same
    step, up to ``bound``.
    """
    column = expect(identities.expiry, "identities expire", table=identities.name)
    added = identities.conform(rows.select(identities.key_names).append_column(column, until))
    if bound is not None:
        added = added.filter(pa.array(positions(added[column]) > bound))
    return TableChanges(put=added)
