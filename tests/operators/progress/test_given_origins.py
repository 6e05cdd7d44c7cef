"""Origins that the engine gives: ids from 1, a buffer for each batch of a source, the smallest watermark."""

from __future__ import annotations

import json
import re
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.buffers import SECOND, TIME
from tests.helpers.bundles import other_needs
from tests.helpers.command import tidestate
from tests.helpers.forked import Forked
from tests.helpers.internals import job_of
from tests.helpers.process import LONG, SCRATCH
from tidestate import Aggregation, agg, watermark
from tidestate.operators.describe.configuration import configuration_of
from tidestate.operators.local.harness import Harness
from tidestate.operators.progress.metrics import families_of, metrics_of
from tidestate.statestore.errors import IncompatibleError, UsageError
from tidestate.statestore.spec.store import Memory

SCHEMA = pa.schema([("t", TIME), ("k", pa.string()), ("part", pa.string()), ("mark", TIME)])
Row = tuple[int | None, str | None]
"""The second of an event, and its source."""


def rows(*events: Row, key: str | None = "a", mark: int | None = None) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {"t": t if t is None else t * SECOND, "k": key, "part": part, "mark": mark and mark * SECOND}
            for t, part in events
        ],
        SCHEMA,
    )


def job(*sources: str, by: str | None = "part", column: str | None = None, **more: Any) -> Aggregation:
    progress = watermark.buffers(watermark=column)
    events = ts.stream(event_time="t").watermark(progress, by=by, sources=sources, **more)
    windows = events.group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count()).named("job")
    return windows.allowed_lateness("0 seconds")


def harness(folder: Path, *sources: str, **more: Any) -> Harness:
    return job(*sources, **more).harness(SCHEMA, folder=folder / "root", partitions=2)


@dataclass(frozen=True)
class Stored:
    """What a root has of its sources: ids by name; of each id how many buffers and the watermark; W."""

    ids: dict[str, int]
    origins: dict[int, tuple[int, int | None]]
    watermark: int | None


def stored(root: Path) -> Stored:
    manifest = evidence.manifests(root)[-1]
    buffers = evidence.operator(manifest)["buffers"]
    assert buffers["origins"]["pending"] == {}, "what the engine numbers has no gaps"
    return Stored(
        buffers["ids"],
        {id_: (count, _seconds(mark)) for id_, count, mark, _ in buffers["origins"]["origins"]},
        _seconds(manifest.get("watermark_us")),
    )


def _seconds(us: int | None) -> int | None:
    return None if us is None or us < 0 else us // SECOND


def test_each_source_gets_a_unique_id_from_1_and_keeps_it(tmp_path: Path) -> None:
    """NebulaStream: "assigns a unique OriginId to each source, starting from 1"."""
    stream_job = harness(tmp_path, "trucks", "cars")
    stream_job.feed(rows((1, "10"), (2, "9"), (3, "cars"), (4, None)))
    assert stored(tmp_path / "root").ids == {"trucks": 1, "cars": 2, "9": 3, "10": 4, "None": 5}
    stream_job.restart()
    stream_job.feed(rows((1, "buses"), (2, "trucks")))
    assert stored(tmp_path / "root").ids == {"trucks": 1, "cars": 2, "9": 3, "10": 4, "None": 5, "buses": 6}


def test_a_stream_without_a_column_of_sources_is_one(tmp_path: Path) -> None:
    stream_job = harness(tmp_path, by=None)
    assert stream_job.feed(rows((5, "x"), (25, "y")))["n"].to_pylist() == [1]
    stream_job.feed(rows((21, "x")))
    assert stored(tmp_path / "root") == Stored({"input": 1}, {1: (2, 25)}, 25)


