"""A checkpoint root whose input may come in other batches after any move of the job."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import tidestate as ts
from tests.helpers.moves import fork, repair, reset_to
from tests.helpers.other_cuts import (
    CHAINED,
    LATEST,
    SECOND,
    Event,
    Kind,
    Row,
    Window,
    bits_of,
    grouped,
    judged,
    numbers,
    standing,
    window_of,
)
from tests.helpers.process import forget
from tidestate.operators import Policy
from tidestate.operators.inspect.query import Query, query
from tidestate.recovery.log.checkpoint import Checkpoint, manifest_path
from tidestate.recovery.moves.repair import plan_repair
from tidestate.recovery.moves.rescale import rescale
from tidestate.recovery.moves.reset import plan_reset
from tidestate.statestore.errors import CorruptionError
from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB, StoreConfig

STORES: list[StoreConfig] = [Parquet(max_levels=2, snapshot_bytes=1), Memory(max_levels=3), RocksDB(max_levels=3)]
STEPS = ("rewound", "forked", "rescaled", "repaired", "fallen back", "fed", "changed")


def stream(chance: random.Random) -> list[Event]:
    """Two seconds from one to the next, most nearly in order, some late by anything, some without time or key."""
    found = []
    for number in range(LATEST):
        late = chance.randint(0, 6) if chance.random() < 0.7 else chance.randint(-10, 90)
        at = None if chance.random() < 0.03 else 2 * number - late
        key = None if chance.random() < 0.03 else chance.choice("ab")
        found.append(Event(number, at, key, chance.random() < 0.5))
    return found


@dataclass(frozen=True)
class Held:
    """The part of the input that a checkpoint has: of how many events each batch was, the first maybe as history."""

    history: int = 0
    sizes: tuple[int, ...] = ()

    @property
    def taken(self) -> int:
        return self.history + sum(self.sizes)


class Root:
    """A job, the checkpoint root it is in now, and the cut of the input that each of its checkpoints has."""

    def __init__(self, kind: Kind, events: list[Event], path: Path) -> None:
        self.kind, self.events, self.path = kind, events, path
        self.root, self.forks, self.has = path / "0", 0, {}
        self.held, self.changed = Held(), False
        self.panes: list[list[Row]] = []
        self.ledger: list[Row] = []
        """What the roots it was forked from have put out until then."""
        self.once: set[tuple[int, int]] = set()
        self.acted, self.again = Counter[str](), 0
        """What was done, and how many batches had events that had come before, in another batch."""

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint.open(self.root)

    def cut(self, held: Held) -> list[list[Event]]:
        """The batches, the history as one."""
        found, first = [], 0
        for size in (*([held.history] if held.history else []), *held.sizes):
            found.append(self.events[first : first + size])
            first += size
        return found

    def bootstrap(self, history: int) -> None:
        self.runner(STORES[0]).bootstrap(self.kind.batch(self.events[:history]))
        self.note(Held(history))

    def runner(self, store: StoreConfig, policy: Policy | None = None) -> Any:
        forget()  # as a new process
        parts = None if self.root.exists() else 2
        described = self.kind.make()
        if self.changed:
            described = self.kind.change(described)
        return described.standalone(checkpoint=self.root, store=store, partitions=parts, policy=policy)

    def batches(self, held: Held) -> list[Any]:
        return [self.kind.batch(part) for part in self.cut(held)[1 if held.history else 0 :]]

    def run(self, sizes: Sequence[int], store: StoreConfig, *, drain: bool = False, held: Held | None = None) -> None:
        """Go on from what it holds with batches of these sizes; from ``held``, where a start goes back to that."""
        policy = ts.Policy(damaged="reset") if held is not None else None
        held = held or self.held
        left, more = len(self.events) - held.taken, []
        for size in sizes:
            more.append(min(size, left - sum(more)))
        held = Held(held.history, (*held.sizes, *(size for size in more if size)))
        self.runner(store, policy).run(self.batches(held), drain=drain)
        self.note(held)
        bounds = [(part[0].id, part[-1].id) for part in self.cut(held)]
        latest = max((last for _, last in self.once), default=-1)
        self.again += sum(first <= latest and (first, last) not in self.once for first, last in bounds)
        self.once.update(bounds)

    def note(self, held: Held) -> None:
        """What those checkpoints have that were made since; the newest, all of it."""
        self.held = held
        for number in self.checkpoint.ids():
            if number not in self.has:
                position = self.checkpoint.load(number).manifest.input
                if position is not None or not held.history:
                    self.has[number] = Held(held.history, held.sizes[: position.batches if position else 0])

    def take(self, step: str, number: int, sizes: Sequence[int], store: StoreConfig) -> None:
        if step == "rewound":
            known = sorted(self.has)
            first = number % len(known)  # an abandoned one too, but none that was damaged
            to = next(one for one in (*known[first:], *known[:first]) if self.whole(one))
            reset_to(self.checkpoint, to)
            self.note(self.has[to])
            self.acted[step] += 1
        elif step == "forked":
            self.fork([one.id for one in self.checkpoint.history() if one.id in self.has], number)
            self.acted[step] += 1
        elif step == "rescaled":
            partitions = self.checkpoint.read(self.checkpoint.ids()[-1]).manifest.partitions
            rescale(self.root, (partitions + number % 3) % 4 + 1)
            self.note(self.held)
            self.acted[step] += 1
        elif step == "changed":  # and back again where a rewind or fork goes to before it
            self.changed = True
        elif step == "fed":
            if self.kind.feeds and self.held.sizes:
                runner = self.runner(store)
                runner.run(self.batches(self.held))
                runner.reprocess_late()
                self.acted[step] += runner.head.kind == "feed"
                self.note(self.held)
        else:
            self.run(sizes, store)
            self.damage(number)
            found = plan_repair(self.checkpoint).reset
            assert found is not None
            self.acted[step] += 1
            if step == "repaired":
                repair(self.checkpoint)
                self.note(self.has[found.to])
            else:
                self.run(sizes, store, held=self.has[found.to])

    def whole(self, number: int) -> bool:
        with suppress(CorruptionError):
            return plan_reset(self.checkpoint, number).to == number
        return False

    def fork(self, ids: list[int], number: int) -> None:
        at = ids[number % len(ids)]
        panes, ledger = self.put_out(at)
        self.forks += 1
        fork(self.root, self.path / str(self.forks), at)
        self.root, self.held = self.path / str(self.forks), self.has[at]
        self.has = {at: self.held}
        self.panes, self.ledger = panes, ledger

    def damage(self, number: int) -> None:
        """To the newest manifest, or a state file that it is the first to name."""
        *_, before, head = self.checkpoint.history()
        refs = [ref for one in head.operators.values() for part in one.partitions for ref in part.files]
        own = [ref.path for ref in refs if ref.path not in str(before)]
        path = self.root / (own[number % len(own)] if own and number % 3 else manifest_path(head.id))
        os.truncate(path, path.stat().st_size - 20)

    def put_out(self, last: int | None = None) -> tuple[list[list[Row]], list[Row]]:
        """Panes by checkpoint, and the ledger but for what was fed back; with those of the roots before."""
        fed = self.checkpoint.load(last or self.checkpoint.ids()[-1]).manifest.fed
        panes, ledger = list(self.panes), list(self.ledger)
        for output in self.checkpoint.outputs(last=last):
            panes.append(self.rows(output.panes))
            late = self.rows(output.late)
            ledger += [row for row in late if output.id > fed or row["reason"] != "very_late"]
        return panes, ledger

    def rows(self, refs: Sequence[FileRef]) -> list[Row]:
        found = [pq.read_table(self.checkpoint.objects.locate(ref.path)) for ref in refs]
        return [row for one in found for row in in_seconds(one)]

    def open_windows(self) -> list[Row]:
        """What the state of the operator that shows panes holds."""
        return in_seconds(values(query(self.root)))

    def unsent(self) -> list[Row]:
        """What the first operator of a chain has not reported the second yet."""
        if not self.kind.chained or self.checkpoint.read(self.checkpoint.ids()[-1]).manifest.drained:
            return []
        first = query(self.root, operator="job")
        mark = first.watermark_us
        return [row for row in in_seconds(values(first)) if mark is None or row["window_end"] * SECOND > mark]


def values(asked: Query) -> pa.Table:
    """Windows with their results alone."""
    return asked.get_windows().drop_columns(["events", "panes"])


def in_seconds(table: pa.Table) -> list[Row]:
    """Rows, times as whole seconds."""
    for place, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            seconds = pc.divide(table[field.name].cast(pa.int64()), SECOND)
            table = table.set_column(place, field.name, seconds)
    return table.to_pylist()


def held_windows(root: Root, panes: list[list[Row]]) -> dict[Window, set[int]]:
    """By window and key the events that panes come to, or the state where it knows more."""
    found = standing(panes, root.kind)
    for row in root.open_windows():
        window, own = window_of(row), set(numbers(bits_of(row, root.kind), row["n"]))
        observed = found.get(window, set())
        if root.kind.discarding:
            assert not own & observed
            found[window] = own | observed
        else:
            assert own >= observed
            found[window] = own
    for row in root.unsent():
        start = row["window_start"] // CHAINED * CHAINED
        own, reported = (
            numbers(bits_of(row, root.kind), row["n"]),
            found.setdefault((start, start + CHAINED, None), set()),
        )
        assert not reported & set(own)
        reported.update(own)
    return found


def check_exact(root: Root, name: str) -> None:
    """Every event that was taken in is once in what is open, emitted or rejected; and where the naive twin has it."""
    kind, held = root.kind, root.held
    panes, late = root.put_out()
    windows = held_windows(root, panes)
    ledger = Counter((identity(row), row["reason"], bounds(row)) for row in late)
    events = root.events[: held.taken]
    places = Counter(number for found in windows.values() for number in found)
    places.update(number for number, _, _ in ledger.elements())
    whole = {number for number, _, window in ledger if window is None}
    assert places == {
        one.id: 1 if one.id in whole or kind.windows is None or kind.chained else len(kind.windows(one.at or 0))
        for one in events
    }
    taken, refused = judged(kind, root.cut(held))
    fed = {number for number, reason, _ in refused if (number, reason, None) not in ledger and kind.feeds}
    for number in fed:
        refused.pop((number, "very_late", None))
        if ledger.pop((number, "purged", None), None) is None:
            assert kind.windows
            taken[number] = kind.windows(events[number].at or 0)
    assert ledger == refused
    assert {(key, *sorted(found)) for (_, _, key), found in windows.items() if found} == grouped(name, events, taken)
    *_, head = root.checkpoint.history()
    counted = "job.events" if kind.chained else "events"
    assert head.totals.get(counted, 0) == held.taken


def identity(row: Row) -> int:
    """The number of an event in the ledger."""
    return int(next(row[name] for name in ("id", "left_id", "right_id") if row.get(name) is not None))


def bounds(row: Row) -> tuple[int, int] | None:
    """The one window that refused it, where not all of them did."""
    return (row["window_start"], row["window_end"]) if row.get("window_end") is not None else None


def history(kind: Kind, chance: random.Random, path: Path, check: Callable[[Root], None]) -> Root:
    """A job to which everything is done, in any order and place, to the end of its input; with a look after each."""

    def sizes() -> list[int]:
        return [chance.randint(1, 7) for _ in range(chance.randint(1, 3))]

    root = Root(kind, stream(chance), path)
    if chance.random() < 0.5:
        root.bootstrap(chance.randint(5, 15))
    root.run(sizes(), chance.choice(STORES))
    for step in chance.sample(STEPS, len(STEPS)):
        root.take(step, chance.randrange(100), sizes(), chance.choice(STORES))
        root.run(sizes(), chance.choice(STORES))
        check(root)
    root.run([20] * 3, chance.choice(STORES))
    assert root.held.taken == len(root.events)
    root.take("fed", 0, [], chance.choice(STORES))
    check(root)
    root.run([], chance.choice(STORES), drain=True)
    assert set(root.acted) >= set(STEPS) - {"fed", "changed"}
    assert root.again
    assert root.acted["fed"] or not kind.feeds
    return root
