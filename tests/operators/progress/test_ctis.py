"""Advance-time settings in the runners: the same rows kept and adjusted wherever the input is cut."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.advance_time import advance_time
from tests.helpers.cti_rows import SCHEMA, SECOND, SETTINGS, job, rows
from tests.helpers.internals import job_of, map_side
from tests.helpers.process import LONG, SCRATCH, few
from tidestate import Aggregation, Stream, agg, watermark
from tidestate.operators.describe.windowed import Windowed
from tidestate.operators.local.harness import Harness
from tidestate.operators.progress.advance_time import ADVANCE_REASONS, SHAPES, Advance, advance, lifetimes
from tidestate.operators.progress.watermarks import END_US
from tidestate.operators.spark import tasks
from tidestate.statestore.errors import UsageError, of_type
from tidestate.statestore.spec.store import Memory


def harness(folder: Path, described: Aggregation, partitions: int = 2) -> Harness:
    return described.harness(SCHEMA, folder=folder / "root", partitions=partitions)


def marks(root: Path) -> list[float | None]:
    found = [manifest.get("watermark_us") for manifest in evidence.work(root)]
    return [None if mark is None else mark / SECOND for mark in found]


def advances(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = evidence.operator(evidence.manifests(root)[-1])["advances"]
    return found


def seconds(panes: pa.Table) -> list[list[float]]:
    return [[time.timestamp() for time in times] for times in panes["times"].to_pylist()]


def test_a_violation_is_dropped_to_the_ledger_and_the_watermark_is_the_cti(tmp_path: Path) -> None:
    tested = harness(
        tmp_path,
        job(
            watermark.cti_settings("drop", generate=watermark.generate_ctis(2, delay="1 second")), sources=["orders"]
        ),
    )
    tested.feed(rows((3, 1), (20, 2), (5, 3), (19, 4)))
    assert marks(tmp_path / "root") == [19]
    ledger = tested.ledger()
    assert ledger.select(["at", "reason", "watermark"]).to_pylist() == [
        {"at": 3, "reason": "cti_violation", "watermark": None}
    ]
    counters = tested.counters()
    assert (counters["events"], counters["accepted"], counters["cti_violation"]) == (4, 3, 1)
    assert advances(tmp_path / "root")["orders"] == {
        "cti_us": 19 * SECOND,
        "counted": 0,
        "reference_us": None,
        "ctis": 1,
        "ignored": 1,
        "dropped": 1,
        "adjusted": 0,
    }


def test_an_adjusted_event_counts_at_its_new_start(tmp_path: Path) -> None:
    tested = harness(tmp_path, job(watermark.cti_settings("adjust", generate=watermark.generate_ctis(1))))
    panes = tested.feed(rows((12, 1), (5, 2, "orders", "interval", 30), (6, 3, "orders", "interval", 11)))
    assert panes.num_rows == 0
    assert seconds(tested.finish()) == [[12, 12]]
    assert tested.ledger()["at"].to_pylist() == [3]
    assert tested.counters()["cti_adjusted"] == 1


def test_ends_of_edges_and_ctis_are_not_counted_in_windows(tmp_path: Path) -> None:
    tested = harness(tmp_path, job(watermark.cti_settings("drop", generate=watermark.generate_ctis(100))))
    tested.feed(
        rows(
            (1, 1, "orders", "edge_start"),
            (1, 2, "orders", "edge_end", 8),
            (9, 3, "orders", "cti"),
            (1, 4, "orders", "edge_end", 8),
            (10, 5, "orders", "shapeless"),
        )
    )
    assert marks(tmp_path / "root") == [9]
    assert [sum(map(len, seconds(tested.finish())))] == [1]
    counters = tested.counters()
    assert (counters["edge_ends"], counters["control_rows"], counters["events"]) == (1, 1, 3)
    assert Counter(tested.ledger()["reason"].to_pylist()) == {"cti_violation": 1, "unknown_shape": 1}


def test_rows_count_in_the_order_of_their_offsets_whatever_order_they_come_in(tmp_path: Path) -> None:
    tested = harness(tmp_path, job(watermark.cti_settings("drop", generate=watermark.generate_ctis(1))))
    tested.feed(rows((30, 3), (20, 2), (10, 1), (4, None), (5, -1)))
    assert marks(tmp_path / "root") == [30]
    assert tested.ledger()["reason"].to_pylist() == ["bad_offset", "bad_offset"]
    tested.feed(rows((31, 4), (9, 9, None)))
    assert set(advances(tmp_path / "root")) == set(
        evidence.operator(evidence.manifests(tmp_path / "root")[-1])["progress"]["sources"]
    )
    assert marks(tmp_path / "root")[-1] == 31
    assert tested.counters()["events"] == 7


def test_each_source_has_ctis_of_its_own_and_the_smaller_counts(tmp_path: Path) -> None:
    described = job(watermark.cti_settings("drop", generate=watermark.generate_ctis(1)), sources=["orders", "prices"])
    tested = harness(tmp_path, described)
    tested.feed(rows((30, 1), (3, 1, "prices")))
    tested.feed(rows((29, 2), (12, 2, "prices"), (31, 3)))
    assert marks(tmp_path / "root") == [3, 12]
    assert tested.ledger()["at"].to_pylist() == [2]
    assert {name: one["cti_us"] // SECOND for name, one in advances(tmp_path / "root").items()} == {
        "orders": 31,
        "prices": 12,
    }


def test_settings_of_the_query_replace_those_of_the_source(tmp_path: Path) -> None:
    described = job(
        {"prices": watermark.cti_settings("drop", generate=watermark.generate_ctis(1, delay="5 seconds"))},
        at_source=watermark.cti_settings("drop", generate=watermark.generate_ctis(1)),
        sources=["orders", "prices"],
    )
    tested = harness(tmp_path, described)
    tested.feed(rows((30, 1), (40, 1, "prices")))
    assert {name: one["cti_us"] // SECOND for name, one in advances(tmp_path / "root").items()} == {
        "orders": 30,
        "prices": 35,
    }


def test_the_factory_and_the_binding_of_the_document(tmp_path: Path) -> None:
    """The author of a source declares ``new AdvanceTimeGenerationSettings(10, TimeSpan.FromSeconds(0), true)`` and
    Drop; who binds the query may replace it by ``(1, TimeSpan.FromSeconds(0), true)`` and Adjust.
    """
    factory = watermark.cti_settings("drop", generate=watermark.generate_ctis(10, delay="0 seconds", final=True))
    binding = watermark.cti_settings("adjust", generate=watermark.generate_ctis(1, delay="0 seconds", final=True))
    events = rows(*((second, second) for second in range(1, 11)), (9, 11, "orders", "interval", 12), (10, 12))
    for name, described, cti_s, adjusted in (
        ("factory", job(None, at_source=factory), 10, 0),
        ("binding", job(binding, at_source=factory), 10, 1),
    ):
        tested = harness(tmp_path / name, described)
        tested.feed(events)
        assert advances(tmp_path / name / "root")["orders"]["cti_us"] == cti_s * SECOND
        assert tested.ledger()["at"].to_pylist() == [11] * (1 - adjusted)
        assert tested.counters().get("cti_adjusted", 0) == adjusted
        tested.finish()
        assert advances(tmp_path / name / "root")["orders"]["cti_us"] == END_US


def test_events_are_judged_by_the_imported_cti_of_the_start_of_their_batch(tmp_path: Path) -> None:
    described = job(
        {
            "prices": watermark.cti_settings("drop", import_from="orders"),
            "orders": watermark.cti_settings("drop", generate=watermark.generate_ctis(1)),
        },
        sources=["orders", "prices"],
    )
    tested = harness(tmp_path, described)
    tested.feed(rows((30, 1), (3, 1, "prices")))
    panes = tested.feed(rows((40, 2), (4, 2, "prices"), (30, 3, "prices")))
    assert tested.ledger()["at"].to_pylist() == [2]
    assert marks(tmp_path / "root") == [30, 40]
    assert seconds(panes) == [[30, 30]]
    assert tested.advance_processing_time(1).num_rows == 0
    assert marks(tmp_path / "root") == [30, 40, 40]


@pytest.mark.parametrize("final", [True, False])
def test_a_drain_gives_the_final_cti_where_it_is_wanted(tmp_path: Path, final: bool) -> None:
    tested = harness(tmp_path, job(watermark.cti_settings("drop", generate=watermark.generate_ctis(1, final=final))))
    tested.feed(rows((3, 1)))
    assert tested.finish().num_rows == 1
    assert advances(tmp_path / "root")["orders"]["cti_us"] == (END_US if final else 3 * SECOND)


def test_lateness_is_none_unless_it_is_reported(tmp_path: Path) -> None:
    settings_ = watermark.cti_settings("drop", generate=watermark.generate_ctis(1))
    plain = ts.stream(event_time="t", offset="at")
    by_ctis = counted(plain.watermark(watermark.ctis(settings_)))
    assert lateness_us(job(settings_)) == 0
    assert lateness_us(job(settings_, late="7 seconds")) == 7 * SECOND
    assert lateness_us(by_ctis.allowed_lateness("7 seconds")) == 7 * SECOND
    assert lateness_us(by_ctis.allowed_lateness(ledger_columns="k")) == 0
    assert lateness_us(counted(plain)) == 60 * SECOND


def counted(events: Stream) -> Aggregation:
    return events.group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count())


def lateness_us(described: Aggregation) -> int:
    return of_type(described.graph.description, Windowed).lateness_us


def test_a_source_that_was_idle_is_late_behind_the_others(tmp_path: Path) -> None:
    described = job(
        watermark.cti_settings("drop", generate=watermark.generate_ctis(1)),
        sources=["orders", "prices"],
        idle_timeout="5 seconds",
    )
    tested = harness(tmp_path, described)
    tested.feed(rows((3, 1, "prices"), (30, 1)))
    tested.advance_processing_time(4 * SECOND)
    tested.feed(rows((31, 2)))
    tested.advance_processing_time(6 * SECOND)
    assert marks(tmp_path / "root")[-1] == 31
    tested.feed(rows((4, 2, "prices")))  # no violation, but behind W
    assert tested.ledger()["reason"].to_pylist() == ["very_late"]


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    generated = watermark.cti_settings("drop", generate=watermark.generate_ctis(1))
    unordered, ordered = ts.stream(event_time="t"), ts.stream(event_time="t", offset="at")
    imported = watermark.cti_settings("drop", import_from="x")
    from_x = ts.stream(event_time="t", offset="at", cti_settings=imported)
    some = watermark.ctis({"orders": generated})
    wrong = [
        lambda: unordered.watermark(watermark.ctis(generated)),
        lambda: ordered.watermark(watermark.ctis()),
        lambda: ordered.watermark(watermark.ctis(watermark.cti_settings("drop", import_from="orders"))),
        lambda: ordered.watermark(some, by="src", sources=["prices"]),
        lambda: ordered.watermark(some, by="src", sources=["orders", "prices"]),
        lambda: from_x.watermark(watermark.ctis(), by="src", sources=["x"]),
    ]
    for one in wrong:
        with pytest.raises(UsageError) as caught:
            counted(one())
        assert caught.value.code == "advance-time"
    with pytest.raises(UsageError) as caught:
        counted(ordered.watermark(watermark.ctis(generated), sources=["orders"]))
    assert caught.value.code == "watermark"
    for shape in ("interval", "round"):
        with pytest.raises(UsageError) as caught:
            ts.lifetime(shape=shape)
        assert caught.value.code == "event-shape"


@st.composite
def streams(draw: st.DrawFn) -> pa.Table:
    many = draw(st.integers(1, 30))
    times = draw(st.lists(st.none() | st.integers(0, 40), min_size=many, max_size=many))
    shapes = draw(st.lists(st.sampled_from([*SHAPES, "?"]), min_size=many, max_size=many))
    spans = draw(st.lists(st.none() | st.integers(-1, 20), min_size=many, max_size=many))
    whole = zip(times, shapes, spans, strict=True)
    return rows(
        *(
            (time, number, "orders", shape, None if span is None or time is None else time + span)
            for number, (time, shape, span) in enumerate(whole)
        )
    )


@pytest.mark.slow
@given(stream=streams(), at_query=st.sampled_from(SETTINGS), data=st.data())
@settings(max_examples=settings.default.max_examples * 2 if LONG else 4)
def test_wherever_the_input_is_cut_the_same_is_kept_adjusted_and_dropped(
    stream: pa.Table, at_query: Any, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, stream.num_rows))))
    order = np.random.default_rng(7)
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        # Lateness is judged by W at the start of a batch; with all allowed it tells nothing of where that was.
        described = job(at_query, late="100 days").accumulation("discarding")
        tested = described.harness(SCHEMA, store=Memory(), folder=folder)
        for first, last in zip([0, *cuts], [*cuts, stream.num_rows], strict=True):
            part = stream.slice(first, last - first)
            tested.feed(part.take(pa.array(order.permutation(part.num_rows))))
        state = evidence.operator(evidence.manifests(Path(folder))[-1])["advances"].get("orders")
        tested.finish()
        observed = [
            time
            for manifest in evidence.work(Path(folder))
            for _, times in evidence.rows(Path(folder), manifest.get("panes", []), ["last", "times"])
            for time in times
        ]
        refused = Counter(zip(*(tested.ledger()[name].to_pylist() for name in ("at", "reason")), strict=True))
    stored = advance_time(at_query.policy, at_query.generate, at_query.import_from)
    whole = advance(stored, Advance(), lifetimes(stream, "t", "end", shape_column="shape"))
    counted = whole.kept & np.array([shape != "edge_end" for shape in stream["shape"].to_pylist()])
    expected = [time // SECOND for time in whole.starts[counted].tolist()]
    assert Counter(int(time.timestamp()) for time in observed) == Counter(expected)
    why = [ADVANCE_REASONS[code] for code in whole.reasons.tolist()]
    assert refused == Counter(
        (at, reason) for at, reason in zip(stream["at"].to_pylist(), why, strict=True) if reason != ADVANCE_REASONS[0]
    )
    assert Advance(**state) == whole.state


@pytest.mark.slow
@pytest.mark.parametrize("at_query", few(SETTINGS, 1))
def test_the_state_goes_on_from_chunk_to_chunk_of_a_task(at_query: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = np.random.default_rng(5)
    sources = ["orders", "prices"]
    given_ = rows(*((int(chance.integers(0, 60)), number, sources[number % 2]) for number in range(90)))
    given_ = given_.sort_by([("src", "ascending"), ("at", "ascending")])
    described = job(at_query, sources=sources)
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        micro_batch = job_of(described.harness(SCHEMA, folder=folder)).micro_batch(0)
        found = []
        for chunk_rows in (1000, 1, 7):
            monkeypatch.setattr(tasks, "CHUNK_ROWS", chunk_rows)
            blocks, refused = map_side(micro_batch, given_.to_batches(max_chunksize=1))
            rejected = [rows["at"].to_pylist() for rows in refused]
            (after,) = micro_batch.after({"job": [block.claims for block in blocks]}).values()
            total_ = Counter[str]()
            for block in blocks:
                total_.update(block.counters)
            found.append(
                (after.generator.advances, after.watermark_us, sorted(at for some in rejected for at in some), total_)
            )
    assert found[0] == found[1] == found[2]
    assert found[0][2] if at_query.policy == "drop" else found[0][0]