def test_the_stream_names_its_sources_as_origin(tmp_path: Path) -> None:
    schema = SCHEMA.append(pa.field("at", pa.int64()))
    events = ts.stream(event_time="t", origin="part", offset="at").watermark(watermark.buffers())
    windows = events.group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count()).named("job")
    stream_job = windows.harness(schema, folder=tmp_path / "root")
    stream_job.feed(rows((9, "x"), (4, "y")).append_column("at", pa.array([1, 1])))
    assert stored(tmp_path / "root") == Stored({"x": 1, "y": 2}, {1: (1, 9), 2: (1, 4)}, 4)
    shown = tidestate("show", str(tmp_path / "root")).stdout
    assert re.search(r"watermark +watermark\.buffers\(\) ", shown), shown


def test_each_batch_of_a_source_is_its_next_buffer(tmp_path: Path) -> None:
    """NebulaStream: the number "is set to 1 for the first tuple buffer of each source and is incremented by 1"; "the
    largest timestamp in the tuple buffer becomes the watermark timestamp".
    """
    stream_job = harness(tmp_path, "x", "y")
    stream_job.feed(rows((9, "x"), (3, "x")))
    assert stored(tmp_path / "root") == Stored({"x": 1, "y": 2}, {1: (1, 9), 2: (0, None)}, None)
    stream_job.feed(rows((7, "x"), (12, "y")))
    stream_job.advance_processing_time(SECOND)
    assert stored(tmp_path / "root") == Stored({"x": 1, "y": 2}, {1: (2, 9), 2: (1, 12)}, 9)


def test_a_buffer_may_have_its_watermark_in_a_column(tmp_path: Path) -> None:
    stream_job = harness(tmp_path, column="mark")
    stream_job.feed(pa.concat_tables([rows((1, "x"), mark=20), rows((50, "x"), mark=22), rows((2, "y"), mark=30)]))
    assert stored(tmp_path / "root") == Stored({"x": 1, "y": 2}, {1: (1, 22), 2: (1, 30)}, 22)


def test_rejected_rows_are_a_buffer_without_a_watermark_and_register_nothing(tmp_path: Path) -> None:
    stream_job = harness(tmp_path)
    stream_job.feed(rows((9, "x")))
    stream_job.feed(rows((None, "x"), (None, "y")))
    assert stored(tmp_path / "root") == Stored({"x": 1}, {1: (2, 9)}, 9)
    stream_job.feed(rows((99, "z"), key="a"))
    assert stored(tmp_path / "root").ids == {"x": 1, "z": 2}


def test_an_idle_source_does_not_hold_the_watermark(tmp_path: Path) -> None:
    stream_job = harness(tmp_path, "x", "y", idle_timeout="5 seconds")
    stream_job.feed(rows((9, "x"), (3, "y")))
    stream_job.advance_processing_time(6 * SECOND)
    stream_job.feed(rows((30, "x")))
    assert stored(tmp_path / "root") == Stored({"x": 1, "y": 2}, {1: (2, 30), 2: (1, 3)}, 30)


def test_a_batch_that_is_given_again_counts_once(tmp_path: Path) -> None:
    """A run that is repeated from the beginning gives each batch again, and the checkpoint knows them."""
    batches, root = [rows((5, "x"), (6, "y")), rows((15, "x")), rows((16, "y"))], tmp_path / "root"
    job().standalone(checkpoint=root).run(batches[:2])
    job().standalone(checkpoint=root).run(batches)
    assert stored(root) == Stored({"x": 1, "y": 2}, {1: (2, 15), 2: (2, 16)}, 15)


@pytest.mark.parametrize("moment", ["before-manifest", "after-manifest"])
def test_a_process_that_is_killed_gives_no_number_twice(tmp_path: Path, moment: str) -> None:
    root = tmp_path / "root"
    for death in (4, 7):
        process = Forked("tests.children.given_origins", root, f"{moment}:{death}")
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert len(evidence.manifests(root)) == death - (moment == "before-manifest")
    process = Forked("tests.children.given_origins", root)
    process.communicate()
    assert process.returncode == 0
    assert stored(root) == Stored({"1": 1, "2": 2, "3": 3}, {1: (8, 36), 2: (4, 37), 3: (2, 38)}, 36)


