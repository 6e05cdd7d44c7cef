"""The input of the jobs whose roots are kept, before and after the root: drawn from seeds."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa

from tests.golden.continued import Step
from tidestate.statestore.spec.tables import TIME

SECOND = 1_000_000
BEGINNING = 1_700_000_000 * SECOND
SCHEMA = pa.schema(
    [("t", TIME), ("k", pa.string()), ("part", pa.string()), ("at", pa.int64()), ("v", pa.int64()),
     ("d", pa.decimal128(18, 4)), ("x", pa.float64()), ("name", pa.string()), ("end", TIME), ("gap", pa.int64())]
)  # fmt: skip
SIDE_COLUMNS = ("t", "k", "part", "at", "v")
BEFORE, AFTER, ROWS = 4, 2, 9


def events(seed: int, parts: Sequence[str] = ("x", "y"), sent_again: int = 0) -> list[pa.Table]:
    """Batches of events: times go on and mix, some are late or far too late, a key and a time are missing."""
    chance, offsets = random.Random(seed), dict.fromkeys(parts, 0)
    batches: list[list[list[Any]]] = []
    for number in range(BEFORE + AFTER):
        rows = [_event(chance, 7 * number, parts, offsets) for _ in range(ROWS)]
        if number == 2:
            rows[3][1], rows[5][0] = None, None
        if number > 1:
            rows[7][0] -= 45 * SECOND
        again = batches[-1][:sent_again] if batches else []
        batches.append([*rows, *again])
    return [pa.table([pa.array([row[i] for row in rows], field.type) if field.type != TIME
                      else pa.array([row[i] for row in rows], pa.int64()).cast(TIME)
                      for i, field in enumerate(SCHEMA)], schema=SCHEMA) for rows in batches]  # fmt: skip


def _event(chance: random.Random, second: int, parts: Sequence[str], offsets: dict[str, int]) -> list[Any]:
    at, part = BEGINNING + (second + chance.randrange(-6, 10)) * SECOND, chance.choice(parts)
    offsets[part] += 1
    value = None if chance.random() < 0.1 else chance.randrange(-50, 100)
    return [at, chance.choice("abc"), part, offsets[part], value, Decimal(chance.randrange(-10**6, 10**7)) / 10**4,
            chance.randrange(-800, 800) / 8, chance.choice(["ash", "elm", "fir", "oak", "yew"]),
            at + chance.randrange(1, 9) * SECOND, chance.randrange(1, 6) * SECOND]  # fmt: skip


class Case(NamedTuple):
    """A job, its steps before the root and after it, and how it runs."""

    job: Any
    before: Sequence[Step]
    after: Sequence[Step]
    schemas: Any = SCHEMA
    runner: str = "standalone"
    partitions: int | None = 1
    patient: bool = False
    """It counts the time that it runs: what is expected is of a run that stops where the root was left."""


def case(job: Any, seed: int, runner: str = "standalone", **of_events: Any) -> Case:
    """Over one stream."""
    steps: list[Step] = [{"rows": batch} for batch in events(seed, **of_events)]
    return Case(
        job, steps[:BEFORE], steps[BEFORE:], runner=runner, partitions=None if runner == "by hand" else 1 + seed % 2
    )


def edited(job: Any, seed: int) -> Case:
    """Over one stream; before the root is left one of its windows is put by hand, and others are removed."""
    steps: list[Step] = [{"rows": batch} for batch in events(seed)]
    at = BEGINNING + 20 * SECOND
    edits: list[Step] = [
        {"edit": lambda root: root.put_window(at, key="a", events=7, values={"total": 70, "most": 9}, force=True)},
        {"edit": lambda root: root.del_window(at, key="b", force=True)},
        {"edit": lambda root: root.retire(at - 20 * SECOND, at, key="c", force=True)},
    ]
    return Case(job, [*steps[:BEFORE], *edits], steps[BEFORE:], partitions=2, patient=True)


def clocked(job: Any, seed: int, steps: Sequence[Step] | None = None) -> Case:
    """In the harness, where the clock goes on by three seconds before each batch."""
    given = [{"rows": batch} for batch in events(seed)] if steps is None else steps
    timed: list[Step] = []
    for number, step in enumerate(given):
        timed += [{"clock": BEGINNING + (3 * number + 3) * SECOND}, step]
    timed.append({"clock": timed[-2]["clock"] + 20 * SECOND})
    return Case(job, timed[: 2 * BEFORE], timed[2 * BEFORE :], runner="harness")


def sided(job: Any, seed: int, columns: Sequence[str] = SCHEMA.names, runner: str = "standalone") -> Case:
    """Over two streams, of which each has rows in every batch."""
    sides = [[batch.select(columns) for batch in events(seed + number, parts=("x",))] for number in range(2)]
    partitions = None if runner == "by hand" else 1
    return _of_streams(job, sides)._replace(runner=runner, partitions=partitions)


def streams(job: Any, seed: int) -> Case:
    """Over several streams with all columns."""
    return _of_streams(job, [events(seed + number) for number in range(len(job.graph.streams))])


def _of_streams(job: Any, batches: Sequence[Sequence[pa.Table]]) -> Case:
    """Over the streams of a job; ``batches`` of each, in their order."""
    names = job.graph.streams
    steps: list[Step] = [{"streams": dict(zip(names, tables, strict=True))} for tables in zip(*batches, strict=True)]
    schemas = {name: tables[0].schema for name, tables in zip(names, batches, strict=True)}
    return Case(job, steps[:BEFORE], steps[BEFORE:], schemas)


def named(job: Any) -> Case:
    """Rows that say in which window they are."""
    schema = pa.schema([*SCHEMA, ("window_start", TIME), ("window_end", TIME)])
    steps: list[Step] = []
    for batch in events(21):
        starts = [None if t is None else t // (10 * SECOND) * 10 * SECOND for t in _micros(batch)]
        ends = [None if start is None else start + 10 * SECOND for start in starts]
        own = [pa.array(times, pa.int64()).cast(TIME) for times in (starts, ends)]
        steps.append({"rows": pa.table([*batch.columns, *own], schema=schema)})
    return Case(job, steps[:BEFORE], steps[BEFORE:], schema)


def idle(job: Any, seed: int) -> Case:
    """A source falls silent, and comes back when the clock has passed its timeout."""
    batches = events(seed)
    silent = [batch.filter(pa.array([part == "x" for part in batch["part"].to_pylist()])) for batch in batches[2:-1]]
    return clocked(job, seed, [{"rows": batch} for batch in [*batches[:2], *silent, batches[-1]]])


def future(job: Any, seed: int) -> Case:
    """Events far ahead of the others, behind a watermark that lags by two minutes."""
    steps: list[Step] = []
    for number, batch in enumerate(events(seed)):
        ahead = [(0 if row else 95 * number) * SECOND for row in range(batch.num_rows)]
        times = [None if t is None else t + more for t, more in zip(_micros(batch), ahead, strict=True)]
        steps.append({"rows": batch.set_column(0, SCHEMA.field("t"), pa.array(times, pa.int64()).cast(TIME))})
    return Case(job, steps[:BEFORE], steps[BEFORE:])


def buffers(job: Any, seed: int, *, patient: bool) -> Case:
    """Buffers of two origins in chunks, with a gap that is open when the root is left."""
    schema = pa.schema([*SCHEMA, ("origin", pa.int32()), ("sequence", pa.int64()), ("chunk", pa.int16()),
                        ("last", pa.bool_()), ("mark", TIME)])  # fmt: skip
    sent = [[(1, 1, 0), (2, 1, 0)], [(1, 2, 0), (2, 2, 0)], [(1, 3, 0), (2, 4, 0)], [(1, 4, 0), (2, 5, 0)],
            [(1, 6, 1), (2, 3, 0)], [(1, 6, 0), (2, 4, 0)]]  # fmt: skip
    steps: list[Step] = []
    for (one, two), batch in zip(sent, events(seed), strict=True):
        rows = batch.to_pylist()
        of_buffer = [one if number < len(rows) // 2 else two for number in range(len(rows))]
        mark = BEGINNING + (7 * len(steps) - 8) * SECOND
        marks = pa.array([mark] * len(rows), pa.int64()).cast(TIME)
        more = [
            pa.array([o for o, _, _ in of_buffer], pa.int32()),
            pa.array([s for _, s, _ in of_buffer], pa.int64()),
            pa.array([c for _, _, c in of_buffer], pa.int16()),
            pa.array([o == 2 or s != 6 or c == 1 for o, s, c in of_buffer]),
            marks,
        ]
        steps.append({"rows": pa.table([*batch.columns, *more], schema=schema)})
    return clocked(job, seed, steps)._replace(schemas=schema, patient=patient)


def buffers_of_sides(job: Any, seed: int) -> Case:
    """A buffer of each of two streams in every batch; of each a gap is open when the root is left."""
    schema = pa.schema([*(SCHEMA.field(name) for name in SIDE_COLUMNS), ("origin", pa.int32()),
                        ("sequence", pa.int64()), ("mark", TIME)])  # fmt: skip
    numbers, sides = ((1, 2, 4, 5, 3, 6), (2, 1, 3, 5, 4, 6)), []
    for side, sequences in enumerate(numbers):
        tables = []
        for sequence, batch in zip(sequences, events(seed + side, parts=("x",)), strict=True):
            mark = BEGINNING + (7 * sequence - 8 - side) * SECOND
            columns = [pa.array([value] * batch.num_rows, pa.int64()) for value in (1, sequence, mark)]
            rows = pa.table([*batch.select(SIDE_COLUMNS).columns, *columns], names=schema.names)
            tables.append(rows.cast(schema))
        sides.append(tables)
    return _of_streams(job, sides)


def edges(job: Any, seed: int, sides: int = 2) -> Case:
    """Lifetimes whose ends come in rows of their own, of one stream or two."""
    schema = pa.schema([*(SCHEMA.field(name) for name in (*SIDE_COLUMNS, "end")), ("shape", pa.string())])
    return _of_streams(job, [_with_edges(events(seed + side, parts=("x",)), schema) for side in range(sides)])


def _with_edges(batches: Sequence[pa.Table], schema: pa.Schema) -> list[pa.Table]:
    """Every third row begins an edge, which ends in the next batch."""
    found, open_rows, offset = [], [], 0
    for batch in batches:
        plain = [row for row in batch.select(schema.names[:-1]).to_pylist() if row["t"] is not None]
        starts = [{**row, "shape": "edge_start", "end": None} for row in plain[::3]]
        rows = [*({**row, "shape": "point"} for row in plain[1::3]), *starts, *open_rows]
        open_rows = [{**row, "shape": "edge_end", "end": row["t"] + timedelta(seconds=11)} for row in starts]
        numbered = [{**row, "at": offset + number} for number, row in enumerate(rows)]
        offset += len(rows)
        found.append(pa.Table.from_pylist(numbered, schema))
    return found


def clocked_join(job: Any, seed: int) -> Case:
    """A join that emits by the clock."""
    made = sided(job, seed, SIDE_COLUMNS)
    return clocked(job, seed, [*made.before, *made.after])._replace(schemas=made.schemas)


def reprocessed(job: Any, seed: int) -> Case:
    """With a late ledger that comes back."""
    made = case(job, seed)
    return made._replace(after=[*made.after, {"reprocess": True}])


def in_texts(job: Any, seed: int) -> Case:
    """As `reprocessed`, with the rows as JSON in the column ``value``; each fifth text is cut."""
    made, schema = reprocessed(job, seed), pa.schema([("value", pa.string()), ("at", pa.int64())])

    def texts(step: Step) -> Step:
        if "rows" not in step:
            return step
        rows = step["rows"].select(["t", "k", "v", "name", "at"]).to_pylist()
        values = [json.dumps({**row, "t": row["t"] and row["t"].isoformat()}) for row in rows]
        cut = [value[: -(5 * (place % 5 == 4)) or None] for place, value in enumerate(values)]
        return {"rows": pa.table({"value": cut, "at": [row["at"] for row in rows]}, schema=schema)}

    before, after = ([texts(step) for step in steps] for steps in (made.before, made.after))
    return made._replace(before=before, after=after, schemas=schema)


def reprocessed_apart(job: Any, seed: int, operator: str) -> Case:
    """With late ledgers of which that of one operator came back before the root was left; the others do after it."""
    made = case(job, seed)
    before, *after = made.after
    return made._replace(before=[*made.before, {"reprocess": operator}, before], after=[*after, {"reprocess": True}])


def reprocessed_by_reason(job: Any, seed: int) -> Case:
    """With a late ledger of which the rows that were too late came back before the root was left; those that missed
    an expectation do after it, with what was too late since.
    """
    made = case(job, seed)
    before, *after = made.after
    steps: list[Step] = [*made.before, {"reprocess": True, "reason": "very_late"}, before]
    return made._replace(before=steps, after=[*after, {"reprocess": True}])


def _micros(batch: pa.Table) -> list[Any]:
    return batch["t"].cast(pa.int64()).to_pylist()
