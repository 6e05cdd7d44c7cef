"""The jobs that are simulated, their input, and what an undisturbed run of it makes of each prefix."""

from __future__ import annotations

import logging
import random
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pyarrow as pa
from fsspec.implementations.memory import MemoryFileSystem

from tests.faults.simulation.twin import Event, Twin, Window
from tidestate.agg import count
from tidestate.agg import list as list_
from tidestate.agg import sum as sum_
from tidestate.operators import tumbling
from tidestate.operators.describe.chain import chain
from tidestate.operators.describe.deduplicate import deduplicated
from tidestate.operators.describe.given_join import join
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.windowed import RETRACTING, windowed
from tidestate.operators.describe.windows import session
from tidestate.recovery.inspect.rows import Wanted, state_rows
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest

Rows = Counter[str]
SECOND = 1_000_000
SCHEMA = pa.schema([("at", pa.timestamp("us", tz="UTC")), ("k", pa.string()), ("id", pa.int64())])
DELAY, ALLOWED, SIZE, GAP = 2, 20, 10, 5
"""In seconds."""
VARIANTS = 12
"""Inputs of each job: what an undisturbed run makes of them is worked out once in a process."""


@dataclass(frozen=True)
class Case:
    """A job with an input. ``accounts``: the lists in its panes and state have the ids of its events."""

    name: str
    description: Runnable
    batches: tuple[pa.Table, ...]
    accounts: bool


@dataclass
class Expected:
    """What follows from so many batches, by their number: panes and ledger rows of the last one, the state, the ids
    so far. ``drained``: what the end of the input adds; ``net``: the windows that stand then, with their ids, in
    microseconds; ``rejected``: the ids in the ledger.
    """

    panes: list[Rows] = field(default_factory=list)
    late: list[Rows] = field(default_factory=list)
    state: list[Rows] = field(default_factory=list)
    marks: list[int | None] = field(default_factory=list)
    ids: list[Counter[int]] = field(default_factory=list)
    drained: Rows = field(default_factory=Counter)
    net: dict[Window, list[int]] = field(default_factory=dict)
    rejected: Counter[int] = field(default_factory=Counter)


def rows_of(table: pa.Table) -> Rows:
    """Rows as texts, with their number."""
    plain = [_plain(column) for column in table.columns]
    return Counter(map(repr, zip(*plain, strict=True))) if plain else Counter()


