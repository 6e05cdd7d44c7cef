"""Jobs whose stored messages only their input, run again, can put back; and a run that loses files on its way."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.compute as pc

import tidestate as ts
from tests.helpers import cti_rows
from tests.helpers.join_jobs import SCHEMA as SIDE_SCHEMA
from tests.helpers.join_jobs import described
from tests.helpers.join_jobs import drawn as drawn_join
from tests.helpers.join_jobs import table as side_table
from tests.helpers.lost_joins import stream as rows_of_sides
from tests.helpers.operator_messages import (
    SCHEMA,
    SECOND,
    TIME,
    WINDOWS,
    description,
    plain,
    stream,
    table,
)
from tests.helpers.process import forget
from tests.twins.join import SIDES, Asked, Pane, Twin
from tidestate import agg
from tidestate.operators.inspect.query import query
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.log.pins import pin
from tidestate.recovery.moves.rescale import rescale
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.recovery.start.policy import Policy

REPLAYING = Policy(messages="replay")
SIDES_OF_ROWS = {"left": SIDE_SCHEMA, "right": SIDE_SCHEMA}


class Input(NamedTuple):
    """A job, its batches, and what the test must leave out."""

    job: Any
    batches: list[Any]
    schema: Any
    clocked: bool = False
    """Whether its state depends on the clock, which goes with manifests that are collected."""
    divisible: bool = True
    """Whether it gives the same in another number of state partitions."""
    shown: tuple[Asked, Counter[Pane]] | None = None
    """Of a join what its naive twin emits."""


class Clock:
    """A clock that stands while a batch is taken, and goes on by a second and a half with the next."""

    def __init__(self) -> None:
        self.at_us = 0

    def __call__(self) -> int:
        return self.at_us

    def paced(self, batches: Sequence[Any], first: int = 0) -> Iterator[Any]:
        """The batches from ``first`` on, each at its time."""
        for number in range(first, len(batches)):
            self.at_us = number * 3 * SECOND // 2
            yield batches[number]


class Log:
    """Batches behind positions of their own."""

    def __init__(self, batches: Sequence[Any], schema: Any = SCHEMA, clock: Clock | None = None) -> None:
        self.batches, self.schema, self.clock = batches, schema, clock or Clock()

    def seek(self, position: Any) -> Iterator[tuple[Any, Any]]:
        first = 0 if position is None else position["next"]
        for number, batch in enumerate(self.clock.paced(self.batches, first), first + 1):
            yield {"next": number}, batch


def head_of(root: Path) -> Manifest:
    newest = Checkpoint.open(root).newest()
    assert newest is not None
    return newest.manifest


def message_tables(manifest: Manifest) -> dict[str, set[str]]:
    """By operator the tables with messages, whatever it is."""
    return {
        name: {spec.name for spec in operator.tables} & {"messages", *SIDES}
        for name, operator in manifest.operators.items()
    }


def lose_some(root: Path, chance: random.Random) -> int:
    """Delete or damage message files of the newest checkpoint, or of any checkpoint that is there, all or some."""
    folder = Checkpoint.open(root)
    manifest = folder.load(chance.choice([*folder.present_ids(), *[head_of(root).id] * 4])).manifest
    tables = message_tables(manifest)
    refs = [(ref, name) for name, one in manifest.operators.items() for ref in one.files if ref.table in tables[name]]
    lost = refs if chance.random() < 0.5 else [ref for ref in refs if chance.random() < 0.5]
    for ref, _ in lost:
        if chance.random() < 0.5:
            (root / ref.path).write_bytes(b"other bytes")
        else:
            (root / ref.path).unlink(missing_ok=True)
    forget()
    return len(lost)


def state_of(root: Path) -> dict[tuple[str, str], list[Any]]:
    """All state of a root, by operator and table, but for what a replay by identities remembers of itself."""
    head = head_of(root)
    return {
        (name, spec.name): sorted(plain(query(root, operator=name).state(spec.name)), key=repr)
        for name, operator in head.operators.items()
        for spec in operator.tables
        if not spec.name.startswith("back_")
    }


def disturbed(given: Input, root: Path, chance: random.Random, store: Any, clock: Clock) -> list[tuple[Any, ...]]:
    """The panes of a job that loses files at random between runs of random length, of both kinds of input."""
    panes: list[tuple[Any, ...]] = []
    # Which rows were there at a rescale is known by its manifest alone.
    collects = not given.clocked and chance.random() < 0.5
    done, seeks = 0, chance.random() < 0.5
    while done < len(given.batches):
        done = min(len(given.batches), done + chance.randint(1, 3))
        runner = given.job.standalone(checkpoint=root, policy=REPLAYING, store=store, partitions=2)
        some = given.batches[:done]
        panes += plain(runner.run(Log(some, given.schema, clock) if seeks else clock.paced(some)))
        lacking = {name: one.rebuilding for name, one in head_of(root).operators.items() if one.rebuilding}
        assert not lacking
        assert not list(root.glob("side-run/*"))
        if chance.random() < 0.3:
            folder = Checkpoint.open(root)
            pin(folder, chance.choice(folder.present_ids()))
        if chance.random() < 0.5 and collects:
            collect(Checkpoint.open(root), CheckpointRetention(newest=2, grace="0 seconds"))
        lose_some(root, chance)
        if chance.random() < 0.2 and given.divisible and not collects:
            rescale(root, head_of(root).partitions + 1)
    runner = given.job.standalone(checkpoint=root, policy=REPLAYING, store=store)
    return panes + plain(runner.run(Log(given.batches, given.schema, clock) if seeks else given.batches))


def windows(name: str, seed: int, mode: str = "retracting") -> Input:
    """Windows that need their messages run again, by name, and batches of a seed."""
    job, identity = None, ("part", "at")
    if name == "counted":
        job = description(WINDOWS["counted"], mode).messages(identity=identity)
    elif name in ("sliding", "session"):
        job = description(WINDOWS[name], mode).allowed_lateness("0 seconds", rule="window")
        job = job.retain_windows("90 seconds").messages(identity=identity)
    elif name == "offsets":
        events = ts.stream(event_time="t", offset="at", origin="part").group_by("k")
        job = events.window(ts.offset_windows(6, 2, late=4)).aggregate(total=agg.sum("v"), all=agg.list("v"))
        job = job.accumulation(mode).messages(retain=ts.Retention(messages=9))  # type: ignore[arg-type]
    elif name == "lifetimes":
        living = ts.stream(event_time="t", lifetime=ts.lifetime("until")).group_by("k")
        job = living.window(ts.tumbling("6 seconds", of="lifetime")).aggregate(total=agg.sum("at"))
        job = job.messages(identity=identity, retain=ts.Retention(messages=9))
    elif name == "chained":
        first = description(WINDOWS["tumbling"], "accumulating", allowed=0).named("first")
        job = first.group_by("k").window(ts.tumbling("12 seconds")).aggregate(n=agg.list("n"))
        job = job.messages(identity=("total", "n")).named("last")
    elif name == "outputs":
        events = ts.stream(event_time="t", watermark_delay="2 seconds").group_by("k")
        counted = events.window(WINDOWS["tumbling"]).aggregate(n=agg.count(), total=agg.sum("v")).named("first")
        first = counted.allowed_lateness("0 seconds")
        last = first.group_by("k").window(ts.tumbling("12 seconds")).aggregate(n=agg.list("n"))
        beside = events.window(WINDOWS["sliding"]).aggregate(n=agg.count(), total=agg.sum("v")).named("beside")
        beside = beside.allowed_lateness("20 seconds").accumulation(mode).messages(identity=identity)
        job = ts.job(first, beside, last.messages(identity=("total", "n")).named("last"))
    batches = [table(batch) for batch in stream(seed, batches=8, size=7)]
    if name == "lifetimes":
        ends = [pc.add(one["t"].cast("int64"), pc.multiply(pc.abs(one["v"]), SECOND)).cast(TIME) for one in batches]
        batches = [one.append_column("until", end) for one, end in zip(batches, ends, strict=True)]
    if name == "offsets":  # one origin
        batches = [one.filter(pc.equal(one["part"], "x")) for one in batches]
    return Input(job, batches, batches[0].schema, divisible=name not in ("offsets", "lifetimes"))


def with_ctis(seed: int) -> Input:
    """Windows that keep messages which CTIs may have refused or changed."""
    chance, number, batches = random.Random(seed), 0, []
    for base in range(0, 40, 5):
        made = []
        for _ in range(6):
            number += 1
            time, shape = base + chance.randint(0, 12), chance.choice(["point", "interval", "cti", "point"])
            made.append(
                (time, number, "orders", shape, time + chance.randint(1, 20) if shape == "interval" else None)
            )
        batches.append(cti_rows.rows(*made))
    job = cti_rows.job(chance.choice(cti_rows.SETTINGS), late="30 seconds").accumulation("retracting")
    return Input(job.messages(), batches, cti_rows.SCHEMA)


def sessions_of_sides(seed: int) -> Input:
    """An outer join by session, and its batches."""
    chance = random.Random(seed)
    left, right = (ts.stream(event_time="t", watermark_delay="3 seconds", offset="off") for _ in SIDES)
    how = chance.choice(["left", "full"])
    job = left.join_sessions(
        right,
        on="key",
        gap="5 seconds",
        how=how,
        allowed_lateness="9 seconds",
        identity=True,  # type: ignore[arg-type]
    )
    rows = rows_of_sides(chance)
    batches = [{side: side_table([one for one in batch if one.side == side]) for side in SIDES} for batch in rows]
    return Input(job, batches, SIDES_OF_ROWS)


def _runs_again(asked: Asked) -> bool:
    """Whether identities do not say enough."""
    overlap = asked.window is not None and asked.window.size != asked.window.slide
    return overlap or asked.own is not None or asked.updates != (None, None)


def joined(seed: int) -> Input:
    """A join in hopping windows, with a window for each side, or with update periods, and its batches."""
    asked, rows = drawn_join(seed)
    while not (asked.named and _runs_again(asked)):
        seed += 10_000
        asked, rows = drawn_join(seed)
    twin, shown = Twin(asked), Counter[Pane]()
    for batch in rows:
        shown += twin.batch(batch, 0)
    batches = [{side: side_table([one for one in batch if one.side == side]) for side in SIDES} for batch in rows]
    clocked = asked.updates != (None, None)
    return Input(described(asked), batches, SIDES_OF_ROWS, clocked, shown=None if clocked else (asked, shown))
