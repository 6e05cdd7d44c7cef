"""What depends on how the input is cut into batches, and what does not: docs/SEMANTICS.md has the list."""

from __future__ import annotations

import random
import warnings
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from tests.helpers.cuts import EVENTS, SECOND, by_cut, cuts, events, net, plain, played, table
from tests.helpers.process import LONG
from tests.helpers.process import in_turn as turns
from tidestate.agg import count, first, last
from tidestate.agg import list as list_
from tidestate.agg import max as max_
from tidestate.agg import sum as sum_
from tidestate.operators import global_window, sliding, tumbling
from tidestate.operators.describe.chain import chain
from tidestate.operators.describe.deduplicate import deduplicated
from tidestate.operators.describe.given_join import join
from tidestate.operators.describe.merge import merge
from tidestate.operators.describe.session_join import session_join
from tidestate.operators.describe.triggers import every_element
from tidestate.operators.describe.union import union
from tidestate.operators.describe.windowed import ACCUMULATING, RETRACTING, windowed
from tidestate.operators.describe.windows import count_window, session
from tidestate.operators.local.harness import Harness
from tidestate.operators.progress.cti_settings import advance_time, generation
from tidestate.statestore.errors import IncompatibleError, UsageError
from tidestate.stores import Memory, Parquet

ORDER = {"offset": "at", "origin": "part"}
DELAY = "6 s"


# deduplication


def in_turn(rows: list[dict[str, Any]], within: int | None) -> list[int]:
    """The naive twin of `deduplicated(in_order=True)`: rows one after the other."""
    known: dict[str, int] = {}
    passed = []
    for row in sorted(rows, key=lambda row: row["t"]):
        until = known.get(row["k"])
        if until is None or (until <= row["t"] if within is not None else until < row["t"]):
            passed.append(row["v"])
            known[row["k"]] = row["t"] + (within or 0)
    return sorted(passed)


DEDUPLICATED: dict[str, Any] = {"memory": Memory(), "parquet": Parquet(max_levels=2, snapshot_bytes=1)}


@pytest.mark.slow
@pytest.mark.parametrize(("store", "within"), turns(DEDUPLICATED, [None, 0, 3, 11]))
def test_deduplication_in_order_passes_the_same_rows_by_any_cut(store: str, within: int | None) -> None:
    chance = random.Random(within)
    given = events(chance, 70)
    span = None if within is None else f"{within} s"
    description = deduplicated(event_time="t", on="k", within=span, watermark_delay=DELAY, in_order=True)
    expected = in_turn(given, None if within is None else within * SECOND)
    for panes in by_cut(description, given, chance, store=DEDUPLICATED[store], restarts=True):
        assert sorted(pane["v"] for pane in panes) == expected
    assert len(expected) < len(given) or within == 0


def test_deduplication_as_rows_come_depends_on_the_cut() -> None:
    """Pinned: the first to come passes, and is remembered until the watermark of a batch has passed it."""
    given = [
        {"k": "a", "t": at * SECOND, "v": number, "part": "x", "at": number}
        for number, at in enumerate([5, 3, 20, 21])
    ]
    description = deduplicated(event_time="t", on="k", within="10 s")
    found = [
        [pane["v"] for pane in played(description, [table(some) for some in cut])[0]]
        for cut in ([given], [given[:2], given[2:]], [given[:3], given[3:]])
    ]
    assert found == [[0], [0], [0, 3]]


