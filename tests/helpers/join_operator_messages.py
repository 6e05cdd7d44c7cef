"""Messages of two sides for the join operator; and the same join in the harness."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from msgspec.structs import replace

import tidestate as ts
from tests.helpers.operator_messages import SECOND, TIME
from tidestate import Stream
from tidestate.operators import JoinOperator
from tidestate.operators.describe.runnable import Sided
from tidestate.operators.streams.stream import JoinedStream
from tidestate.statestore.errors import of_type
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


def _sides(delay: str) -> tuple[Stream, Stream]:
    left, right = (ts.stream(event_time="t", watermark_delay=delay, offset="at", origin="part") for _ in "lr")
    return left, right


def near(how: Any = "full", late: str = "6 seconds", update: str | None = None, **more: Any) -> JoinedStream:
    """By distance, taking back what was observed alone."""
    left, right = _sides("2 seconds")
    given = {"within": ("-3 seconds", "5 seconds"), "allowed_lateness": late, "sides": ts.side(update=update)}
    return left.join(right, on="k", how=how, identity=True, **given | more)


def held() -> JoinedStream:
    """By windows of each side: rows wait until the watermark passes them, and none of `two_streams` is behind it."""
    left, right = _sides("24 seconds")
    sliding, tumbling = ts.side(window=ts.sliding("6 seconds", "2 seconds")), ts.side(window=ts.tumbling("8 seconds"))
    return left.join(right, on="k", how="full", left=sliding, right=tumbling, identity=True)


def sessions(how: Any = "full", late: str = "6 seconds", **more: Any) -> JoinedStream:
    """By session, taking back what was observed."""
    left, right = _sides("2 seconds")
    return left.join_sessions(
        right, **{"on": "k", "gap": "3 seconds", "how": how, "allowed_lateness": late, "identity": True} | more
    )


def of_offsets(how: Any = "full", **more: Any) -> JoinedStream:
    """By sessions of the numbers of one log."""
    left, right = (ts.stream(offset="at", origin="part") for _ in "lr")
    return left.join_sessions(right, on="k", offsets=3, allowed_lateness=9, how=how, **more)


def operator(job: JoinedStream, root: Path, store: StoreConfig | None = None, **more: Any) -> JoinOperator:
    description = of_type(replace(job.operator.description, offsets=("at", "at"), origins=("part", "part")), Sided)
    return JoinOperator(description, LEFT, RIGHT, checkpoint=root, store=store, **more)  # type: ignore[arg-type]


def expected(job: JoinedStream, batches: Sequence[Sequence[Row]], root: Path) -> list[tuple[Any, ...]]:
    """Panes in order, by the harness."""
    harness, panes = job.harness({"left": LEFT, "right": RIGHT}, folder=root), []
    for batch in batches:
        panes += plain(harness.feed(sided(batch)))
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
