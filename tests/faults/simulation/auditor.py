"""Looks at the objects themselves after each change of a root, and at the targets in the end: is each promise kept?

It knows what an undisturbed run makes of each prefix of the input, so a checkpoint after k batches must have put out
and hold exactly that, whatever has happened before. What it finds is the end of a run (`World.broken`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from tests.faults.simulation.jobs import Case, Expected, Rows, ids_of, net_of, rows_of, rows_of_all, state_of
from tests.faults.simulation.targets import Target
from tests.faults.simulation.twin import Window
from tidestate.operators import DeliveryId
from tidestate.recovery.inspect.verify import verify
from tidestate.recovery.log.boundary import NO_BOUNDARY, Boundary
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest, files_of, ledger_of, number_in, panes_of, state_files
from tidestate.recovery.log.manifest_file import decode
from tidestate.recovery.log.marker import MARKER
from tidestate.recovery.log.records import held_pins, newest_boundary, read_part, read_pins
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import TidestateError
from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.storage.objects import Objects

if TYPE_CHECKING:
    from tests.faults.simulation.world import World

STEPS = ("batch", "tick", "feed", "bootstrap")
OF_OUTPUT = ".panes"
"""What the run of a delivery ends with that has panes of an output, but for those of the last one."""
LOOKS = 0.3
"""The share of commits after which the state is read."""


@dataclass
class Published:
    """A manifest, and what it put out; ``panes`` by output."""

    manifest: Manifest
    checksum: str
    panes: dict[str, list[pa.Table]]
    late: dict[str, Rows]
    late_ids: Counter[int]
    abandoned_us: int | None = None

    @cached_property
    def pane_rows(self) -> Rows:
        """The panes of all outputs as rows."""
        return rows_of_all(table for tables in self.panes.values() for table in tables)

    @cached_property
    def due(self) -> dict[str, Rows]:
        """What sinks of panes get, by the run under which it is delivered."""
        *further, last = self.manifest.output_names
        writer = self.manifest.writer
        runs = {**{name: f"{writer}-{name}{OF_OUTPUT}" for name in further}, last: writer}
        return {run: rows_of_all(self.panes[name]) for name, run in runs.items()}


@dataclass
class Site:
    """A root and the targets of its job. ``lost``: manifests of before a backup was put back."""

    name: str
    first: int = 1
    bases: tuple[str, ...] = ()
    published: dict[int, Published] = field(default_factory=dict)
    lost: list[Published] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    late_targets: list[Target] = field(default_factory=list)
    heads: list[tuple[int, int]] = field(default_factory=list)
    """When which checkpoint became the newest."""
    pins: dict[str, int] = field(default_factory=dict)
    """Those that were promised."""
    needed: dict[str, str] | None = None
    """Full paths of files that must stay, with the reason; None: to be worked out."""

    @property
    def url(self) -> str:
        return f"sim://{self.name}"

    @property
    def newest(self) -> Published | None:
        return self.published[max(self.published)] if self.published else None

    def line(self, last: Manifest) -> list[Published]:
        """The checkpoints of this root that count for one of them, oldest first."""
        ids = sorted(number for number in self.published if number <= last.id and not last.abandons(number))
        return [self.published[number] for number in ids]

    def of(self, run: str, number: int) -> Published | None:
        """What this run has published under this number, be it lost since."""
        known = [self.published[number]] if number in self.published else []
        known += [one for one in self.lost if one.manifest.id == number]
        return next((one for one in known if one.manifest.writer == run), None)


class Auditor:
    """Of all roots."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.sites: dict[str, Site] = {}
        self.case: Case
        self.expected: Expected
        self.commits = 0

    def site(self, name: str) -> Site:
        return self.sites.setdefault(name, Site(name))

    def written(self, path: str, data: bytes) -> None:
        """An object has been written."""
        name, _, below = path.partition("/")
        site = self.site(name)
        if below.startswith(("manifests/", "pins/", "gc/")):
            site.needed = None
        number = number_in(below.removeprefix("manifests/")) if below.startswith("manifests/") else None
        if number is not None:
            with self._looking():
                self._committed(site, number, data)

    def removing(self, path: str) -> None:
        """An object is about to be deleted."""
        with self._looking():
            self._removing(path)

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """What cannot be read is a violation too: the actor that is being looked at must not see the error."""
        with self._world.looking():
            try:
                yield
            except Exception as error:
                self._broken("the auditor cannot read", f"{type(error).__name__}: {error}")

    def _removing(self, path: str) -> None:
        name, _, below = path.partition("/")
        site = self.site(name)
        folder, _, file = below.partition("/")
        if folder == "manifests" and (number := number_in(file)) is not None:
            if number > self.boundary(site).id:
                self._broken("a manifest that counts is deleted", path)
            elif number in self._held(site).values():
                self._broken("a pinned manifest is deleted", path)
        elif (
            below.startswith("gc/boundary/")
            and number_in(below.removeprefix("gc/boundary/")) == self.boundary(site).number
        ):
            self._broken("the boundary that counts is deleted", path)
        for one in self.sites.values():
            if one.needed is None:
                one.needed = dict(self._needed(one))
            if path in one.needed:
                self._broken("a file that is needed is deleted", f"{path}, by {one.needed[path]}")
        if folder == "pins":
            site.needed = None

    def _needed(self, site: Site) -> Iterator[tuple[str, str]]:
        boundary, pinned = self.boundary(site), set(self._held(site).values())
        for number, one in site.published.items():
            if number <= boundary.id and number not in pinned:
                continue
            files = state_files(one.manifest) if number <= boundary.id else list(files_of(one.manifest))
            for ref in files:
                if not _gone(ref, number, boundary):
                    yield self._full(site, ref), f"checkpoint {number} of {site.name}"
        for part in boundary.outputs:
            yield f"{site.name}/{part.path}", f"boundary {boundary.number}"
            for output in read_part(Objects(site.url), part):
                left = boundary.remaining(output)
                for ref in (*left.panes, *left.late):
                    yield self._full(site, ref), f"the output index of {site.name}"

    def boundary(self, site: Site) -> Boundary:
        """That of collection, as it is now."""
        return newest_boundary(Objects(site.url)) if site.published else NO_BOUNDARY

    def _held(self, site: Site) -> dict[str, int]:
        """Pins that are held."""
        objects = Objects(site.url)
        held = held_pins(objects)
        return {pin.name: pin.checkpoint for pin in read_pins(objects) if pin.name in held}

    def _full(self, site: Site, ref: FileRef) -> str:
        return f"{(site.name, *site.bases)[ref.root]}/{ref.path}"

    def _committed(self, site: Site, number: int, data: bytes) -> None:
        manifest, digest = decode(data, f"manifests/{number}")
        if number <= self.boundary(site).id:
            return  # it came too late, and does not count
        if number in site.published:
            if site.published[number].checksum != digest:
                self._broken("two manifests of one id", f"{site.name} {number}: {manifest.kind} {manifest.writer}")
            return
        self.commits += 1
        head = site.newest
        one = self._read(site, manifest, digest)
        if one is None:
            return
        site.published[number] = one
        site.heads.append((self._world.scheduler.now, number))
        self._check_order(site, head, one)
        self._check_output(site, one)
        self._check_delivered(site, one)
        if manifest.kind not in ("batch", "fence") or self._world.chance.share("looks", site.name, number) < LOOKS:
            self._check_state(site, one)

    def _read(self, site: Site, manifest: Manifest, digest: str) -> Published | None:
        """The manifest with its output, if all files that it names are there."""
        for ref in files_of(manifest):
            data = self._world.store.objects.get(self._full(site, ref))
            part = b"" if data is None else data[ref.start : ref.start + ref.bytes]
            # A segment may be a part of a bundle, whose size its name has beside its own.
            if data is None or len(data) != (ref.bundle_bytes or ref.bytes) or checksum(part) != ref.checksum:
                what = "gone" if data is None else "another one"
                self._broken(
                    "a manifest names a file that is not there", f"{site.name} {manifest.id}: {ref.path} {what}"
                )
                return None
        panes = {
            name: [self._table(site, ref) for ref in panes_of(manifest.panes, name)] for name in manifest.output_names
        }
        late = {
            name: [self._table(site, ref) for ref in ledger_of(manifest.late, name)] for name in manifest.operators
        }
        rows = {name: sum(map(rows_of, tables), Counter[str]()) for name, tables in late.items() if tables}
        ids = sum((ids_of(table) for tables in late.values() for table in tables), Counter[int]())
        return Published(manifest, digest, panes, rows, ids)

    def _table(self, site: Site, ref: FileRef) -> pa.Table:
        return pq.read_table(pa.BufferReader(self._world.store.objects[self._full(site, ref)]))

    def _check_order(self, site: Site, head: Published | None, one: Published) -> None:
        made = one.manifest
        where = f"{site.name} {made.id}, {made.kind} of {made.writer[:6]}"
        if head is None:
            if made.id != site.first and not site.bases:
                self._broken("ids are not dense", where)
            return
        before = head.manifest
        parent = site.published.get(made.follows)
        if made.kind == "reset":
            actor = self._world.scheduler.current
            if actor is not None and actor.process.name.startswith(("driver-", "last-")):
                self._broken("a start goes back though nothing is damaged", where)
            gap = [n for n in range(before.id + 1, made.id) if not made.abandons(n)]
            left = [n for n in range(made.follows + 1, before.id + 1) if not made.abandons(n)]
            if made.id <= before.id or gap or left:
                self._broken("a reset leaves something", f"{where}: {gap or left}")
            for number, other in site.published.items():
                # One that was abandoned before may count again.
                since = self._world.scheduler.now if other.abandoned_us is None else other.abandoned_us
                other.abandoned_us = since if made.abandons(number) else None
        elif made.id != before.id + 1 or made.follows != before.id:
            self._broken("ids are not dense", f"{where} follows {made.follows}, and the newest is {before.id}")
        if parent is None or parent.checksum != made.parent:
            self._broken("the chain is broken", f"{where} has another parent")
            return
        was = parent.manifest
        if made.kind in STEPS and (was.writer, was.epoch) != (made.writer, made.epoch):
            self._broken("a fenced writer publishes", f"{where} after {was.kind} of {was.writer[:6]}")
        if made.kind not in STEPS and made.epoch <= before.epoch:
            self._broken("an epoch does not grow", f"{where}: {made.epoch} after {before.epoch}")
        if was.watermark_us is not None and (made.watermark_us is None or made.watermark_us < was.watermark_us):
            self._broken("a watermark goes back", f"{where}: {was.watermark_us} to {made.watermark_us}")
        if was.drained and made.kind in STEPS:
            self._broken("a drained job goes on", where)
        taken, taken_before = batches_of(made), batches_of(was)
        if taken != taken_before + (made.kind == "batch"):
            self._broken("the input does not go on where it was", f"{where}: {taken} batches after {taken_before}")

    def _check_output(self, site: Site, one: Published) -> None:
        made, nothing = one.manifest, Counter[str]()
        taken, steps = batches_of(made), made.kind == "batch"
        panes = self.expected.panes[taken] if steps else self.expected.drained if made.kind == "tick" else nothing
        late = self.expected.late[taken] if steps else nothing
        where = f"{site.name} {made.id}, {made.kind} after {taken} batches"
        self._compare("panes are wrong", where, panes, one.pane_rows)
        self._compare("the ledger is wrong", where, late, sum(one.late.values(), Counter[str]()))
        if steps and self.case.is_poisoned(taken) and _is_strict(made):
            self._broken("a batch that was to fail is published", where)
        if steps and made.watermark_us != self.expected.marks[taken]:
            self._broken("the watermark is wrong", f"{where}: {made.watermark_us}, not {self.expected.marks[taken]}")

    def _compare(self, kind: str, where: str, expected: Rows, found: Rows) -> None:
        if expected != found:
            lacks, more = list((expected - found).elements()), list((found - expected).elements())
            self._broken(kind, f"{where}: lacks {lacks[:3]}, has {more[:3]}")

    def _check_delivered(self, site: Site, one: Published) -> None:
        """What it says that sinks have, they have."""
        made = one.manifest
        for target in (*site.targets, *site.late_targets):
            had = made.delivered.late if target.kind == "late" else made.delivered.up_to("panes", target.output)
            for before in site.line(made):
                if before.manifest.id <= had:
                    self._check_has([target], before, f"{site.name} {made.id} says that it has")

    def _check_has(self, targets: list[Target], one: Published, why: str) -> None:
        made = one.manifest
        for target in targets:
            for run, rows in _for_target(target, one).items():
                found = target.rows.get((run, made.id), Counter())
                if rows and found != rows:
                    lacks, more = list((rows - found).elements()), list((found - rows).elements())
                    text = f"{target.name}: {why} {run[:6]}-{made.id}: lacks {lacks[:2]}, has {more[:2]} too many"
                    self._broken("a sink lacks rows or has some twice", text)

    def _check_state(self, site: Site, one: Published) -> None:
        made = one.manifest
        if made.drained:
            return
        where = f"{site.name} {made.id}, {made.kind} after {batches_of(made)} batches"
        state, ids = state_of(Checkpoint.open(site.url) if self._has_marker(site) else self._unmarked(site), made)
        self._compare("the state is wrong", where, self.expected.state[batches_of(made)], state)
        if self.case.accounts and not site.bases:
            line = site.line(made)
            rejected = sum((other.late_ids for other in line), Counter[int]())
            net = _net_of(line)
            standing = {event for events in net.values() for event in events}
            self._check_accounts(where, self.expected.ids[batches_of(made)], rejected, {*ids, *standing})

    def _check_accounts(self, where: str, all_ids: Counter[int], rejected: Counter[int], held: set[int]) -> None:
        """Each event is in the state or in panes that stand, or in the ledger, and nowhere else."""
        lost = set(all_ids) - held - set(rejected)
        twice = {one for one in held & set(rejected) if all_ids[one] < 2}
        unknown = (held | set(rejected)) - set(all_ids)
        if lost or twice or unknown:
            text = f"{where}: lost {sorted(lost)}, twice {sorted(twice)}, never sent {sorted(unknown)}"
            self._broken("events are not accounted for", text)

    def _has_marker(self, site: Site) -> bool:
        return f"{site.name}/{MARKER}" in self._world.store.objects

    def _unmarked(self, site: Site) -> Checkpoint:
        """A fork whose marker is written last."""
        objects = Objects(site.url, bases=tuple(f"sim://{base}" for base in site.bases))
        return Checkpoint(objects, Checkpoint.open(f"sim://{site.bases[0]}").marker)

    def delivered(self, target: Target, delivery: DeliveryId, rows: Rows, who: str, checked_us: int) -> None:
        """A sink is given rows."""
        site = self.sites[target.name.partition("/")[0]]
        one = site.of(delivery.run.partition("-")[0], delivery.checkpoint)
        if one is None:
            self._broken("what is delivered was not published", f"{who}: {target.name} {delivery}")
            return
        due = _for_target(target, one).get(delivery.run, Counter())
        self._compare("other rows are delivered", f"{who}: {target.name} {delivery}", due, rows)
        if one.abandoned_us is not None and one.abandoned_us < checked_us:
            self._broken("what was abandoned is delivered", f"{who}: {target.name} {delivery}")

    def check_end(self, site: Site) -> None:
        """The job has ended: all is there, once, and nothing is damaged."""
        with self._looking():
            head = site.newest
            if head is None or not head.manifest.drained or batches_of(head.manifest) != len(self.case.batches):
                self._broken("the input was not taken to its end", site.name)
                return
            line = [one for one in site.line(head.manifest) if one.manifest.id > site.first or not site.bases]
            for one in line:
                self._check_has([*site.targets, *site.late_targets], one, "in the end it has not")
            report = verify(Checkpoint.open(site.url), read_percent=100)
            if report.worst is not None:
                self._broken("a root is damaged in the end", f"{site.name}: {report.worst}")
            if self.expected.net and not site.bases:
                net = _net_of(line)
                if net != self.expected.net:
                    self._broken("the windows that stand are wrong", f"{site.name}: {net}, not {self.expected.net}")
            for name, number in site.pins.items():
                self._check_pinned(site, name, number)

    def _check_pinned(self, site: Site, name: str, number: int) -> None:
        checkpoint = Checkpoint.open(site.url)
        try:
            manifest = checkpoint.read(number).manifest
            state, _ = state_of(checkpoint, manifest)
        except TidestateError as error:
            self._broken("a pinned checkpoint cannot be read", f"{site.name} {number}, {name}: {error}")
            return
        if not manifest.drained:
            expected = self.expected.state[batches_of(manifest)]
            self._compare("a pinned checkpoint is wrong", f"{site.name} {number}", expected, state)

    def _broken(self, kind: str, text: str) -> None:
        self._world.broken(kind, text)


