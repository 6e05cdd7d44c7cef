"""The world of one run, and what stands in it for clocks, threads, random ids and hosts of this process."""

from __future__ import annotations

import concurrent.futures
import gc
import logging
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import tenacity.wait
import xxhash

from tests.faults.simulation.auditor import Auditor
from tests.faults.simulation.chance import Chance, Options
from tests.faults.simulation.engine import Executors, attempted
from tests.faults.simulation.scheduler import Actor, Event, Later, Process, Scheduler
from tests.faults.simulation.storage import SimulatedFileSystem, Store
from tests.helpers.process import forget
from tidestate.operators.engine import driver, tasks
from tidestate.operators.local import standalone
from tidestate.recovery.log import lease
from tidestate.recovery.retention import upkeep
from tidestate.recovery.start import heartbeat
from tidestate.statestore.storage import remote, write_behind
from tidestate.statestore.stores import opening, restore_monitor

_MONOTONIC = time.monotonic
BEGIN_US = 1_700_000_000_000_000
"""The wall clock at the beginning."""
SKEW_US = 3_600_000_000
"""How far the clock of a host may be wrong."""


@dataclass(frozen=True)
class Violation:
    """A promise that was broken: which, and what was seen."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class World:
    """All that a run has: its decisions, its time, its storage, its processes."""

    def __init__(self, seed: int, options: Options, folder: Path, *, traced: bool = False) -> None:
        self.chance = Chance(seed, options)
        self.planted = options.planted
        self.folder = folder
        self.scheduler = Scheduler(self.chance)
        self.auditor = Auditor(self)
        self.store = Store(self)
        self.violation: Violation | None = None
        self.lines: list[str] | None = [] if traced else None
        self.digest = xxhash.xxh3_64()
        self.requests = 0
        self.processes: list[Process] = []
        self.backup: Any = None
        self.forks = 0
        self._outside = Process("outside")

    @property
    def process(self) -> Process:
        """That of the actor that calls; one of its own for the auditor."""
        me = self.scheduler.running()
        return self._outside if me is None else me.process

    def new_process(self, name: str, site: str = "") -> Process:
        """On a host of its own, whose clock may be wrong."""
        wrong = self.chance.happens("skew", name)
        skew_us = int((2 * self.chance.share("skewed", name) - 1) * SKEW_US) if wrong else 0
        self.processes.append(Process(name, site, skew_us))
        return self.processes[-1]

    def trace(self, actor: Actor | None, verb: str, path: str, outcome: str) -> None:
        """What happened."""
        self.requests += 1
        line = f"{self.scheduler.now:>12,} {actor.name if actor else 'network':<24} {verb} {path} -> {outcome}"
        self.digest.update(line.encode())
        if self.lines is not None:
            self.lines.append(line)

    def broken(self, kind: str, text: str) -> None:
        """A promise was: the run ends here. The first counts."""
        if self.violation is None:
            self.violation = Violation(kind, text)
            self.trace(None, "BROKEN", kind, text)
        self.scheduler.over = True

    def spawn(
        self, process: Process, name: str, work: Callable[[], None], delay_us: int = 0, *, daemon: bool = False
    ) -> Actor:
        """A thread whose unexpected errors are violations."""
        return self.scheduler.spawn(process, name, self._checked(name, work), delay_us, daemon=daemon)

    def _checked(self, name: str, work: Callable[[], None]) -> Callable[[], None]:
        def checked() -> None:
            try:
                work()
            except Exception as error:
                kind = getattr(error, "code", type(error).__name__)
                self.broken(f"an unexpected error, {kind}", f"{name}: {type(error).__name__}: {error}")

        return checked

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Requests within take no time and meet no faults."""
        self.scheduler.direct += 1
        try:
            yield
        finally:
            self.scheduler.direct -= 1

    @contextmanager
    def running(self) -> Iterator[None]:
        """This process is that world: it has its clocks, threads, ids and hosts."""
        log = logging.getLogger("tidestate")
        level, collects = log.level, gc.isenabled()
        forget()
        with ExitStack() as stack:
            for place, name, value in self._stand_ins():
                stack.enter_context(patch.object(place, name, value))
            log.setLevel(logging.CRITICAL + 1)
            gc.disable()  # objects that the collector finds would give back leases at any moment
            try:
                yield
            finally:
                self.scheduler.finish()
                log.setLevel(level)
                forget()
                if collects:
                    gc.enable()

    def _stand_ins(self) -> Iterator[tuple[Any, str, Any]]:
        threads = SimpleNamespace(Thread=self._thread, Event=lambda: Event(self.scheduler), Lock=_NoLock)
        clock = {"time": self._wall_s, "time_ns": self._wall_ns, "monotonic": self._monotonic, "sleep": self._sleep}
        yield SimulatedFileSystem, "world", self
        yield from ((time, name, value) for name, value in clock.items())
        yield uuid, "uuid4", self._uuid
        yield tenacity.wait, "random", SimpleNamespace(random=self._random)
        yield heartbeat, "threading", threads
        yield upkeep, "threading", threads
        yield concurrent.futures, "ThreadPoolExecutor", self._pool
        yield write_behind, "_writers", self._pool
        yield lease, "_own", lambda _pid: lease.Process(self.process.name, 1)
        yield opening, "_memory", _PerProcess(self)
        yield remote, "_probed", _Everything()
        yield remote, "of_this_user", lambda name: self.folder / self.process.name / name
        yield standalone, "InProcess", Executors
        yield tasks, "in_threads", lambda work, tasks, _threads: attempted(self, work, tasks)
        yield from ((one, "lock", _NoLock()) for one in _cached_properties())
        # Defaults were read when these modules were imported.
        yield driver.Driver.__init__, "__kwdefaults__", {**driver.Driver.__init__.__kwdefaults__, "wait": self._sleep}
        yield tasks.Stopwatch.__init__, "__defaults__", (self._monotonic,)
        yield from _with_clock(restore_monitor.RestoreMonitor.__init__, self._monotonic)

    def _wall_ns(self) -> int:
        return (BEGIN_US + self.scheduler.now + self.process.skew_us) * 1000

    def _wall_s(self) -> float:
        return self._wall_ns() / 1e9

    def _monotonic(self) -> float:
        return self.scheduler.now / 1e6

    def _sleep(self, seconds: float) -> None:
        self.scheduler.sleep(int(seconds * 1e6))

    def _random(self) -> float:
        process = self.process
        return self.chance.share("random", process.name, next(process.ids))

    def _uuid(self) -> uuid.UUID:
        process = self.process
        made = [self.chance.number("uuid", part, process.name, next(process.ids)) for part in (0, 1)]
        return uuid.UUID(int=made[0] << 64 | made[1], version=4)

    def _thread(self, *, target: Callable[..., None], args: tuple[Any, ...] = (), name: str, daemon: bool) -> Any:
        return _Thread(self, lambda: target(*args), name)

    def _pool(self, max_workers: int | None = None, thread_name_prefix: str = "") -> Any:
        return _Pool(self)


