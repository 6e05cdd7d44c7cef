"""The jobs that are simulated, their input, and what an undisturbed run of it makes of each prefix."""

from __future__ import annotations

import logging
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import pyarrow as pa
from fsspec.implementations.memory import MemoryFileSystem

import tidestate as ts
from tests.faults.simulation.twin import Event, Twin, Window
from tidestate import Aggregation, OperatorStream, OutputsJob, Stream, agg, fn
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


ZONE, BEHIND_UTC_S = "Africa/Monrovia", 44 * 60 + 30
"""A zone, and how far its clocks were behind in 1970: minutes do not begin where those of UTC do."""
Described = OperatorStream | OutputsJob


@dataclass(frozen=True)
class Case:
    """A job with an input. ``accounts``: the lists in its panes and state have the ids of its events, but for those
    that a filter has ``left_out``. ``strict``: the same job as drivers run it that fail for poison.
    """

    name: str
    description: Described
    batches: tuple[pa.Table, ...]
    accounts: bool
    left_out: Callable[[int], bool]
    strict: Described | None = None

    def is_poisoned(self, number: int) -> bool:
        """Whether the batch of this number, from 1, fails under the strict description."""
        return self.strict is not None and any(map(is_poison, ids_of(self.batches[number - 1])))

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of its outputs, where there are several."""
        return self.description.graph.outputs


def is_poison(number: int) -> bool:
    """Whether a strict driver must not publish what has the event of this id."""
    return number % 11 == 10


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


def ids_of(rows: pa.Table | dict[str, pa.Table]) -> Counter[int]:
    """The ids of these rows, of all streams."""
    if isinstance(rows, dict):
        return sum((ids_of(table) for table in rows.values()), Counter[int]())
    table = rows
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
    left_out = is_left_out if name == "prepared" else lambda _number: False
    accounts = name not in ("join", "chain", "shown")
    return Case(name, DESCRIPTIONS[name], tuple(map(made, events)), accounts, left_out, STRICT.get(name))


def table_of(events: Iterable[Event]) -> pa.Table:
    """Events as the job takes them."""
    rows = list(events)
    times = pa.array([one.at * SECOND for one in rows], pa.int64()).cast(SCHEMA.field("at").type)
    return pa.table([times, [one.key for one in rows], [one.id for one in rows]], schema=SCHEMA)


def _sides(batch: list[Event]) -> pa.Table:
    """Half of the events on each side of the join."""
    odd, even = (table_of(one for one in batch if one.id % 2 == side) for side in (1, 0))
    return {"left": odd, "right": even}


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


def _listing(window: Any, events: Stream | None = None) -> Aggregation:
    events = events or ts.stream(event_time="at", watermark_delay=f"{DELAY} s")
    described = events.group_by("k").window(window).aggregate(n=agg.count(), ids=agg.list("id"))
    return described.allowed_lateness(f"{ALLOWED} s", ledger_columns="id").accumulation("retracting")


def is_left_out(number: int) -> bool:
    """Whether the filter of the prepared job leaves the event of this id out."""
    return number % 7 == 2


def is_missed(number: int) -> bool:
    """Whether the event of this id misses the expectation of the prepared job, so that it is in the ledger."""
    return number % 5 == 3


def local_key(key: str, second: int) -> str:
    """The key of the prepared job: with the hour and minute that clocks in its zone show."""
    minutes = (second - BEHIND_UTC_S) // 60 % (24 * 60)
    return f"{key} {minutes // 60:02}:{minutes % 60:02}"


def _prepared() -> Aggregation:
    """Filtered, computed by the clock of a zone, judged: what is expected is in the ledger, or counted."""
    events = ts.stream(event_time="at", watermark_delay=f"{DELAY} s").where("id % 7 <> 2")
    clock = fn.date_format("at", "HH:mm", zone=ZONE)
    judged = events.with_columns(k=fn.concat("k", ts.lit(" "), clock)).expect("plausible", "id % 5 <> 3")
    return _listing(ts.tumbling(f"{SIZE} s"), judged.expect("few", "id < 20", otherwise="count"))


def _shown() -> Aggregation:
    """Windows are shown from two events on, with a count of some rows and a share."""
    events = ts.stream(event_time="at", watermark_delay=f"{DELAY} s").group_by("k").window(ts.tumbling(f"{SIZE} s"))
    described = events.aggregate(
        n=agg.count(), ids=agg.list("id"), odd=agg.count(where="id % 2 = 1"), total=agg.sum(ts.expr("id * 2"))
    )
    described = described.derive(share="odd / n").having("n >= 2 and total is not null")
    return described.allowed_lateness(f"{ALLOWED} s", ledger_columns="id").accumulation("retracting")


def _outputs() -> OutputsJob:
    """By key; of the panes of that; and of all events, by an operator that reads the stream again."""
    events = ts.stream(event_time="at", watermark_delay=f"{DELAY} s")
    by_key = _listing(ts.tumbling(f"{SIZE} s"), events).named("by_key")
    together = by_key.group_by().window(ts.tumbling("40 s")).aggregate(total=agg.sum("n"), keys=agg.count())
    of_all = events.group_by().window(ts.tumbling("20 s")).aggregate(m=agg.count()).allowed_lateness(f"{ALLOWED} s")
    together = together.accumulation("retracting").named("together")
    return ts.job(by_key, together, of_all.accumulation("retracting").named("of_all"))


def _poisoned(otherwise: Literal["count", "fail"]) -> Aggregation:
    """Counted or not, the ledger has the same columns."""
    events = ts.stream(event_time="at", watermark_delay=f"{DELAY} s")
    return _listing(ts.tumbling(f"{SIZE} s"), events.expect("no poison", "id % 11 <> 10", otherwise=otherwise))


JOINED = ts.stream(event_time="at", watermark_delay=f"{DELAY} s").join(
    ts.stream(event_time="at", watermark_delay=f"{DELAY} s"),
    on="k",
    within=("-6 s", "6 s"),
    how="left",
    allowed_lateness="8 s",
)
ONCE = ts.stream(event_time="at", watermark_delay=f"{ALLOWED} s").deduplicate("id", within="90 s", name="once")
DESCRIPTIONS: dict[str, Described] = {
    "tumbling": _listing(ts.tumbling(f"{SIZE} s")),
    "sessions": _listing(ts.sessions(f"{GAP} s")),
    "deduplicated": _listing(ts.tumbling(f"{SIZE} s"), ONCE),
    "chain": _listing(ts.tumbling(f"{SIZE} s"))
    .group_by("k")
    .window(ts.tumbling("40 s"))
    .aggregate(total=agg.sum("n"))
    .accumulation("retracting")
    .named("totals"),
    "join": JOINED,
    "prepared": _prepared(),
    "shown": _shown(),
    "outputs": _outputs(),
    "poisoned": _poisoned("count"),
}
STRICT: dict[str, Described] = {"poisoned": _poisoned("fail")}
"""As some of the drivers run these jobs."""


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
        taken += tables_of(panes)
        state, _ = state_of(Checkpoint.open(root), job.head)
        sent = ids_of(case.batches[len(found.panes) - 1])
        ids = found.ids[-1] + Counter({one: times for one, times in sent.items() if not case.left_out(one)})
        _add(found, rows_of_all(tables_of(panes)), late, state, job.head.watermark_us, ids)
        found.rejected.update(one for table in late for one in ids_of(table).elements())
        late.clear()
    drained = tables_of(job.drain())
    taken += drained
    found.drained = rows_of_all(drained)
    MemoryFileSystem().rm(root, recursive=True)
    log.setLevel(level)
    assert not late, "the end of the input rejects nothing"
    if case.accounts or name == "shown":
        found.net = net_of(taken)
        _check_twin(name, variant, count, found)
    return found


def tables_of(panes: pa.Table | Mapping[str, pa.Table]) -> list[pa.Table]:
    """What a runner returns of panes, by output where there are several, as tables."""
    return list(panes.values()) if isinstance(panes, Mapping) else [panes]


def rows_of_all(tables: Iterable[pa.Table]) -> Rows:
    """The rows of several tables."""
    return sum(map(rows_of, tables), Counter[str]())


def net_of(panes: Iterable[pa.Table]) -> dict[Window, list[int]]:
    """The windows that stand after all of these, with their ids; panes without ids are those of other outputs."""
    stands: dict[Window, list[int]] = {}
    for table in panes:
        if "ids" not in table.column_names:
            continue
        names = ("window_start", "window_end", "k", "ids", "kind")
        for start, end, key, ids, kind in zip(*(_plain(table[name]) for name in names), strict=True):
            stands.pop((start, end, key), None)
            if kind == "emit":
                stands[start, end, key] = sorted(ids)
    return stands


def _check_twin(name: str, variant: int, count: int | None, found: Expected) -> None:
    twin = twin_of(name, variant, count)
    if twin is not None:
        least = 2 if name == "shown" else 1
        windows = {
            (start * SECOND, end * SECOND, key): ids
            for (start, end, key), ids in twin.windows().items()
            if len(ids) >= least
        }
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
    if name in ("deduplicated", "chain", "join"):
        return None
    chance = random.Random(f"{name}/{variant}")
    twin = Twin(DELAY, ALLOWED, size=SIZE if name != "sessions" else None, gap=GAP)
    if name == "prepared":
        twin.left_out, twin.missed, twin.key_of = is_left_out, is_missed, local_key
    for batch in _events(chance, repeats=False)[:count]:
        twin.take(batch)
    return twin
