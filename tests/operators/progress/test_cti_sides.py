"""CTIs of the sides of joins, session joins, merges and unions, against a twin that takes one row after the other."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.advance_time import Row
from tests.helpers.process import LONG, SCRATCH, few, in_turn, some
from tests.twins.cti import CtiTwin
from tidestate import JoinOperator, OperatorStream, Stream, UsageError, agg, watermark
from tidestate.operators.describe.runnable import Sided
from tidestate.operators.local.harness import Harness
from tidestate.operators.progress.advance_time import SHAPES
from tidestate.operators.streams.nodes import CtiSettings
from tidestate.operators.streams.watermarks import stored_settings
from tidestate.statestore.errors import of_type
from tidestate.stores import Memory
from tidestate.watermark import cti_settings, generate_ctis

SECOND = 1_000_000
TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("k", "string"), ("t", TIME), ("end", TIME), ("shape", "string"), ("off", "int64")])
SIDES = ("left", "right")
SCHEMAS = dict.fromkeys(SIDES, SCHEMA)
FAR = "100 days"


def of_streams(settings: dict[str, CtiSettings] | None = None) -> tuple[Stream, Stream]:
    """Both sides; with these settings they go by CTIs."""
    lives = ts.lifetime("end", shape="point", shape_column="shape")
    left, right = (ts.stream(event_time="t", offset="off", lifetime=lives) for _ in SIDES)
    if settings is None:
        return left, right
    return left.watermark(watermark.ctis(settings["left"])), right.watermark(watermark.ctis(settings["right"]))


def joined(one: Stream, other: Stream, **more: Any) -> OperatorStream:
    return one.join(other, on="k", identity=True, **more)


JOBS: dict[str, Callable[[Stream, Stream], Any]] = {
    "distance": lambda *both: joined(*both, within=("-3 s", "3 s"), allowed_lateness=FAR, how="full"),
    "window": lambda *both: joined(*both, window=ts.sliding("6 s", "3 s"), allowed_lateness=FAR, how="left"),
    "own windows": lambda *both: joined(*both, left=ts.side(window=ts.tumbling("5 s")), sides=ts.side(retain=FAR)),
    "sessions": lambda left, right: left.join_sessions(
        right, on="k", gap="3 s", allowed_lateness=FAR, how="full", identity=True
    ),
    "union": lambda left, right: ts.union(left=left, right=right),
    "merge": lambda left, right: (
        ts.merge(left=left, right=right)
        .group_by("k")
        .window(ts.tumbling("5 s"))
        .aggregate(left=agg.list("left_t"), right=agg.list("right_t"))
        .allowed_lateness(FAR)
        .accumulation("discarding")
    ),
}
SETTINGS = (
    cti_settings("drop", generate=generate_ctis(2, delay="1 s")),
    cti_settings("adjust", generate=generate_ctis(1)),
    cti_settings("adjust", generate=generate_ctis("4 s", delay="1 s")),
    cti_settings("drop", generate=generate_ctis(1, delay="-1 microseconds")),
)
IMPORTED = (
    cti_settings("adjust", import_from="left"),
    cti_settings("drop", generate=generate_ctis(3), import_from="left"),
)


def table(rows: list[tuple[int, Row]]) -> pa.Table:
    """Rows with their offsets; starts and ends in seconds."""

    def times(values: list[int | None]) -> pa.Array:
        return pa.array([None if one is None else one * SECOND for one in values], pa.int64()).cast(TIME)

    columns = [
        pa.array(["a"] * len(rows), "string"),
        times([row.start for _, row in rows]),
        times([row.end for _, row in rows]),
        pa.array([row.shape for _, row in rows], "string"),
        pa.array([offset for offset, _ in rows], "int64"),
    ]
    return pa.table(columns, schema=SCHEMA)


def in_us(row: Row) -> Row:
    return Row(row.shape, *(None if one is None else one * SECOND for one in (row.start, row.end)))


def net(panes: list[pa.Table]) -> Counter[str]:
    """Panes without their times, as adjusted events differ there from what they were; a retraction counts -1."""
    found: Counter[str] = Counter()
    for part in panes:
        for row in part.to_pylist():
            sign = -1 if row.pop("kind", "emit") == "retract" else 1
            found[
                repr(sorted((name, value) for name, value in row.items() if name not in ("pane", "timing", "last")))
            ] += sign
    return Counter({row: many for row, many in found.items() if many})


class Twins:
    """Both sides, a row after the other; CTIs are imported when a batch ends, and known to the next."""

    def __init__(self, settings: dict[str, CtiSettings]) -> None:
        self.of = {side: CtiTwin(stored_settings(one)) for side, one in settings.items()}

    def batch(self, rows: dict[str, list[tuple[int, Row]]]) -> dict[str, list[tuple[int, int]]]:
        """The kept rows of each side, as (offset, start)."""
        kept: dict[str, list[tuple[int, int]]] = {}
        for side, own in rows.items():
            found = [(offset, self.of[side].take(0, in_us(row)), row.shape) for offset, row in own]
            kept[side] = [(at, taken[1]) for at, taken, shape in found if taken and taken[0] and shape != "edge_end"]
        for twin in self.of.values():
            if (source := twin.settings.import_from) is not None:
                twin.advance(0, self.of[source].cti)
        return kept

    @property
    def watermark(self) -> int:
        return min(twin.cti for twin in self.of.values())


instants = st.integers(0, 30)
rows = st.builds(
    Row, st.sampled_from([*SHAPES, "point", "point"]), st.none() | instants, st.none() | st.integers(0, 40)
)
batches = st.lists(
    st.fixed_dictionaries({side: st.lists(rows, max_size=5) for side in SIDES}), min_size=1, max_size=4
)


@pytest.mark.parametrize("kind", few(some(JOBS, 3), 0, 2))
@settings(max_examples=settings.default.max_examples // (2 if LONG else 4))
@given(given_=batches, left=st.sampled_from(SETTINGS), right=st.sampled_from((*SETTINGS, *IMPORTED)))
def test_the_sides_of_a_job_advance_like_their_twins(
    kind: str, given_: list[dict[str, list[Row]]], left: CtiSettings, right: CtiSettings
) -> None:
    both = {"left": left, "right": right}
    job, twins, numbers = JOBS[kind](*of_streams(both)), Twins(both), dict.fromkeys(SIDES, 0)
    panes, kept = [], {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        tested = job.harness(SCHEMAS, store=Memory(), folder=folder, partitions=2)
        for batch in given_:
            numbered = {}
            for side, own in batch.items():
                numbered[side] = list(enumerate(own, numbers[side]))
                numbers[side] += len(own)
            # Rows of a side count in the order of their offsets, however they are mixed.
            parts = {side: table(own[::-1]) for side, own in numbered.items()}
            panes.append(tested.feed(parts))
            for side, own in twins.batch(numbered).items():
                kept[side] += [(numbered[side][at - numbered[side][0][0]], start) for at, start in own]
            found = evidence.work(Path(folder))
            if found:
                assert (found[-1].get("watermark_us") or twins.watermark) == twins.watermark
        panes.append(tested.finish())
    # The same job without CTIs, over what the twins let through.
    plain, fed = of_type(JOBS[kind](*of_streams()).graph.description, Sided), {}
    for side, own in kept.items():
        starts = pa.array([start for _, start in own], pa.int64()).cast(TIME)
        fed[side] = (table([row for row, _ in own]), starts)
    # As the rows of all sides travel, whose times are apart from the columns that they come from.
    schema = plain.sides.schema(SCHEMAS)
    whole = pa.concat_tables([plain.sides.rows(schema, side, rows_) for side, (rows_, _) in fed.items()])
    times = pa.concat_arrays([starts for _, starts in fed.values()])
    whole = whole.set_column(whole.schema.get_field_index("time"), "time", times)
    other = Harness(plain, schema, store=Memory(), partitions=2)
    expected = [other.feed(whole), other.finish()]
    assert net(panes) == net(expected)


def test_the_slow_side_follows_the_ctis_of_the_fast_one_in_the_same_batch(tmp_path: Path) -> None:
    both = {"left": cti_settings("drop", generate=generate_ctis(1)), "right": IMPORTED[0]}
    tested = JOBS["distance"](*of_streams(both)).harness(SCHEMAS, folder=tmp_path / "root", partitions=1)
    tested.feed({"left": table([(0, Row("point", 30))])})
    assert evidence.work(tmp_path / "root")[-1]["watermark_us"] == 30 * SECOND
    tested.feed({"right": table([(0, Row("interval", 5, 40)), (1, Row("point", 5))])})
    assert tested.ledger()["reason"].to_pylist() == ["cti_violation"]
    assert tested.counters()["cti_adjusted"] == 1
    tested.restart()
    tested.feed({"left": table([(1, Row("point", 31))])})
    assert evidence.work(tmp_path / "root")[-1]["watermark_us"] == 31 * SECOND


def by_ctis(settings: CtiSettings | None = None, **order: Any) -> Stream:
    """A stream of points."""
    return ts.stream(event_time="t", **order).watermark(watermark.ctis(settings))


def test_what_makes_no_sense_is_refused() -> None:
    generated, from_left = cti_settings("drop", generate=generate_ctis(1)), cti_settings("drop", import_from="left")
    other = cti_settings("drop", import_from="other")
    circle = cti_settings("drop", generate=generate_ctis(1), import_from="right")

    def near(left: Stream, right: Stream) -> OperatorStream:
        return left.join(right, on="k", within=("0 s", "1 s"))

    for wrong in (
        lambda: near(by_ctis(generated), by_ctis(generated)),
        lambda: ts.union(left=by_ctis(generated), right=by_ctis(generated)),
        lambda: near(by_ctis(generated, offset="off"), by_ctis(offset="off")),
        lambda: near(by_ctis(generated, offset="off"), by_ctis(other, offset="off")),
        lambda: near(by_ctis(circle, offset="off"), by_ctis(from_left, offset="off")),
        lambda: near(by_ctis(from_left, offset="off"), by_ctis(from_left, offset="off")),
    ):
        with pytest.raises(UsageError) as caught:
            wrong()
        assert caught.value.code == "advance-time"
    with pytest.raises(UsageError) as caught:
        ts.union(left=ts.stream(event_time="t", origin="k"), right=ts.stream(event_time="t", origin="k"))
    assert caught.value.code == "offset"


@pytest.mark.parametrize(("kind", "by"), few(in_turn(["distance", "window", "sessions"], SETTINGS[1:3]), 1))
def test_a_join_by_hand_takes_ctis(tmp_path: Path, kind: str, by: CtiSettings) -> None:
    """What comes again changes nothing, across a crash too; a refused row is in the ledger each time."""
    chance, job, made = Random(kind), JOBS[kind](*of_streams(dict.fromkeys(SIDES, by))), []
    for base in range(0, 30, 6):
        one = {}
        for place, side in enumerate(SIDES):
            starts = [base + chance.randint(-6, 6) for _ in range(4)]
            one[side] = table(
                [(9 * base + n, Row("interval", start, start + 7 * place + 1)) for n, start in enumerate(starts)]
            )
        made.append(one)
    twin = job.harness(SCHEMAS, folder=tmp_path / "twin", partitions=2)
    panes = [twin.feed(one) for one in made]
    wanted, found = net([*panes, twin.finish()]), list[pa.Table]()

    def begin() -> JoinOperator:
        operator: JoinOperator = job.by_hand(SCHEMAS, checkpoint=tmp_path / "root", partitions=3)
        return operator

    running = begin()
    for number, one in enumerate(made):
        running.add_messages(**{side: pa.concat_tables([rows, rows[:2]]) for side, rows in one.items()})
        if number == 2:
            running.close()
            running = begin()
        for earlier in made[: number + 1]:
            running.add_messages(**earlier)
        for result in running.get_result():
            found.append(result.panes)
            running.acknowledge(result.id)
        running.flush()
    running.drain()
    found += [result.panes for result in running.get_result()]
    assert net(found) == wanted
    assert running.counters.get("cti_violation", 0) >= twin.counters().get("cti_violation", 0)
    running.close()


def test_an_embedded_join_takes_no_lifetimes(tmp_path: Path) -> None:
    left, right = of_streams(dict.fromkeys(SIDES, SETTINGS[1]))
    with pytest.raises(UsageError, match="operator-window"):
        left.join_lifetimes(right, on="k").by_hand(SCHEMAS, checkpoint=tmp_path)


def test_rows_without_a_place_in_the_order_are_in_the_ledger(tmp_path: Path) -> None:
    settings = cti_settings("drop", generate=generate_ctis(1))
    streams = {side: by_ctis(settings, offset="off") for side in SIDES}
    tested = ts.union(**streams).harness(SCHEMAS, folder=tmp_path / "root", partitions=1)
    tested.feed({"left": table([(-1, Row("point", 3)), (0, Row("point", 4))])})
    assert tested.ledger()["reason"].to_pylist() == ["bad_offset"]
