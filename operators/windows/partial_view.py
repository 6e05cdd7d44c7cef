"""A table of the state of which only some rows are shown where it is scanned. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from tidestate.statestore.spec.changes import KeyBound, Lookup, Ranges
from tidestate.statestore.spec.keyrange import EVERYTHING, Key, KeyRange, key_range
from tidestate.statestore.spec.store import TableView


@dataclass(frozen=True)
class PartialTable(TableView):
    """The rows that ``chosen`` leaves of those in ``whole``: none of the others has a key without the ``prefix``."""

    whole: TableView
    chosen: Callable[[pa.Table], pa.Table]
    prefix: Key = ()

    @property
    def expired(self) -> int | None:
        return self.whole.expired

    def lookup(self, keys: pa.Table) -> Lookup:
        return self.whole.lookup(keys)

    def ranges(self, prefixes: pa.Table, lower: KeyBound = None, upper: KeyBound = None) -> Ranges:
        return self.whole.ranges(prefixes, lower, upper)

    def scan(self, keys: KeyRange = EVERYTHING, *, reverse: bool = False, folded: bool = True) -> Iterator[pa.Table]:
        if keys.whole and self.prefix:
            keys = key_range(prefix=self.prefix)
        return map(self.chosen, self.whole.scan(keys, reverse=reverse, folded=folded))
