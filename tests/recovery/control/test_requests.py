"""Requests without a job: numbers, order, ends, withdrawals, and what the manifests say of a run that is gone."""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.helpers.manifests import checkpoint as checkpoint
from tests.helpers.manifests import following
from tests.helpers.requests import PAUSE_S, asker, control_files, until
from tests.servers.s3 import s3_endpoint as s3_endpoint
from tests.servers.s3 import s3_root as s3_root
from tidestate.recovery.control.asker import UNSEEN_S, Asker
from tidestate.recovery.control.past import RequestTicket, done_by
from tidestate.recovery.control.watch import RequestOutcome, RequestWatch
from tidestate.recovery.log.checkpoint import Checkpoint, now_us
from tidestate.recovery.log.lease import this_process
from tidestate.recovery.log.manifest import AnsweredRequest, Head
from tidestate.recovery.log.requests import (
    ControlListing,
    ErrorRecord,
    MetricsRequest,
    ReprocessRequest,
    RequestAction,
    RunBegun,
    RunEnd,
    StopRequest,
    control_epochs,
)
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.retention.requests import collectable_requests
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.recovery.start.heartbeat import Heartbeat
from tidestate.statestore import errors
from tidestate.statestore.errors import (
    CommitUnknownError,
    NotFoundError,
    TidestateError,
    UnavailableError,
    UsageError,
)
from tidestate.statestore.storage.objects import Objects

ROWS = pa.table({"v": [1, 2, 3]})
NOW = CheckpointRetention(newest=1, grace="0 seconds")


@dataclass
class Run:
    """A run whose requests do what a test says."""

    checkpoint: Checkpoint
    head: Head
    act: Callable[[RequestAction, pa.Table | None], RequestOutcome] = lambda _action, _rows: RequestOutcome(7)
    done: list[int] = field(default_factory=list)
    over: bool = False
    number: int = 0

    def begun(self) -> RunBegun:
        epoch = self.head.manifest.epoch
        return RunBegun(uuid.uuid4().hex, this_process(), epoch, "writer", now_us(), "standalone", "job", "1")

    def is_going_on(self) -> bool:
        return not self.over

    def execute(self, number: int, action: RequestAction, rows: pa.Table | None) -> RequestOutcome:
        self.number = number
        self.done.append(number)
        return self.act(action, rows)

    def publish(self) -> None:
        """A checkpoint that the request makes."""
        manifest = following(self.checkpoint, self.head)
        answered = AnsweredRequest(manifest.epoch, self.number, manifest.id)
        self.head = self.checkpoint.publish(msgspec.structs.replace(manifest, answered=answered))

    def answered(self) -> AnsweredRequest | None:
        return self.head.manifest.answered

    def ended(self) -> RunEnd:
        return RunEnd(uuid.uuid4().hex, now_us(), "stopped", self.head.manifest.id)


def fenced(checkpoint: Checkpoint, head: Head | None, **changes: Any) -> Head:
    """The first checkpoint of the next run."""
    epoch = head.manifest.epoch + 1 if head is not None else 1
    answered = head.manifest.answered if head is not None else None
    changes = {"kind": "fence", "epoch": epoch, "answered": answered} | changes
    return checkpoint.publish(following(checkpoint, head, **changes))


@dataclass
class Begun:
    """A run that can be asked, with its lease."""

    run: Run
    watch: RequestWatch
    heartbeat: Heartbeat

    @classmethod
    def at(cls, checkpoint: Checkpoint, head: Head, *, objects: Objects | None = None) -> Begun:
        run = Run(checkpoint, head)
        epoch = head.manifest.epoch
        heartbeat = Heartbeat(checkpoint, epoch)
        heartbeat.begin()
        watch = RequestWatch(objects or checkpoint.objects, epoch, run, pause_s=PAUSE_S)
        watch.begin()
        until((Path(checkpoint.objects.root) / "control" / str(epoch) / "begun.json").exists)
        return cls(run, watch, heartbeat)

    def end(self) -> None:
        self.run.over = True
        self.heartbeat.end()
        self.watch.end()


