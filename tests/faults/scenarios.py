"""Jobs of every kind with everything that is done to them. Each step may be repeated, as after a crash."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.faults.world import SECOND, World, WrongAnswerError, done_already
from tests.helpers import join_operator_messages as pairs
from tests.helpers import operator_messages as singles
from tests.helpers.moves import fork, rewind
from tests.helpers.rescaled_jobs import KINDS, SCHEMA, Event, Kind, table
from tidestate import agg, fn, trigger, watermark
from tidestate.operators import (
    Harness,
    Policy,
)
from tidestate.recovery.log.checkpoint import manifest_path, now_us
from tidestate.recovery.log.marker import MARKER
from tidestate.recovery.moves.rescale import rescale
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.errors import CorruptionError, UsageError
from tidestate.statestore.storage.objects import Objects

Step = Callable[[World], None]
BATCHES = 6
POISONED = 3
"""The batch, from 0, that has a row which fails it."""
DAY_US = 24 * 3_600_000_000


@dataclass(frozen=True)
class Scenario:
    """``roots`` that are compared. ``repeats``: messages are given again after a crash, and count as duplicates."""

    steps: tuple[Step, ...]
    roots: tuple[str, ...] = ("root",)
    repeats: bool = False


def events(seed: int, size: int = 10) -> list[list[Event]]:
    """Twelve seconds a batch; some are late, some very late."""
    chance = random.Random(seed)
    return [
        [
            Event(
                left=chance.random() < 0.5,
                key=chance.choice("abcd"),
                at=max(0, 12 * number + chance.randrange(12) - chance.choice((0, 0, 0, 0, 9, 26, 80))),
                value=chance.randint(-50, 50),
            )
            for _ in range(size)
        ]
        for number in range(BATCHES)
    ]


@cache
def batches(kind: str) -> Sequence[Any]:
    made = ALL_KINDS[kind]
    return [made.batch(rows, number) for number, rows in enumerate(events(len(kind)))]


def _windows(window: Any, **aggregates: Any) -> Any:
    job = ts.stream(event_time="t", watermark_delay="5 seconds").group_by("k").window(window)
    return job.aggregate(**aggregates).named("job")


@dataclass(frozen=True)
class Buffered(Kind):
    """Of two streams, of which each has a buffer in each batch, in another order of their numbers."""

    def batch(self, rows: Sequence[Event], number: int) -> Any:
        sides = super().batch(rows, number)
        return {side: _numbered(own, BUFFER_NUMBERS[side][number]) for side, own in sides.items()}


BUFFER_NUMBERS = {"left": (1, 3, 2, 4, 6, 5), "right": (2, 1, 3, 5, 4, 6)}
BY_BUFFERS = watermark.buffers(origin="origin", sequence="buffer", watermark="mark")


def _numbered(rows: pa.Table, buffer: int) -> pa.Table:
    about = {"origin": 1, "buffer": buffer, "mark": (12 * buffer - 6) * SECOND}
    for name, value in about.items():
        rows = rows.append_column(name, pa.array([value] * rows.num_rows, pa.int64()))
    return rows.set_column(rows.num_columns - 1, "mark", rows["mark"].cast(SCHEMA.field("t").type))


OWN_KINDS: dict[str, Kind] = {
    "join with buffers": Buffered(
        lambda: (
            ts.stream(event_time="t")
            .watermark(BY_BUFFERS)
            .join(ts.stream(event_time="t").watermark(BY_BUFFERS), on="k", within=("-5 s", "10 s"), how="full")
        )
    ),
    "full state": Kind(
        lambda: (
            _windows(ts.tumbling("10 seconds"), n=agg.count(), all=agg.list("v"), middle=agg.median("v"))
            .allowed_lateness("30 seconds")
            .accumulation("retracting")
        )
    ),
    "discarding": Kind(
        lambda: (
            _windows(ts.tumbling("10 seconds"), n=agg.count(), s=agg.sum("v"))
            .allowed_lateness("30 seconds")
            .accumulation("discarding")
        )
    ),
    "retained": Kind(
        lambda: (
            _windows(ts.tumbling("10 seconds"), n=agg.count(), s=agg.sum("v"))
            .allowed_lateness("10 seconds")
            .retain_windows("2 minutes")
            .accumulation("retracting")
        )
    ),
    "strict": Kind(lambda: _expecting("v % 3 <> 0")),
    "mended": Kind(lambda: _expecting("v is not null")),
    "messages": Kind(
        lambda: (
            _windows(ts.sliding("20 seconds", "10 seconds"), n=agg.count(), all=agg.list("v"))
            .allowed_lateness("30 seconds")
            .accumulation("retracting")
            .messages("o")
        )
    ),
    "retained sessions": Kind(
        lambda: (
            _windows(ts.sessions("4 seconds"), n=agg.count(), s=agg.sum("v"))
            .allowed_lateness("10 seconds")
            .retain_windows("2 minutes")
            .accumulation("retracting")
        )
    ),
    "outputs": Kind(lambda: _outputs()),
    "outputs of messages": Kind(lambda: _outputs_of_messages()),
    # Names of one length, so that they have the same events.
    "expected": Kind(lambda: _prepared("v > -20")),
    "loosened": Kind(lambda: _prepared("v >= -50")),
    "poisoned": Kind(lambda: _prepared("v > -20", poison=f"o <> {1000 * POISONED + 8}")),
    "origins": Kind(
        lambda: (
            _windows(ts.tumbling("10 seconds"), n=agg.count(), s=agg.sum("v"))
            .allowed_lateness("30 seconds")
            .accumulation("retracting")
            .origins()
        )
    ),
}
ALL_KINDS = KINDS | OWN_KINDS


def _expecting(condition: str) -> Any:
    """Rows that miss a condition wait in the ledger, as those do that are too late; all windows are kept."""
    rows = ts.stream(event_time="t", watermark_delay="5 seconds").expect("value", condition)
    sums = rows.group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count(), s=agg.sum("v"))
    kept = sums.allowed_lateness("1 second").retain_windows("1 day")
    return kept.accumulation("retracting").named("job")


def _outputs() -> ts.OutputsJob:
    """By key, and the panes of that by half minute."""
    by_key = _windows(ts.tumbling("10 seconds"), n=agg.count(), s=agg.sum("v"))
    by_key = by_key.allowed_lateness("30 seconds").accumulation("retracting").named("by_key")
    together = by_key.group_by().window(ts.tumbling("30 seconds")).aggregate(n=agg.count(), s=agg.sum("s"))
    return ts.job(by_key, together.allowed_lateness("30 seconds").accumulation("retracting").named("together"))


def _outputs_of_messages() -> ts.OutputsJob:
    """Two operators that keep the messages of one stream."""
    events = ts.stream(event_time="t", watermark_delay="5 seconds")
    by_key = events.group_by("k").window(ts.sliding("20 seconds", "10 seconds"))
    listed = by_key.aggregate(n=agg.count(), all=agg.list("v")).named("by_key")
    summed = events.group_by().window(ts.tumbling("10 seconds")).aggregate(s=agg.sum("v")).named("of_all")
    late = (one.allowed_lateness("30 seconds").accumulation("retracting").messages("o") for one in (listed, summed))
    return ts.job(*late)


def _prepared(plausible: str, poison: str | None = None) -> Any:
    """Windows of rows that are filtered, computed by the clock of a zone and judged, of which some are shown. None is
    too late, so nothing else is in the ledger.
    """
    clock = fn.date_format("t", "HH:mm", zone="Africa/Monrovia")
    rows = ts.stream(event_time="t", watermark_delay="5 seconds").where("n <> 0").with_columns(minute=clock)
    rows = rows.expect("plausible", plausible).expect("small", "v < 40", otherwise="count")
    if poison is not None:
        rows = rows.expect("no poison", poison, otherwise="fail")
    windows = rows.group_by("k", "minute").window(ts.tumbling("10 seconds"))
    made = windows.aggregate(n=agg.count(), s=agg.sum(ts.expr("v * 2")), up=agg.count(where="v > 0"))
    made = made.derive(share="up / n").having("n >= 2").named("job")
    return made.allowed_lateness("10 minutes", ledger_columns="o").accumulation("retracting")


def fed(
    kind: str, until: int, root: str = "root", *, first: int = 0, drain: bool = False, policy: Policy | None = None
) -> Step:
    """All batches until this one, in a process of its own."""

    def step(world: World) -> None:
        runner = world.standalone(ALL_KINDS[kind].make(), root, policy)
        runner.run(world.timed(batches(kind)[first:until]), drain=drain)

    return step


def bootstrapped(kind: str, until: int) -> Step:
    """These batches are history."""

    def step(world: World) -> None:
        runner = world.standalone(ALL_KINDS[kind].make())
        if not runner.begun:
            runner.bootstrap(batches(kind)[:until])

    return step


def failed(kind: str, until: int) -> Step:
    """The same, until one of them fails an expectation: what was before it is there, and nothing of it."""

    def step(world: World) -> None:
        runner = world.standalone(ALL_KINDS[kind].make())
        with pytest.raises(UsageError, match="nothing of it was published"):
            runner.run(world.timed(batches(kind)[:until]))
        newest = world.checkpoint().newest()
        if newest is None or newest.manifest.input is None or newest.manifest.input.batches != POISONED:
            raise WrongAnswerError(f"the input was not taken up to the batch that fails: {newest}")

    return step


def fed_back(kind: str, until: int, reason: str | None = None) -> Step:
    """The late ledger goes through the windows again, or its rows of one reason."""

    def step(world: World) -> None:
        runner = world.standalone(ALL_KINDS[kind].make())
        runner.run(world.timed(batches(kind)[:until]))
        runner.reprocess_late(reason=reason)

    return step


def rescaled(partitions: int) -> Step:
    def step(world: World) -> None:
        with done_already("rescale-same"):
            rescale(world.path(), partitions)

    return step


def _of_batch(world: World, number: int) -> int:
    """The checkpoint of a batch."""
    found = world.checkpoint().history()
    return next(one.id for one in found if one.input is not None and one.input.batches == number)


def rewound(to: int) -> Step:
    """Back to the checkpoint of a batch; once more if it was done."""
    return lambda world: _ignored(rewind(world.checkpoint(), _of_batch(world, to)))


def forked(at: int, root: str) -> Step:
    """A root of this name goes on from a batch. One that is half there is emptied first."""

    def step(world: World) -> None:
        if not Objects(world.path(root)).exists(MARKER):
            world.place.remove(world.path(root))
            fork(world.path(), world.path(root), _of_batch(world, at))

    return step


def collected(keep: int, root: str = "root", *, output: bool = False) -> Step:
    """All that may go goes; with ``output`` panes and ledgers too."""
    rule = CheckpointRetention(newest=keep, grace="0 seconds", panes="1 hour" if output else None)
    return lambda world: _ignored(collect(world.checkpoint(root), rule, now_us() + (DAY_US if output else 0)))


def damaged(world: World) -> None:
    """The manifests from the fourth batch on are cut: that of the batch, and of starts after it."""
    checkpoint = world.checkpoint()
    for number in reversed(checkpoint.stored_ids()):
        with suppress(CorruptionError):
            taken = checkpoint.load(number).manifest.input
            if taken is not None and taken.batches < 4:
                break
        world.place.damage(f"{world.path()}/{manifest_path(number)}")


def lost(world: World) -> None:
    """The files of stored messages are cut."""
    newest = world.checkpoint().newest()
    assert newest is not None
    for operator in newest.manifest.operators.values():
        for ref in operator.files:
            if ref.table == "messages":
                world.place.damage(f"{world.path()}/{ref.path}")


def _ignored(_found: object) -> None:
    """A step gives nothing."""


def by_hand(job: Any, given: Sequence[Any], until: int, *, sided: bool = False, drain: bool = False) -> Step:
    """Messages of all batches until this one, as the source has them."""

    def step(world: World) -> None:
        make = pairs.operator if sided else singles.operator
        sinks = world.sinks()
        with make(job, world.path(), store=world.store, partitions=2) as operator:
            left = [] if operator.drained else given[:until]
            ts.run_operator(operator, left, clock=lambda: 0, drain=drain, **sinks)

    return step


def played(job: Any, acts: Sequence[Callable[[Harness], object]], until: int) -> Step:
    """Acts of a test harness, each of which is a checkpoint."""

    def step(world: World) -> None:
        harness = job.harness(SCHEMA, folder=world.path(), store=world.store, partitions=2, **world.sinks())
        done = sum(one.kind in ("batch", "tick") for one in world.checkpoint().history())
        for act in acts[done:until]:
            act(harness)

    return step


def _ticks() -> tuple[Step, ...]:
    job = (
        _windows(ts.tumbling("30 seconds"), n=agg.count(), s=agg.sum("v"))
        .trigger(early=trigger.after_processing_time("3 seconds"))
        .allowed_lateness("10 seconds")
    )
    acts: list[Callable[[Harness], object]] = []
    for number, rows in enumerate(events(5)[:4]):
        given: pa.Table = table(rows, 1000 * number)
        acts.append(lambda harness, given=given: harness.feed(given))
        acts.append(lambda harness, at=number: harness.advance_processing_time((4 * at + 4) * SECOND))
    acts.append(lambda harness: harness.advance_watermark(60 * SECOND))
    return tuple(played(job, acts, until) for until in (3, 6, len(acts)))


def _by_hand() -> dict[str, Scenario]:
    # None is so late that it is refused: given again it would be judged again, by another watermark.
    messages = [singles.table(sorted(rows)) for rows in singles.stream(3, batches=5, size=10)]
    windows = singles.description(singles.WINDOWS["tumbling"], "retracting", allowed=90)
    rows = [pairs.sided(one) for one in pairs.two_streams(3, batches=5, size=10)]
    joins: Mapping[str, Any] = {"join": pairs.near(late="60 seconds"), "session join": pairs.sessions(late="60 s")}
    found = {
        "messages by hand": Scenario(
            (by_hand(windows, messages, 3), by_hand(windows, messages, 5, drain=True)), repeats=True
        )
    }
    for name, job in joins.items():
        steps = by_hand(job, rows, 3, sided=True), by_hand(job, rows, 5, sided=True)
        found[f"{name} by hand"] = Scenario(steps, repeats=True)
    return found


def _plain(kind: str, *, drain: bool = False) -> Scenario:
    return Scenario((fed(kind, 3), fed(kind, BATCHES, drain=drain)))


SCENARIOS: dict[str, Scenario] = {
    "tumbling": _plain("tumbling"),
    "tumbling, drained": _plain("tumbling", drain=True),
    "sliding": _plain("sliding, of two keys"),
    "sessions": _plain("sessions", drain=True),
    "sessions of messages": _plain("sessions of messages", drain=True),
    "counted": _plain("counted"),
    "full state": _plain("full state"),
    "discarding": _plain("discarding"),
    "clock": _plain("by the clock"),
    "ticks": Scenario(_ticks()),
    "deduplicated": _plain("dedup"),
    "join by distance": _plain("join"),
    "join with updates": _plain("join with updates"),
    "join with CTIs": _plain("join with CTIs", drain=True),
    "join with buffers": _plain("join with buffers", drain=True),
    "join by windows": _plain("join by offsets"),
    "session join": _plain("session join"),
    "join of lifetimes": _plain("join of lifetimes"),
    "merge": _plain("merge"),
    "union": _plain("union"),
    "chain": _plain("chain"),
    **_by_hand(),
    "origins": Scenario(
        (fed("origins", 3), rewound(2), fed("origins", 4), rescaled(3), fed("origins", BATCHES, drain=True))
    ),
    "outputs": Scenario((fed("outputs", 3), rewound(2), fed("outputs", BATCHES, drain=True))),
    "gc of outputs": Scenario(
        (
            fed("outputs", 3),
            rewound(2),
            fed("outputs", 4),
            collected(1, output=True),
            forked(4, "fork"),
            fed("outputs", 5),
            collected(1),
            fed("outputs", BATCHES, "fork"),
        ),
        roots=("root", "fork"),
    ),
    "feed-back": Scenario((fed_back("retained", 4), fed("retained", BATCHES))),
    "feed-back by reason": Scenario(
        (
            fed_back("strict", 4, "very_late"),
            fed_back("mended", 5, "expectation"),
            fed("mended", BATCHES),
            fed_back("mended", BATCHES, "very_late"),
        )
    ),
    "bootstrap": Scenario((bootstrapped("tumbling", 2), fed("tumbling", BATCHES, first=2))),
    "rewind": Scenario((fed("tumbling", 4), rewound(2), fed("tumbling", BATCHES))),
    "rescale": Scenario((fed("sessions", 2), rescaled(3), fed("sessions", 4), rescaled(1), fed("sessions", BATCHES))),
    "fork": Scenario(
        (
            fed("join", 3),
            forked(2, "fork"),
            fed("join", 5),
            fed("join", 4, "fork"),
            collected(1),
            fed("join", BATCHES, "fork"),
            collected(1, "fork"),
        ),
        roots=("root", "fork"),
    ),
    "gc": Scenario((fed("tumbling", 3), collected(2), fed("tumbling", 5), collected(1), fed("tumbling", BATCHES))),
    "gc of output": Scenario((fed("sessions", 4), collected(1, output=True), fed("sessions", BATCHES))),
    "reset": Scenario(
        (fed("tumbling", 4), damaged, fed("tumbling", BATCHES, policy=ts.Policy(damaged="reset"), drain=True))
    ),
    "everything": Scenario(
        (
            bootstrapped("retained sessions", 1),
            fed("retained sessions", 3, first=1),
            rescaled(3),
            fed("retained sessions", 5, first=1),
            rewound(3),
            collected(2),
            fed("retained sessions", 5, first=1),
            forked(4, "fork"),
            collected(1),
            fed("retained sessions", BATCHES, "fork", first=1),
        ),
        roots=("root", "fork"),
    ),
    "replay": Scenario(
        (fed("messages", 4), lost, fed("messages", BATCHES, policy=ts.Policy(messages="replay"), drain=True))
    ),
    "replay of outputs": Scenario(
        (
            fed("outputs of messages", 4),
            lost,
            fed("outputs of messages", BATCHES, policy=ts.Policy(messages="replay"), drain=True),
        )
    ),
    "prepared": _plain("expected", drain=True),
    "expectations": Scenario(
        (
            failed("poisoned", BATCHES),
            fed("expected", 5),
            fed_back("loosened", 5, "expectation"),
            fed("loosened", BATCHES, drain=True),
        )
    ),
}
SIMILAR = (
    "tumbling",
    "sliding",
    "counted",
    "full state",
    "discarding",
    "clock",
    "join with updates",
    "join by distance",
    "join with CTIs",
    "join by windows",
    "session join",
    "join of lifetimes",
    "join by hand",
    "session join by hand",
    "bootstrap",
    "rewind",
    "rescale",
    "fork",
    "gc",
    "prepared",
)
"""Of the long form: they commit as another one does, and differ in what is in their tables, which the twins compare
after restarts in every run. Bootstrap, rewind, rescale, fork and gc are steps of ``everything``; a join by distance
is that with buffers, without these.
"""
