"""A join in the harness whose files of rows go missing, and its input."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.helpers.internals import operator_of
from tests.helpers.join_jobs import SCHEMA, STORES, described, observed, table
from tests.twins.join import SIDES, Asked, Pane, Row, Window
from tidestate.recovery.log.manifest import Rebuilding

TABLES = ("left", "right")


def stream(pick: random.Random) -> list[list[Row]]:
    """Offsets and times grow, more or less; some messages come again."""
    offsets, had, batches = dict.fromkeys(SIDES, 0), list[Row](), []
    for number in range(6):
        batch = []
        for place in range(pick.randint(2, 10)):
            side = pick.choice(SIDES)
            offsets[side] += 1
            at = max(0, 7 + number * 5 + pick.choice([0, 5, 9, -3, -9, -16]))
            batch.append(Row(side, pick.choice("aab"), at, 100 * number + place, offsets[side]))
        batches.append([*batch, *pick.choices([*batch, *had], k=pick.choice([0, 2]))])
        had += batch
    return batches


def drawn(pick: random.Random) -> Asked:
    """A join whose lost rows can be put back."""
    chosen: dict[str, Any] = {
        "on": pick.random() < 0.8,
        "large": pick.random() < 0.5,
        "late": pick.choice([0, 6, 20]),
    }
    if pick.random() < 0.25:
        chosen["window"] = Window(10, 10)
    else:
        chosen["low"], chosen["high"] = pick.choice([(-3, 3), (0, 15), (-12, -2), (2, 7), (None, 4), (1, None)])
        chosen["in_order"] = pick.random() < 0.2
    return Asked(named=True, delays=pick.choice([(0, 0), (0, 3)]), **chosen)


class Joined:
    """A join in the harness; ``unit``: of the times of its rows."""

    def __init__(
        self, asked: Asked, folder: Path, store: str = "memory", partitions: int = 1, unit: str = "s"
    ) -> None:
        self.asked, self.unit, self.description = asked, unit, described(asked, unit)
        self.harness = self.description.harness(
            {"left": SCHEMA, "right": SCHEMA}, store=STORES[store], folder=folder, partitions=partitions
        )

    def rows(self, rows: list[Row]) -> dict[str, pa.Table]:
        sides = {side: table([one for one in rows if one.side == side], self.unit) for side in SIDES}
        return sides

    def feed(self, rows: list[Row]) -> Counter[Pane]:
        return observed(self.harness.feed(self.rows(rows)), self.asked, self.unit)

    def rebuild(self, rows: list[Row]) -> Counter[Pane]:
        return observed(self.harness.rebuild(self.rows(rows)), self.asked, self.unit)

    @property
    def rebuilding(self) -> Rebuilding | None:
        operator = operator_of(self.harness)
        return operator.rebuilding

    def state(self, name: str) -> list[Any]:
        rows = self.harness.state(name).to_pylist()
        return sorted(rows, key=repr)


def net(panes: Counter[Pane]) -> Counter[tuple[Any, ...]]:
    """What is emitted and not retracted."""
    found: Counter[tuple[Any, ...]] = Counter()
    for (kind, *row), often in panes.items():
        found[tuple(row)] += often if kind == "emit" else -often
    assert min(found.values(), default=0) >= 0
    return +found