def test_an_operator_by_hand_counts_each_call_and_goes_back_to_its_checkpoint(tmp_path: Path) -> None:
    schema = pa.schema([("t", TIME), ("k", pa.string()), ("part", pa.string()), ("at", pa.int64())])
    events = ts.stream(event_time="t", origin="part", offset="at").watermark(watermark.buffers())
    described = events.group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count()).named("job")

    def some(at: int, *of: Row) -> pa.Table:
        return pa.table([*rows(*of).columns[:3], pa.array([at] * len(of), pa.int64())], schema=schema)

    def begun() -> Any:
        return described.by_hand(schema, checkpoint=tmp_path / "root")

    operator = begun()
    operator.add_messages(some(1, (5, "x")))
    operator.add_messages(some(2, (6, "x"), (7, "y")))
    operator.flush()
    operator.add_messages(some(3, (8, "x")))  # and then the process is gone
    with begun() as operator:
        operator.add_messages(some(3, (8, "x")))
        operator.flush()
    assert stored(tmp_path / "root") == Stored({"x": 1, "y": 2}, {1: (3, 8), 2: (1, 7)}, 7)


def test_a_declared_source_is_added_and_a_renamed_one_is_another(tmp_path: Path) -> None:
    root = tmp_path / "root"
    job("x", "y").standalone(checkpoint=root).run([rows((9, "x"))])
    assert stored(root).watermark is None
    following = [rows((9, "x")), rows((12, "z"), (11, "x"))]
    # y has become z: y has no rows so far, so it holds nothing back once it is declared no more.
    job("x", "z").standalone(checkpoint=root).run(following)
    assert stored(root) == Stored({"x": 1, "y": 2, "z": 3}, {1: (2, 11), 3: (1, 12)}, 11)
    # x has become w, and x has had rows: it holds the watermark where it was.
    job("w", "z").standalone(checkpoint=root).run([*following, rows((30, "w"), (31, "z"))])
    assert stored(root) == Stored({"x": 1, "y": 2, "z": 3, "w": 4}, {1: (2, 11), 3: (2, 31), 4: (1, 30)}, 11)


def test_a_column_of_sources_may_be_renamed_but_not_replaced(tmp_path: Path) -> None:
    root = tmp_path / "root"
    job().standalone(checkpoint=root).run([rows((9, "x"))])
    renamed = SCHEMA.set(2, pa.field("shard", pa.string()))
    again = [pa.table(one.columns, schema=renamed) for one in (rows((9, "x")), rows((12, "x")))]
    job(by="shard").renamed(columns={"part": "shard"}).standalone(checkpoint=root).run(again)
    assert stored(root) == Stored({"x": 1}, {1: (2, 12)}, 12)
    with pytest.raises(IncompatibleError) as caught:
        job(by="k").standalone(checkpoint=root).run(again)
    assert caught.value.code == "configuration-changed"


def test_no_other_watermark_goes_on_as_this_one(tmp_path: Path) -> None:
    root = tmp_path / "root"
    job().standalone(checkpoint=root).run([rows((9, "x"))])
    other = ts.stream(event_time="t").watermark(watermark.bounded("0 s"), by="part").group_by("k")
    aggregation = other.window(ts.tumbling("10 seconds")).aggregate(n=agg.count()).named("job")
    with pytest.raises(IncompatibleError) as caught:
        aggregation.allowed_lateness("0 seconds").standalone(checkpoint=root).run([rows((9, "x"))])
    assert caught.value.code == "configuration-changed"


def test_trucks_and_cars_are_sources_of_one_stream(tmp_path: Path) -> None:
    """NebulaStream: "NebulaStream can combine the sources trucks and cars in a stream called vehicles"."""
    trucks, cars = ts.stream("trucks", event_time="t"), ts.stream("cars", event_time="t")
    vehicles = ts.merge(trucks, cars).watermark(watermark.buffers()).group_by("k")
    windows = vehicles.window(ts.tumbling("10 seconds")).aggregate(n=agg.count("trucks_part")).named("job")
    stream_job = windows.harness({"trucks": SCHEMA, "cars": SCHEMA}, folder=tmp_path / "root")
    stream_job.feed({"trucks": rows((9, "x"))})
    assert stored(tmp_path / "root") == Stored({"trucks": 1, "cars": 2}, {1: (1, 9), 2: (0, None)}, None)
    stream_job.feed({"trucks": rows((19, "x")), "cars": rows((12, "x"))})
    assert stored(tmp_path / "root") == Stored({"trucks": 1, "cars": 2}, {1: (2, 19), 2: (1, 12)}, 12)


