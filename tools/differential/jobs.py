"""Jobs as they are drawn, and as both trees read them: one line of JSON each."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from tools.differential.rows import Clock, StreamRows

DESCRIPTIONS = "tests.golden.descriptions"
"""Tools import no test by name: mypy would follow."""
STORES = ("parquet", "parquet", "memory", "memory", "rocksdb")
"""RocksDB takes ten times as long."""
CHANGED_FIELDS = (
    *("triggers", "accumulation", "allowed_lateness_us", "late_rule", "retained", "aggregates", "messages", "how"),
    *(
        "future_tolerance_us",
        "watermark_delay_us",
        "ledger_columns",
        "lower_us",
        "upper_us",
        "within_us",
        "unmatched",
    ),
    *("windows", "window", "delays_us", "watermark", "updates", "offset_us"),
)
"""Settings of an operator that a changed job takes from another one of its kind; a start may refuse them."""
RESTORED_SHARE = 0.2
"""Of jobs in which lost messages can be put back, at least."""
FINE_WINDOWS = 50
"""From so many windows of an event on, a job gets few rows."""

Row = dict[str, Any]


class Operator(msgspec.Struct, frozen=True):
    """As a manifest has it."""

    name: str
    inputs: tuple[str, ...]
    configuration: dict[str, Any]


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is done with a job: ``do`` is a method of `child.Run`, and the rest its arguments."""

    do: str
    rows: dict[str, list[Row]] = {}
    number: int = 0
    operator: str = ""
    setting: dict[str, Any] = {}

    def __str__(self) -> str:
        about = [f"{len(rows)} rows of {name}" for name, rows in self.rows.items()]
        about += [str(self.number)] * bool(self.number) + [self.operator] * bool(self.operator)
        return " ".join([self.do, ", ".join(about), json.dumps(self.setting) if self.setting else ""]).strip()


class Job(msgspec.Struct, frozen=True):
    """``seed`` draws it again. ``recipe`` is the line of its description among those that are kept."""

    seed: int
    recipe: int
    operators: tuple[Operator, ...]
    store: str
    partitions: int
    steps: tuple[Step, ...]

    @property
    def streams(self) -> list[str]:
        """The names of what it reads."""
        return streams_of(self.operators)

    def __str__(self) -> str:
        written = import_module(f"{DESCRIPTIONS}.written").written
        words = repr(written(_kept()[self.recipe]["recipe"]))
        steps = [f"  {number}. {step}" for number, step in enumerate(self.steps, 1)]
        return "\n".join([words, f"{self.store}, {self.partitions} partitions, recipe {self.recipe}", *steps])


def streams_of(operators: tuple[Operator, ...]) -> list[str]:
    """The names of the streams that operators read, in order of first use."""
    names = {operator.name for operator in operators}
    return list(dict.fromkeys(name for operator in operators for name in operator.inputs if name not in names))


def draw(seed: int) -> Job:
    """The job of this seed: always the same."""
    chance = Random(seed)
    recipe = chance.choice(_restored() if chance.random() < RESTORED_SHARE else range(len(_kept())))
    operators, partitions = _operators(recipe), chance.choice((1, 2, 5))
    steps = _Steps(chance, operators, partitions).draw()
    return Job(seed, recipe, operators, chance.choice(STORES), partitions, tuple(steps))


