"""Requested windows, and the slices in them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import pyarrow as pa

from tidestate.operators.windows.expansion import expand_windows
from tidestate.operators.windows.slices.tables import SliceTables
from tidestate.statestore.arrays import Numbers
from tidestate.statestore.spec.changes import Lookup
from tidestate.statestore.spec.tables import Column, TableSpec
from tidestate.statestore.table.sorting import lasts, shared_ranks, taken


class RequestedWindows:
    """``keys``: window end and key of each requested window."""

    def __init__(self, plan: SliceTables, keys: pa.Table) -> None:
        self.keys, self._plan = keys, plan
        self.ends = _instants(keys, "window_end")

    @property
    def spec(self) -> TableSpec:
        """The slices table keyed by the index of a requested window; not stored."""
        slices = self._plan.slices
        return TableSpec("by_place", (Column("place", "int64"),), slices.values, None, slices.groups)

    @cached_property
    def slices(self) -> tuple[Numbers, Numbers]:
        """All slices, each once: for each window the end after which its slices begin, and how many they are."""
        (codes,) = _shared(self._plan.key_names, [self.keys])
        order = np.lexsort((self.ends, codes))
        codes, ends = codes[order], self.ends[order]
        low = ends - self._plan.windows.size
        low[1:] = np.where(codes[1:] == codes[:-1], np.maximum(low[1:], ends[:-1]), low[1:])
        begin = np.empty(len(order), np.int64)
        begin[order] = low
        return begin, (self.ends - begin) // self._plan.windows.slice

    def combined(self, rows: pa.Table, budget_bytes: int) -> Iterator[pa.Table]:
        """Combine ``rows`` of the slices table by requested window, in parts."""
        names = [column.name for column in self.spec.values]
        first, counts, places = self._windows_of(rows)

        def pairs(index: Numbers, nth: Numbers) -> pa.Table:
            values = rows.select(names).take(pa.array(index))
            return values.add_column(0, "place", pa.array(places[first[index] + nth]))

        yield from expand_windows(self.spec, rows, self._plan.key_names, counts, pairs, budget_bytes)

    def _windows_of(self, rows: pa.Table) -> tuple[Numbers, Numbers, Numbers]:
        """For each row its first requested window and their number, as positions in ``places``; and the index of the
        window at each position.
        """
        windows = self._plan.windows
        first, counts = windows.windows_of(_instants(rows, "slice_end"))
        last = first + (counts - 1) * windows.slide
        requested, of_rows = _shared(self._plan.key_names, [self.keys, rows])
        distinct, rank = np.unique(self.ends, return_inverse=True)
        width = len(distinct) + 1
        line = requested * width + rank
        places = np.argsort(line, kind="stable")
        line = line[places]
        begin = np.searchsorted(line, of_rows * width + np.searchsorted(distinct, first))
        end = np.searchsorted(line, of_rows * width + np.searchsorted(distinct, last, "right"))
        return begin, np.maximum(0, end - begin), places

    def lookup(self, values: pa.Table) -> Lookup:
        """``values`` (rows of `spec`) as a look-up of the keys."""
        places = lasts(values["place"].to_numpy(), self.keys.num_rows)
        columns = [*self.keys.columns, *taken(values.drop_columns(["place"]), places).columns]
        return Lookup(pa.array(places >= 0), pa.table(columns, schema=self._plan.windows_spec.schema))


def _instants(rows: pa.Table, name: str) -> Numbers:
    instants: Numbers = rows[name].cast(pa.int64()).to_numpy()
    return instants


def _shared(names: list[str], tables: list[pa.Table]) -> list[Numbers]:
    """Numbers of the rows' keys, shared by all tables; 0 without a key."""
    if not names:
        return [np.zeros(table.num_rows, np.int64) for table in tables]
    return shared_ranks([table.select(names) for table in tables])[0]
