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

from tests.helpers import evidence
from tests.helpers.advance_time import Row
from tests.helpers.process import SCRATCH, in_turn, some
from tests.twins.cti import CtiTwin
from tidestate.agg import list as list_
from tidestate.operators import JoinOperator, sliding, tumbling
from tidestate.operators.describe.given_join import join
from tidestate.operators.describe.merge import merge
from tidestate.operators.describe.overlap_join import overlap_join
from tidestate.operators.describe.runnable import Sided
from tidestate.operators.describe.session_join import session_join
from tidestate.operators.describe.union import union
from tidestate.operators.describe.windowed import DISCARDING
from tidestate.operators.local.harness import Harness
from tidestate.operators.progress.advance_time import SHAPES
from tidestate.operators.progress.cti_settings import AdvanceTime, advance_time, generation
from tidestate.statestore.errors import UsageError
from tidestate.stores import Memory

SECOND = 1_000_000
TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("k", "string"), ("t", TIME), ("end", TIME), ("shape", "string"), ("off", "int64")])
SIDES = ("left", "right")
FAR = "100 days"
OFFSETS: dict[str, Any] = {"offset": "off"}

JOBS: dict[str, Callable[[], Sided]] = {
    "distance": lambda: join(event_time="t", on="k", within=("-3 s", "3 s"), late=FAR, how="full", **OFFSETS),
    "window": lambda: join(event_time="t", on="k", window=sliding("6 s", "3 s"), late=FAR, how="left", **OFFSETS),
    "own windows": lambda: join(event_time="t", on="k", window=(tumbling("5 s"), None), retain=FAR, **OFFSETS),
    "sessions": lambda: session_join(event_time="t", on="k", gap="3 s", late=FAR, how="full", **OFFSETS),
    "union": lambda: union(event_time="t", sides=SIDES, offset="off"),
    "merge": lambda: (
        merge(event_time="t", key="k", offset="off")
        .window(tumbling("5 s"))
        .aggregate(left=list_("left_t"), right=list_("right_t"))
        .late(FAR)
        .accumulation(DISCARDING)
    ),
}
SETTINGS = (
    advance_time("drop", generation(2, "1 s")),
    advance_time("adjust", generation(1)),
    advance_time("adjust", generation("4 s", "1 s")),
    advance_time("drop", generation(1, "-1 microseconds")),
)
IMPORTED = (advance_time("adjust", import_from="left"), advance_time("drop", generation(3), "left"))
ABOUT: dict[str, Any] = {"end": "end", "shape_column": "shape"}


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

    def __init__(self, settings: dict[str, AdvanceTime]) -> None:
        self.of = {side: CtiTwin(one) for side, one in settings.items()}

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