@pytest.fixture
def begun(checkpoint: Checkpoint) -> Iterator[Begun]:
    made = Begun.at(checkpoint, fenced(checkpoint, None))
    yield made
    made.end()


def ask_of(checkpoint: Checkpoint) -> Asker:
    return asker(checkpoint.objects.root)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], ControlListing()),
        (["1.json", "3.json"], ControlListing(frozenset({1, 3}))),
        (["01.json", "0.json", "x.json", "1.json.tmp", "1.other.json"], ControlListing()),
        (
            ["2.json", "2.taken.json", "2.answer.json", "begun.json", f"{'a' * 32}.arrow"],
            ControlListing(frozenset({2}), frozenset({2}), frozenset({2}), (f"{'a' * 32}.arrow",), True),
        ),
        (["end.json", "4.answer.json"], ControlListing(answered=frozenset({4}), has_ended=True)),
    ],
)
def test_names_of_others_are_nothing(names: list[str], expected: ControlListing) -> None:
    assert ControlListing.of(names) == expected
    assert control_epochs(["7", "12", "07", "x", "-1"]) == [7, 12]


def test_a_number_is_not_used_again_after_its_request_was_collected() -> None:
    assert ControlListing.of(["4.answer.json"]).next_number == 5
    assert ControlListing.of(["6.taken.json", "2.json"]).next_number == 7


KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TidestateError)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_crosses_as_what_it_is(kind: type[TidestateError]) -> None:
    error = kind("no such thing", code="some-code", path=Path("a"), there=["x"], count=3)
    record = msgspec.json.decode(msgspec.json.encode(ErrorRecord.of(error)), type=ErrorRecord)
    again = record.error()
    assert type(again) is kind
    assert (again.message, again.code) == (error.message, error.code)
    assert again.context == {"path": "a", "there": ["x"], "count": 3}


def test_an_error_of_a_class_that_is_not_ours_is_its_nearest_and_a_foreign_one_is_text() -> None:
    class OwnError(UsageError):
        pass

    assert type(ErrorRecord.of(OwnError("m", code="c")).error()) is UsageError
    record = ErrorRecord.of(RuntimeError("first\nsecond\nthird\n\tat java.lang.Thread"))
    assert (record.kind, record.code) == ("", "request-failed")
    assert "RuntimeError: first\nsecond\nthird" in record.message
    assert "java.lang" not in record.message
    assert type(ErrorRecord("Exception", "c", "m").error()) is TidestateError


def test_each_of_many_askers_has_a_number_of_its_own_and_they_are_done_in_order(begun: Begun) -> None:
    checkpoint, tickets = begun.run.checkpoint, list[RequestTicket]()

    def ask() -> None:
        for _ in range(10):
            ticket = ask_of(checkpoint).submit(MetricsRequest())
            assert ask_of(checkpoint).answer(ticket).rows == 7
            tickets.append(ticket)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ticket.number for ticket in tickets) == list(range(1, 31))
    assert begun.run.done == list(range(1, 31))


def test_rows_come_along_and_damaged_ones_are_refused(begun: Begun) -> None:
    seen = list[pa.Table | None]()
    begun.run.act = lambda _action, rows: (seen.append(rows), RequestOutcome(rows.num_rows if rows else 0))[1]
    checkpoint = begun.run.checkpoint
    assert ask_of(checkpoint).ask(ReprocessRequest(), ROWS).rows == 3
    assert seen[0] is not None
    assert seen[0].equals(ROWS)

    class Damaging(Objects):
        """Changes a byte of rows on their way."""

        def create(self, path: str, data: bytes) -> None:
            super().create(path, data[:-1] + b"x" if path.endswith(".arrow") else data)

    damaging = Asker(Damaging(checkpoint.objects.root), pause_s=PAUSE_S)
    with pytest.raises(errors.CorruptionError, match="record-damaged"):
        damaging.ask(ReprocessRequest(), ROWS)
    assert len(seen) == 1
    with pytest.raises(UsageError, match="argument"):
        ask_of(checkpoint).submit(StopRequest(), ROWS)


