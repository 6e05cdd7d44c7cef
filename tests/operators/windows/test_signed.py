"""Windows over rows of which some take others back: the net of all panes is that of the rows that are left."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.every_store import STORES, store_config
from tests.helpers.process import SCRATCH, few, forget
from tests.twins.signed import READ, SCHEMA, Batch, Case, Signed, Twin, cases, close, rows_of, streams, table
from tidestate import Aggregation, agg, trigger
from tidestate.operators.bind.operator import bind_plan
from tidestate.operators.local.harness import Harness
from tidestate.operators.windows.plan import WindowPlan
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import StoreName


@pytest.mark.slow
@pytest.mark.parametrize("name", few(STORES, STORES.index("memory")))
@settings(max_examples=max(3, settings.default.max_examples // 4))
@given(
    case=cases(),
    batches=streams(),
    restarts=st.frozensets(st.integers(0, 6), max_size=3),
    partitions=st.sampled_from([1, 1, 3]),
    limits=st.sampled_from([(12, 4 << 20), (2, 4 << 20), (4, 1)]),
    waits=st.booleans(),
)
def test_the_net_of_all_panes_is_that_of_the_rows_that_are_left(
    name: StoreName,
    case: Case,
    batches: list[Batch],
    restarts: frozenset[int],
    partitions: int,
    limits: tuple[int, int],
    waits: bool,
) -> None:
    twin, observed = Twin(case), []
    forget()
    with tempfile.TemporaryDirectory(prefix="signed-", dir=SCRATCH) as at:
        store = store_config(name, Path(at), limits)
        harness = Signed(
            case.description().graph.description, SCHEMA, store=store, folder=f"{at}/root", partitions=partitions
        )
        for number, batch in enumerate(batches):
            if number in restarts:
                harness.restart()
            observed += rows_of(case, harness.feed(table(case, batch)))
            twin.feed(batch)
            if waits:
                observed += rows_of(case, harness.advance_processing_time(4 * (number + 1)))
        check_kept(case, twin, harness)
        observed += rows_of(case, harness.finish())
        assert harness.ledger().num_rows == twin.rejected
    assert len({row[:1] + row[2:] for row in observed}) == len(observed)
    found, expected = READ[case.mode](case, observed), twin.net()
    if case.mode == "discarding":
        expected = {window: tuple(value or 0 for value in values) for window, values in expected.items()}
    assert found.keys() == expected.keys()
    assert all(close(found[window], expected[window]) for window in expected)


def check_kept(case: Case, twin: Twin, harness: Harness) -> None:
    """Windows with nothing left are not among those that are kept."""
    kept = harness.windows()
    keys = zip(*(kept[name].cast(pa.int64()).to_pylist() for name in ("window_start", "window_end")), strict=True)
    found = {(*bounds, key) for bounds, key in zip(keys, kept["k"].to_pylist(), strict=True)}
    assert found <= twin.net().keys()


JOB = ts.stream(event_time="t").group_by("k").window(ts.tumbling("10 microseconds"))


def fed(*batches: list[tuple[int, str, int]], mode: Any = "accumulating") -> list[list[tuple[Any, ...]]]:
    """Count, sum, pane, timing and kind of the panes of each batch; a batch has (time, kind, value)."""
    job = JOB.aggregate(n=agg.count(), total=agg.sum("v")).allowed_lateness("20 microseconds").accumulation(mode)
    harness, found = Signed(job.graph.description, SCHEMA), []
    names = ["n", "total", "pane", "timing", "kind"]
    for batch in batches:
        rows = [{"t": t, "k": "a", "v": v, "kind": kind} for t, kind, v in batch]
        panes = harness.feed(pa.Table.from_pylist(rows, SCHEMA))
        found.append([tuple(row.values()) for row in panes.select(names).to_pylist()])
    return found


LOST = ([(1, "emit", 5), (12, "emit", 7)], [(1, "retract", 5)], [(2, "emit", 6)])


def test_a_window_that_lost_its_rows_is_taken_back() -> None:
    """And its panes are numbered on when it has some again."""
    assert fed(*LOST, mode="retracting") == [
        [(1, 5, 0, "on_time", "emit")],
        [(1, 5, 0, "late", "retract")],
        [(1, 6, 1, "late", "emit")],
    ]


def test_a_window_that_lost_its_rows_says_so() -> None:
    assert fed(*LOST) == [
        [(1, 5, 0, "on_time", "emit")],
        [(0, None, 1, "late", "emit")],
        [(1, 6, 2, "late", "emit")],
    ]


def test_discarding_shows_differences() -> None:
    batches = ([(1, "emit", 5), (12, "emit", 7)], [(1, "retract", 5), (2, "emit", 9)], [(2, "retract", 9)])
    assert fed(*batches, mode="discarding") == [
        [(1, 5, 0, "on_time", "emit")],
        [(0, 4, 1, "late", "emit")],
        [(-1, -9, 2, "late", "emit")],
    ]


def test_a_window_that_never_showed_what_it_lost_is_none() -> None:
    batches = ([(1, "emit", 5), (1, "retract", 5)], [(12, "emit", 7)], [(40, "emit", 7)])
    assert fed(*batches) == [[], [], [(1, 7, 0, "on_time", "emit")]]


REFUSED: dict[str, Aggregation] = {
    "sessions": ts.stream(event_time="t").group_by().window(ts.sessions("5 seconds")).aggregate(n=agg.count()),
    "counted": ts.stream(event_time="t").group_by().window(ts.count_windows(3)).aggregate(n=agg.count()),
    "offsets": ts.stream(offset="v").group_by().window(ts.offset_windows(3)).aggregate(n=agg.count()),
    "processing time": ts.stream(processing_time=True).group_by().window(ts.global_window()).aggregate(n=agg.count()),
    "panes per element": ts.stream(event_time="t", offset="v")
    .group_by()
    .window(ts.tumbling("5 seconds"))
    .aggregate(n=agg.count())
    .trigger(early=trigger.each_element()),
    "differences of extremes": (
        JOB.aggregate(least=agg.min("v")).allowed_lateness("20 microseconds").accumulation("discarding")
    ),
    "differences of doubles": (
        JOB.aggregate(total=agg.sum("x")).allowed_lateness("20 microseconds").accumulation("discarding")
    ),
    "the kind itself": (JOB.aggregate(kinds=agg.count("kind")).allowed_lateness("20 microseconds")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_follow_rows_that_are_taken_back_is_refused(name: str) -> None:
    description = REFUSED[name]
    bind_plan(description.graph.description, SCHEMA)
    with pytest.raises(UsageError) as caught:
        bind_plan(description.graph.description, SCHEMA, signed=True)
    assert caught.value.code == "signed"


def test_without_a_kind_nothing_is_taken_back() -> None:
    with pytest.raises(UsageError) as caught:
        bind_plan(
            (JOB.aggregate(n=agg.count()).allowed_lateness("20 microseconds")).graph.description,
            SCHEMA.remove(SCHEMA.get_field_index("kind")),
            signed=True,
        )
    assert caught.value.code == "column-missing"


def test_any_process_finds_how_rows_cancel_out() -> None:
    program = (
        "from tidestate.statestore.spec.combiners import registered; import sys; "
        "assert 'tidestate.operators' not in sys.modules; "
        "registered('tidestate-cancel', 1)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_map_that_has_not_changed_is_not_emitted_again() -> None:
    job = (
        JOB.aggregate(tally=agg.count_by_value("v"))
        .allowed_lateness("20 microseconds")
        .trigger(early=trigger.each_batch(), only_updated=True)
    )
    harness = Signed(job.graph.description, SCHEMA)
    rows = {"t": 1, "k": "a", "v": 5}
    panes = [harness.feed(pa.Table.from_pylist([rows | one], SCHEMA)) for one in ({}, {"v": None}, {"v": 5})]
    assert [pane["tally"].to_pylist() for pane in panes] == [[[(5, 1)]], [], [[(5, 2)]]]


def test_the_state_of_others_is_as_it_was() -> None:
    job = (
        JOB.aggregate(n=agg.count(), least=agg.min("v"))
        .allowed_lateness("20 microseconds")
        .trigger(early=trigger.each_batch())
    )
    plain, over = bind_plan(job.graph.description, SCHEMA), bind_plan(job.graph.description, SCHEMA, signed=True)
    assert isinstance(plain, WindowPlan)
    assert isinstance(over, WindowPlan)
    assert not {"_net", "least_rows"} & set(plain.groups.schema.names)
    assert {"_net", "least_rows"} <= set(over.groups.schema.names)
    assert "kind" not in plain.input.schema.names
    assert plain.fingerprint != over.fingerprint
