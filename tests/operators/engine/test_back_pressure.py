"""Sinks that are not ready, refuse, break or take and then break, at random moments: at the end they have what a run
without trouble puts out, each row once; and the intake waits meanwhile.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.internals import set_hook
from tests.helpers.moves import rewind
from tests.helpers.two_sources import SECOND
from tests.helpers.worked_example import STREAM, batch, example
from tidestate import agg, watermark
from tidestate.operators import DeliveryId
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.describe.runs import Standalone
from tidestate.operators.describe.sinks import Sinks
from tidestate.operators.engine import delivery
from tidestate.operators.engine.driver import Driver
from tidestate.operators.engine.job import Job, Position
from tidestate.operators.engine.tasks import InProcess
from tidestate.operators.local import standalone
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import FencedError, UnavailableError
from tidestate.statestore.spec.store import Parquet

Act = Literal["take", "refuse", "raise Refused", "break", "take and break", "not ready"]
ACTS: list[Act] = ["take", "refuse", "raise Refused", "break", "take and break", "not ready"]
Rows = Counter[tuple[str, evidence.Row]]


class Breakdown(Exception):
    """The process dies, or the sink is broken: the job ends."""


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "PAUSE_S", 0.0)
    monkeypatch.setattr(delivery, "LONGEST_PAUSE_S", 0.0)


class Moody:
    """A sink that acts as it is asked, then takes everything; it has each row once, by the highest id of each run."""

    def __init__(self, acts: Iterator[Act]) -> None:
        self._acts = acts
        self.busy = False
        """Whether it was not ready, or refused, when it was last asked."""
        self.highest: dict[str, int] = {}
        self.rows: Rows = Counter()
        self._next: Act | None = None

    def _act(self) -> Act:
        if self._next is None:
            self._next = next(self._acts, "take")
        return self._next

    def ready(self) -> bool:
        self.busy = self._act() == "not ready"
        if self.busy:
            self._next = None
        return not self.busy

    def __call__(self, rows: pa.Table, one: DeliveryId) -> bool:
        assert not self.busy, "nothing is offered to a sink that is not ready"
        act, self._next = self._act(), None
        self.busy = act not in ("take", "take and break")
        if act == "break":
            raise Breakdown
        if act == "raise Refused":
            raise ts.Refused("not now")
        if not self.busy and one.checkpoint > self.highest.get(one.run, 0):
            self.rows += Counter((one.operator, row) for row in evidence.plain(rows))
            self.highest[one.run] = one.checkpoint
        if act == "take and break":
            raise Breakdown
        return not self.busy


def untroubled(root: Path) -> Rows:
    """What a run without sinks puts out."""
    example("retracting").standalone(checkpoint=root).run(STREAM, drain=True)
    found: Rows = Counter()
    for manifest in evidence.manifests(root):
        found += Counter(("", row) for row in evidence.rows(root, manifest["panes"]))
        found += Counter(("windows", row) for row in evidence.rows(root, manifest["late"]))
    return found


ACTIONS = st.lists(st.sampled_from(ACTS), max_size=12)


@given(ACTIONS, ACTIONS, st.sampled_from(["panes", "late", "both", "same"]), st.sets(st.integers(2, 12), max_size=2))
@settings(max_examples=max(3, settings.default.max_examples // 4), deadline=None)
def test_whatever_sinks_do_they_have_each_row_once(
    tmp_path_factory: pytest.TempPathFactory, acts: list[Act], of_late: list[Act], which: str, deaths: set[int]
) -> None:
    folder = tmp_path_factory.mktemp("roots")
    panes, late = Moody(iter(acts)), Moody(iter(of_late))
    late = panes if which == "same" else late
    given_sinks = {"sink": panes if which != "late" else None, "late_sink": late if which != "panes" else None}

    def hook(moment: str, checkpoint_id: int) -> None:
        if moment == "after-manifest" and checkpoint_id in deaths:
            deaths.remove(checkpoint_id)
            raise Breakdown

    def start() -> Standalone:
        made = example("retracting").standalone(checkpoint=folder / "root", **given_sinks)  # type: ignore[arg-type]
        set_hook(made, hook)
        return made

    for _ in range(40):
        try:
            start().run(STREAM, drain=True)
            break
        except Breakdown:
            continue
    expected = untroubled(folder / "expected")
    has = panes.rows + (late.rows if late is not panes else Counter())
    names = {"panes": {""}, "late": {"windows"}}.get(which, {"", "windows"})
    assert has == Counter({row: n for row, n in expected.items() if row[0] in names})


class Gate:
    """A sink that takes everything, and is ready while it is open; ``asked`` counts."""

    def __init__(self, opens: Callable[[int], bool] = lambda _asked: True) -> None:
        self.asked, self._opens = 0, opens
        self.took: list[DeliveryId] = []
        self.manifests: list[int] = []
        self.root: Path | None = None

    def ready(self) -> bool:
        self.asked += 1
        if self.root is not None:
            self.manifests.append(len(list((self.root / "manifests").glob("*.json"))))
        return self._opens(self.asked)

    def __call__(self, panes: pa.Table, one: DeliveryId) -> None:
        self.took.append(one)


def test_no_input_is_processed_while_a_sink_is_not_ready(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate(lambda asked: asked % 5 == 0)
    gate.root = tmp_path
    running = example().standalone(checkpoint=tmp_path, sink=gate)
    running.run(STREAM, drain=True)
    spans = [gate.manifests[n : n + 5] for n in range(0, len(gate.manifests), 5)]
    assert all(len({*one}) == 1 for one in spans)
    assert gate.took == [one.delivery_id for one in Checkpoint.open(tmp_path).outputs() if one.panes]
    waits = running.waits
    assert (waits.since_us, waits.checkpoints) == (None, 0)
    assert waits.total_us > 0
    assert "the sink is not ready: no input is processed" in caplog.text
    assert "input is processed again" in caplog.text


def test_a_batch_that_waits_keeps_its_processing_time_and_no_source_is_idle_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0]

    def opens(_asked: int) -> bool:
        clock[0] += 60 * SECOND
        return clock[0] % (300 * SECOND) == 0

    monkeypatch.setattr(standalone, "now_us", lambda: clock[0])
    bounded = watermark.bounded()
    events = ts.stream(event_time="t").watermark(bounded, by="k", sources=["a", "b"], idle_timeout="2 minutes")
    job = events.group_by().window(ts.tumbling("10 seconds")).aggregate(n=agg.count())
    running = job.standalone(checkpoint=tmp_path, sink=Gate(opens))
    running.run([batch([(n * 10, key, 1) for key in keys]) for n, keys in enumerate(["ab", "ab", "a", "a", "b"])])
    assert clock[0] >= 600 * SECOND
    assert running.head.watermark_us == 30 * SECOND, "no source was idle while the job waited for its sink"
    assert "very_late" not in running.head.totals or not running.head.totals["very_late"]


def test_a_drain_ends_with_an_error_and_leaves_the_panes_to_the_next_start(tmp_path: Path) -> None:
    def refuse(_panes: pa.Table, _one: DeliveryId) -> bool:
        return False

    running = example().standalone(checkpoint=tmp_path, sink=refuse)
    running.run(STREAM[:1])
    for timeout_s in (0.05, 0.0):
        with pytest.raises(UnavailableError, match=r"the sink refuses the panes of checkpoint 3.*\[sink-refuses\]"):
            running.drain(timeout_s=timeout_s)
    assert running.head.drained
    assert (running.waits.since_us, running.waits.checkpoints) == (None, 1)
    gate = Gate()
    example().standalone(checkpoint=tmp_path, sink=gate).run(STREAM[:1], drain=True)
    assert [one.checkpoint for one in gate.took] == [3]


def test_a_run_that_was_fenced_while_it_was_held_ends(tmp_path: Path) -> None:
    def opens(asked: int) -> bool:
        if asked == 4:
            rewind(Checkpoint.open(tmp_path), 2, force=True)
        return asked < 3

    running = example().standalone(checkpoint=tmp_path, sink=Gate(opens))
    with pytest.raises(FencedError):
        running.run(STREAM)


def test_reprocessing_waits_too_and_a_harness_keeps_the_contract() -> None:
    gate = Gate(lambda asked: asked % 2 == 0)
    tested = example().retain_windows("1 hour").harness(STREAM[0].schema, store=Parquet(), sink=gate)
    for one in STREAM:
        tested.feed(one)
    asked = gate.asked
    tested.reprocess_late()
    assert gate.asked - asked == 4, "before the rows, and before the offer"
    tested.finish()
    assert [one.checkpoint for one in gate.took] == sorted(one.checkpoint for one in gate.took)


def test_another_thread_sees_since_when_the_job_waits(tmp_path: Path) -> None:
    open_, seen = threading.Event(), threading.Event()

    def opens(_asked: int) -> bool:
        seen.set()
        return open_.is_set()

    running = example().standalone(checkpoint=tmp_path, sink=Gate(opens))
    working = threading.Thread(target=lambda: running.run(STREAM[:2]))
    working.start()
    assert seen.wait(30)
    deadline = 2000
    while running.waits.since_us is None and deadline:
        deadline -= 1
        seen.clear()
        assert seen.wait(30)
    waits = running.waits
    assert waits.since_us is not None
    assert waits.total_us >= 0
    open_.set()
    working.join(30)
    assert running.waits.since_us is None


def test_time_without_input_stands_still_while_a_sink_is_not_ready(tmp_path: Path) -> None:
    """A tick does not wait: it is left out, and the first one that finds the sink ready emits what was due."""
    gate = Gate(lambda asked: asked not in range(3, 8))
    described = example(generator=watermark.fixed("2 seconds"))
    graph, checkpoint = bind_graph(described.graph.description, STREAM[0].schema), Checkpoint.open_or_create(tmp_path)
    begun = Job.begin(graph, checkpoint, Parquet(), partitions=1)
    driver: Driver[Any, pa.Table] = Driver(begun, InProcess(), Sinks(gate))
    driver.batch([STREAM[0]], 0, lambda _id: Position())
    waits, published = [], []
    for second in range(11, 18):
        driver.advance(second * SECOND)
        waits.append(driver.waits.since_us is not None)
        published.append(driver.head.id)
    assert waits == [False, *[True] * 5, False]
    assert published == [2] * 6 + [3]
    assert [one.checkpoint for one in gate.took] == [3]
    assert driver.waits.total_us > 0
