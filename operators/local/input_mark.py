"""The hash that names a batch of the input in manifests, computed beside the step that the batch takes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

from tidestate.operators.plan.graph import Graph
from tidestate.statestore.spec.valuehash import hash_tables

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

HANDED_BYTES = 1 << 20
"""Below this, to hand a batch to another thread takes longer than its hash."""


def input_mark(graph: Graph, streams: Mapping[str, pa.Table]) -> str:
    """A hash of the values that the job reads of a batch: it does not depend on how Arrow stores them."""
    return hash_tables(
        {
            name: rows.select([n for n in graph.streams[name] if n in rows.column_names])
            for name, rows in streams.items()
        }
    )


def begin_mark(graph: Graph, streams: Mapping[str, pa.Table]) -> Callable[[], str]:
    """A function that gives the `input_mark`, of a large batch once another thread has computed it. It is in the
    manifest of the batch, which comes last, so the step need not wait for it.
    """
    if sum(rows.nbytes for rows in streams.values()) < HANDED_BYTES:
        mark = input_mark(graph, streams)
        return lambda: mark
    return _marking().submit(input_mark, graph, streams).result


@cache
def _marking() -> ThreadPoolExecutor:
    """The thread that hashes."""
    from concurrent.futures import ThreadPoolExecutor  # takes a while to import

    return ThreadPoolExecutor(1, "tidestate-marks")


# A process that was forked has none of the threads of its parent.
os.register_at_fork(after_in_child=_marking.cache_clear)