def test_what_cannot_be_read_is_answered(begun: Begun) -> None:
    """A request of a newer version, or of a stranger, stops neither the run nor those after it."""
    checkpoint = begun.run.checkpoint
    checkpoint.objects.create("control/1/1.json", b'{"id": "no", "action": {"type": "dance"}}')
    with pytest.raises(UsageError, match="request-unreadable"):
        ask_of(checkpoint).answer(RequestTicket(1, 1))
    assert ask_of(checkpoint).ask(MetricsRequest()).rows == 7


def test_a_run_that_takes_no_requests_is_not_asked(checkpoint: Checkpoint) -> None:
    with pytest.raises(UsageError, match="not-running"):
        ask_of(checkpoint).run()
    heartbeat = Heartbeat(checkpoint, 1)
    heartbeat.begin()
    with pytest.raises(UsageError, match="not-asked"):
        ask_of(checkpoint).submit(StopRequest())
    heartbeat.end()


def test_a_run_that_ends_refuses_what_waits_and_what_comes(begun: Begun) -> None:
    checkpoint, gate = begun.run.checkpoint, threading.Event()
    begun.run.act = lambda _action, _rows: (gate.wait(), RequestOutcome(1))[1]
    first, second = (ask_of(checkpoint).submit(MetricsRequest()) for _ in range(2))
    until(lambda: begun.run.done)
    begun.run.over = True
    gate.set()
    begun.watch.end()
    assert ask_of(checkpoint).answer(first).rows == 1
    with pytest.raises(UsageError, match="run-ended") as refused:
        ask_of(checkpoint).answer(second)
    assert refused.value.context == {"epoch": 1, "why": "stopped", "checkpoint": 1}
    assert begun.run.done == [1]
    with pytest.raises(UsageError, match="not-running"):
        ask_of(checkpoint).submit(MetricsRequest())
    end = ask_of(checkpoint).end(1)
    assert end is not None
    assert end.why == "stopped"
    late = RequestTicket(1, 3)
    checkpoint.objects.create("control/1/3.json", b"{}")  # it came as the run ended
    with pytest.raises(UsageError, match="run-ended"):
        ask_of(checkpoint).answer(late)


@pytest.mark.parametrize("made", [False, True])
def test_a_request_to_a_run_that_is_fenced_meanwhile(begun: Begun, made: bool) -> None:
    """The newer run settles it, by the checkpoint that the older one made, or did not make."""
    run, gate = begun.run, threading.Event()
    stuck = threading.Event()

    def act(_action: RequestAction, _rows: pa.Table | None) -> RequestOutcome:
        if made:
            run.publish()
        stuck.set()
        gate.wait()
        raise errors.FencedError("fenced", code="fenced")

    run.act = act
    waits = ask_of(run.checkpoint).submit(ReprocessRequest())
    behind = ask_of(run.checkpoint).submit(ReprocessRequest())
    stuck.wait()
    newer = Begun.at(run.checkpoint.as_new_run(), fenced(run.checkpoint, run.head))
    try:
        if made:
            assert ask_of(run.checkpoint).answer(waits).checkpoint == 2
        else:
            with pytest.raises(UsageError, match="run-ended"):
                ask_of(run.checkpoint).answer(waits)
        with pytest.raises(UsageError, match="run-ended"):
            ask_of(run.checkpoint).answer(behind)
        assert ask_of(run.checkpoint).run().epoch == 2
        assert newer.run.done == []
        gate.set()
        begun.end()
        assert len([name for name in control_files(Path(run.checkpoint.objects.root)) if "answer" in name]) == 2
    finally:
        gate.set()
        newer.end()


