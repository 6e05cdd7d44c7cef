"""Which faults there are, and which of them a round has: drawn from a seed, the same each time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tidestate.statestore.errors import UsageError

ALONE = {
    "again": "no fault: another process, another seed of hashes",
    "restart": "the process ends after a batch, another one goes on",
    "kill": "SIGKILL at a call of the operating system",
    "sudden": "SIGKILL at a random moment",
    "power": "SIGKILL at an fsync, and all is gone that was not synced",
    "storage": "a call fails: EIO, ENOSPC, EACCES",
    "freeze": "SIGSTOP at a call, another driver runs to the end, SIGCONT",
    "race": "two drivers at once",
    "sink": "the sink raises or refuses, before or after it took the rows",
    "sink-kill": "SIGKILL before, within or after a call of the sink",
    "damage": "a file of the root is damaged at a start, then put back",
    "gc": "checkpoints are collected while the job runs, and it is killed",
    "rewind": "a rewind between two starts",
    "rescale": "another number of state partitions between two starts",
}
"""The classes of faults for the standalone runner, in the order of the first rounds."""
ON_SPARK = {
    "spark": "no fault: the job on Spark, against the job in one process",
    "driver": "SIGKILL of Spark's driver, with its JVM",
    "worker": "SIGKILL of Spark's Python workers",
    "spark-freeze": "SIGSTOP of the driver, another one runs to the end, SIGCONT",
}
"""Those for the runner on Spark."""
RECUT = {"recut": "no fault: the same rows, in other batches; the net is compared"}
"""Only for jobs that promise it."""
FAULTS = ALONE | ON_SPARK | RECUT
STORES = ("parquet", "memory", "rocksdb")
ERRORS = ("EIO", "ENOSPC", "EACCES")
MOMENTS = ("before", "during", "after")
DAMAGES = ("flip", "cut", "empty", "zeros", "gone")
QUIET = frozenset({"again", "spark", "recut"})
"""Rounds of these have nothing else in them."""


@dataclass(frozen=True)
class Injected:
    """One fault of a round. ``share`` says where in the work that is left: 0 at its beginning, 1 at its end."""

    kind: str
    share: float
    moment: str = "before"
    detail: str = ""
    number: int = 1


@dataclass(frozen=True)
class RoundPlan:
    """A round: its faults, in order."""

    number: int
    store: str
    faults: tuple[Injected, ...]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The classes in it, each once."""
        return tuple(dict.fromkeys(fault.kind for fault in self.faults))

    @property
    def on_spark(self) -> bool:
        """Whether one of its classes needs the runner on Spark."""
        return any(kind in ON_SPARK for kind in self.kinds)


def chosen_kinds(runner: str, only: Sequence[str] = (), *, recut: bool = False) -> list[str]:
    """The classes for a runner: ``standalone``, ``spark`` or ``both``. Raises `UsageError`."""
    if unknown_kinds := sorted(set(only) - FAULTS.keys()):
        raise UsageError(
            "unknown class of faults: choose from those listed",
            code="chaos-fault",
            found=unknown_kinds,
            there=", ".join(FAULTS),
        )
    if "recut" in only and not recut:
        raise UsageError(
            "other batches may change which rows are late: add --recut too if the net of your panes does not "
            "depend on that",
            code="chaos-fault",
            found="recut",
        )
    standalone_kinds = {**ALONE, **(RECUT if recut else {})} if runner != "spark" else {}
    available = standalone_kinds | (ON_SPARK if runner != "standalone" else {})
    if only and (absent := [kind for kind in only if kind not in available]):
        raise UsageError("these faults need another runner: add --runner both", code="chaos-fault", found=absent)
    return [kind for kind in available if not only or kind in only]


def plan_round(seed: int, number: int, kinds: Sequence[str], stores: Sequence[str]) -> RoundPlan:
    """Round ``number``, from 1. The first ones have a class each; those after them several."""
    chance = random.Random(f"{seed} {number} {' '.join(kinds)}")
    store = stores[(number - 1) % len(stores)]
    if number <= len(kinds):
        kind = kinds[number - 1]
        return RoundPlan(number, store, tuple(_drawn(chance, kind) for _ in range(1 if kind in QUIET else 2)))
    lead = chance.choice([kind for kind in kinds if kind not in ("again", "spark")] or list(kinds))
    if lead in QUIET:
        return RoundPlan(number, store, (_drawn(chance, lead),))
    with_it = [kind for kind in kinds if kind not in QUIET and (kind in ON_SPARK) == (lead in ON_SPARK)]
    extras = [chance.choice(with_it) for _ in range(chance.randrange(4))]
    return RoundPlan(number, store, tuple(_drawn(chance, kind) for kind in (lead, *extras)))


def _drawn(chance: random.Random, kind: str) -> Injected:
    share, moment = chance.random(), chance.choice(MOMENTS)
    detail, number = "", 1
    if kind == "storage":
        detail, number = chance.choice(ERRORS), chance.choice((1, 1, 3, 100))
    elif kind == "sink":
        detail = chance.choice(("raise", "raise", "refuse"))
        moment = "before" if detail == "refuse" else chance.choice(("before", "after"))
    elif kind == "damage":
        detail = chance.choice(DAMAGES)
    elif kind in ("rescale", "recut"):
        number = chance.randrange(1, 7)
    elif kind == "worker":
        number = chance.randrange(1, 4)
    return Injected(kind, share, moment, detail, number)
