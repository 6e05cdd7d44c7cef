"""Delivering panes to a sink: in ascending ids, at least once, the same rows under the same id."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.moves import rewind
from tests.helpers.worked_example import STREAM, example
from tidestate.operators.describe.runs import Standalone
from tidestate.operators.describe.sinks import ArrowSink, Sinks
from tidestate.operators.engine import delivery
from tidestate.operators.local.standalone import StandaloneRunner
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import DeliveryId
from tidestate.statestore.errors import CorruptionError, FencedError, UnavailableError
from tidestate.statestore.spec.store import Parquet

Rows = Counter[evidence.Row]


class Breakdown(Exception):
    """What a sink raises that is broken: it ends the job."""


class Sink:
    """Remembers what came, and breaks down at the checkpoints it is asked for, once each."""

    def __init__(self, *refuse: int) -> None:
        self.came: list[tuple[int, Rows]] = []
        self.whole: list[DeliveryId] = []
        self.refuse = list(refuse)

    def __call__(self, panes: pa.Table, delivery_id: DeliveryId) -> None:
        checkpoint_id = delivery_id.checkpoint
        if checkpoint_id in self.refuse:
            self.refuse.remove(checkpoint_id)
            raise Breakdown(checkpoint_id)
        self.whole.append(delivery_id)
        self.came.append((checkpoint_id, Counter(evidence.plain(panes))))

    @property
    def ids(self) -> list[int]:
        return [number for number, _ in self.came]


def job(root: Path, sink: ArrowSink | None, **more: object) -> Standalone:
    return StandaloneRunner(example("retracting").graph.description, str(root), Parquet(), Sinks(sink), 2, **more)  # type: ignore[arg-type]


def outbox(root: Path) -> dict[int, Rows]:
    """What the manifests say was put out, by checkpoint."""
    found = {m["id"]: Counter(evidence.rows(root, m["panes"])) for m in evidence.manifests(root)}
    return {number: rows for number, rows in found.items() if rows}


def test_panes_come_in_ascending_ids_each_once(tmp_path: Path) -> None:
    sink = Sink()
    job(tmp_path, sink).run(STREAM, drain=True)
    assert sink.ids == [3, 4, 5, 6, 8]
    assert dict(sink.came) == outbox(tmp_path)


def test_delivered_is_acknowledged_in_the_next_manifest(tmp_path: Path) -> None:
    job(tmp_path, Sink()).run(STREAM, drain=True)
    assert [m["delivered"].get("panes", 0) for m in evidence.manifests(tmp_path)] == [*range(8)]


def test_what_was_not_acknowledged_comes_again_with_the_same_id_and_rows(tmp_path: Path) -> None:
    first, second, third = Sink(), Sink(), Sink()
    job(tmp_path, first).run(STREAM, drain=True)
    shutil.rmtree(tmp_path / "delivered")  # as if it had died with the last delivery
    job(tmp_path, second).run(STREAM, drain=True)
    assert (second.came, second.whole) == (first.came[-1:], first.whole[-1:])
    job(tmp_path, third).run(STREAM, drain=True)
    assert third.came == []


def test_a_refused_delivery_comes_again_with_the_same_id(tmp_path: Path) -> None:
    sink = Sink(4)
    with pytest.raises(Breakdown):
        job(tmp_path, sink).run(STREAM, drain=True)
    # What was refused is committed; nothing was taken in after it.
    assert sink.ids == [3]
    assert evidence.manifests(tmp_path)[-1]["id"] == 4
    job(tmp_path, sink).run(STREAM, drain=True)
    assert sink.ids == sorted(outbox(tmp_path))
    assert dict(sink.came) == outbox(tmp_path)
    assert sink.came[1][0] == 4


def test_the_same_runner_may_go_on_after_a_refusal(tmp_path: Path) -> None:
    sink = Sink(4, 6)
    runner = job(tmp_path, sink)
    for _ in range(2):
        with pytest.raises(Breakdown):
            runner.run(STREAM, drain=True)
    runner.run(STREAM, drain=True)
    assert sink.ids == sorted(outbox(tmp_path))
    assert dict(sink.came) == outbox(tmp_path)
    assert [m["delivered"].get("panes", 0) for m in evidence.manifests(tmp_path)] == [*range(8)]


def test_a_sink_that_refuses_again_stops_the_start(tmp_path: Path) -> None:
    sink = Sink(4, 4, 4)
    for _ in range(3):
        with pytest.raises(Breakdown):
            job(tmp_path, sink).run(STREAM, drain=True)
    kinds = [m["kind"] for m in evidence.manifests(tmp_path)]
    assert kinds == ["fence", "batch", "batch", "batch", "fence", "fence"]
    job(tmp_path, sink).run(STREAM, drain=True)
    assert dict(sink.came) == outbox(tmp_path)
    assert sink.ids == sorted(sink.ids)


@pytest.mark.parametrize("moment", ["before-manifest", "after-manifest"])
def test_a_crash_between_manifest_and_sink_loses_no_pane(tmp_path: Path, moment: str) -> None:
    sink = Sink()

    def hook(now: str, checkpoint_id: int) -> None:
        if (now, checkpoint_id) == (moment, 4):
            raise Breakdown(moment)

    with pytest.raises(Breakdown):
        job(tmp_path, sink, hook=hook).run(STREAM, drain=True)
    assert sink.ids == [3]
    job(tmp_path, sink).run(STREAM, drain=True)
    assert dict(sink.came) == outbox(tmp_path)
    again = [number for number, times in Counter(sink.ids).items() if times > 1]
    assert again == []
    assert sink.ids == sorted(sink.ids)


def test_what_a_sink_is_given_has_been_published(tmp_path: Path) -> None:
    newest: list[tuple[int, int]] = []

    def sink(_panes: pa.Table, one: DeliveryId) -> None:
        newest.append((one.checkpoint, Checkpoint.open(tmp_path).ids()[-1]))

    job(tmp_path, sink).run(STREAM, drain=True)
    assert len(newest) > 2
    assert [given for given, _ in newest] == [published for _, published in newest]


def test_the_panes_of_a_call_are_returned_whether_there_is_a_sink_or_not(tmp_path: Path) -> None:
    sink = Sink()
    with_sink = job(tmp_path / "a", sink).run(STREAM, drain=True)
    without = job(tmp_path / "b", None).run(STREAM, drain=True)
    assert evidence.plain(with_sink) == evidence.plain(without)
    assert sum((rows for _, rows in sink.came), Counter()) == Counter(evidence.plain(with_sink))


class Full(Sink):
    """Takes one of three offers; refuses by False and by the exception, in turn."""

    offers = 0

    def take(self, panes: pa.Table, delivery_id: DeliveryId) -> bool:
        self.offers += 1
        if self.offers % 3 == 1:
            return False
        if self.offers % 3 == 2:
            raise ts.Refused("not now")
        self(panes, delivery_id)
        return True


def test_a_sink_that_refuses_holds_the_intake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delivery, "PAUSE_S", 0.001)
    sink = Full()

    def given() -> Iterator[pa.Table]:
        for one in STREAM:
            assert sink.ids == sorted(outbox(tmp_path)), "nothing is taken in while something is refused"
            yield one

    job(tmp_path, sink.take).run(given(), drain=True)
    assert dict(sink.came) == outbox(tmp_path)
    assert sink.offers == 3 * len(sink.came)
    waited = [one for one in caplog.messages if one.startswith("the sink refuses the panes")]
    assert len(waited) == len(sink.came), "answered once for each, not at every offer"


def test_who_waits_for_a_sink_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "PAUSE_S", 0.001)
    sink, offered = Sink(), list[DeliveryId]()

    def refuse(_panes: pa.Table, delivery_id: DeliveryId) -> bool:
        offered.append(delivery_id)
        if len(offered) == 3:
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        job(tmp_path, refuse).run(STREAM)
    job(tmp_path, sink).run(STREAM, drain=True)
    assert {*offered} == {sink.whole[0]}
    assert dict(sink.came) == outbox(tmp_path)


def test_who_waited_for_a_sink_delivers_nothing_that_was_abandoned_meanwhile(tmp_path: Path) -> None:
    offered: list[DeliveryId] = []

    def refuse(_panes: pa.Table, delivery_id: DeliveryId) -> bool:
        assert not offered
        offered.append(delivery_id)
        rewind(Checkpoint.open(tmp_path), 2, force=True)
        return False

    with pytest.raises(FencedError):
        job(tmp_path, refuse).run(STREAM)
    assert [one.checkpoint for one in offered] == [3]


def test_pauses_grow_up_to_a_bound_and_it_is_reported_since_when() -> None:
    pauses, taken = list[float](), list[str]()
    offers = delivery.Offers(lambda: None)

    def give() -> bool:
        assert (offers.waiting_since_us is not None) is bool(pauses)
        taken.append("panes")
        return len(taken) > 12

    offered = delivery.Delivery("panes", DeliveryId("run", 1), (), None)
    offers.offer(print, give, offered, pauses.append)
    assert offers.waiting_since_us is None
    assert pauses[:3] == [0.05, 0.1, 0.2]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 5.0


@pytest.mark.parametrize("wall_s", [-3600, 3600])
def test_a_patience_goes_by_the_monotonic_clock(wall_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    wall = lambda: 10**15 + int((now[0] - 1000) and wall_s) * 1_000_000  # noqa: E731  it is set at the first pause
    monkeypatch.setattr(delivery, "now_us", wall)
    monkeypatch.setattr(delivery, "time", SimpleNamespace(monotonic=lambda: now[0]))
    offers, offered = delivery.Offers(lambda: None), delivery.Delivery("panes", DeliveryId("run", 1), (), None)

    def hang() -> bool:
        offers.check_called(6.0)
        now[0] += 3.5
        offers.check_called(6.0)
        now[0] += 3.5
        with pytest.raises(UnavailableError, match=r"sink-hangs.*seconds=7"):
            offers.check_called(6.0)
        return True

    def pause(seconds: float) -> None:
        now[0] += seconds

    with pytest.raises(UnavailableError, match="sink-refuses"), offers.within(5.0):
        offers.offer(print, lambda: False, offered, pause)
    assert now[0] == pytest.approx(1005)
    assert offers.waited_us == pytest.approx(5_000_000)
    offers.offer(print, hang, offered, pause)


def test_a_damaged_pane_file_is_not_delivered(tmp_path: Path) -> None:
    sink = Sink(4)
    with pytest.raises(Breakdown):
        job(tmp_path, sink).run(STREAM)
    path = tmp_path / evidence.manifests(tmp_path)[-1]["panes"][0]["path"]
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CorruptionError, match=r"file-damaged.*panes/"):
        job(tmp_path, sink).run(STREAM)
    assert sink.ids == [3]
