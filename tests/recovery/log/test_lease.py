"""Who is running: leases, and what a second driver does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.worked_example import STREAM, example
from tidestate.recovery.log.checkpoint import Checkpoint, now_us
from tidestate.recovery.log.lease import (
    DURATION_US,
    LEASE_FOLDER,
    Lease,
    Process,
    all_leases,
    check_idle,
    clear_leases,
    running,
    this_process,
)
from tidestate.statestore.errors import UsageError

ELSEWHERE = Process("elsewhere", 7)


def lease(process: Process, epoch: int = 1, written_us: int | None = None) -> Lease:
    now = now_us()
    return Lease(process, epoch, "w", now - 60_000_000, now if written_us is None else written_us)


def leave(checkpoint: Checkpoint, one: Lease, name: str = "1-1") -> None:
    checkpoint.objects.put(f"{LEASE_FOLDER}/{name}.json", msgspec.json.encode(one))


def was_changed(checkpoint: Checkpoint, seconds_ago: float, name: str = "1-1") -> None:
    changed = time.time() - seconds_ago
    os.utime(checkpoint.objects.locate(f"{LEASE_FOLDER}/{name}.json"), (changed, changed))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint.open_or_create(tmp_path / "root")


def test_nobody_runs_a_new_root(checkpoint: Checkpoint) -> None:
    assert running(checkpoint) is None
    check_idle(checkpoint)


def test_a_lease_of_another_host_counts_until_it_runs_out(checkpoint: Checkpoint) -> None:
    leave(checkpoint, lease(ELSEWHERE))
    with pytest.raises(UsageError, match=r"stop it, wait (29|30) s .* force=True.* host=elsewhere pid=7 seconds=60"):
        check_idle(checkpoint)
    check_idle(checkpoint, force=True)
    was_changed(checkpoint, DURATION_US / 1e6 + 1)
    check_idle(checkpoint)


@pytest.mark.parametrize("wrong_s", [-120, 7200])
def test_a_lease_is_as_old_as_storage_says_whatever_the_clock_of_its_host(
    checkpoint: Checkpoint, wrong_s: int
) -> None:
    leave(checkpoint, lease(ELSEWHERE, written_us=now_us() + wrong_s * 1_000_000))
    with pytest.raises(UsageError, match=r"wait (29|30) s if it has died"):
        check_idle(checkpoint)
    was_changed(checkpoint, 31)
    check_idle(checkpoint)


def test_where_storage_has_no_clock_those_of_the_hosts_count_and_the_message_says_so() -> None:
    checkpoint = Checkpoint.open_or_create(f"memory://leases-{os.getpid()}")
    leave(checkpoint, lease(ELSEWHERE))
    with pytest.raises(UsageError, match=r"wait (29|30) s \(if the hosts' clocks agree\) if it has died"):
        check_idle(checkpoint)
    leave(checkpoint, lease(ELSEWHERE, written_us=now_us() - DURATION_US))
    check_idle(checkpoint)


@pytest.mark.kill
def test_a_process_of_this_host_counts_while_it_lives(checkpoint: Checkpoint) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        own = this_process()
        assert own.pid == os.getpid()
        leave(checkpoint, lease(msgspec.structs.replace(own, pid=child.pid, started=0)))
        assert running(checkpoint) is not None
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert running(checkpoint) is None  # dead, though nobody has taken note
    assert running(checkpoint) is None


def test_a_pid_that_another_process_has_now_is_not_alive(checkpoint: Checkpoint) -> None:
    own = this_process()
    leave(checkpoint, lease(own))
    assert running(checkpoint) is not None
    leave(checkpoint, lease(msgspec.structs.replace(own, started=own.started - 1)), "1-2")
    checkpoint.objects.delete(f"{LEASE_FOLDER}/1-1.json")
    assert running(checkpoint) is None
    other_boot = msgspec.structs.replace(own, started=1, space="another boot, or another machine of this name")
    leave(checkpoint, lease(other_boot), "1-3")
    assert running(checkpoint) is not None


def test_the_newest_epoch_is_who_runs_and_older_ones_are_cleared(checkpoint: Checkpoint) -> None:
    leave(checkpoint, lease(ELSEWHERE, epoch=3), "3-9")
    leave(checkpoint, lease(this_process(), epoch=4), "4-1")
    found = running(checkpoint)
    assert found is not None
    assert found.epoch == 4
    clear_leases(checkpoint, 4)
    assert list(all_leases(checkpoint)) == [f"{LEASE_FOLDER}/4-1.json"]


def test_what_cannot_be_read_is_no_lease(checkpoint: Checkpoint) -> None:
    checkpoint.objects.put(f"{LEASE_FOLDER}/1-1.json", b"")
    checkpoint.objects.put(f"{LEASE_FOLDER}/1-2.json", b'{"process":')
    check_idle(checkpoint)
    assert running(checkpoint) is None


def test_a_start_that_refuses_publishes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "root"
    example("retracting").standalone(checkpoint=root).run(STREAM[:2])
    before = evidence.manifests(root)
    leave(Checkpoint.open(root), lease(ELSEWHERE, epoch=before[-1]["epoch"]), "1-77")
    refusing = example("retracting").standalone(checkpoint=root, policy=ts.Policy(second="refuse"))
    with pytest.raises(UsageError, match=r"takeover.*\[running\]"):
        refusing.run(STREAM)
    assert evidence.manifests(root) == before
    example("retracting").standalone(checkpoint=root).run(STREAM)
    assert evidence.manifests(root)[-1]["epoch"] == before[-1]["epoch"] + 1


def test_a_policy_has_few_choices() -> None:
    with pytest.raises(UsageError, match=r"takeover\|refuse.*\[policy\]"):
        ts.Policy(second="both")  # type: ignore[arg-type]
