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

from tests.helpers.every_store import STORES, store_config
from tests.helpers.process import SCRATCH, forget
from tests.twins.signed import READ, SCHEMA, Batch, Case, Signed, Twin, cases, close, rows_of, streams, table
from tidestate.agg import count, count_by_value
from tidestate.agg import min as min_
from tidestate.agg import sum as sum_
from tidestate.operators import global_window, tumbling
from tidestate.operators.bind.operator import bind_plan
from tidestate.operators.describe.triggers import every_element
from tidestate.operators.describe.windowed import Windowed, windowed
from tidestate.operators.describe.windows import count_window, session
from tidestate.operators.local.harness import Harness
from tidestate.operators.windows.plan import WindowPlan
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import StoreName


@pytest.mark.slow
@pytest.mark.parametrize("name", STORES)
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
        harness = Signed(case.description(), SCHEMA, store=store, folder=f"{at}/root", partitions=partitions)
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


JOB = windowed(event_time="t", key="k").window(tumbling("10 microseconds")).late("20 microseconds")


def fed(job: Windowed, *batches: list[tuple[int, str, int]]) -> list[list[tuple[Any, ...]]]:
    """Count, sum, pane, timing and kind of the panes of each batch; a batch has (time, kind, value)."""
    harness, found = Signed(job.aggregate(n=count(), total=sum_("v")), SCHEMA), []
    names = ["n", "total", "pane", "timing", "kind"]
    for batch in batches:
        rows = [{"t": t, "k": "a", "v": v, "kind": kind} for t, kind, v in batch]
        panes = harness.feed(pa.Table.from_pylist(rows, SCHEMA))
        found.append([tuple(row.values()) for row in panes.select(names).to_pylist()])
    return found


LOST = ([(1, "emit", 5), (12, "emit", 7)], [(1, "retract", 5)], [(2, "emit", 6)])


def test_a_window_that_lost_its_rows_is_taken_back() -> None:
    """And its panes are numbered on when it has some again."""
    assert fed(JOB.accumulation("retracting"), *LOST) == [
        [(1, 5, 0, "on_time", "emit")],
        [(1, 5, 0, "late", "retract")],
        [(1, 6, 1, "late", "emit")],
    ]


def test_a_window_that_lost_its_rows_says_so() -> None:
    assert fed(JOB, *LOST) == [
        [(1, 5, 0, "on_time", "emit")],
        [(0, None, 1, "late", "emit")],
        [(1, 6, 2, "late", "emit")],
    ]


def test_discarding_shows_differences() -> None:
    batches = ([(1, "emit", 5), (12, "emit", 7)], [(1, "retract", 5), (2, "emit", 9)], [(2, "retract", 9)])
    assert fed(JOB.accumulation("discarding"), *batches) == [
        [(1, 5, 0, "on_time", "emit")],
        [(0, 4, 1, "late", "emit")],
        [(-1, -9, 2, "late", "emit")],
    ]


def test_a_window_that_never_showed_what_it_lost_is_none() -> None:
    batches = ([(1, "emit", 5), (1, "retract", 5)], [(12, "emit", 7)], [(40, "emit", 7)])
    assert fed(JOB, *batches) == [[], [], [(1, 7, 0, "on_time", "emit")]]


REFUSED: dict[str, Windowed] = {
    "sessions": windowed(event_time="t").window(session("5 seconds")).aggregate(n=count()),
    "counted": windowed(event_time="t").window(count_window(3)).aggregate(n=count()),
    "offsets": windowed(offset="v").window(count_window(3, by="offset")).aggregate(n=count()),
    "processing time": windowed(processing_time=True).window(global_window()).aggregate(n=count()),
    "panes per element": windowed(event_time="t", offset="v")
    .window(tumbling("5 seconds"))
    .trigger(early=every_element(), per_element=True)
    .aggregate(n=count()),
    "differences of extremes": JOB.aggregate(least=min_("v")).accumulation("discarding"),
    "differences of doubles": JOB.aggregate(total=sum_("x")).accumulation("discarding"),
    "the kind itself": JOB.aggregate(kinds=count("kind")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_follow_rows_that_are_taken_back_is_refused(name: str) -> None:
    description = REFUSED[name]
    bind_plan(description, SCHEMA)
    with pytest.raises(UsageError) as caught:
        bind_plan(description, SCHEMA, signed=True)
    assert caught.value.code == "signed"


def test_without_a_kind_nothing_is_taken_back() -> None:
    with pytest.raises(UsageError) as caught:
        bind_plan(JOB.aggregate(n=count()), SCHEMA.remove(SCHEMA.get_field_index("kind")), signed=True)
    assert caught.value.code == "column-missing"


def test_any_process_finds_how_rows_cancel_out() -> None:
    program = (
        "from tidestate.statestore.spec.combiners import registered; import sys; "
        "assert 'tidestate.operators' not in sys.modules; "
        "registered('tidestate-cancel', 1)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_map_that_has_not_changed_is_not_emitted_again() -> None:
    job = JOB.trigger(early=every_element(), only_updated=True).aggregate(tally=count_by_value("v"))
    harness = Signed(job, SCHEMA)
    rows = {"t": 1, "k": "a", "v": 5}
    panes = [harness.feed(pa.Table.from_pylist([rows | one], SCHEMA)) for one in ({}, {"v": None}, {"v": 5})]
    assert [pane["tally"].to_pylist() for pane in panes] == [[[(5, 1)]], [], [[(5, 2)]]]


def test_the_state_of_others_is_as_it_was() -> None:
    job = JOB.trigger(early=every_element()).aggregate(n=count(), least=min_("v"))
    plain, over = bind_plan(job, SCHEMA), bind_plan(job, SCHEMA, signed=True)
    assert isinstance(plain, WindowPlan)
    assert isinstance(over, WindowPlan)
    assert not {"_net", "least_rows"} & set(plain.groups.schema.names)
    assert {"_net", "least_rows"} <= set(over.groups.schema.names)
    assert "kind" not in plain.input_schema.names
    assert plain.fingerprint != over.fingerprint
