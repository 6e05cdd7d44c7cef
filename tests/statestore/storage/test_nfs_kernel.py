"""NFS by the kernel's client, which remembers names and attributes: hosts in QEMU, on demand."""

from __future__ import annotations

import uuid

import pytest

from tests.servers.nfs import NfsServer
from tests.servers.nfs import nfs_server as nfs_server
from tests.servers.nfs_kernel import Guest, GuestMaker
from tests.servers.nfs_kernel import guests as guests
from tidestate.statestore.storage.objects import Objects

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(900)]

CHILD = ("-m", "tests.children.nfs_guest")
ROUNDS = 20


@pytest.fixture
def root() -> str:
    """The name of a folder that no test has had."""
    return f"root-{uuid.uuid4().hex[:12]}"


def read(guest: Guest, root: str) -> dict[str, str]:
    """The names that this host sees, and whose content they have."""
    found = (line.split() for line in guest.run(guest.python(*CHILD, "read", root)))
    return {name: owner for _, name, owner in found}


def test_two_hosts_with_two_mounts_each_race(guests: GuestMaker, nfs_server: NfsServer, root: str) -> None:
    """Each name has one winner, and who lost sees it at once, whatever was remembered of the folder."""
    hosts = [guests(), guests()]
    ways = [[f"{guest.mount(nfs_server)}/{root}" for _ in range(2)] for guest in hosts]
    for number, guest in enumerate(hosts):
        pairs = [word for place, way in enumerate(ways[number]) for word in (way, str(2 * number + place))]
        guest.tell(guest.python(*CHILD, "race", str(ROUNDS), *pairs))
    said = []
    for _ in range(ROUNDS):
        said += [line for guest in hosts for line in guest.until("ready")]
        for guest in hosts:
            guest.tell("go")
    said += [line for guest in hosts for line in (*guest.until("ready"), *guest.heard())]
    won = dict(line.split()[1:] for line in said if line.startswith("won "))
    lost = [line for line in said if line.startswith("lost ")]
    assert len(said) == ROUNDS * 4
    assert (len(won), len(lost)) == (ROUNDS, ROUNDS * 3)
    for guest in hosts:
        assert read(guest, f"{guest.mount(nfs_server)}/{root}") == won
    assert Objects(nfs_server.files / root).names("m") == sorted(won)


def test_the_power_goes(guests: GuestMaker, nfs_server: NfsServer, root: str) -> None:
    """All that a host has called created is at the server, whole; what it had begun is no name."""
    dying, other = guests(), guests()
    dying.tell(dying.python(*CHILD, "write", f"{dying.mount(nfs_server)}/{root}"))
    created = [dying.next_line() for _ in range(ROUNDS)]
    dying.kill()
    assert created == [f"created {number}" for number in range(ROUNDS)]
    found = read(other, f"{other.mount(nfs_server)}/{root}")
    assert {name: owner for name, owner in found.items() if int(name) < ROUNDS} == {
        str(number): str(number) for number in range(ROUNDS)
    }
    assert len(found) <= ROUNDS + 20  # what it did before it was killed, unheard
    assert all(owner == name for name, owner in found.items())


def test_a_doctor_finds_it_fit(guests: GuestMaker, nfs_server: NfsServer, root: str) -> None:
    guest = guests()
    *checks, trial = guest.run(guest.python(*CHILD, "doctor", f"{guest.mount(nfs_server)}/{root}"))
    assert trial.startswith("trial nfs4, mounted at /mnt/nfs-0"), trial
    assert trial.endswith("| True"), checks
