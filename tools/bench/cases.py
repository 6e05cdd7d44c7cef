"""The cases of ``python -m tools.bench all``: what each compares, in both sizes, and its aim in full size."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import msgspec
import pyspark

from tools.bench import alone, flink, memory, partitions, restart, small
from tools.bench.bids import Bids
from tools.bench.footprint import written
from tools.bench.nexmark import SUMS, Auctions
from tools.bench.sides import ALL_WORKLOADS, Sides, Task
from tools.bench.sources import Source, offered
from tools.bench.workloads import WORKLOADS, same

LATE_US = 60_000_000
ROCKSDB, DEFAULT = "spark, rocksdb + changelog", "spark, default provider"
BY_STATE = "transformWithStateInPandas"


@dataclass(frozen=True)
class Setting:
    """Where and how large a case runs: ``folder`` is its own."""

    small: bool
    folder: Path
    sides: Sides


@dataclass(frozen=True)
class Measured:
    """``ours`` and ``theirs`` as the case has them, events a second as a rule; ``ratio`` is what the aim is about."""

    ours: float
    theirs: float
    ratio: float
    equal: bool = True
    detail: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A row of the table; ``unit``: of what is measured, if not events a second."""

    name: str
    peer: str
    aim: str | None
    measure: Callable[[Setting], Measured]
    unit: str = ""

    @property
    def title(self) -> str:
        """The name, with the unit."""
        return f"{self.name} [{self.unit}]" if self.unit else self.name


@dataclass(frozen=True)
class OnSpark:
    """Both sides on Spark, on the same input: ours, then the peer. ``cold`` batches are left out."""

    work: str
    small: Bids | Auctions
    full: Bids | Auctions
    cold: int = 3
    small_cold: int = 2
    provider: Literal["rocksdb", "default"] = "rocksdb"
    partitions: int = 2
    rated: bool = False
    small_work: str = ""
    source: Source = "files"
    beside: str = ""
    """Another workload of ours that is measured too, as a second figure."""

    def __call__(self, setting: Setting) -> Measured:
        """Measure both."""
        bids, cold = (self.small, self.small_cold) if setting.small else (self.full, self.cold)
        work = (setting.small and self.small_work) or self.work
        names = ALL_WORKLOADS[work].schemas
        if not self.rated:
            bids.write_streams(setting.folder, names)
        task = Task(
            work=work,
            folder=str(setting.folder),
            cold=cold,
            batches=bids.batches - cold,
            batch=bids.rows(names),
            partitions=self.partitions,
            provider=self.provider,
            rated=(bids.keys, bids.rate) if self.rated and isinstance(bids, Bids) else None,
            fired_us=_fired_us(bids) if self.work == "late sessions" and isinstance(bids, Bids) else None,
        )
        more: dict[str, object] = {}
        if self.source == "files":
            mine, theirs = setting.sides.run("ours", task), setting.sides.run("spark", task)
            if self.beside:
                behind = setting.sides.run("ours", msgspec.structs.replace(task, work=self.beside))
                more = {
                    "behind_plan": behind.events_per_s,
                    "ratio_to_behind_plan": round(mine.events_per_s / behind.events_per_s, 2),
                    "equal_behind": same(behind.check, theirs.check),
                }
        else:
            with offered(self.source, setting.folder / "input") as place:
                task = msgspec.structs.replace(task, source=self.source, place=place)
                mine, theirs = setting.sides.run("ours", task), setting.sides.run("spark", task)
                if self.source == "kafka":
                    # The same job behind Spark's parser, as a second figure of ours.
                    behind = setting.sides.run("ours", msgspec.structs.replace(task, work="tumbling"))
                    more = {"behind_from_json": behind.events_per_s, "equal_behind": same(behind.check, theirs.check)}
        return Measured(
            mine.events_per_s,
            theirs.events_per_s,
            mine.events_per_s / theirs.events_per_s,
            same(mine.check, theirs.check),
            {
                "median_ratio": round(theirs.median_batch_s / mine.median_batch_s, 2),
                "panes": mine.check[0],
                "ours": mine,
                "theirs": theirs,
                "input": bids,
                **more,
            },
        )


@dataclass(frozen=True)
class OnFlink:
    """A query of Nexmark by ours on Spark, and by Flink over the same rows. Flink has no batches, so its figure is of
    all of them, in a process that has run the query before.
    """

    query: str
    small: Auctions
    full: Auctions

    def __call__(self, setting: Setting) -> Measured:
        """Measure both."""
        auctions, cold = (self.small, 2) if setting.small else (self.full, 3)
        work = f"nexmark {self.query}"
        names = ALL_WORKLOADS[work].schemas
        auctions.write_streams(setting.folder, names)
        rows = auctions.rows(names)
        mine = setting.sides.run("ours", Task(work, str(setting.folder), cold, auctions.batches - cold, rows))
        taken_s, check = flink.measure(setting.folder, self.query, names, SUMS[self.query])
        theirs = rows * auctions.batches / taken_s
        return Measured(
            mine.events_per_s,
            round(theirs),
            mine.events_per_s / theirs,
            same(mine.check, check),
            {"panes": check[0], "ours": mine, "flink_s": taken_s, "input": auctions},
        )