def _plain(column: pa.ChunkedArray) -> list[Any]:
    """Values that can be compared: times as numbers, lists sorted, as the order behind a deduplication is any."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64()).to_pylist()
    found = column.to_pylist()
    return [one if one is None else sorted(one) for one in found] if pa.types.is_list(column.type) else found


def ids_in(table: pa.Table) -> Counter[int]:
    """The ids of events in lists of these rows."""
    found: Counter[int] = Counter()
    for column in table.columns:
        if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            found.update(one for values in column.to_pylist() for one in values or ())
    return found


def ids_of(table: pa.Table) -> Counter[int]:
    """The ids of these rows."""
    return Counter(table["id"].to_pylist()) if "id" in table.column_names else Counter()


NUMBERS = ("offset", "origin")
"""Columns of a join with numbers of rows, and of the partition that has given them: another one gives others."""


def state_tables(checkpoint: Checkpoint, manifest: Manifest) -> Iterator[tuple[str, pa.Table]]:
    """All state of a checkpoint, but for the numbers of rows."""
    for name, operator in manifest.operators.items():
        for spec in operator.tables:
            for rows in state_rows(checkpoint, operator, spec, Wanted()):
                if rows.num_rows and spec.name != "numbered":
                    yield (
                        f"{name}/{spec.name}",
                        rows.drop_columns([one for one in NUMBERS if one in spec.schema.names]),
                    )


def state_of(checkpoint: Checkpoint, manifest: Manifest) -> tuple[Rows, Counter[int]]:
    """All state of a checkpoint as rows, and the ids in it."""
    rows: Rows = Counter()
    ids: Counter[int] = Counter()
    for place, table in state_tables(checkpoint, manifest):
        rows.update({f"{place} {row}": number for row, number in rows_of(table).items()})
        ids.update(ids_in(table))
    return rows, ids


@cache
def case_of(name: str, variant: int, count: int | None = None) -> Case:
    """A job and one of its inputs, or so many batches of it."""
    chance = random.Random(f"{name}/{variant}")
    events = _events(chance, repeats=name == "deduplicated")[:count]
    made = _sides if name == "join" else table_of
    return Case(name, DESCRIPTIONS[name], tuple(map(made, events)), name not in ("join", "chain"))


def table_of(events: Iterable[Event]) -> pa.Table:
    """Events as the job takes them."""
    rows = list(events)
    times = pa.array([one.at * SECOND for one in rows], pa.int64()).cast(SCHEMA.field("at").type)
    return pa.table([times, [one.key for one in rows], [one.id for one in rows]], schema=SCHEMA)


def _sides(batch: list[Event]) -> pa.Table:
    """Half of the events on each side of the join."""
    odd, even = (table_of(one for one in batch if one.id % 2 == side) for side in (1, 0))
    return JOINED.rows(JOINED.schema(SCHEMA, SCHEMA), left=odd, right=even)


def _events(chance: random.Random, *, repeats: bool) -> list[list[Event]]:
    """Batches that drift forward in time; some events are late, some too late, some have no key, some come again."""
    base, batches, before = 1_000, [], list[Event]()
    for _ in range(chance.randint(4, 7)):
        base += chance.choice((1, 4, 9, 15, 30))
        batch = []
        for _ in range(chance.randint(2, 7)):
            behind = chance.choice((0, 0, 1, 2, 3, 5, 8, 14, 25, 60))
            key = chance.choice(("a", "a", "b", "c", None) if chance.random() < 0.3 else ("a", "a", "b", "c"))
            batch.append(Event(base - behind, key, len(before)))
            before.append(batch[-1])
            if repeats and chance.random() < 0.3:
                batch.append(chance.choice(before))
        batches.append(batch)
    return batches


def _listing(name: str = "windows") -> Any:
    return windowed(event_time="at", key="k", watermark_delay=f"{DELAY} s", name=name)


def _kept(described: Any, window: Any) -> Any:
    described = described.window(window).aggregate(n=count(), ids=list_("id"))
    return described.late(f"{ALLOWED} s", keep="id").accumulation(RETRACTING)


JOINED = join(event_time="at", on="k", within=("-6 s", "6 s"), how="left", late="8 s", watermark_delay=f"{DELAY} s")
DESCRIPTIONS: dict[str, Runnable] = {
    "tumbling": _kept(_listing(), tumbling(f"{SIZE} s")),
    "sessions": _kept(_listing(), session(f"{GAP} s")),
    "deduplicated": chain(
        deduplicated(event_time="at", on="id", within="90 s", watermark_delay=f"{ALLOWED} s", name="once"),
        _kept(windowed(event_time="at", key="k", name="windows"), tumbling(f"{SIZE} s")),
    ),
    "chain": chain(
        _kept(_listing("windows"), tumbling(f"{SIZE} s")),
        windowed(key="k", name="totals").window(tumbling("40 s")).aggregate(total=sum_("n")).accumulation(RETRACTING),
    ),
    "join": JOINED,
}


@cache
def expected_of(name: str, variant: int, count: int | None = None) -> Expected:
    """What an undisturbed run of a case makes; where there is a twin, it agrees."""
    case, found = case_of(name, variant, count), Expected()
    root, late = f"memory://simulation-{uuid.uuid4().hex}", list[pa.Table]()
    taken: list[pa.Table] = []
    log = logging.getLogger("tidestate")
    level = log.level
    log.setLevel(logging.ERROR)  # rejected rows are meant
    job = case.description.standalone(checkpoint=root, late_sink=lambda rows, _id: late.append(rows))
    _add(found, Counter(), [], Counter(), None, Counter())
    for panes in job.stream(iter(case.batches)):
        taken.append(panes)
        state, _ = state_of(Checkpoint.open(root), job.head)
        ids = found.ids[-1] + ids_of(case.batches[len(found.panes) - 1])
        _add(found, rows_of(panes), late, state, job.head.watermark_us, ids)
        found.rejected.update(one for table in late for one in ids_of(table).elements())
        late.clear()
    taken.append(job.drain())
    found.drained = rows_of(taken[-1])
    MemoryFileSystem().rm(root, recursive=True)
    log.setLevel(level)
    assert not late, "the end of the input rejects nothing"
    if case.accounts:
        found.net = net_of(taken)
        _check_twin(name, variant, count, found)
    return found


def net_of(panes: Iterable[pa.Table]) -> dict[Window, list[int]]:
    """The windows that stand after all of these, with their ids."""
    stands: dict[Window, list[int]] = {}
    for table in panes:
        names = ("window_start", "window_end", "k", "ids", "kind")
        for start, end, key, ids, kind in zip(*(_plain(table[name]) for name in names), strict=True):
            stands.pop((start, end, key), None)
            if kind == "emit":
                stands[start, end, key] = sorted(ids)
    return stands


def _check_twin(name: str, variant: int, count: int | None, found: Expected) -> None:
    twin = twin_of(name, variant, count)
    if twin is not None:
        windows = {(start * SECOND, end * SECOND, key): ids for (start, end, key), ids in twin.windows().items()}
        assert found.net == windows, f"{name} {variant}: an undisturbed run differs from the twin"
        assert found.rejected == Counter(one.id for one in twin.rejected)


def _add(
    found: Expected, panes: Rows, late: list[pa.Table], state: Rows, mark: int | None, ids: Counter[int]
) -> None:
    found.panes.append(panes)
    found.late.append(sum((rows_of(table) for table in late), Counter[str]()))
    found.state.append(state)
    found.marks.append(mark)
    found.ids.append(ids)


def twin_of(name: str, variant: int, count: int | None = None) -> Twin | None:
    """The twin of a case after its whole input; None where there is none."""
    if name not in ("tumbling", "sessions"):
        return None
    chance = random.Random(f"{name}/{variant}")
    twin = Twin(DELAY, ALLOWED, size=SIZE if name == "tumbling" else None, gap=GAP)
    for batch in _events(chance, repeats=False)[:count]:
        twin.take(batch)
    return twin