# order of arrival


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["count", "hopping", "tumbling", "session"])
def test_what_goes_by_order_is_the_same_by_any_cut_in_order(kind: str) -> None:
    chance = random.Random(kind)
    given = events(chance, 60)
    windows = {
        "count": count_window(5),
        "hopping": count_window(6, 2),
        "tumbling": tumbling("8 s"),
        "session": session("2 s"),
    }[kind]
    description = (
        windowed(event_time="t", key="k", watermark_delay=DELAY, in_order=True, **ORDER)
        .window(windows)
        .aggregate(n=count(), one=first("v", by="t"), other=last("v", by="t"), every=list_("v"))
        .accumulation(RETRACTING)
    )
    observed = by_cut(description, given, chance)
    found = [net(panes, "pane", "timing", "last", "every") for panes in observed]
    assert all(one == found[0] for one in found)
    lists = [plain([pane for pane in panes if pane["timing"] == "on_time"], "k", "every") for panes in observed]
    assert all(one == lists[0] for one in lists)
    if kind == "count":
        by_key = defaultdict(list)
        for row in sorted(given, key=lambda row: (row["t"], row["part"], row["at"])):
            by_key[row["k"]].append(row["v"])
        expected = [(k, vs[n : n + 5]) for k, vs in by_key.items() for n in range(0, len(vs), 5)]
        assert lists[0] == sorted(expected)


def test_messages_are_numbered_as_they_come_without_the_option() -> None:
    """Pinned: of several origins, within a batch by (origin, offset), so the cut says which count first."""
    rows = [("y", 1), ("x", 1), ("y", 2), ("x", 2)]
    given = [{"k": "a", "t": n * SECOND, "v": n, "part": part, "at": at} for n, (part, at) in enumerate(rows)]
    made = windowed(event_time="t", key="k", **ORDER).window(count_window(2)).aggregate(one=list_("v"))
    held = windowed(event_time="t", key="k", in_order=True, **ORDER).window(count_window(2)).aggregate(one=list_("v"))
    found = [
        [pane["one"] for pane in played(one, [table(some) for some in cut])[0]]
        for one in (made, held)
        for cut in ([given], [given[:1], given[1:]])
    ]
    assert found == [[[1, 3], [0, 2]], [[0, 1], [3, 2]], [[0, 1], [2, 3]], [[0, 1], [2, 3]]]