def batches_of(manifest: Manifest) -> int:
    """How many batches were taken."""
    return 0 if manifest.input is None else manifest.input.batches


def _is_strict(manifest: Manifest) -> bool:
    """Whether it was made by a job that fails for poison."""
    stages = (stage for one in manifest.operators.values() for stage in one.configuration.get("stages", ()))
    return any(stage.get("otherwise") == "fail" for stage in stages)


def _gone(ref: FileRef, number: int, boundary: Boundary) -> bool:
    """Whether the output of a checkpoint was deleted by its age."""
    kind = ref.path.partition("/")[0]
    return (kind == "panes" and number <= boundary.panes_gone) or (kind == "late" and number <= boundary.late_gone)


def _for_target(target: Target, one: Published) -> dict[str, Rows]:
    """What a checkpoint has for a target, by run."""
    if target.kind == "late":
        return {f"{one.manifest.writer}-{name}": rows for name, rows in one.late.items()}
    if not target.output:
        return one.due
    last = one.manifest.output_names[-1] == target.output
    run = one.manifest.writer if last else f"{one.manifest.writer}-{target.output}{OF_OUTPUT}"
    return {run: one.due[run]}


def _net_of(line: list[Published]) -> dict[Window, list[int]]:
    return net_of(table for one in line for tables in one.panes.values() for table in tables)