def test_who_gives_up_withdraws_unless_the_run_has_begun(begun: Begun) -> None:
    run, gate = begun.run, threading.Event()
    run.act = lambda _action, _rows: (gate.wait(), RequestOutcome(1))[1]
    first, second = (ask_of(run.checkpoint).submit(MetricsRequest()) for _ in range(2))
    until(lambda: run.done)
    with pytest.raises(CommitUnknownError, match="request-open"):
        ask_of(run.checkpoint).answer(first, timeout_s=0)
    with pytest.raises(UnavailableError, match="request-waits"):
        ask_of(run.checkpoint).answer(second, timeout_s=0)
    gate.set()
    assert ask_of(run.checkpoint).answer(first).rows == 1
    with pytest.raises(UsageError, match="request-withdrawn"):
        ask_of(run.checkpoint).answer(second)
    assert run.done == [1]


def test_a_run_of_which_nothing_is_seen_any_more(checkpoint: Checkpoint) -> None:
    """It says nothing, and nobody knows whether it lives: what it has not taken is withdrawn."""
    run = Run(checkpoint, fenced(checkpoint, None))
    heartbeat = Heartbeat(checkpoint, 1)
    heartbeat.begin()
    checkpoint.objects.create("control/1/begun.json", msgspec.json.encode(run.begun()))
    seconds = iter(range(0, 1000 * int(UNSEEN_S), 5))
    patient = Asker(checkpoint.objects, wait=lambda _s: None, clock=lambda: float(next(seconds)))
    ticket = patient.submit(MetricsRequest())
    for _ in range(2):  # whoever looks again learns the same
        with pytest.raises(UsageError, match="run-ended"):
            patient.answer(ticket)
    assert "1/1.taken.json" in control_files(Path(checkpoint.objects.root))
    heartbeat.end()


def test_storage_that_fails_stops_nothing_and_answers_come_later(
    checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Objects):
        """Refuses answers while it is told to."""

        refuses = True

        def create(self, path: str, data: bytes) -> None:
            if self.refuses and path.endswith(".answer.json"):
                raise UnavailableError("the disk is full", code="storage", reason="ENOSPC")
            super().create(path, data)

    objects = Failing(checkpoint.objects.root)
    made = Begun.at(checkpoint, fenced(checkpoint, None), objects=objects)
    with caplog.at_level(logging.WARNING, "tidestate"):
        first, second = (ask_of(checkpoint).submit(MetricsRequest()) for _ in range(2))
        until(lambda: "could not be read or answered" in caplog.text)
    assert made.run.done == [1], "nothing is taken before the answer is written"
    objects.refuses = False
    assert [ask_of(checkpoint).answer(ticket).rows for ticket in (first, second)] == [7, 7]
    assert made.run.done == [1, 2]
    made.end()


@pytest.mark.parametrize("dropped", [False, True])
def test_the_manifests_say_what_a_run_that_is_gone_has_done(checkpoint: Checkpoint, dropped: bool) -> None:
    """Also if a version that knows no requests has run since, and dropped what it does not know."""
    run = Run(checkpoint, fenced(checkpoint, None))
    run.number = 3
    run.publish()
    head = run.head
    for _ in range(4):
        head = checkpoint.publish(following(checkpoint, head, answered=head.manifest.answered))
    for _ in range(3):
        head = fenced(checkpoint, head, **({"answered": None} if dropped else {}))
        head = checkpoint.publish(following(checkpoint, head, answered=head.manifest.answered))
    made = done_by(checkpoint.objects, RequestTicket(1, 3))
    assert made is not None
    assert made.checkpoint == 2
    with pytest.raises(CommitUnknownError, match="request-unknown"):
        done_by(checkpoint.objects, RequestTicket(1, 2))  # it had an answer once
    assert done_by(checkpoint.objects, RequestTicket(1, 4)) is None
    assert done_by(checkpoint.objects, RequestTicket(3, 1)) is None


def test_what_a_rewind_has_abandoned_was_not_done(checkpoint: Checkpoint) -> None:
    run = Run(checkpoint, fenced(checkpoint, None))
    first = run.head
    run.number = 1
    run.publish()
    reset = following(checkpoint, run.head, kind="reset", epoch=2, parent=first.checksum, parent_id=1)
    checkpoint.publish(msgspec.structs.replace(reset, abandoned=((2, 2),), answered=None))
    assert done_by(checkpoint.objects, RequestTicket(1, 1)) is None