@dataclass
class _Steps:
    """Draws what is done with a job, which has so many ``partitions`` now."""

    chance: Random
    operators: tuple[Operator, ...]
    partitions: int

    def draw(self) -> Iterator[Step]:
        chance = self.chance
        clock = Clock(chance)
        most = 3 if _is_fine(self.operators) else 16
        streams = {name: StreamRows(chance, clock, most) for name in streams_of(self.operators)}
        yield Step("clock", number=clock.now_us)
        for _ in range(chance.randint(3, 7)):
            clock.advance()
            yield Step("clock", number=clock.now_us)
            yield Step("feed", rows={name: rows.batch() for name, rows in streams.items() if chance.random() < 0.9})
            if chance.random() < 0.5:
                yield from self._between()()
        yield Step("clock", number=clock.now_us + 100 * clock.unit_us)
        if chance.random() < 0.3:
            yield Step("watermark", number=clock.now_us)
        if chance.random() < 0.7:
            yield Step("finish")

    def _between(self) -> Callable[[], Iterator[Step]]:
        """What happens between two batches; most of it what the job can do, but not all."""
        acts = [self._restart, self._change, self._rescale, self._rewind]
        if self.chance.random() < 0.1 or any(_takes_late(operator) for operator in self.operators):
            acts += [self._reprocess] * 2
        if any(_restores(operator, streams_of(self.operators)) for operator in self.operators):
            acts += [self._loss] * 3
        return self.chance.choice(acts)

    def _restart(self) -> Iterator[Step]:
        yield Step("restart")

    def _change(self) -> Iterator[Step]:
        operator = self.chance.choice(self.operators)
        others = _by_kind()[operator.configuration["kind"]]
        theirs = self.chance.choice(others)
        fields = [
            name for name in CHANGED_FIELDS if name in theirs and theirs[name] != operator.configuration.get(name)
        ]
        if fields:
            field = self.chance.choice(fields)
            yield Step("change", operator=operator.name, setting={field: theirs[field]})

    def _reprocess(self) -> Iterator[Step]:
        yield Step("reprocess")

    def _rescale(self) -> Iterator[Step]:
        self.partitions = self.chance.choice([number for number in (1, 2, 3, 5) if number != self.partitions])
        yield Step("rescale", number=self.partitions)

    def _rewind(self) -> Iterator[Step]:
        yield Step("rewind", number=self.chance.randint(1, 4))

    def _loss(self) -> Iterator[Step]:
        """A replay of all, or of so many per cent; what is still missing then is given up, or stays."""
        yield Step("lose", number=self.chance.choice((50, 100)))
        if self.chance.random() < 0.3:
            yield Step("reprocess")
        yield Step("rebuild", number=self.chance.choice((100, 100, 50)))
        if self.chance.random() < 0.3:
            yield Step("forget")


def _is_fine(operators: tuple[Operator, ...]) -> bool:
    windows = [operator.configuration.get("window") or {} for operator in operators]
    return any(window.get("size_us", 0) > FINE_WINDOWS * window.get("slide_us", 1) for window in windows)


def _takes_late(operator: Operator) -> bool:
    return operator.configuration["kind"] in ("windowed", "merge", "deduplicated")


def _restores(operator: Operator, streams: list[str]) -> bool:
    """Whether a replay may put back messages of an operator, as far as its configuration says."""
    configuration = operator.configuration
    marks = configuration.get("watermark") or {"generator": {"kind": ""}}
    if not set(operator.inputs) <= set(streams) or marks["generator"]["kind"] in ("ctis", "buffers"):
        return False
    joins = configuration["kind"] in ("join", "session_join") and all(configuration["offsets"])
    return joins or bool(configuration.get("messages"))


@cache
def _kept() -> list[dict[str, Any]]:
    """The recipes and what manifests have of them."""
    folder = Path(str(import_module(DESCRIPTIONS).__file__)).parent
    lines = gzip.decompress((folder / "descriptions.jsonl.gz").read_bytes()).splitlines()
    return [json.loads(line) for line in lines]


@cache
def _restored() -> list[int]:
    """The recipes of jobs whose lost messages a replay may put back."""
    jobs = [(number, _operators(number)) for number in range(len(_kept()))]
    return [number for number, made in jobs if any(_restores(operator, streams_of(made)) for operator in made)]


def _operators(recipe: int) -> tuple[Operator, ...]:
    return msgspec.convert(_kept()[recipe]["operators"], tuple[Operator, ...])


@cache
def _by_kind() -> dict[str, list[dict[str, Any]]]:
    kinds: dict[str, list[dict[str, Any]]] = {}
    for kept in _kept():
        for operator in kept["operators"]:
            kinds.setdefault(operator["configuration"]["kind"], []).append(operator["configuration"])
    return kinds