@pytest.mark.parametrize("kind", some(JOBS, 3))
@settings(max_examples=settings.default.max_examples // 2)
@given(given_=batches, left=st.sampled_from(SETTINGS), right=st.sampled_from((*SETTINGS, *IMPORTED)))
def test_the_sides_of_a_job_advance_like_their_twins(
    kind: str, given_: list[dict[str, list[Row]]], left: AdvanceTime, right: AdvanceTime
) -> None:
    both = {"left": left, "right": right}
    described, twins, numbers = JOBS[kind]().advance_time(both, **ABOUT), Twins(both), dict.fromkeys(SIDES, 0)
    schema = described.schema(SCHEMA, SCHEMA)
    panes, kept = [], {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        tested = Harness(described, schema, store=Memory(), folder=folder, partitions=2)
        for batch in given_:
            numbered = {}
            for side, own in batch.items():
                numbered[side] = list(enumerate(own, numbers[side]))
                numbers[side] += len(own)
            # Rows of a side count in the order of their offsets, however they are mixed.
            parts = {side: table(own[::-1]) for side, own in numbered.items()}
            panes.append(tested.feed(described.rows(schema, **parts)))
            for side, own in twins.batch(numbered).items():
                kept[side] += [(numbered[side][at - numbered[side][0][0]], start) for at, start in own]
            found = evidence.work(Path(folder))
            if found:
                assert (found[-1].get("watermark_us") or twins.watermark) == twins.watermark
        panes.append(tested.finish())
    # The same job without CTIs, over what the twins let through.
    plain, fed = JOBS[kind](), {}
    for side, own in kept.items():
        starts = pa.array([start for _, start in own], pa.int64()).cast(TIME)
        fed[side] = (table([row for row, _ in own]), starts)
    whole = described.rows(schema, **{side: rows_ for side, (rows_, _) in fed.items()})
    times = pa.concat_arrays([starts for _, starts in fed.values()])
    whole = whole.set_column(whole.schema.get_field_index("time"), "time", times)
    other = Harness(plain, schema, store=Memory(), partitions=2)
    expected = [other.feed(whole), other.finish()]
    assert net(panes) == net(expected)


def test_the_slow_side_follows_the_ctis_of_the_fast_one_in_the_same_batch(tmp_path: Path) -> None:
    both = {"left": advance_time("drop", generation(1)), "right": advance_time("adjust", import_from="left")}
    described = JOBS["distance"]().advance_time(both, **ABOUT)
    schema = described.schema(SCHEMA, SCHEMA)
    tested = Harness(described, schema, folder=tmp_path / "root", partitions=1)
    tested.feed(described.rows(schema, left=table([(0, Row("point", 30))])))
    assert evidence.work(tmp_path / "root")[-1]["watermark_us"] == 30 * SECOND
    tested.feed(described.rows(schema, right=table([(0, Row("interval", 5, 40)), (1, Row("point", 5))])))
    assert tested.ledger()["reason"].to_pylist() == ["cti_violation"]
    assert tested.counters()["cti_adjusted"] == 1
    tested.restart()
    tested.feed(described.rows(schema, left=table([(1, Row("point", 31))])))
    assert evidence.work(tmp_path / "root")[-1]["watermark_us"] == 31 * SECOND


def test_what_makes_no_sense_is_refused() -> None:
    generated, from_left = advance_time("drop", generation(1)), advance_time("drop", import_from="left")
    unordered = join(event_time="t", on="k", within=("0 s", "1 s"))
    described = JOBS["distance"]()
    circle = {"left": advance_time("drop", generation(1), "right"), "right": from_left}
    for wrong in (
        lambda: unordered.advance_time(generated),
        lambda: union(event_time="t", sides=SIDES).advance_time(generated),
        lambda: described.advance_time({"left": generated}),
        lambda: described.advance_time({"left": generated, "right": advance_time("drop", import_from="other")}),
        lambda: described.advance_time(circle),
        lambda: described.advance_time(from_left),
    ):
        with pytest.raises(UsageError) as caught:
            wrong()
        assert caught.value.code == "advance-time"
    with pytest.raises(UsageError) as caught:
        described.advance_time(generated, shape=("point", "point", "point"))
    assert caught.value.code == "event-shape"
    with pytest.raises(UsageError) as caught:
        union(event_time="t", sides=SIDES, origin="k")
    assert caught.value.code == "offset"


@pytest.mark.parametrize(("kind", "by"), in_turn(["distance", "window", "sessions"], SETTINGS[1:3]))
def test_a_join_by_hand_takes_ctis(tmp_path: Path, kind: str, by: AdvanceTime) -> None:
    """What comes again changes nothing, across a crash too; a refused row is in the ledger each time."""
    chance, described, made = Random(kind), JOBS[kind]().advance_time(by, **ABOUT), []
    for base in range(0, 30, 6):
        one = {}
        for place, side in enumerate(SIDES):
            starts = [base + chance.randint(-6, 6) for _ in range(4)]
            one[side] = table(
                [(9 * base + n, Row("interval", start, start + 7 * place + 1)) for n, start in enumerate(starts)]
            )
        made.append(one)
    schema = described.schema(SCHEMA, SCHEMA)
    twin = Harness(described, schema, folder=tmp_path / "twin", partitions=2)
    panes = [twin.feed(described.rows(schema, **one)) for one in made]
    wanted, found = net([*panes, twin.finish()]), list[pa.Table]()

    def begin() -> JoinOperator:
        return JoinOperator(described, SCHEMA, SCHEMA, checkpoint=tmp_path / "root", partitions=3)  # type: ignore[arg-type]

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
    lifetimes = overlap_join(event_time="t", on="k", offset="off").advance_time(advance_time("drop", generation(1)))
    with pytest.raises(UsageError, match="operator-window"):
        JoinOperator(lifetimes, SCHEMA, SCHEMA, checkpoint=tmp_path)  # type: ignore[arg-type]


def test_rows_without_a_place_in_the_order_are_in_the_ledger(tmp_path: Path) -> None:
    described = JOBS["union"]().advance_time(advance_time("drop", generation(1)))
    schema = described.schema(SCHEMA, SCHEMA)
    tested = Harness(described, schema, folder=tmp_path / "root", partitions=1)
    tested.feed(described.rows(schema, left=table([(-1, Row("point", 3)), (0, Row("point", 4))])))
    assert tested.ledger()["reason"].to_pylist() == ["bad_offset"]
