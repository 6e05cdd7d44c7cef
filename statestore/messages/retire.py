"""Deletes messages at once, those of windows of any keys. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.statestore.messages.identities import first_of_each
from tidestate.statestore.messages.retention import tally
from tidestate.statestore.messages.tables import MessageTables
from tidestate.statestore.spec.changes import ChangeSet, TableChanges
from tidestate.statestore.spec.store import StateView


def retire(tables: MessageTables, view: StateView, found: pa.Table) -> ChangeSet:
    """Delete the messages that `messages_for` has ``found``, at once and for good.

    Their identities stay known until their position is forgotten, so a replay does not bring them back.
    """
    once = first_of_each(found.select(tables.seen.key_names)) == np.arange(found.num_rows)
    rows = found.filter(pa.array(once))
    changes = {tables.messages.name: TableChanges(delete=tables.messages.conform_keys(rows))}
    if tables.counts_sizes:
        less = tally(tables, rows, -1)
        counted = view[tables.sizes.name].lookup(tables.sizes.conform_keys(less)).rows["count"]
        empty = pc.equal(pc.add(counted, less["count"]), 0)
        changes[tables.sizes.name] = TableChanges(
            delete=tables.sizes.conform_keys(less.filter(empty)), merge=less.filter(pc.invert(empty))
        )
    return changes