EXACT: dict[str, Any] = {
    "tumbling": tumbling("7 s"),
    "sliding": sliding("9 s", "3 s"),
    "session": session("2 s"),
    "global": global_window(),
    "offsets": count_window(4, 2, by="offset", late=40),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", EXACT)
def test_exact_aggregates_of_other_windows_need_no_order(kind: str) -> None:
    chance = random.Random(kind)
    given = [row | {"part": "x", "at": n} for n, row in enumerate(events(chance, 50))]
    begun = windowed(event_time="t", key="k", watermark_delay=DELAY)
    if kind == "offsets":
        begun = windowed(key="k", offset="at")
    if kind in ("tumbling", "sliding"):
        begun = begun.late("0 s")
    else:
        begun = begun.accumulation(RETRACTING) if kind != "global" else begun
    description = begun.window(EXACT[kind]).aggregate(n=count(), total=sum_("v"), most=max_("v"))
    found = [net(panes, "pane", "timing", "last") for panes in by_cut(description, given, chance)]
    assert all(one == found[0] for one in found)


def test_sessions_with_early_panes_add_up_only_where_they_take_back() -> None:
    """Pinned: of a session that grows in a second batch the pane of its part stays."""
    given = [{"k": "a", "t": n * SECOND, "v": n, "part": "x", "at": n} for n in range(4)]
    found = []
    for mode in (ACCUMULATING, RETRACTING):
        description = windowed(event_time="t", watermark_delay=DELAY).window(session("2 s")).aggregate(n=count())
        description = description.trigger(early=every_element()).accumulation(mode)
        for cut in ([given], [given[:2], given[2:]]):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                panes, _ = played(description, [table(some) for some in cut])
            found.append(set(net(panes, "pane", "timing", "last", "window_start")))
    assert found[0] < found[1]
    assert found[0] == found[2] == found[3]


# lateness


def test_lateness_is_judged_by_the_watermark_before_the_batch() -> None:
    """Pinned: a row is not late among those it came with; with a delay as long as rows are behind none is late."""
    given = [{"k": "a", "t": at * SECOND, "v": n, "part": "x", "at": n} for n, at in enumerate([1, 30, 2, 31])]
    found = []
    for delay in ("0 s", "28 s"):
        description = (
            windowed(event_time="t", watermark_delay=delay).window(tumbling("5 s")).aggregate(n=count()).late("0 s")
        )
        for cut in ([given], [given[:2], given[2:]]):
            panes, ledger = played(description, [table(some) for some in cut])
            found.append((sum(pane["n"] for pane in panes), len(ledger)))
    assert found == [(4, 0), (3, 1), (4, 0), (4, 0)]


@pytest.mark.parametrize("mode", ["rows", "window"])
def test_panes_and_ledger_hold_each_row_once_by_any_cut(mode: str) -> None:
    chance = random.Random(mode)
    given = events(chance, 50, behind=15)
    description = (
        windowed(event_time="t", key="k", watermark_delay="2 s").window(tumbling("5 s")).aggregate(n=count())
    )
    description = description.late("3 s", rule="event" if mode == "rows" else "window").accumulation(RETRACTING)
    for cut in cuts(given, chance, tries=3, single=False):
        panes, ledger = played(description, [table(some) for some in cut])
        counted = sum(pane["n"] * (-1 if pane["kind"] == "retract" else 1) for pane in panes)
        assert counted + len(ledger) == len(given)


@pytest.mark.parametrize("policy", ["drop", "adjust"])
def test_ctis_judge_by_each_row_not_by_batches(policy: Any) -> None:
    chance = random.Random(policy)
    given = events(chance, 50)
    description = (
        windowed(event_time="t", key="k", **ORDER)
        .window(tumbling("5 s"))
        .aggregate(n=count(), total=sum_("v"))
        .advance_time(advance_time(policy, generation(4, "1 s")), sources=["x", "y"])
    )
    found = []
    for cut in cuts(given, chance, tries=3, single=False):
        panes, ledger = played(description, [table(some) for some in cut])
        found.append((net(panes), Counter((row["v"], row["reason"]) for row in ledger)))
    assert all(one == found[0] for one in found)
    assert found[0][1]


def test_future_events_are_those_far_ahead_of_the_watermark() -> None:
    """Of the start of the batch, by more than its delay and the tolerance: W is 200 after an event at 320."""
    cases = [("120 s", [320, 379, 380, 381], 1), ("120 s", [320, 280, 381, 382], 2), ("0 s", [200, 260, 261, 262], 2)]
    for identified in ({}, {"offset": "at", "origin": "part"}):
        for delay, times, future in cases:
            given = [{"k": "a", "t": at * SECOND, "v": n, "part": "x", "at": n} for n, at in enumerate(times)]
            described = windowed(event_time="t", watermark_delay=delay, **identified)
            harness = Harness(described.window(tumbling("5 s")).aggregate(n=count()), table(given).schema)
            harness.feed(table(given[:1]))
            assert harness.counters()["future"] == 0  # there is no watermark yet
            harness.restart()
            harness.feed(table(given[1:]))
            assert harness.counters()["future"] == future


def test_what_an_operator_passes_on_is_no_more_in_the_future_than_in_its_input() -> None:
    """The windows behind it have its watermark, and so its delay."""
    job = chain(
        deduplicated(event_time="t", on="v", within="1 day", watermark_delay="1 hour", name="once"),
        windowed(event_time="t", name="counts").window(tumbling("5 s")).aggregate(n=count()),
    )
    given = [{"k": "a", "t": at * SECOND, "v": n, "part": "x", "at": n} for n, at in enumerate([1, 50, 110])]
    harness = Harness(job, table(given).schema)
    for row in given:
        harness.feed(table([row]))
    assert {name: many for name, many in harness.counters().items() if name.endswith("future")} == {
        "once.future": 0,
        "counts.future": 0,
    }


# several streams


def both(description: Any, given: list[dict[str, Any]]) -> list[Any]:
    """Batches of two streams: rows of the part x are the left side's."""
    schema = description.schema(EVENTS, EVENTS)
    sides = dict(zip(description.sides.names, "xy", strict=True))
    return [
        description.rows(schema, **{side: table([row for row in given if row["part"] == part])})
        for side, part in sides.items()
    ]


SEVERAL = {
    "session join": session_join(event_time="t", on="k", gap="2 s", how="full", watermark_delay=DELAY),
    "late sessions": session_join(
        event_time="t", on="k", gap="2 s", how="full", watermark_delay="1 s", late="20 s", offset="at"
    ),
    "union": union(event_time="t", sides=("left", "right"), watermark_delay=DELAY),
    "merge": merge(event_time="t", key="k", watermark_delay=DELAY)
    .window(session("2 s"))
    .aggregate(n=count(), total=sum_("left_v"))
    .accumulation(RETRACTING),
    "cogroup": merge(event_time="t", key="k", watermark_delay=DELAY, offset="at", origin="part", in_order=True)
    .window(tumbling("7 s"))
    .cogroup(left="v", right="v"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SEVERAL)
def test_what_several_streams_come_to_is_the_same_by_any_cut(name: str) -> None:
    chance, description = random.Random(name), SEVERAL[name]
    given = events(chance, 50)
    found = []
    for cut in cuts(given, chance, tries=4 if LONG else 2, single=False):
        batches = [pa.concat_tables(both(description, some)) for some in cut]
        panes, ledger = played(description, batches, partitions=chance.choice([1, 2]))
        assert not ledger
        found.append(net([{n: str(v) for n, v in one.items()} for one in panes], "pane", "timing", "last"))
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize("in_order", [True, False])
def test_a_join_with_windows_of_each_side_goes_by_them_in_a_chain(in_order: bool) -> None:
    """Positions of rows that come from an operator count too; it was forgotten, and everything met everything."""
    chance = random.Random(2)
    given = events(chance, 60, behind=6 if in_order else 0)
    alone = join(
        event_time="t", on="k", window=(tumbling("8 s"), tumbling("6 s")), watermark_delay=DELAY, in_order=in_order
    )
    once = deduplicated(event_time="t", on=("part", "at"), within="1 hour", watermark_delay=DELAY, name="once")
    described = chain(once, alone, inputs={"once": "lefts", "joined": ("once", "rights")})
    schemas = {"lefts": EVENTS, "rights": EVENTS}
    expected = None
    for cut in cuts(given, chance, tries=2 if LONG else 1, single=False):
        direct, chained = Harness(alone, alone.schema(EVENTS, EVENTS)), Harness(described, schemas, partitions=2)
        pairs, others = [], []
        for some in cut:
            sides = [table([row for row in some if row["part"] == part]) for part in "xy"]
            pairs += direct.feed(alone.rows(alone.schema(EVENTS, EVENTS), left=sides[0], right=sides[1])).to_pylist()
            others += chained.feed({"lefts": sides[0], "rights": sides[1]}).to_pylist()
        pairs += direct.finish().to_pylist()
        others += chained.finish().to_pylist()
        assert net(others) == net(pairs)
        expected = expected or net(pairs)
        assert net(pairs) == expected
    assert expected is not None
    assert sum(expected.values()) > 30


# what is refused


def test_events_that_are_held_cannot_take_a_new_aggregate(tmp_path: Path) -> None:
    job = windowed(event_time="t", in_order=True).window(count_window(3))
    given = table([{"k": "a", "t": 0, "v": 0, "part": "x", "at": 0}])
    Harness(job.aggregate(n=count()), given.schema, folder=tmp_path).feed(given)
    with pytest.raises(IncompatibleError, match="drain first"):
        Harness(job.aggregate(n=count(), total=sum_("v")), given.schema, folder=tmp_path)
    with pytest.raises(IncompatibleError, match="in_order"):
        Harness(replace(job, in_order=False).aggregate(n=count()), given.schema, folder=tmp_path)


def test_what_has_no_time_of_its_own_has_no_order() -> None:
    clock = windowed(processing_time=True, in_order=True).window(tumbling("5 s"))
    offsets = windowed(event_time="t", in_order=True, offset="at").window(count_window(3, by="offset"))
    for one in (clock, offsets):
        with pytest.raises(UsageError, match="in-order"):
            played(one.aggregate(n=count()), [table([{"k": "a", "t": 0, "v": 0, "part": "x", "at": 0}])])
