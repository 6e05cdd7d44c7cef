"""People, who run verbs on the roots while jobs run: each call is a process of its own, which may die as well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tests.faults.simulation.auditor import Published, Site, batches_of
from tests.faults.simulation.drivers import Start, drive
from tests.faults.simulation.jobs import Rows, rows_of, state_of
from tests.faults.simulation.targets import Target
from tests.helpers.moves import execute_repair, rewind
from tidestate.operators.engine.delivery import as_written
from tidestate.recovery.inspect.verify import verify
from tidestate.recovery.log.absent import not_begun
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.marker import MARKER
from tidestate.recovery.log.pins import pin, pinned, unpin
from tidestate.recovery.moves.fork import execute_fork, plan_fork
from tidestate.recovery.moves.repair import plan_repair
from tidestate.recovery.moves.rescale import rescale
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.errors import (
    CommitUnknownError,
    ConflictError,
    FencedError,
    NotFoundError,
    UnavailableError,
    UsageError,
)

if TYPE_CHECKING:
    from tests.faults.simulation.world import World

SECOND = 1_000_000
EXPECTED = (ConflictError, FencedError, CommitUnknownError, UnavailableError)
NOT_FOUND = {"no-checkpoint", "no-such-checkpoint", "collected", "no-such-pin", "fork-unpinned"}
REFUSED = {"running", "drained", "rescale-same", "fork-used", "pin-fork"}


@dataclass(frozen=True)
class Act:
    """Somebody does something at a time."""

    number: int
    at_us: int
    verb: str

    def __str__(self) -> str:
        return f"{self.verb} {self.number} at {self.at_us:,} us"


@dataclass
class Backup:
    """A copy of a whole root, and what had been published by then."""

    objects: dict[str, bytes]
    published: dict[int, Published]
    pins: dict[str, int]
    forks: int


def acts(world: World, verbs: Sequence[str]) -> list[Act]:
    """What people do in a seed, of these verbs, or of all."""
    chance = world.chance
    return [
        Act(
            number,
            int(chance.between(20_000, 90 * SECOND, "acts", number)),
            chance.one_of(verbs or VERBS, "verb", number),
        )
        for number in range(chance.whole(0, 9, "people"))
    ]


def act(world: World, site: Site, what: Act) -> None:
    """Run a verb as this process. Raises what nobody should see."""
    try:
        ACTS[what.verb](world, _where(world, site, what), what)
        ended = "done"
    except EXPECTED as error:
        ended = f"{error.code}: {error.message}"
    except NotFoundError as error:
        if error.code not in NOT_FOUND:
            raise
        ended = str(error)
    except UsageError as error:
        if error.code not in REFUSED:
            raise
        ended = error.code
    world.trace(world.scheduler.running(), "ends", site.name, ended)


def _where(world: World, site: Site, what: Act) -> Site:
    """Some verbs are run on a fork, once there is one."""
    forks = [
        one for one in world.auditor.sites.values() if f"{one.name}/{MARKER}" in world.store.objects and one.bases
    ]
    if not forks or what.verb in ("back-up", "put-back") or _share(world, what, "where") < 0.6:
        return site
    return forks[-1]


def _share(world: World, what: Act, *place: object) -> float:
    return world.chance.share(what.verb, what.number, *place)


def _some_id(world: World, what: Act, checkpoint: Checkpoint) -> int:
    ids = checkpoint.present_ids()
    if not ids:
        raise not_begun(checkpoint.objects.root)
    return ids[int(_share(world, what, "id") * len(ids))]


def _gc(world: World, site: Site, what: Act) -> None:
    aged = _share(world, what, "o") < 0.3
    panes = f"{int(world.chance.between(1, 20 * SECOND, 'age', what.number))} us" if aged else None
    grace = f"{int(_share(world, what, 'grace') * 5 * SECOND)} us"
    retention = CheckpointRetention(newest=1 + int(3 * _share(world, what)), panes=panes, grace=grace)
    collect(Checkpoint.open(site.url), retention)


def _pin(world: World, site: Site, what: Act) -> None:
    checkpoint = Checkpoint.open(site.url)
    made = pin(checkpoint, _some_id(world, what, checkpoint), f"pin-{what.number}")
    site.pins[made.name] = made.checkpoint


def _unpin(world: World, site: Site, what: Act) -> None:
    for name in [name for name in site.pins if name.startswith("pin-")][:1]:
        del site.pins[name]
        unpin(Checkpoint.open(site.url), name)


def _rewind(world: World, site: Site, what: Act) -> None:
    checkpoint = Checkpoint.open(site.url)
    rewind(checkpoint, _some_id(world, what, checkpoint), force=_share(world, what, "force") < 0.8)


def _rescale(world: World, site: Site, what: Act) -> None:
    rescale(site.url, 1 + int(3 * _share(world, what)), force=_share(world, what, "force") < 0.8)


def _repair(world: World, site: Site, what: Act) -> None:
    checkpoint = Checkpoint.open(site.url)
    planned = plan_repair(checkpoint)
    done = execute_repair(checkpoint, planned, force=True)
    if done.reset is not None:
        world.broken("a repair of what is not damaged", f"{site.name}: {planned.findings}")


def _verify(world: World, site: Site, what: Act) -> None:
    checkpoint = Checkpoint.open(site.url)
    report = verify(checkpoint, read_percent=100 * _share(world, what))
    if report.worst is not None:
        world.broken("verify finds damage where none is", f"{site.name}: {report.worst}")


def _read_panes(world: World, site: Site, what: Act) -> None:
    begun_us = world.scheduler.now
    checkpoint, found = Checkpoint.open(site.url), dict[int, Rows]()
    for output in checkpoint.outputs():
        if output.id in found:
            world.broken("a reader gets output twice", f"{site.name} {output.id}")
        found[output.id] = sum(map(rows_of, as_written(checkpoint, output.panes)), Counter[str]())
    _check_read(world, site, begun_us, found)


def _check_read(world: World, site: Site, begun_us: int, found: dict[int, Rows]) -> None:
    """It is the output of the line of a checkpoint that was the newest meanwhile, without what has been deleted."""
    with world.looking():
        gone = world.auditor.boundary(site).panes_gone
    left = {number: rows for number, rows in found.items() if rows and number > gone}
    before = [number for at_us, number in site.heads if at_us <= begun_us]
    during = [number for at_us, number in site.heads if at_us > begun_us]
    for number in (*before[-1:], *during):
        if number not in site.published:
            return  # a backup was put back meanwhile
        line = [one for one in site.line(site.published[number].manifest) if one.manifest.id > gone]
        if {one.manifest.id: one.pane_rows for one in line if one.pane_rows} == left:
            return
    if left or before:
        world.broken("a reader gets the output of no checkpoint", f"{site.name}: {sorted(left)} of {before[-1:]}")


def _read_state(world: World, site: Site, what: Act) -> None:
    checkpoint = Checkpoint.open(site.url)
    with pinned(checkpoint, _some_id(world, what, checkpoint), "look") as head:
        state, _ = state_of(checkpoint, head.manifest)
    if not head.manifest.drained and state != world.auditor.expected.state[batches_of(head.manifest)]:
        world.broken("a reader gets other state", f"{site.name} {head.manifest.id}")


def _fork(world: World, site: Site, what: Act) -> None:
    name = f"fork-{what.number}"
    checkpoint = Checkpoint.open(site.url)
    planned = plan_fork(site.url, f"sim://{name}", _some_id(world, what, checkpoint))
    forked = world.auditor.site(name)
    forked.first, forked.bases = planned.manifest.id, (site.name, *site.bases)
    with_targets(world, forked)
    world.forks += 1
    execute_fork(planned)
    process = world.new_process(f"{name}-driver", name)
    start = Start(what.number, 0, what.number % 4, _share(world, what, "seeks") < 0.5, False, False, None)
    world.spawn(process, process.name, lambda: drive(world, forked, start), 1_000)


def with_targets(world: World, site: Site) -> None:
    """The sinks of the job of this root; one of them may be behind."""
    if site.targets:
        return
    site.late_targets = [Target(world, site, "late", 0)]
    if outputs := world.auditor.case.outputs:
        behind = (0, 3)
        site.targets = [
            Target(world, site, "panes", number, behind[number % 2], name) for number, name in enumerate(outputs)
        ]
        return
    site.targets = [Target(world, site, "panes", 0), Target(world, site, "panes", 1, behind=3)]
    site.targets = site.targets[: world.chance.whole(1, 2, "targets")]


def _back_up(world: World, site: Site, what: Act) -> None:
    """As storage that keeps versions does it, in one moment."""
    below = f"{site.name}/"
    objects = {path: data for path, data in world.store.objects.items() if path.startswith(below)}
    published = {number: replace(one) for number, one in site.published.items()}
    world.backup = Backup(objects, published, dict(site.pins), world.forks)


def _put_back(world: World, site: Site, what: Act) -> None:
    """All that runs there is stopped, what is on its way is lost, and the root is as it was."""
    backup = world.backup
    if backup is None or not backup.published or world.forks:
        return
    me = world.scheduler.running()
    for process in world.processes:
        if process.site == site.name and me is not None and process is not me.process:
            world.scheduler.kill(process, "stopped")
    world.scheduler.forget_requests()
    below = f"{site.name}/"
    objects = {path: data for path, data in world.store.objects.items() if not path.startswith(below)}
    world.store.objects = {**objects, **backup.objects}
    site.lost += [one for number, one in site.published.items() if _lost(one, backup.published.get(number))]
    site.published = {number: replace(one) for number, one in backup.published.items()}
    site.pins, site.needed = dict(backup.pins), None
    site.heads.append((world.scheduler.now, max(site.published)))
    world.trace(me, "puts back", site.name, f"checkpoint {max(site.published)}")


def _lost(now: Published, then: Published | None) -> bool:
    return then is None or then.checksum != now.checksum


ACTS: dict[str, Callable[[World, Site, Act], None]] = {
    "gc": _gc,
    "pin": _pin,
    "unpin": _unpin,
    "rewind": _rewind,
    "rescale": _rescale,
    "repair": _repair,
    "verify": _verify,
    "panes": _read_panes,
    "state": _read_state,
    "fork": _fork,
    "back-up": _back_up,
    "put-back": _put_back,
}
VERBS = (*ACTS, "gc", "gc", "gc", "gc", "rewind", "rewind", "pin", "pin", "put-back")
"""Some are run more often."""
