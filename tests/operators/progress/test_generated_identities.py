"""Messages known by an identity, with CTIs and buffers: one that comes again takes part once, and is refused once."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.buffers import buffer
from tests.helpers.buffers import job as of_buffers
from tests.helpers.cti_rows import SCHEMA, SETTINGS, job, rows
from tests.helpers.process import SCRATCH, examples, few
from tidestate import Aggregation, watermark
from tidestate.operators.embedded.window_operator import WindowOperator
from tidestate.operators.engine.delivery import read_rows
from tidestate.operators.local.harness import Harness
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import Memory

SHAPES = ("point", "interval", "edge_start", "edge_end", "cti")
Pane = tuple[Any, ...]


def plain(panes: pa.Table) -> list[Pane]:
    """Rows of panes; their times in order, as lists of events without an identity are in the order of arrival."""
    return [tuple(map(repr, (row | {"times": sorted(row["times"])}).values())) for row in panes.to_pylist()]


@st.composite
def batches(draw: st.DrawFn) -> list[pa.Table]:
    """Rows of one source in the order of their offsets."""
    number, made = 0, []
    for size in draw(st.lists(st.integers(1, 8), min_size=1, max_size=5)):
        given_rows = []
        for _ in range(size):
            number += 1
            time, shape = draw(st.integers(0, 40)), draw(st.sampled_from(SHAPES))
            end = time + draw(st.integers(1, 20)) if shape in ("interval", "edge_end") else None
            given_rows.append((time, number, "orders", shape, end))
        made.append(rows(*given_rows))
    return made


def once(described: Aggregation, made: list[pa.Table], folder: Path) -> tuple[list[Pane], list[Pane]]:
    """Panes and ledger of the same job without identities, in which every row comes once."""
    twin = described.harness(SCHEMA, store=Memory(), folder=folder)
    panes = [row for batch in made for row in plain(twin.feed(batch))]
    return sorted(panes + plain(twin.finish())), refused(twin)


def of_messages(job: Aggregation, root: Path, **options: Any) -> WindowOperator:
    return WindowOperator(job.graph.description, SCHEMA, checkpoint=root, origin="src", offset="at", **options)


def refused(tested: Harness) -> list[Pane]:
    return sorted(tuple(row.values()) for row in tested.ledger().select(["at", "reason"]).to_pylist())


@pytest.mark.slow
@given(made=batches(), at_query=st.sampled_from(SETTINGS), data=st.data())
@settings(max_examples=examples(12), deadline=None)
def test_by_hand_replays_change_nothing(made: list[pa.Table], at_query: Any, data: st.DataObject) -> None:
    described = job(at_query, late="100 days").accumulation("retracting")
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        panes, gone = once(described, made, Path(folder) / "twin")
        open_ = partial(of_messages, described, Path(folder) / "root", partitions=2)
        running, found = open_(), list[Pane]()

        def take() -> None:
            for result in running.get_result():
                found.extend(plain(result.panes))
                running.acknowledge(result.id)
            running.flush()

        for number, batch in enumerate(made):
            twice = batch.slice(0, data.draw(st.integers(0, batch.num_rows)))
            running.add_messages(pa.concat_tables([batch, twice]))
            again = data.draw(st.sampled_from(["", "replay", "crash", "flush"]))
            if again == "flush":
                take()
            if again == "crash":
                running.close()
                running = open_()
            for earlier in made[: number + 1] if again in ("replay", "crash") else []:
                running.add_messages(earlier)
        running.drain()
        take()
        late = described.messages(("src", "at")).harness(SCHEMA, folder=Path(folder) / "empty").ledger().schema
        ledger = ledger_rows(Path(folder) / "root", late)
        running.close()
    assert sorted(found) == panes
    assert sorted(ledger) == gone


def ledger_rows(root: Path, schema: pa.Schema) -> list[Pane]:
    checkpoint = Checkpoint.open(root)
    tables = [read_rows(checkpoint, output.late, schema) for output in checkpoint.outputs()]
    return [tuple(row.values()) for table in tables for row in table.select(["at", "reason"]).to_pylist()]


@pytest.mark.parametrize("late", few(["100 days", "0 seconds"], 1))
def test_in_a_job_a_refused_message_is_known(tmp_path: Path, late: str) -> None:
    """CTIs by rows and by span do not count messages, so every batch may come twice."""
    by_span = watermark.cti_settings("adjust", generate=watermark.generate_ctis("5 seconds", delay="1 second"))
    made = [
        rows((3, 1), (9, 2, "orders", "interval", 30), (12, 3), (12, 4, "orders", "cti")),
        rows((5, 5), (6, 6, "orders", "interval", 25), (21, 7, "orders", "edge_start"), (None, 8)),
        rows((4, 9), (40, 10)),
    ]
    described = job(by_span, late=late).accumulation("retracting")
    known = described.messages(("src", "at"))
    # Behind what is known nothing takes part, adjusted or not.
    panes, gone = once(described if late != "0 seconds" else known, made, tmp_path / "twin")
    assert [reason for _, reason in gone].count("cti_violation") >= 2
    tested = known.harness(SCHEMA, folder=tmp_path / "root", partitions=2)
    found = [row for batch in made for _ in range(2) for row in plain(tested.feed(batch))]
    assert sorted(found + plain(tested.finish())) == panes
    assert {*refused(tested)} >= {*gone}
    if late != "0 seconds":
        assert tested.counters()["duplicates"] == 9
        assert refused(tested) == gone


@pytest.mark.parametrize("by_hand", [False, True])
def test_an_end_of_an_edge_that_comes_again_behind_the_cti_is_known(tmp_path: Path, by_hand: bool) -> None:
    described = job(watermark.cti_settings("drop", generate=watermark.generate_ctis("100 seconds")), late="1 hour")
    made = [
        rows((1, 1, "orders", "edge_start"), (1, 2, "orders", "edge_end", 8), (9, 3, "orders", "cti")),
        rows((1, 2, "orders", "edge_end", 8), (1, 4, "orders", "edge_end", 7), (2, 5)),
        rows((1, 2, "orders", "edge_end", 8), (1, 4, "orders", "edge_end", 7), (2, 5)),
    ]
    if by_hand:
        with of_messages(described, tmp_path) as running:
            for batch in made:
                running.add_messages(batch)
            running.flush()
            counters = running.counters
            schema = described.messages(("src", "at")).harness(SCHEMA, store=Memory()).ledger().schema
            gone = sorted(ledger_rows(tmp_path, schema))
    else:
        tested = described.messages(("src", "at")).harness(SCHEMA, folder=tmp_path, partitions=2)
        for batch in made:
            tested.feed(batch)
            tested.restart()
        counters, gone = tested.counters(), refused(tested)
    assert gone == [(4, "cti_violation"), (5, "cti_violation")]
    assert (counters["edge_ends"], counters["duplicates"]) == (1, 4)


def test_what_a_cti_refused_is_reprocessed_once(tmp_path: Path) -> None:
    described = job(watermark.cti_settings("drop", generate=watermark.generate_ctis(1)), late="1 hour").messages(
        ("src", "at")
    )
    tested = described.harness(SCHEMA, folder=tmp_path)
    tested.feed(rows((5, 1), (30, 2)))
    gone = rows((6, 3))
    tested.feed(gone)
    assert refused(tested) == [(3, "cti_violation")]
    assert tested.reprocess_late(gone)["n"].to_pylist() == [2]
    assert tested.reprocess_late(gone).num_rows == 0
    assert tested.feed(gone).num_rows == 0
    assert tested.counters()["duplicates"] == 2


def test_what_a_cti_did_is_not_replayed(tmp_path: Path) -> None:
    described = job(watermark.cti_settings("adjust", generate=watermark.generate_ctis(2)))
    with of_messages(described, tmp_path) as running:
        assert running.layout is not None
        with pytest.raises(UsageError, match="no-messages"):
            running.rebuild([])


def test_rows_of_buffers_are_known(tmp_path: Path) -> None:
    """A row of a buffer that has come is a duplicate; one that was not in it is refused, once."""
    described = of_buffers(["1"]).allowed_lateness("1 hour").messages(("origin", "sequence", "chunk"))
    schema = buffer(1, 1, 1, mark=0).schema
    tested = described.harness(schema, folder=tmp_path, partitions=2)
    one, two = buffer(1, 1, 1, mark=2), buffer(1, 2, 31, mark=30)
    for batch in (one, two, one, two):
        tested.feed(batch)
    assert tested.counters()["duplicates"] == 2
    assert not tested.ledger().num_rows
    for _ in range(2):
        tested.feed(buffer(1, 1, 1, mark=2, chunk=5))
    assert tested.ledger()["reason"].to_pylist() == ["duplicate_buffer"]
    assert tested.counters()["duplicates"] == 3
