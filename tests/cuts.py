"""The same rows in batches cut at random: what must not depend on the cut is compared with one row a batch."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def cuts(rows: Sequence[T], chance: random.Random, tries: int = 2) -> Iterator[list[Sequence[T]]]:
    """One row a batch, all in one batch, and cut at random."""
    yield [[row] for row in rows]
    yield [rows]
    for _ in range(tries):
        places = sorted(chance.sample(range(1, len(rows)), chance.randint(1, min(9, len(rows) - 1))))
        yield [rows[first:last] for first, last in zip([0, *places], [*places, len(rows)], strict=True)]
