"""Joins give the same pairs however their input is cut into batches, and on however many state partitions."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.cuts import cuts, net
from tests.helpers.internals import head_of
from tests.helpers.join_jobs import SCHEMA, STORES, described, observed, table
from tests.helpers.moves import rewind
from tests.helpers.process import LONG, few
from tests.twins.join import SIDES, Asked, Row, Twin, Window
from tidestate import OperatorStream, Stream
from tidestate.operators.engine.job import progress_of
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.moves.rescale import rescale
from tidestate.statestore.errors import CorruptionError
from tidestate.statestore.spec.store import Memory

DELAY = 6


def rows(chance: random.Random, count: int = 50) -> list[Row]:
    """No row is late by any cut: none is more than the delay behind those before it."""
    made = []
    for number in range(count):
        side = chance.choice(SIDES)
        made.append(Row(side, chance.choice("aab"), number - chance.randint(0, DELAY) + DELAY, number, number))
    return made


def asked(chance: random.Random) -> Asked:
    of_offsets = [Window(5, 5, True), Window(4, 1, True), Window(5, 5, True, None), Window(7, 3, True, None)]
    windows = [None, Window(7, 7), Window(12, 4), *of_offsets]
    own = (chance.choice(windows), chance.choice(windows))
    spans = [None, None]
    for place, window in enumerate(own):
        if window is None and chance.random() < 0.5:
            spans[place] = chance.choice([3, 10])
    bounds = chance.choice([(None, None), (None, None), (-4, 5)])
    made = Asked(
        how=chance.choice(["inner", "left", "full"]),
        low=bounds[0],
        high=bounds[1],
        own=own,
        named=True,
        large=chance.random() < 0.5,
        on=chance.random() < 0.8,
        delays=(DELAY, DELAY),
        in_order=True,
    )
    by_offset = [made.by_offset(side) for side in SIDES]
    return replace(made, spans=(None if by_offset[0] else spans[0], None if by_offset[1] else spans[1]))


def batch(some: list[Row]) -> dict[str, pa.Table]:
    return {side: table([row for row in some if row.side == side]) for side in SIDES}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(0, 8, 1 if LONG else 3))
def test_pairs_in_windows_of_each_side_do_not_depend_on_the_cut(seed: int) -> None:
    chance = random.Random(seed)
    join_, given = asked(chance), rows(chance)
    first = {side: min(row.offset for row in given if row.side == side) for side in SIDES}
    twin = Twin(replace(join_, in_order=False, delays=(0, 0)), first)
    expected = net([])
    for row in sorted(given, key=lambda row: (row.at, SIDES.index(row.side), row.offset)):
        expected += twin.batch([row], 0)
    expected += twin.finish()
    description = described(join_)
    schema = {"left": SCHEMA, "right": SCHEMA}
    store = STORES[chance.choice(list(STORES))]
    for cut in cuts(given, chance, single=seed == 0):
        harness = description.harness(schema, store=store, partitions=chance.choice([1, 3]))
        found = net([])
        for some in cut:
            found += observed(harness.feed(batch(some)), join_)
            if chance.random() < min(0.2, 3 / len(cut)):
                harness.restart()
        found += observed(harness.finish(), join_)
        assert found == expected, (join_, [len(some) for some in cut])
        assert harness.ledger().num_rows == twin.rejected
    assert sum(expected.values()) > 10


def test_rows_in_order_of_their_times_need_not_be_held() -> None:
    """What is wrong without: 400 + 400 rows gave eleven times as many pairs one row a batch as in one batch."""
    chance = random.Random(1)
    given = sorted(
        (Row(side, chance.choice("ab"), chance.randint(0, 300), n, n) for n in range(60) for side in SIDES),
        key=lambda r: (r.at, r.side),
    )
    description = ts.stream(event_time="t").join(
        ts.stream(event_time="t"),
        on="key",
        left=ts.side(window=ts.tumbling("40 s")),
        right=ts.side(window=ts.sliding("30 s", "10 s")),
        in_order=False,
    )
    schema = {"left": SCHEMA, "right": SCHEMA}
    counts = []
    for cut in cuts(given, chance, single=False):
        harness = description.harness(schema)
        counts.append(sum(harness.feed(batch(some)).num_rows for some in cut))
    assert set(counts) == {counts[0]}
    assert counts[0] > 200


def test_rows_that_come_as_they_like_are_pairs_by_the_cut_without_the_option() -> None:
    """Pinned: with ``in_order=False`` a row meets the windows as they are when it comes."""
    given = [Row("left", "a", 5, 1), Row("right", "a", 25, 2), Row("right", "a", 6, 3), Row("left", "a", 7, 4)]
    found = []
    for in_order in (False, True):
        description = ts.stream(event_time="t", watermark_delay="30 s").join(
            ts.stream(event_time="t", watermark_delay="30 s"),
            on="key",
            sides=ts.side(window=ts.tumbling("10 s")),
            in_order=in_order,
        )
        schema = {"left": SCHEMA, "right": SCHEMA}
        for cut in ([given], [given[:2], given[2:]]):
            harness = description.harness(schema)
            panes = [harness.feed(batch(some)) for some in cut] + [harness.finish()]
            found.append(sum(part.num_rows for part in panes))
    assert found == [4, 2, 4, 4]


def both(delay: str) -> tuple[Stream, Stream]:
    left, right = (ts.stream(event_time="t", watermark_delay=delay) for _ in "lr")
    return left, right


SLOW, FAST = both("6 s"), both("2 s")
OTHERS = {
    "bounds": SLOW[0].join(SLOW[1], on="key", within=("-4 s", "5 s"), how="full", allowed_lateness="8 s"),
    "each window": SLOW[0].join(SLOW[1], on="key", window=ts.sliding("8 s", "4 s"), how="full", occurrence="each"),
    "late rows": FAST[0].join(FAST[1], on="key", window=ts.tumbling("8 s"), how="left", allowed_lateness="30 s"),
}


@pytest.mark.slow
@pytest.mark.parametrize("description", few(OTHERS.values()), ids=OTHERS)
def test_the_net_of_other_joins_does_not_depend_on_the_cut(description: OperatorStream) -> None:
    chance = random.Random(5)
    given, schema = rows(chance, 50), {"left": SCHEMA, "right": SCHEMA}
    found: list[Any] = []
    for cut in cuts(given, chance, tries=4 if LONG else 3, single=False):
        harness = description.harness(schema, partitions=chance.choice([1, 2]))
        panes = [harness.feed(batch(some)) for some in cut] + [harness.finish()]
        if harness.ledger().num_rows == 0:
            found.append(net([row for part in panes for row in part.to_pylist()]))
    assert len(found) > 1
    assert all(one == found[0] for one in found)


def test_a_row_behind_the_watermark_of_its_batch_is_late() -> None:
    """Pinned: among the rows it comes with it is not."""
    given = [Row("left", "a", 1, 1), Row("left", "a", 90, 2), Row("right", "a", 90, 3), Row("right", "a", 3, 4)]
    description = ts.stream(event_time="t").join(ts.stream(event_time="t"), on="key", within=("0 s", "5 s"))
    schema, found = {"left": SCHEMA, "right": SCHEMA}, []
    for cut in ([given], [given[:3], given[3:]]):
        harness = description.harness(schema)
        found.append((sum(harness.feed(batch(some)).num_rows for some in cut), harness.ledger().num_rows))
    assert found == [(2, 0), (1, 1)]


HELD_SIDES = [ts.stream(event_time="t", watermark_delay="6 s", offset="off") for _ in "lr"]
HELD = HELD_SIDES[0].join(
    HELD_SIDES[1],
    on="key",
    how="full",
    left=ts.side(window=ts.offset_windows(6, 2)),
    right=ts.side(window=ts.tumbling("9 s")),
    identity=True,
)


def test_rows_that_are_held_survive_restart_rewind_and_other_partitions(tmp_path: Path) -> None:
    given, schema = rows(random.Random(3)), {"left": SCHEMA, "right": SCHEMA}

    def run(folder: Path, *, moved: bool) -> list[Any]:
        harness = HELD.harness(schema, store=Memory(), folder=folder, partitions=2)
        panes = harness.feed(batch(given[:31])).to_pylist()
        assert harness.state("ahead").num_rows > 3
        if moved:
            here = head_of(harness).id
            harness.feed(batch(given[31:45]))
            rewind(Checkpoint.open(folder), here, force=True)
            rescale(folder, 3, force=True)
            harness.restart()
            assert harness.state("ahead").num_rows > 3
        panes += harness.feed(batch(given[31:])).to_pylist()
        panes += harness.finish().to_pylist()
        assert harness.state("ahead").num_rows == 0
        return sorted(map(str, panes))

    assert run(tmp_path / "one", moved=False) == run(tmp_path / "other", moved=True)


def test_damaged_positions_in_a_manifest_are_refused(tmp_path: Path) -> None:
    harness = HELD.harness({"left": SCHEMA, "right": SCHEMA}, folder=tmp_path)
    harness.feed(batch(rows(random.Random(1), 30)))
    (stored,) = Checkpoint.open(tmp_path).head().manifest.operators.values()  # type: ignore[union-attr]
    assert stored.progress is not None
    assert set(stored.progress["ahead"]) == set(SIDES)
    for wrong in ("AAAA", 5, [1]):
        damaged = stored.progress | {"ahead": {"left": wrong}}
        with pytest.raises(CorruptionError, match="manifest-damaged"):
            progress_of(msgspec.structs.replace(stored, progress=damaged))