def _fired_us(bids: Bids) -> int:
    """Up to where both have fired: Spark's watermark is behind ours by what may be late."""
    return bids.begin_us(bids.batches) + bids.closing_us - LATE_US


def _bids(keys: int, batch: int, batches: int, rate: int, **more: int | str) -> Bids:
    return replace(Bids(keys, batch, batches, rate), **more)  # type: ignore[arg-type]


def _tumbling(keys: int, work: str = "tumbling", **how: object) -> OnSpark:
    small, full = Bids(keys, 100_000, 6, 5_000), Bids(keys, 1_250_000, 13, 50_000)
    return OnSpark(work, small, full, **how)  # type: ignore[arg-type]


def _staged(keys: int, work: str, *, rated: bool = False) -> OnSpark:
    return _tumbling(keys, work, beside=f"{work}, in Spark's plan", rated=rated)


def _of_texts(keys: int) -> OnSpark:
    small, full = Bids(keys, 100_000, 6, 5_000), Bids(keys, 1_000_000, 10, 50_000)
    return OnSpark("tumbling, decoded", small, full, source="kafka")


def _grouped(work: str, keys: int = 100_000) -> OnSpark:
    return OnSpark(work, Bids(keys, 40_000, 6, 2_000), Bids(keys, 500_000, 12, 50_000))


def _long_bids(**more: int | str) -> tuple[Bids, Bids]:
    """A million open sessions after the loading batches, and batches of ten seconds; before it, the small size."""
    small = _bids(30_000, 20_000, 6, 2_000, draw="moving", loading=3, closing_us=1_000_000, **more)
    full = _bids(1_300_000, 500_000, 14, 50_000, draw="moving", loading=3, closing_us=1_000_000, **more)
    return small, full


def _long(work: str, **more: int | str) -> OnSpark:
    return OnSpark(work, *_long_bids(**more), cold=4, small_cold=3)


