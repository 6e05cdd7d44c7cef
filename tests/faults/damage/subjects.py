"""The roots that are damaged: one of each kind of durable file, made by jobs of each runner."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

import tidestate as ts
from tests.faults.damage.answers import Refused, Went, answered
from tests.faults.damage.harm import Kinds
from tests.faults.damage.verbs import READERS, Reader, printed, rows, state_of, verified, went
from tests.helpers import operator_messages
from tests.helpers.bundles import files_alone
from tests.helpers.moves import rewind
from tests.helpers.planned_batch import BATCHES as PLANNED
from tests.helpers.planned_batch import fold, plan, seen, start
from tests.helpers.spark_checkpoints import made
from tests.helpers.worked_example import STREAM, batch, example
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import events_of
from tidestate.recovery.log.pins import pin
from tidestate.recovery.log.traces import note
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB, StoreConfig, StoreName

Store = StoreName
STORES: tuple[Store, ...] = ("memory", "parquet", "rocksdb")
FOLDED = Parquet(max_levels=2, snapshot_bytes=1)
KEPT = batch([(46, "a", 1), (47, "b", 2), (30, "b", 3)])
NEXT = batch([(80, "a", 1), (81, "b", 2), (82, "c", 3)])
SESSIONS = ts.sessions("6 seconds")
ALONE = "data/windows/1/"
"""The files of this partition are each alone."""
INTERVAL = 3
"""How often Spark has folded its list of files."""

GoesOn = Callable[[str, StoreConfig], Any]
"""A start of the job at a root, and its next input: what becomes of it."""
Changes = Mapping[str, Callable[[str, GoesOn, StoreConfig], Any]]
"""Verbs that change a root, and how the job goes on then."""


@dataclass(frozen=True)
class Subject:
    """A root to be damaged.

    ``make`` makes it in a folder, for a number of other events each. ``goes_on`` starts its job, and ``restarts`` are
    other starts.
    """

    name: str
    make: Callable[[Path, int], None]
    kinds: Kinds
    readers: Mapping[str, Reader]
    goes_on: GoesOn
    changes: Changes
    restarts: Mapping[str, Callable[[str], Any]] = field(default_factory=dict)
    stores: tuple[Store, ...] = STORES
    way: str = "--to newest-good"
    """What `repair` is asked for."""
    whole: bool = False
    """Whether each file is damaged: those of a kind decide different things."""
    below: str = "root"
    """The folder that is damaged, in the one where it was made."""


def store_of(name: Store, folder: Path) -> StoreConfig:
    """A store as a host without caches has it."""
    if name == "rocksdb":
        return RocksDB(cache_dir=str(folder / "cache"))
    return Memory() if name == "memory" else Parquet()


MANIFESTS = ((r"a manifest", r"manifests/.*\.json"),)
FILES = (
    ("a bundle", r"data/.*\.bundle"),
    ("a changelog segment", r"data/.*\.changelog\..*"),
    ("a folded state file", r"data/.*\.(run|snapshot)-.*"),
    ("a pane file", r"panes/.*"),
    ("a ledger file", r"late/.*"),
    ("what a sink has acknowledged", r"delivered/.*"),
    ("how far drivers have come", r"reached/.*"),
)
COLLECTED = (
    ("the marker", r"tidestate\.json"),
    ("a manifest below the boundary, pinned", r"manifests/0*3\.json"),
    ("the oldest manifest that is kept", r"manifests/0*6\.json"),
    ("a manifest in the middle", r"manifests/0*(7|8|9)\.json"),
    ("the manifest before the newest", r"manifests/0*10\.json"),
    ("the newest manifest", r"manifests/0*11\.json"),
    ("the boundary", r"gc/boundary/.*"),
    ("the output index", r"gc/outputs/.*"),
    ("a pin", r"pins/.*\.json"),
    ("the mark of a pin", r"pins/.*\.held"),
    *FILES,
)


def _values(table: pa.Table, seed: int) -> pa.Table:
    """The same events with other values."""
    more = pa.array([None if v is None else v + seed for v in table["v"].to_pylist()], pa.int64())
    return table.set_column(table.column_names.index("v"), "v", more)


def make_collected(folder: Path, seed: int = 0) -> None:
    """Collected and pinned checkpoints, an abandoned one, panes, rejections; folded state in two partitions, of which
    one has bundles.
    """
    root = folder / "root"
    stream = [_values(one, seed) for one in STREAM]
    with files_alone(ALONE):
        job = example("retracting").standalone(checkpoint=root, store=FOLDED, partitions=2)
        job.run(stream[:5])
        pin(Checkpoint.open(root), 3, "release")
        collect(Checkpoint.open(root), CheckpointRetention(newest=1, grace="0 seconds"))
        job.run(stream)
        rewind(Checkpoint.open(root), 6)
        again = example("retracting").standalone(checkpoint=root, store=FOLDED, partitions=2)
        again.run([*stream, _values(KEPT, seed)])


def _standalone(root: str, store: StoreConfig) -> Went:
    example("retracting").standalone(checkpoint=root, store=store).run([*STREAM, KEPT, NEXT])
    return went(root)


def _late_sink(root: str) -> list[Any]:
    """What a new sink gets of a job that goes on: the job begins where it was, its panes and those to come."""
    got: list[Any] = []
    job = example("retracting").standalone(checkpoint=root, sink=lambda panes, _: got.extend(panes.to_pylist()))
    job.run([*STREAM, KEPT, NEXT], drain=True)
    return got


def _then(*arguments: str, at: int | None = None) -> Callable[[str, GoesOn, StoreConfig], Any]:
    """A verb, then a start; ``at`` is a checkpoint that has its state still."""

    def done(root: str, goes_on: GoesOn, store: StoreConfig) -> Any:
        printed(root, *arguments)
        found = goes_on(root, store)
        if at is None:
            return found
        return Went(found.state, found.panes, answered(lambda: state_of(root, at)))

    return done


def _pinned(root: str, goes_on: GoesOn, store: StoreConfig) -> Any:
    """A pin keeps its checkpoint whatever is collected."""
    printed(root, "pin", "10", "--name", "more")
    return _then("gc", "--newest", "1", "--grace", "0 seconds", "--confirm", at=10)(root, goes_on, store)


def _forked(root: str, goes_on: GoesOn, store: StoreConfig) -> Any:
    destination = f"{root}-fork"
    shutil.rmtree(destination, ignore_errors=True)
    printed(root, "fork", destination)
    return goes_on(destination, store)


MOVES: Changes = {
    "rewind": _then("rewind", "--to", "10", "--confirm", "--force"),
    "repair": _then("repair", "--to", "newest-good", "--confirm", "--force"),
    "rescale": _then("rescale", "--partitions", "3", "--confirm", "--force"),
}
ALL: Changes = {
    "gc": _then("gc", "--newest", "2", "--grace", "0 seconds", "--confirm", at=3),
    "pin": _pinned,
    "unpin": _then("unpin", "release"),
    "fork": _forked,
    **MOVES,
}


def make_by_hand(folder: Path, seed: int = 0) -> None:
    """An operator that is called by hand, with its messages."""
    job = operator_messages.description(SESSIONS)
    with operator_messages.operator(job, folder / "root", FOLDED) as running:
        for messages in _messages(seed)[:5]:
            running.add_messages(operator_messages.table(messages))
            running.flush()
            operator_messages.take(running, operator_messages.Receiver())
            running.flush()  # which has nothing else to write than what was acknowledged


def _messages(seed: int) -> list[list[operator_messages.Message]]:
    found = operator_messages.stream(5, batches=6, size=6)
    return [[one._replace(v=one.v + seed) for one in some] for some in found]


def _by_hand(root: str, store: StoreConfig) -> Went:
    job = operator_messages.description(SESSIONS)
    with operator_messages.operator(job, Path(root), store) as running:
        for messages in _left(root, _messages(0)):
            running.add_messages(operator_messages.table(messages))
            running.flush()
        operator_messages.take(running, operator_messages.Receiver())
    return went(root)


def _left(root: str, batches: list[Any]) -> list[Any]:
    """The batches that a root has not yet, by the number of events: who feeds by hand remembers where it was."""
    manifest = Checkpoint.open(root).chosen(None).manifest
    had, left = events_of(manifest, manifest.totals), []
    for some in batches:
        if had <= 0:
            left.append(some)
        had -= len(some)
    return left


def make_many(folder: Path, seed: int = 0) -> None:
    """So many state partitions that the manifest names files that list them, in a test harness."""
    root = folder / "root"
    tested = example("retracting").harness(STREAM[0].schema, store=FOLDED, folder=root, partitions=66)
    for some in STREAM[:5]:
        tested.feed(_values(some, seed))


def _harness(root: str, store: StoreConfig) -> Went:
    tested = example("retracting").harness(STREAM[0].schema, store=store, folder=root)
    for some in _left(root, [*STREAM, KEPT]):
        tested.feed(some)
    return went(root)


def make_spark(folder: Path, seed: int = 0) -> None:
    """Spark's own checkpoint, with a folded list of files, a planned batch, and a source that is not of files."""
    root = folder / "root"
    checkpoint = made(str(root), PLANNED)
    checkpoint.objects.put("spark/sources/1/0", b'\x00v1\n{"flights":{"0":%d,"1":0}}' % seed)
    plan(checkpoint, PLANNED)
    note(checkpoint.objects, PLANNED + 1)  # as a run does that stops
    fold(root, INTERVAL, PLANNED)


