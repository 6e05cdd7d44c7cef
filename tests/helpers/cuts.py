"""The same rows in batches cut at random: what does not depend on the cut is compared over several."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from tests.helpers.process import LONG
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.local.harness import Harness
from tidestate.statestore.spec.store import StoreConfig
from tidestate.stores import Memory

T = TypeVar("T")
SECOND = 1_000_000
TIME = pa.timestamp("us", tz="UTC")
MEMORY = Memory()
EVENTS = pa.schema([("k", pa.string()), ("t", TIME), ("v", pa.int64()), ("part", pa.string()), ("at", pa.int64())])


TRIES = 3 if LONG else 1
"""How often rows are cut at random."""


def cuts(
    rows: Sequence[T], chance: random.Random, tries: int = TRIES, *, single: bool = True
) -> Iterator[list[list[T]]]:
    """All rows in one batch, cut at random, and, with ``single``, one row a batch."""
    yield [list(rows)]
    for _ in range(tries):
        places = sorted(chance.sample(range(1, len(rows)), min(len(rows) - 1, chance.randint(1, 6))))
        yield [list(rows[first:last]) for first, last in zip([0, *places], [*places, len(rows)], strict=True)]
    if single:
        yield [[row] for row in rows]


def events(chance: random.Random, count: int, behind: int = 6) -> list[dict[str, Any]]:
    """Rows whose times (in seconds) are at most ``behind`` the largest before; offsets of a part are in order."""
    made, offsets = [], Counter[str]()
    for number in range(count):
        part = chance.choice("xy")
        offsets[part] += 1
        at = max(0, number - chance.randint(0, behind))
        row = {"k": chance.choice("ab"), "t": at * SECOND, "v": number, "part": part, "at": offsets[part]}
        made.append(row)
    return made


def table(rows: Sequence[dict[str, Any]], schema: pa.Schema = EVENTS) -> pa.Table:
    """Rows as a batch; times are whole numbers of microseconds."""
    columns = [pa.array([row[field.name] for row in rows]) for field in schema]
    return pa.table([column.cast(field.type) for column, field in zip(columns, schema, strict=True)], schema=schema)


def played(
    description: Runnable,
    batches: Sequence[pa.Table],
    *,
    store: StoreConfig = MEMORY,
    partitions: int = 1,
    restarts: bool = False,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The panes of these batches and the end, in order; and the ledger."""
    harness = Harness(description, batches[0].schema, store=store, partitions=partitions)
    panes = []
    for batch in batches:
        panes += harness.feed(batch).to_pylist()
        if restarts:
            harness.restart()
    panes += harness.finish().to_pylist()
    return panes, harness.ledger().to_pylist()


def net(panes: Sequence[dict[str, Any]], *without: str) -> Counter[tuple[Any, ...]]:
    """How often each row is left, those that were taken back counted −1; ``without`` some columns."""
    found: Counter[tuple[Any, ...]] = Counter()
    for pane in panes:
        values = tuple(value for name, value in pane.items() if name not in ("kind", *without))
        found[values] += -1 if pane.get("kind") == "retract" else 1
    return Counter({row: count for row, count in found.items() if count})


def by_cut(
    description: Any, given: list[dict[str, Any]], chance: random.Random, **how: Any
) -> list[list[dict[str, Any]]]:
    """The panes of each cut, none of whose rows is late."""
    found = []
    for cut in cuts(given, chance, single=False):
        panes, ledger = played(description, [table(some) for some in cut], partitions=chance.choice([1, 3]), **how)
        assert not ledger
        found.append(panes)
    return found


def plain(panes: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(pane[name] for name in names) for pane in panes)
