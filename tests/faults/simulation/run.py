"""One seed from its plan to its end, and many of them."""

from __future__ import annotations

import gc
import shutil
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

from tests.faults.simulation.auditor import Site
from tests.faults.simulation.chance import Options
from tests.faults.simulation.drivers import Start, drive, starts
from tests.faults.simulation.jobs import DESCRIPTIONS, VARIANTS, case_of, expected_of
from tests.faults.simulation.people import Act, act, acts, with_targets
from tests.faults.simulation.planted import PLANTED
from tests.faults.simulation.world import Violation, World
from tests.helpers.process import SCRATCH
from tidestate.recovery.log.marker import MARKER

ROOT = "root"
NOTHING = Options()
AHEAD = 4
"""Seeds of each process that are under way or wait."""


@dataclass(frozen=True)
class Outcome:
    """What became of a seed. ``fired``: its faults; ``plan``: its drivers, and what people did; ``digest``: of all
    requests, with their times and outcomes.
    """

    seed: int
    case: str
    violation: Violation | None
    digest: str
    requests: int
    commits: int
    seconds: float
    fired: tuple[str, ...]
    plan: tuple[str, ...]
    lines: tuple[str, ...]

    @property
    def faults(self) -> Counter[str]:
        """How often a fault of each kind has happened."""
        return Counter(one.partition("/")[0] for one in self.fired)


def simulate(seed: int, options: Options = NOTHING, *, traced: bool = False) -> Outcome:
    """Run a seed to its end, or to the first promise that is broken."""
    folder = Path(tempfile.mkdtemp(prefix="tidestate-simulation-", dir=SCRATCH))
    try:
        return _simulated(seed, options, folder, traced)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        gc.collect()


def _simulated(seed: int, options: Options, folder: Path, traced: bool) -> Outcome:
    world = World(seed, options, folder, traced=traced)
    chance = world.chance
    name, variant = chance.one_of(tuple(DESCRIPTIONS), "case"), chance.whole(0, VARIANTS - 1, "variant")
    world.auditor.case = case_of(name, variant, options.batches)
    world.auditor.expected = expected_of(name, variant, options.batches)
    verbs = PLANTED[options.planted].verbs if options.planted else ()
    plan: list[Start | Act] = [*starts(world), *acts(world, verbs)]
    left = [one for place, one in enumerate(plan) if place not in options.dropped]
    with world.running(), ExitStack() as stack:
        if options.planted:
            stack.enter_context(PLANTED[options.planted].put())
        _disturbed(world, left)
        if world.violation is None:
            _ended(world)
    return Outcome(
        seed,
        f"{name} {variant}",
        world.violation,
        world.digest.hexdigest(),
        world.requests,
        world.auditor.commits,
        world.scheduler.now / 1e6,
        tuple(chance.fired),
        tuple(map(str, plan)),
        tuple(world.lines or ()),
    )


def _disturbed(world: World, plan: Iterable[Start | Act]) -> None:
    """All that the seed has planned, until nothing of it is left."""
    site = world.auditor.site(ROOT)
    with_targets(world, site)
    for one in plan:
        name = f"driver-{one.number}" if isinstance(one, Start) else f"{one.verb}-{one.number}"
        process = world.new_process(name, ROOT)
        world.spawn(process, name, _work(world, site, one), one.at_us)
    world.scheduler.run()
    if world.scheduler.overrun:
        world.broken("no end", f"after {world.scheduler.now / 1e6:.0f} s")


def _work(world: World, site: Site, one: Start | Act) -> Callable[[], None]:
    return lambda: drive(world, site, one) if isinstance(one, Start) else act(world, site, one)


def _ended(world: World) -> None:
    """Faults are over: a last driver of each job takes the rest of the input and ends it, and all is looked at."""
    world.chance.calm = True
    for site in list(world.auditor.sites.values()):
        if site.name != ROOT and f"{site.name}/{MARKER}" not in world.store.objects:
            continue  # a fork that was not finished
        process = world.new_process(f"last-{site.name}", site.name)
        last = Start(0, 0, 0, False, False, False, None)
        world.spawn(process, process.name, _last(world, site, last))
        world.scheduler.run()
        if world.scheduler.overrun:
            world.broken("no end", f"{site.name}: the last driver does not end")
        if world.violation is None:
            world.auditor.check_end(site)


def _last(world: World, site: Site, start: Start) -> Callable[[], None]:
    return lambda: drive(world, site, start, to_the_end=True)


def simulate_each(seeds: Iterable[int], processes: int, options: Options = NOTHING) -> Iterator[Outcome]:
    """Many seeds, in several processes; outcomes come in their order. Seeds are taken as they are needed."""
    if processes <= 1:
        yield from (simulate(seed, options) for seed in seeds)
        return
    left = iter(seeds)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        begun = deque(pool.submit(simulate, seed, options) for seed in islice(left, AHEAD * processes))
        while begun:
            yield begun.popleft().result()
            begun += [pool.submit(simulate, seed, options) for seed in islice(left, 1)]