def test_where_the_manifests_were_collected_it_is_not_known(checkpoint: Checkpoint) -> None:
    run = Run(checkpoint, fenced(checkpoint, None))
    run.number = 1
    run.publish()
    head = fenced(checkpoint, run.head, answered=None)
    for _ in range(3):
        head = checkpoint.publish(following(checkpoint, head))
    for number in (1, 2, 3):
        checkpoint.objects.delete(f"manifests/{number:020d}.json")
    with pytest.raises(CommitUnknownError, match="request-unknown"):
        done_by(checkpoint.objects, RequestTicket(1, 1))


def test_a_collection_removes_what_ended_runs_have_left(checkpoint: Checkpoint) -> None:
    older = Begun.at(checkpoint, fenced(checkpoint, None))
    ask_of(checkpoint).ask(ReprocessRequest(), ROWS)
    older.end()
    newer = Begun.at(checkpoint.as_new_run(), fenced(checkpoint, older.run.head))
    for _ in range(2):
        ask_of(checkpoint).ask(ReprocessRequest(), ROWS)
    root = Path(checkpoint.objects.root)
    before = control_files(root)
    assert "1/end.json" in before
    collect(checkpoint, replace(NOW, grace="1 hour"))
    assert control_files(root) == before
    collect(checkpoint, NOW)
    assert control_files(root) == [name for name in before if name.startswith("2/")]
    for name in control_files(root):
        os.utime(root / "control" / name, (0, 0))
    collect(checkpoint, replace(NOW, grace="1 hour"))
    kept = ["2/2.answer.json", "2/2.json", "2/2.taken.json", "2/begun.json"]
    assert control_files(root) == kept
    assert ask_of(checkpoint).ask(MetricsRequest()).rows == 7
    assert newer.run.done == [1, 2, 3]
    newer.end()
    collect(checkpoint, NOW)
    assert control_files(root) == []


@pytest.mark.parametrize(
    ("age", "names"),
    [(0, ["begun.json", "end.json"]), (-1, []), (None, []), (NotFoundError("it is gone", code="no-object"), [])],
    ids=["the same tick", "the future", "unknown", "gone"],
)
def test_a_file_of_this_tick_of_the_clock_is_as_old_as_no_grace(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, age: int | NotFoundError | None, names: list[str]
) -> None:
    """The clock of a file system moves every few milliseconds. What is gone meanwhile, or tells no age, stays."""
    older = Begun.at(checkpoint, fenced(checkpoint, None))
    older.end()
    newest = fenced(checkpoint, older.run.head).manifest

    def age_us(_objects: Objects, _path: str) -> int | None:
        if isinstance(age, NotFoundError):
            raise age
        return age

    monkeypatch.setattr(Objects, "age_us", age_us)
    collected = [*collectable_requests(checkpoint.objects, newest.epoch, 0)]
    assert collected == [f"control/1/{name}" for name in names]


def test_a_remote_root_is_asked_in_the_same_way(s3_root: str) -> None:
    """The names are taken once there too, and one request lists what the run looks at."""
    checkpoint = Checkpoint.open_or_create(s3_root)
    run = Run(checkpoint, fenced(checkpoint, None))
    run.act = lambda _action, rows: RequestOutcome(rows.num_rows if rows else 0)
    heartbeat, watch = Heartbeat(checkpoint, 1), RequestWatch(checkpoint.objects, 1, run)
    heartbeat.begin()
    watch.begin()
    until(lambda: "begun.json" in checkpoint.objects.names("control/1"))
    assert ask_of(checkpoint).ask(ReprocessRequest(), ROWS).rows == 3
    run.over = True
    watch.end()
    heartbeat.end()
    assert "end.json" in checkpoint.objects.names("control/1")