def _spark(root: str, _store: StoreConfig) -> Any:
    """What a start of a job on Spark does before Spark starts, and what Spark reads then."""
    start(Path(root), interval=INTERVAL)
    found = seen(Path(root), INTERVAL)
    assert not found.differs, found.differs
    assert found.refusal is None, found.refusal
    assert found.read is not None
    lost = [number for number in range(PLANNED) if number not in found.read[0]]
    # A repair without the newest manifest says that Spark is ahead, and has it read those files again.
    again = Refused("spark-ahead", f"batches {lost} are read again") if lost else None
    return Went({number: files for number, files in found.read[0].items() if number < PLANNED - 1}, again)


SUBJECTS = (
    Subject(
        "standalone",
        make_collected,
        COLLECTED,
        {
            **READERS,
            "diff": rows("diff", "6", "11", "--table", "groups"),
            "history": rows("history", "--key", "k=a", "--window", "1970-01-01T00:00:00"),
        },
        _standalone,
        ALL,
        {"a new sink": _late_sink},
    ),
    Subject(
        "by hand",
        make_by_hand,
        (("the marker", r"tidestate\.json"), *MANIFESTS, *FILES),
        {
            **{name: READERS[name] for name in ("list", "show", "panes", "late", "verify", "verify data", "restore")},
            "state": rows("state"),
            "windows": rows("windows"),
            "messages": rows("messages"),
        },
        _by_hand,
        {"repair": MOVES["repair"]},
    ),
    Subject(
        "harness",
        make_many,
        (("a part of a manifest", r"data/.*\.partitions\.json"), *MANIFESTS),
        {name: READERS[name] for name in ("list", "show", "state", "panes", "verify", "verify data", "gc, dry")},
        _harness,
        {"repair": MOVES["repair"]},
    ),
    Subject(
        "on Spark",
        make_spark,
        (
            ("Spark's id of the query", r"spark/metadata"),
            ("Spark's offsets", r"spark/offsets/.*"),
            ("Spark's commits", r"spark/commits/.*"),
            ("Spark's folded list of files", r"spark/sources/0/.*\.compact"),
            ("Spark's list of files", r"spark/sources/0/.*"),
            ("what another source keeps", r"spark/sources/1/.*"),
            *MANIFESTS,
        ),
        {
            **{name: READERS[name] for name in ("list", "show")},
            "verify": verified("--spark-checkpoint"),
            "verify data": verified("--spark-checkpoint", "--read-data", "100"),
        },
        _spark,
        {"repair": _then("repair", "--resync-spark", "--confirm", "--force")},
        stores=("parquet",),
        way="--resync-spark",
        whole=True,
    ),
)
