"""Messages of two sides for the join operator; and the same join in the harness."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from tests.helpers.operator_messages import SECOND, TIME
from tidestate.operators import JoinOperator, sliding, tumbling
from tidestate.operators.describe.given_join import join
from tidestate.operators.describe.join import Join
from tidestate.operators.describe.session_join import SessionJoin, session_join
from tidestate.operators.local.harness import Harness
from tidestate.statestore.spec.store import StoreConfig

LEFT = pa.schema([("part", pa.string()), ("at", pa.int64()), ("t", TIME), ("k", pa.string()), ("v", pa.int64())])
RIGHT = pa.schema([("part", pa.string()), ("at", pa.int64()), ("t", TIME), ("k", pa.string()), ("w", pa.int64())])


class Row(NamedTuple):
    side: str
    part: str
    at: int
    t: int | None
    k: str | None
    v: int


def sided(rows: Sequence[Row]) -> dict[str, pa.Table]:
    """By side, as `JoinOperator.add_messages` takes them."""
    made = {}
    for side, schema in (("left", LEFT), ("right", RIGHT)):
        own = [row._replace(t=None if row.t is None else row.t * SECOND)[1:] for row in rows if row.side == side]
        made[side] = pa.table(
            [pa.array([row[i] for row in own], f.type) for i, f in enumerate(schema)], schema=schema
        )
    return made


def near(how: Any = "full", **more: Any) -> Join:
    """By distance, taking back what was observed alone."""
    given = {"within": ("-3 seconds", "5 seconds"), "late": "6 seconds", "watermark_delay": "2 seconds"} | more
    return join(event_time="t", on="k", how=how, offset="at", origin="part", **given)


def held(**more: Any) -> Join:
    """By windows of each side: rows wait until the watermark passes them, and none of `two_streams` is behind it."""
    windows = (sliding("6 seconds", "2 seconds"), tumbling("8 seconds"))
    given = {"on": "k", "window": windows, "how": "full", "watermark_delay": "24 seconds"} | more
    return join(event_time="t", offset="at", origin="part", **given)


def sessions(how: Any = "full", **more: Any) -> SessionJoin:
    """By session, taking back what was observed."""
    given = {"on": "k", "gap": "3 seconds", "late": "6 seconds", "watermark_delay": "2 seconds"} | more
    return session_join(event_time="t", how=how, offset="at", origin="part", **given)


def of_offsets(how: Any = "full", **more: Any) -> SessionJoin:
    """By sessions of the numbers of one log."""
    return session_join(on="k", offset="at", origin="part", offsets=3, late=9, how=how, **more)


def operator(job: Join | SessionJoin, root: Path, store: StoreConfig | None = None, **more: Any) -> JoinOperator:
    return JoinOperator(job, LEFT, RIGHT, checkpoint=root, store=store, **more)


def expected(job: Join | SessionJoin, batches: Sequence[Sequence[Row]], root: Path) -> list[tuple[Any, ...]]:
    """Panes in order, by the harness."""
    schema = job.schema(LEFT, RIGHT)
    harness, panes = Harness(job, schema, folder=root), []
    for batch in batches:
        panes += plain(harness.feed(job.rows(schema, **sided(batch))))
    return panes + plain(harness.finish())


def plain(panes: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in panes.to_pylist()]


def two_streams(seed: int, batches: int = 10, size: int = 10) -> list[list[Row]]:
    """The same in every process: time goes on, some are late, offsets of a part and side are in order."""
    chance = random.Random(seed)
    offsets: dict[tuple[str, str], int] = {}
    made = []
    for base in range(0, batches * 4, 4):
        batch = []
        for _ in range(size):
            side, part = chance.choice(["left", "right"]), chance.choice("xy")
            offsets[side, part] = offsets.get((side, part), 0) + 1
            behind = chance.choice([*range(6), *range(20)])
            batch.append(
                Row(side, part, offsets[side, part], base - behind, chance.choice("abc"), chance.randint(0, 99))
            )
        made.append(batch)
    return made


def one_log(batches: list[list[Row]]) -> list[list[Row]]:
    """The same rows, numbered as one log that two topics share; some come a batch later."""
    numbers, later, made = iter(range(sum(map(len, batches)))), list[Row](), []
    for batch in batches:
        own = [row._replace(part=f"{row.side} topic", at=next(numbers)) for row in batch]
        made.append([*later, *(row for row in own if row.at % 7)])
        later = [row for row in own if not row.at % 7]
    return [*made, later]
