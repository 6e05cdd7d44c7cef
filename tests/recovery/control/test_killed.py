"""Real SIGKILL at each moment of a request, of the run that is asked and of who asks: done once, or not at all, and
whoever asks learns which.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.children.requested import OFFERED, TAKEN, described
from tests.helpers import evidence
from tests.helpers.forked import ForkedChild, forked
from tests.helpers.process import in_turn
from tests.helpers.requests import asker, control_files, until
from tidestate.recovery.control.past import RequestTicket
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.requests import ControlAnswer, ReprocessRequest, RequestAction, StopRequest
from tidestate.statestore.errors import CommitUnknownError, UsageError
from tools.demo.child import ChildFailedError

FED = len(TAKEN) + 2
"""The checkpoint that a request makes: a fence and all batches come before it."""
REQUESTS: dict[str, RequestAction] = {
    "given": ReprocessRequest(),
    "ledger": ReprocessRequest(),
    "drain": StopRequest(drain=True),
}
ROWS = {"given": OFFERED.num_rows, "ledger": 3, "drain": None}


@contextmanager
def run(root: Path, *death: str) -> Iterator[ForkedChild]:
    """The child, once it can be asked; one that dies of its own hand is not waited for."""
    child = ForkedChild("tests.children.requested", root, len(TAKEN), *death, log=root.parent / "log")
    try:
        child.wait_for(lambda event: event["event"] in ("ready", "done"))
        yield child
    finally:
        with suppress(ProcessLookupError):
            child.kill()


def submitted(root: Path, name: str) -> RequestTicket:
    return asker(root).submit(REQUESTS[name], OFFERED if name == "given" else None)


def effects(root: Path) -> Counter[evidence.Row]:
    """All panes, without the checkpoints that they are of."""
    return Counter(row for manifest in evidence.manifests(root) for row in evidence.rows(root, manifest["panes"]))


@cache
def wanted(name: str) -> Counter[evidence.Row]:
    """The panes of a run in this process that did it once, by the method of its runner."""
    with TemporaryDirectory() as folder:
        runner = described().standalone(checkpoint=folder, partitions=2)
        runner.run(TAKEN)
        if name == "drain":
            runner.drain()
        else:
            runner.reprocess_late(OFFERED if name == "given" else None)
        return effects(Path(folder))


def outcome(root: Path, ticket: RequestTicket) -> ControlAnswer | str:
    """The answer, or the code of its error."""
    try:
        return asker(root).answer(ticket)
    except (UsageError, CommitUnknownError) as error:
        return error.code


def done(child: ForkedChild, root: Path, name: str, ticket: RequestTicket) -> ControlAnswer:
    """The answer of a run that lives. A drained one ends with its input, so its answer waits for that."""
    if name == "drain":
        until(lambda: Checkpoint.open(root).chosen(None).manifest.drained)
        child.tell(40)
        child.wait_for(lambda event: event["event"] == "done")
    return asker(root).answer(ticket)


def settled(root: Path, ticket: RequestTicket, name: str) -> bool:
    """Whether a run that has died had done the request: it says so itself if it is known, and the next run does. If
    not, it is made again, of that run.
    """
    first = outcome(root, ticket)
    with run(root) as child:
        second = outcome(root, ticket)
        if isinstance(second, ControlAnswer):
            assert second.checkpoint == FED
            assert isinstance(first, ControlAnswer)
            return True
        assert second == "run-ended"
        assert first in ("run-ended", "request-open")
        assert done(child, root, name, submitted(root, name)).rows == ROWS[name]
        return False


@pytest.mark.parametrize("name", REQUESTS)
def test_killed_before_the_request_is_seen(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    with run(root) as child:
        os.kill(child.pid, signal.SIGSTOP)
        ticket = submitted(root, name)
        child.kill()
    assert not settled(root, ticket, name)
    assert effects(root) == wanted(name)


@pytest.mark.parametrize(("name", "moment"), in_turn(REQUESTS, ["before-manifest", "after-manifest"]))
def test_killed_around_the_manifest(tmp_path: Path, name: str, moment: str) -> None:
    root = tmp_path / "root"
    with run(root, f"{moment}:{FED}") as child:
        ticket = submitted(root, name)
        with pytest.raises(ChildFailedError):
            child.wait_for(lambda event: event["event"] == "done")
        assert child.wait() == -signal.SIGKILL
        assert f"{ticket.epoch}/{ticket.number}.answer.json" not in control_files(root)
    assert settled(root, ticket, name) == (moment == "after-manifest")
    assert effects(root) == wanted(name)


@pytest.mark.parametrize("name", REQUESTS)
def test_killed_after_the_answer(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    with run(root) as child:
        ticket = submitted(root, name)
        assert done(child, root, name, ticket).rows == ROWS[name]
    assert settled(root, ticket, name)
    assert effects(root) == wanted(name)


def test_who_asked_may_die(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with run(root):
        assert forked("tests.children.asking", root) == -signal.SIGKILL
        epoch = asker(root).run().epoch
        assert asker(root).answer(RequestTicket(epoch, 1)).rows == OFFERED.num_rows
    assert effects(root) == wanted("given")