class _Thread:
    """A thread that the package starts: an actor of the process that starts it."""

    def __init__(self, world: World, work: Callable[[], None], name: str) -> None:
        self._world, self._work, self._name = world, work, name
        self._actor: Actor | None = None

    def start(self) -> None:
        world, process = self._world, self._world.process
        name = f"{process.name}.{self._name.removeprefix('tidestate-')}"
        if world.scheduler.running() is not None:
            self._actor = world.spawn(process, name, self._work, daemon=True)

    def is_alive(self) -> bool:
        return self._actor is not None and not self._actor.ended.is_set()

    def join(self, timeout: float | None = None) -> None:
        if self._actor is not None:
            self._actor.ended.wait(timeout)


class _NoLock:
    """One actor at a time runs, and none hands over within these locks."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class _Pool:
    """Threads of a pool: their work is done at once, or when its result is asked for, as the seed decides."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._begun: list[Later] = []

    def submit(self, function: Callable[..., Any], *args: Any) -> Later:
        later = Later(lambda: function(*args))
        self._begun.append(later)
        process = self._world.process
        if not self._world.chance.happens("order", process.name, next(process.steps)):
            later.do()
        return later

    def map(self, function: Callable[..., Any], *several: Any) -> Iterator[Any]:
        begun = [self.submit(function, *args) for args in zip(*several, strict=False)]
        return iter([one.result() for one in begun])

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for one in self._begun if wait else ():
            one.do()

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


class _PerProcess:
    """The stores that a process holds in memory between two rounds."""

    def __init__(self, world: World) -> None:
        self._world = world

    def pop(self, identity: str, otherwise: Any = None) -> Any:
        return self._world.process.stores.pop(identity, otherwise)

    def __setitem__(self, identity: str, store: Any) -> None:
        self._world.process.stores[identity] = store

    def clear(self) -> None:
        self._world.process.stores.clear()


class _Everything:
    """Storage that is known to be fit."""

    def __contains__(self, _: object) -> bool:
        return True


@cache
def _cached_properties() -> list[Any]:
    """Those of the package that hold a lock while they work, up to Python 3.11: one for all objects of a class."""
    modules = [module for name, module in sys.modules.items() if name.startswith("tidestate.")]
    classes = {one for module in modules for one in vars(module).values() if isinstance(one, type)}
    found = [one for kind in classes for one in vars(kind).values() if isinstance(one, cached_property)]
    return [one for one in found if hasattr(one, "lock")]


def _with_clock(function: Any, clock: Callable[[], float]) -> Iterator[tuple[Any, str, Any]]:
    """A function whose default clock is this one."""
    if function.__kwdefaults__ and "clock" in function.__kwdefaults__:
        yield function, "__kwdefaults__", {**function.__kwdefaults__, "clock": clock}
    elif function.__defaults__:
        yield function, "__defaults__", tuple(clock if one is _MONOTONIC else one for one in function.__defaults__)