def test_a_join_has_an_origin_for_each_side(tmp_path: Path) -> None:
    left, right = ts.stream("trucks", event_time="t"), ts.stream("cars", event_time="t")
    over = watermark.over(watermark.buffers())
    joined = left.join(right, on="k", within=("0 s", "5 s"), how="left", watermark=over).named("job")
    stream_job = joined.harness({"trucks": SCHEMA, "cars": SCHEMA}, folder=tmp_path / "root")
    assert not stream_job.feed({"trucks": rows((9, "x"))}).num_rows
    assert stream_job.feed({"cars": rows((50, "y")), "trucks": rows((40, "x"))}).num_rows == 1
    assert stored(tmp_path / "root").origins == {1: (2, 40), 2: (1, 50)}


def test_what_makes_no_sense_is_refused() -> None:
    on_stream = ts.stream("trucks", event_time="t").watermark(watermark.buffers())
    wrong = {
        "buffers-columns": lambda: watermark.buffers(origin="part"),
        "buffers-columns ": lambda: watermark.buffers(patience="1 hour"),
        "buffers-columns  ": lambda: watermark.buffers(origin="part", sequence="t"),
        "watermark": lambda: ts.stream().watermark(watermark.buffers()).group_by().window(ts.global_window())
        .aggregate(n=agg.count()).graph,
        "watermark ": lambda: job("x", by=None),
        "column-missing": lambda: job(by="absent").harness(SCHEMA),
        "given-origins": lambda: on_stream.join(ts.stream("cars", event_time="t"), on="k", within=("0 s", "5 s")),
    }  # fmt: skip
    for code, windows in wrong.items():
        with pytest.raises(UsageError) as caught:
            windows()
        assert caught.value.code == code.strip()


def test_a_watermark_over_sides_that_read_operators_is_refused() -> None:
    panes = job()
    with pytest.raises(UsageError) as caught:
        panes.join(
            ts.stream("cars", event_time="t"), on="k", within=("0 s", "5 s"),
            watermark=watermark.over(watermark.buffers()),
        )  # fmt: skip
    assert caught.value.code == "given-origins"


def test_ids_are_shown(tmp_path: Path) -> None:
    stream_job = harness(tmp_path, "x")
    stream_job.feed(rows((9, "x"), (3, "y")))
    progress = job_of(stream_job).progress["job"]
    found = metrics_of(progress).sources
    assert {name: (one.origin, one.watermark_us) for name, one in found.items()} == {
        "x": (1, 9 * SECOND), "y": (2, 3 * SECOND),
    }  # fmt: skip
    samples = {family.name: family.samples for family in families_of(progress, {})}
    assert samples["source_origin"] == [({"source": "x"}, 1), ({"source": "y"}, 2)]
    shown = json.loads(tidestate("show", str(tmp_path / "root"), "--json").stdout)
    assert [(row["source"], row["origin"]) for row in shown["sources"]] == [("x", 1), ("y", 2)]
    assert re.search(r"origin +source", tidestate("show", str(tmp_path / "root")).stdout)


def test_what_is_stored_names_its_needs(tmp_path: Path) -> None:
    harness(tmp_path).feed(rows((9, "x")))
    assert other_needs(evidence.manifests(tmp_path / "root")[-1]["needs"]) == ["given-origins/1"]
    (described,) = [configuration_of(job().graph.description)]
    assert described["watermark"]["generator"] == {"kind": "given_origins", "column": "t"}


