"""Change sets and questions drawn from a `random.Random`: a seeded one, or one that Hypothesis chooses."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import pyarrow as pa

from tidestate.statestore.spec.changes import Applied, ChangeSet, TableChanges
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.testing.rows import KeyRow, table
from tidestate.statestore.testing.tables import GROUPS, KEY_VALUES, SPECS, START, TIME_COLUMNS, VALUES


def now(sequence: int) -> int:
    """The time at which a change set of this sequence is made."""
    return START + sequence // 2


def applied(sequence: int) -> Applied:
    """What a store has applied after the change set of this sequence."""
    return Applied(sequence, f"lineage-{sequence}")


def seeded_changes(seed: int, sequence: int) -> ChangeSet:
    """The change set of this sequence: the same in every process."""
    return change_set(Random(f"{seed}/{sequence}"), sequence)


def change_set(random: Random, sequence: int) -> ChangeSet:
    """Drawn changes by table: those of each table of `SPECS`, with six chances in ten."""
    return {spec.name: changes(spec, random, sequence) for spec in SPECS if random.random() < 0.6}


def changes(spec: TableSpec, random: Random, sequence: int) -> TableChanges:
    """Changes to one table, parts of it perhaps missing or empty."""
    mergeable = spec.expiry is None or spec.expires_by_key
    delete = keys(spec, random, sequence) if random.random() < 0.3 else None
    put = generated_rows(spec, random, sequence) if not mergeable or random.random() < 0.4 else None
    merge = generated_rows(spec, random, sequence) if mergeable and random.random() < 0.8 else None
    bound = now(sequence) - random.choice([3, 2, 1, 9]) if spec.expiry and random.random() < 0.2 else None
    return TableChanges(
        delete=None if delete is None else table(spec, delete, keys_only=True),
        put=None if put is None else table(spec, list({row[: len(spec.key)]: row for row in put}.values())),
        merge=None if merge is None else table(spec, merge),
        expire=bound,
    )


def keys(spec: TableSpec, random: Random, sequence: int) -> list[KeyRow]:
    """Some keys, which may repeat."""
    return [key(spec, random, sequence) for _ in range(random.randrange(5))]


def generated_rows(spec: TableSpec, random: Random, sequence: int) -> list[KeyRow]:
    """Some rows, whose keys may repeat."""
    return [row(spec, random, sequence) for _ in range(random.randrange(5))]


def key(spec: TableSpec, random: Random, sequence: int) -> KeyRow:
    """A drawn key: one value for each key column of ``spec``, from a small domain, so that keys repeat."""
    return tuple(random.choice(_domain(name, sequence)) for name in spec.key_names)


def row(spec: TableSpec, random: Random, sequence: int) -> KeyRow:
    """A row; the columns of a group are drawn together."""
    values: dict[str, Any] = dict(zip(spec.key_names, key(spec, random, sequence), strict=True))
    for group in spec.groups:
        values.update(zip(group.columns, random.choice(GROUPS[group.columns[0]]), strict=True))
    for column in spec.values:
        if column.name not in spec.grouped:
            values[column.name] = random.choice(_domain(column.name, sequence))
    return tuple(values[name] for name in spec.schema.names)


@dataclass(frozen=True)
class Question:
    """The arguments of a scan."""

    lower: KeyRow | None
    upper: KeyRow | None
    prefix: KeyRow
    reverse: bool


def question(spec: TableSpec, random: Random, sequence: int) -> Question:
    """A scan with a prefix and bounds of any number of columns, inverted ones too."""
    width = random.choice([0, 0, *range(len(spec.key) + 1)])

    def bound() -> KeyRow | None:
        values = key(spec, random, sequence)[width:]
        return random.choice([None, values[: random.randrange(len(values) + 1)]])

    return Question(bound(), bound(), key(spec, random, sequence)[:width], random.random() < 0.5)


@dataclass(frozen=True)
class RangeRequests:
    """The arguments of a call of ranges."""

    prefixes: list[KeyRow]
    width: int
    lower: list[Any] | None
    upper: list[Any] | None

    def bound(self, spec: TableSpec, values: list[Any] | None) -> pa.Array | None:
        """Bounds as an array of the key column after the prefix."""
        return None if values is None else pa.array(values, spec.key[self.width].arrow)


def range_requests(spec: TableSpec, random: Random, sequence: int) -> RangeRequests:
    """Requests with prefixes that may repeat and bounds that may be null or inverted."""
    width, count = random.randrange(len(spec.key)), random.randrange(5)

    def bounds() -> list[Any] | None:
        domain = [None, *_domain(spec.key[width].name, sequence)]
        return random.choice([None, [random.choice(domain) for _ in range(count)]])

    return RangeRequests([key(spec, random, sequence) for _ in range(count)], width, bounds(), bounds())


def _domain(name: str, sequence: int) -> list[Any]:
    if name in TIME_COLUMNS:
        return TIME_COLUMNS[name](now(sequence))
    return KEY_VALUES[name] if name in KEY_VALUES else VALUES[name]
