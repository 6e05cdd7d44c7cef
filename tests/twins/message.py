"""A message store message by message, the messages it is given, and how both are asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from tidestate.statestore.messages.identities import first_of_each, is_known, remember
from tidestate.statestore.messages.keys import LAYOUTS, parse_layout
from tidestate.statestore.messages.reads import get_messages
from tidestate.statestore.messages.retention import Marks, read_marks, retention_bound, slot_bound, tally
from tidestate.statestore.messages.tables import MessageTables, Retention
from tidestate.statestore.spec.arrowtypes import positions
from tidestate.statestore.spec.changes import Applied, ChangeSet, TableChanges
from tidestate.statestore.spec.tables import Column, TableSpec
from tidestate.statestore.stores.memory import MemoryStore
from tidestate.statestore.stores.parquet import ParquetStore
from tidestate.statestore.stores.rocksdb import RocksStore

PAYLOAD = (Column("v", "int64"), Column("tags", "list<item: struct<t: string>>"))
EQUAL, SESSION = (Column("k", "int64"),), (Column("s", "string"),)
EVERY_LAYOUT = [*LAYOUTS, *(f"session_{name}" for name in LAYOUTS)]
LIMITS = [Retention(time=6), Retention(count=4), Retention(bytes=300), Retention(time=9, count=5, slot=4)]

STORED, DUPLICATE, OUT_OF_RETENTION = 0, 1, 2

Message = dict[str, Any]


def added(
    tables: MessageTables, view: Any, batch: pa.Table, asked: int | None = None
) -> tuple[ChangeSet, pa.Table, list[int]]:
    """Changes by new messages of ``batch``, which these are, and what became of each row: the parts that operators
    use, put together for messages alone.
    """
    rows, marks = tables.conform(batch), read_marks(tables, view)
    known = is_known(view, tables.seen, rows)
    old = positions(rows[tables.position]) <= (-(2**63) if marks.bound is None else marks.bound)
    first = first_of_each(rows.select(tables.seen.key_names), ~known & ~old)
    again = known | (np.arange(rows.num_rows) > first)
    verdicts = np.where(again, DUPLICATE, np.where(old, OUT_OF_RETENTION, STORED))
    new = rows.filter(pa.array(verdicts == STORED))
    times = [*positions(new["time"]).tolist(), *([] if marks.newest is None else [marks.newest])]
    newest = max(times, default=None)
    sizes = tally(tables, new) if tables.counts_sizes else tables.sizes.schema.empty_table()
    kept = retention_bound(tables, view, sizes, newest) if new.num_rows else None
    bound = max((one for one in (marks.bound, asked, kept) if one is not None), default=None)
    return stored(tables, new, marks, Marks(newest, bound)), new, verdicts.tolist()


def expired(tables: MessageTables, view: Any, bound: int) -> ChangeSet:
    """Changes that forget messages up to a position."""
    marks = read_marks(tables, view)
    after = Marks(marks.newest, bound if marks.bound is None else max(bound, marks.bound))
    return stored(tables, tables.schema.empty_table(), marks, after)


def stored(tables: MessageTables, new: pa.Table, marks: Marks, after: Marks) -> ChangeSet:
    moved, place = (after.bound if after.bound != marks.bound else None), new[tables.position]
    changes = {
        tables.messages.name: TableChanges(put=tables.messages.conform(new), expire=moved),
        tables.seen.name: replace(remember(tables.seen, new, place, moved), expire=moved),
        tables.marks.name: marks.changed_to(tables, after),
    }
    if tables.counts_sizes:
        slots = None if moved is None else slot_bound(tables, moved)
        changes[tables.sizes.name] = TableChanges(merge=tally(tables, new), expire=slots)
    return changes


def tables_of(layout: str, retention: Retention | None = None) -> MessageTables:
    found = parse_layout(layout)
    session = SESSION if found.by_session else ()
    return MessageTables(found, PAYLOAD, EQUAL, session, retention or Retention())


def batch_of(tables: MessageTables, messages: list[Message]) -> pa.Table:
    plain = pa.Table.from_pylist(messages, schema=pa.schema([
        ("origin", pa.string()), ("offset", pa.int64()), ("time", pa.int64()), ("s", pa.string()), ("k", pa.int64()),
        ("v", pa.int64()), ("tags", PAYLOAD[1].arrow),
    ]))  # fmt: skip
    kind = tables.schema.field("time").type
    return plain.set_column(2, "time", plain["time"].cast(kind)).select(tables.schema.names)


def plain_rows(tables: MessageTables, rows: pa.Table) -> list[Message]:
    assert rows.schema.names == tables.schema.names
    return rows.set_column(2, "time", rows["time"].cast(pa.int64())).to_pylist()


def bytes_of(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, dict):
        return sum(bytes_of(part) for part in value.values())
    if isinstance(value, list):
        return sum(bytes_of(part) for part in value)
    return len(value.encode()) if isinstance(value, str) else 8


class Twin:
    """The same, message by message."""

    def __init__(self, tables: MessageTables) -> None:
        self.tables, self.place = tables, tables.position
        self.kept: dict[tuple[int, str], Message] = {}
        self.seen: dict[tuple[int, str], int] = {}
        self.newest_of: list[tuple[int, int]] = []
        self.bound, self.newest = -(2**63), -(2**63)

    def add(self, messages: list[Message], asked: int | None = None) -> list[int]:
        verdicts = []
        for message in messages:
            identity = (message["offset"], message["origin"])
            known, out = identity in self.seen, message[self.place] <= self.bound
            verdicts.append(DUPLICATE if known else OUT_OF_RETENTION if out else STORED)
            if verdicts[-1] == STORED:
                self.kept[identity] = {name: message[name] for name in self.tables.schema.names}
                self.seen[identity] = message[self.place]
                self.newest_of.append((self.slot(message), message["time"]))
                self.newest = max(self.newest, message["time"])
        bounds = [asked] if asked is not None else []
        self.expire(max([*bounds, *(self.limits() if STORED in verdicts else [])], default=self.bound))
        return verdicts

    def slot(self, message: Message) -> int:
        return int(message[self.place] // self.tables.retention.slot * self.tables.retention.slot)

    def limits(self) -> list[int]:
        keep, bounds = self.tables.retention, []
        if keep.time is not None and self.place == "time":
            oldest = self.newest - keep.time
            bounds.append((oldest // keep.slot * keep.slot if keep.by_size else oldest) - 1)
        elif keep.time is not None:
            first = min((s for s, time in self.newest_of if time >= self.newest - keep.time), default=-99)
            bounds += [s + keep.slot - 1 for s, _ in self.newest_of if s < first]
        count = size = 0
        for message in sorted(self.kept.values(), key=self.slot, reverse=True):
            count, size = count + 1, size + bytes_of(list(message.values()))
            if count >= (keep.count or 10**9) or size >= (keep.bytes or 10**9):
                bounds.append(self.slot(message) - 1)
                break
        return bounds

    def expire(self, bound: int) -> None:
        self.bound = max(bound, self.bound)
        self.kept = {i: m for i, m in self.kept.items() if m[self.place] > self.bound}
        self.seen = {i: place for i, place in self.seen.items() if place > self.bound}
        slot = self.tables.retention.slot
        self.newest_of = [(s, time) for s, time in self.newest_of if s + slot - 1 > self.bound]

    def read(self, ask: Message) -> list[Message]:
        by_time = self.place == "time"
        keys = ("time", "offset") if by_time else ("offset",)
        first = tuple(-99 if ask.get(f"start_{key}") is None else ask[f"start_{key}"] for key in keys)
        last = tuple(99 if ask.get(f"end_{key}") is None else ask[f"end_{key}"] for key in keys)
        wanted = [
            m
            for m in self.kept.values()
            if first <= tuple(m[key] for key in keys) <= last
            and all(ask[name] == m[name] for name in ("s", "k") if name in ask and name in m)
        ]
        return sorted(wanted, key=lambda m: (*(m[key] for key in keys), m["origin"]))


class Store:
    """A store, with each change set applied as the next one."""

    def __init__(self, tables: MessageTables, store: Any = None) -> None:
        self.tables = tables
        self.store = store if store is not None else MemoryStore(tables.specs)

    def apply(self, changes: ChangeSet) -> None:
        self.store.apply(changes, Applied(self.store.applied.sequence + 1, "x"))

    def add(self, messages: list[Message], asked: int | None = None) -> list[int]:
        changes, _, verdicts = added(self.tables, self.store, batch_of(self.tables, messages), asked)
        self.apply(changes)
        return verdicts

    def everything(self) -> list[Message]:
        return plain_rows(self.tables, get_messages(self.tables, self.store))

    def state(self) -> dict[str, list[Message]]:
        return {name: pa.concat_tables(list(parts) or [pa.table({})]).to_pylist()
                for name, parts in self.store.snapshot().items()}  # fmt: skip


def open_store(kind: str, specs: tuple[TableSpec, ...], folders: pytest.TempPathFactory) -> Any:
    """A store of this kind; the one of files spills all the time."""
    if kind == "rocksdb":
        return RocksStore(specs, folders.mktemp("store") / "db")
    return ParquetStore(specs, budget_bytes=1 << 10) if kind == "parquet" else MemoryStore(specs)


tags = st.none() | st.lists(
    st.none() | st.fixed_dictionaries({"t": st.none() | st.text("aä", max_size=2)}), max_size=2
)
messages = st.fixed_dictionaries({
    "origin": st.sampled_from(["a", "b"]), "offset": st.integers(0, 9), "time": st.integers(-15, 15),
    "s": st.sampled_from(["x", "y"]), "k": st.integers(0, 2), "v": st.none() | st.integers(0, 3), "tags": tags,
})  # fmt: skip
batches = st.lists(st.lists(messages, max_size=12), max_size=5)
numbers = st.none() | st.integers(-16, 16)


@st.composite
def asks(draw: st.DrawFn, tables: MessageTables) -> list[Message]:
    names = ["start_offset", "end_offset"]
    if tables.layout.by_time:
        names += ["start_time", "end_time"]
    names += [name for name in (*tables.session_names, *tables.equal_names) if draw(st.booleans())]
    values = {"s": st.sampled_from(["x", "y", "z", None]), "k": st.none() | st.integers(0, 3)}
    return draw(st.lists(st.fixed_dictionaries({name: values.get(name, numbers) for name in names}), max_size=4))


def request_table(tables: MessageTables, asked: list[Message]) -> pa.Table:
    names = list(asked[0])
    return pa.table({n: pa.array([a[n] for a in asked], pa.string() if n == "s" else pa.int64()) for n in names})


def simple(offset: int, time: int = 0, origin: str = "a") -> Message:
    return {"origin": origin, "offset": offset, "time": time, "s": "x", "k": 0, "v": offset, "tags": None}