@dataclass
class Naive:
    """Each source a list of its buffers' watermarks; the rules of W in plain words."""

    declared: Sequence[str]
    timeout: int
    ids: dict[str, int] = field(default_factory=dict)
    marks: dict[str, list[int | None]] = field(default_factory=dict)
    newest: dict[str, int | None] = field(default_factory=dict)
    quiet: dict[str, int] = field(default_factory=dict)
    standing: dict[str, str] = field(default_factory=dict)
    watermark: int | None = None
    clock: int | None = None

    def __post_init__(self) -> None:
        for name in self.declared:
            self._register(name, None)

    def _register(self, name: str, joins_at: int | None) -> None:
        self.ids[name] = len(self.ids) + 1
        self.marks[name], self.newest[name] = [], joins_at
        self.quiet[name], self.standing[name] = 0, "counted"

    def take(self, batch: Sequence[Row], now: int) -> None:
        """A batch at this second: rows without a time are rejected."""
        accepted = [(t, name) for t, name in batch if t is not None and not self._late(t)]
        seen = {name for _, name in batch}
        for name in sorted({name for _, name in accepted} - self.ids.keys(), key=int):
            self._register(name, self.watermark)
        elapsed = 0 if self.clock is None else now - self.clock
        self.clock = now
        for name in self.ids:
            self.quiet[name] = 0 if name in seen else self.quiet[name] + elapsed
            if self.quiet[name] > self.timeout:
                self.standing[name] = "idle"
            elif name in seen and self.standing[name] == "idle":
                self.standing[name] = "behind"
            if name in seen:
                times = [t for t, of in accepted if of == name]
                self.marks[name].append(max(times, default=None))
                self.newest[name] = max((m for m in (self.newest[name], *times) if m is not None), default=None)
            caught_up = self.newest[name] is not None and self.newest[name] >= (self.watermark or 0)
            if self.standing[name] == "behind" and (caught_up or self.watermark is None):
                self.standing[name] = "counted"
        counted = [self.newest[name] for name in self.ids if self.standing[name] == "counted"]
        if counted and None not in counted:
            self.watermark = max(min(counted), self.watermark or 0)

    def _late(self, t: int) -> bool:
        """Whether the window of this second is over: the lateness is 0, by event."""
        return self.watermark is not None and t < self.watermark

    @property
    def stored(self) -> Stored:
        own = {self.ids[name]: len(marks) for name, marks in self.marks.items()}
        return Stored(self.ids, {i: (count, None) for i, count in sorted(own.items())}, self.watermark)


STEPS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 60)), st.sampled_from("0123")), max_size=4),
        st.integers(0, 3),
        st.booleans(),
    ),
    max_size=12,
)
"""Batches, each with the seconds until the next one, and whether the job is started again before that."""


@given(steps=STEPS, declared=st.sampled_from([(), ("0",), ("2", "0")]))
@settings(max_examples=settings.default.max_examples if LONG else 15, deadline=None)
def test_ids_numbers_and_watermarks_are_those_of_a_naive_twin(steps: Any, declared: tuple[str, ...]) -> None:
    naive, now = Naive(declared, timeout=5), 0
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        described = job(*declared, idle_timeout="5 seconds")
        stream_job = described.harness(SCHEMA, store=Memory(), folder=folder, partitions=2)
        for batch, pause, again in steps:
            stream_job.feed(rows(*batch))
            naive.take(batch, now)
            found, expected = stored(Path(folder)), naive.stored
            counts = {number: count for number, (count, _) in found.origins.items()}
            assert (found.ids, found.watermark) == (expected.ids, expected.watermark)
            assert counts == {number: count for number, (count, _) in expected.origins.items()}
            marks = evidence.operator(evidence.manifests(Path(folder))[-1])["progress"]["sources"]
            assert {name: _seconds(one["watermark_us"]) for name, one in marks.items()} == naive.newest
            if again:
                stream_job.restart()
                naive.clock = None
            now += pause
            stream_job.advance_processing_time(now * SECOND)
            if pause or again:
                naive.take([], now)