def _by_hand(keys: int, small: int, full: int) -> OnSpark:
    return OnSpark("by hand", Bids(keys, small, 4, small // 20), Bids(keys, full, 6, full // 20), cold=2)


def _smallest(number: int, small: int, full: int, work: str = "tumbling") -> OnSpark:
    return OnSpark(work, Bids(100, 200, 2 + small, 200), Bids(100, 200, 5 + full, 200), 5, partitions=number)


def _nexmark(query: str) -> Case:
    small, full = _auctions(query)
    return Case(f"Nexmark {query}", ROCKSDB, ">= 2", OnSpark(f"nexmark {query}", small, full))


def _auctions(query: str) -> tuple[Auctions, Auctions]:
    """In full size 500,000 events a batch, of which those count that a query reads: of query 8 one in twelve."""
    return Auctions(2_000, 6), Auctions(100_000 if query == "q8" else 10_000, 13)


def _alone(keys: int, *, sessions: bool) -> Callable[[Setting], Measured]:
    def measure(setting: Setting) -> Measured:
        small, full = Bids(keys, 200_000, 8, 20_000), Bids(keys, 500_000, 15, 50_000)
        described = alone.bids(alone.GAP_US if sessions else None)
        raced = alone.race(described, sessions, small if setting.small else full)
        ours, theirs = raced.events_per_s, raced.peer_events_per_s
        return Measured(
            ours, theirs, ours / theirs, raced.equal, {"median_ratio": raced.median_ratio, "raced": raced}
        )

    return measure


def _lookups(work: str) -> Callable[[Setting], Measured]:
    def measure(setting: Setting) -> Measured:
        small, full = _long_bids(jitter_us=LATE_US) if work == "late sessions" else _long_bids()
        found, justified = alone.lookups(WORKLOADS[work].ours, small if setting.small else full)
        return Measured(found, justified, found / max(1, justified), justified > 0)

    return measure


def _written(*, folds: bool) -> Callable[[Setting], Measured]:
    def measure(setting: Setting) -> Measured:
        small, full = Bids(100_000, 100_000, 20, 50_000), Bids(100_000, 500_000, 40, 250_000)
        found = written(small if setting.small else full)
        ours = found.folded if folds else found.changelog
        return Measured(ours, found.changed, ours / found.changed)

    return measure


def _history(setting: Setting) -> Measured:
    times = 10 if setting.small else 100
    early_s, late_s = alone.long_run(1_000, 2_000, 40, times)
    return Measured(2_000 / late_s, 2_000 / early_s, early_s / late_s, detail={"times": times})


def _memory(setting: Setting) -> Measured:
    peak = memory.measured("20 times the budget", small=setting.small)
    return Measured(peak.peak_mb, peak.allowed_mb, peak.peak_mb / peak.allowed_mb, detail={"peak": peak})


def _restart(setting: Setting) -> Measured:
    rows, batch = (100_000, 50_000) if setting.small else (1_000_000, 500_000)
    took = []
    for times in (10, 1):
        settings = restart.Settings(str(setting.folder / str(times)), times * rows, batch)
        took.append(restart.measured(settings))
    return Measured(restart.ROWS / took[0], restart.ROWS / took[1], took[0] / took[1], detail={"seconds": took})


def _few_changes(setting: Setting) -> Measured:
    changed, many, warm = (10, 100, 5) if setting.small else (100, 10_000, 20)
    ours_s, theirs_s = partitions.few_changes(changed, many, warm)
    return Measured(changed / ours_s, changed / theirs_s, ours_s / theirs_s, detail={"changed": changed, "of": many})


def _small_ms(job: str) -> Case:
    def measure(setting: Setting) -> Measured:
        batches, aim = small.measured(job, warm=5 if setting.small else 70), small.SMALL_JOBS[job].aim_ms
        return Measured(batches.ms, aim, batches.ms / aim, detail={"batches": batches})

    return Case(
        f"small batches, one process: {job}", f"{small.SMALL_JOBS[job].aim_ms} ms a batch", "<= 1", measure, "ms"
    )


def _small_files(job: str) -> Case:
    def measure(setting: Setting) -> Measured:
        batches = small.measured(job, warm=5 if setting.small else 70)
        return Measured(batches.files, small.AIM_FILES, batches.files / small.AIM_FILES)

    return Case(f"small batches, one process: {job}", f"{small.AIM_FILES} a checkpoint", "<= 1", measure, "files")


MILLION = 1_000_000
ON_DELTA = (
    Case("tumbling, 100 keys, Delta table", ROCKSDB, ">= 2", _tumbling(100, source="delta")),
    Case("tumbling, 100,000 keys, Delta table", ROCKSDB, ">= 7", _tumbling(100_000, source="delta")),
)
"""On a Spark that has a connector of Delta."""
ON_FLINK = tuple(
    Case(f"Nexmark {query}, beside Flink", "flink, rocksdb", None, OnFlink(query, *_auctions(query)))
    for query in SUMS
)
"""Where ``python -m tools.bench.flink`` has installed it."""
CASES = (
    Case("tumbling, 100 keys", ROCKSDB, ">= 2", _tumbling(100)),
    Case("tumbling, 100 keys, computed columns", ROCKSDB, ">= 2.4", _staged(100, "computed")),
    Case("tumbling, 100 keys, a filter", ROCKSDB, ">= 2", _staged(100, "filtered")),
    Case("tumbling, 100 keys, rows of the JVM", ROCKSDB, ">= 1.3", _tumbling(100, rated=True)),
    Case(
        "tumbling, 100 keys, rows of the JVM, computed columns",
        ROCKSDB,
        ">= 1.2",
        _staged(100, "computed", rated=True),
    ),
    Case("tumbling, 100 keys, rows of the JVM, a filter", ROCKSDB, ">= 1.2", _staged(100, "filtered", rated=True)),
    Case("tumbling, 100,000 keys, rows of the JVM", ROCKSDB, ">= 5", _tumbling(100_000, rated=True)),
    Case("tumbling, 100 keys, Kafka, JSON values", ROCKSDB, ">= 1.2", _of_texts(100)),
    Case("tumbling, 100,000 keys, Kafka, JSON values", ROCKSDB, ">= 4", _of_texts(100_000)),
    Case("tumbling, 100 keys, folders of partitions", ROCKSDB, ">= 1.5", _tumbling(100, source="folders")),
    Case("tumbling, 100 keys, Parquet on S3", ROCKSDB, ">= 1.5", _tumbling(100, source="s3")),
    Case("tumbling, 100,000 keys", ROCKSDB, ">= 8", _tumbling(100_000)),
    Case("tumbling, 100,000 keys, default provider", DEFAULT, ">= 3", _tumbling(100_000, provider="default")),
    Case("tumbling, 5,000,000 keys", ROCKSDB, ">= 12", _tumbling(5 * MILLION)),
    Case("tumbling, 5,000,000 keys, default provider", DEFAULT, ">= 5", _tumbling(5 * MILLION, provider="default")),
    Case("sliding 60 s by 15 s, 100,000 keys", ROCKSDB, ">= 6", _grouped("sliding")),
    Case(
        "sliding, a day by the minute, 100,000 keys",
        ROCKSDB,
        ">= 6",
        OnSpark(
            "day by the minute",
            Bids(100_000, 60, 4, 1, closing_us=MILLION),
            Bids(100_000, 5_000, 4, 50, closing_us=MILLION),
            cold=2,
            small_work="hour by the minute",  # Spark plans a projection for each of the 1,440 windows, every batch
        ),
    ),
    Case("sessions of 2 s, 100 keys", ROCKSDB, ">= 2", _grouped("sessions", 100)),
    Case("sessions of 2 s, 100,000 keys", ROCKSDB, ">= 18", _grouped("sessions")),
    Case("sessions, gap 30 min, a million open", ROCKSDB, ">= 7", _long("long sessions")),
    Case("sessions, gap column, a million open", ROCKSDB, ">= 6", _long("gap column")),
    Case(
        "sessions, gap 30 min, a hot key",
        ROCKSDB,
        ">= 8",
        OnSpark(
            "long sessions",
            Bids(30_000, 20_000, 5, 2_000, draw="hot"),
            Bids(100_000, 500_000, 12, 50_000, draw="hot"),
        ),
    ),
    Case("sessions, gap 30 min, 60 s late", ROCKSDB, ">= 6", _long("late sessions", jitter_us=LATE_US)),
    Case("sessions, gap 30 min", "due + late keys", "<= 1", _lookups("long sessions"), "look-ups"),
    Case("sessions, gap 30 min, 60 s late", "due + late keys", "<= 1", _lookups("late sessions"), "look-ups"),
    Case("tumbling, 100 keys, by hand", BY_STATE, ">= 10", _by_hand(100, 20_000, 200_000)),
    Case("tumbling, 100,000 keys, by hand", BY_STATE, None, _by_hand(100_000, 1_000, 10_000)),
    Case(
        "interval join",
        "spark, rocksdb + changelog",
        ">= 18",
        OnSpark("join", Bids(100_000, 15_000, 5, 50_000), Bids(100_000, 100_000, 13, 50_000)),
    ),
    Case("early panes every batch, 100,000 keys", "spark, update mode, rocksdb", ">= 4", _grouped("early")),
    Case("median, 100,000 keys", "spark, percentile, rocksdb", ">= 2", _grouped("median")),
    Case("theta sketches, 100,000 keys", "spark, theta_sketch_agg, rocksdb", ">= 3", _grouped("sketches")),
    Case("standalone tumbling, 100 keys", "arrow alone, as durable", ">= 0.6", _alone(100, sessions=False)),
    Case("standalone tumbling, 100,000 keys", "arrow alone, as durable", ">= 0.95", _alone(100_000, sessions=False)),
    Case("standalone sessions, 100,000 keys", "numpy alone, each batch", ">= 0.6", _alone(100_000, sessions=True)),
    Case("batches of 200 rows, 4 partitions", ROCKSDB, ">= 4", _smallest(4, 6, 30)),
    Case("batches of 200 rows, 64 partitions", ROCKSDB, ">= 5", _smallest(64, 3, 15)),
    Case("sessions, batches of 200 rows, 4 partitions", ROCKSDB, ">= 4", _smallest(4, 6, 30, "sessions")),
    Case("sessions, batches of 200 rows, 64 partitions", ROCKSDB, ">= 4", _smallest(64, 3, 15, "sessions")),
    Case("by hand, batches of 200 rows, 4 partitions", BY_STATE, ">= 4", _smallest(4, 4, 15, "by hand")),
    Case("by hand, batches of 200 rows, 64 partitions", BY_STATE, ">= 4", _smallest(64, 2, 6, "by hand")),
    *(_nexmark(query) for query in ("q5", "q7", "q8", "q11", "q12")),
    *(_small_ms(job) for job in small.SMALL_JOBS),
    *(_small_files(job) for job in small.SMALL_JOBS),
    Case(
        "restart with 10 million rows, first batch",
        "itself with 1 million",
        "<= 1.2",
        _restart,
        "ratio of s",
    ),
    Case("bytes of a checkpoint", "arrow bytes of the changed rows", "<= 1.2", _written(folds=False), "bytes"),
    Case("bytes of folds", "arrow bytes of the changed rows", None, _written(folds=True), "bytes"),
    Case("memory, state 20 times the budget", "budget + 300 MB", "<= 1", _memory, "MB"),
    Case("throughput after 100 times the history", "itself at the start", ">= 0.95", _history),
    Case("100 of 10,000 partitions change", "100 of 100", "<= 1.3", _few_changes, "ratio of s"),
    *(ON_DELTA if pyspark.__version__.startswith(("4.0.", "4.1.")) else ()),
    *(ON_FLINK if flink.is_installed() else ()),
)


def failure(error: Exception) -> str:
    """An error of a case as a line of text."""
    if isinstance(error, subprocess.CalledProcessError):
        return f"{error.cmd[2]} ended with {error.returncode}"
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1]}"[:400]
