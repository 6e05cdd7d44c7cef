"""Virtual time. Every actor is a thread, and one at a time runs: the one whose moment comes first.

An actor hands over when it sleeps or waits; every request to storage and every call of a sink is a short sleep. So
the order of all that happens follows from the lengths of these, which the seed decides.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tests.faults.simulation.chance import Chance
from tidestate.statestore.testing.faults import Crash

_RealThread, _new_lock, _ident = threading.Thread, threading.Lock, threading.get_ident
MOST_SWITCHES = 150_000
"""A run that has not ended by then never will."""


class Process:
    """What dies as one, with a clock and caches of its own. ``steps`` counts its decisions."""

    def __init__(self, name: str, site: str = "", skew_us: int = 0) -> None:
        self.name, self.site, self.skew_us = name, site, skew_us
        self.dead, self.why = False, ""
        self.stalled_until = 0
        self.steps = itertools.count(1)
        self.ids = itertools.count(1)
        self.stores: dict[str, Any] = {}
        self.checked_us = -1
        """When it last looked whether a newer manifest is there."""
        self.actors: list[Actor] = []
        self.idle: list[Process] = []
        """Executors of a driver that have nothing to do."""


class Actor:
    """One thread of a process."""

    def __init__(self, name: str, process: Process, work: Callable[[], None], *, daemon: bool) -> None:
        self.name, self.process, self.work, self.daemon = name, process, work, daemon
        self.baton = _new_lock()
        self.baton.acquire()
        self.turn = 0
        """Counts its wake-ups: an entry of the queue that was made for an earlier one is void."""
        self.ident = 0
        self.waits_for: Event | None = None
        self.ended: Event


class Scheduler:
    """Runs actors until none has anything left to do."""

    def __init__(self, chance: Chance) -> None:
        self.chance = chance
        self.now = 0
        self.over = False
        self.overrun = False
        self.current: Actor | None = None
        self.direct = 0
        """Above 0 while the auditor looks: its requests take no time and meet no faults."""
        self._queue: list[tuple[int, int, int, Actor | Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._main = _new_lock()
        self._main.acquire()
        self._actors: list[Actor] = []
        self._switches = 0

    def running(self) -> Actor | None:
        """The actor that calls; None for the auditor, and for threads of libraries."""
        here = self.current
        return here if here is not None and not self.direct and here.ident == _ident() else None

    def spawn(
        self, process: Process, name: str, work: Callable[[], None], delay_us: int = 0, *, daemon: bool = False
    ) -> Actor:
        """A new thread of a process. Without ``daemon`` the process ends with it."""
        actor = Actor(name, process, work, daemon=daemon)
        actor.ended = Event(self)
        process.actors.append(actor)
        self._actors.append(actor)
        _RealThread(target=self._live, args=(actor,), daemon=True).start()
        self._push(self.now + delay_us, actor)
        return actor

    def at(self, delay_us: int, act: Callable[[], None]) -> None:
        """Do this later, in the name of nobody: a request that was on its way."""
        heapq.heappush(self._queue, (self.now + delay_us, next(self._numbers), 0, act))

    def forget_requests(self) -> None:
        """Lose all requests that are on their way."""
        self._queue = [entry for entry in self._queue if isinstance(entry[3], Actor)]
        heapq.heapify(self._queue)

    def run(self) -> None:
        """Until nothing is left to do. The thread that calls is no actor."""
        following = self._hand_over()
        if following is not None:
            following.baton.release()
        self._main.acquire()
        self.current = None

    def finish(self) -> None:
        """End all actors that are left, as a process that is killed ends."""
        self.over = True
        while left := [one for one in self._actors if not one.ended.is_set()]:
            for actor in left:
                self._push(self.now, actor)
            self.run()

    def kill(self, process: Process, why: str) -> None:
        """The process is no more: each of its threads ends where it stands."""
        if not process.dead:
            process.dead, process.why = True, why
            for actor in process.actors:
                self._push(self.now, actor)

    def sleep(self, us: int) -> None:
        """Of the calling actor. Raises `Crash` if its process dies meanwhile."""
        me = self.running()
        if me is None:
            return
        self._alive(me)
        self._push(self.now + max(0, us), me)
        self._switch(me)

    def wait(self, event: Event, us: int | None) -> bool:
        """Until the event is set, or for so long."""
        me = self.running()
        if me is None or event.is_set():
            return event.is_set()
        self._alive(me)
        me.waits_for = event
        event.waiting.append(me)
        if us is not None:
            self._push(self.now + max(0, us), me)
        self._switch(me)
        return event.is_set()

    def wake(self, actor: Actor) -> None:
        """It goes on now."""
        self._push(self.now, actor)

    def _push(self, when: int, actor: Actor) -> None:
        heapq.heappush(self._queue, (when, next(self._numbers), actor.turn, actor))

    def _next(self) -> Actor | None:
        self._switches += 1
        if self._switches > MOST_SWITCHES:
            self.overrun = self.over = True
        while self._queue:
            when, _, turn, what = heapq.heappop(self._queue)
            if not isinstance(what, Actor):
                self.now, self.current = max(self.now, when), None
                if not self.over:
                    what()
                continue
            if turn != what.turn or what.ended.is_set():
                continue
            if what.process.stalled_until > max(when, self.now) and not what.process.dead and not self.over:
                self._push(what.process.stalled_until, what)
                continue
            self.now = max(self.now, when)
            what.turn += 1
            if what.waits_for is not None:
                with suppress(ValueError):
                    what.waits_for.waiting.remove(what)
                what.waits_for = None
            return what
        return None

    def _hand_over(self) -> Actor | None:
        following = self._next()
        self.current = following
        if following is None:
            self._main.release()
        return following

    def _switch(self, me: Actor) -> None:
        following = self._hand_over()
        if following is not me:
            if following is not None:
                following.baton.release()
            me.baton.acquire()
        self._alive(me)

    def _alive(self, me: Actor) -> None:
        if self.over or me.process.dead:
            raise Crash(me.process.why or "the run is over")

    def _live(self, actor: Actor) -> None:
        actor.ident = _ident()
        actor.baton.acquire()
        with suppress(Crash):
            self._alive(actor)
            actor.work()
        if not actor.daemon and not actor.process.dead:
            self.kill(actor.process, "it has ended")
        actor.ended.set()
        actor.work = _nothing  # what it holds goes now, in its own name
        following = self._hand_over()
        if following is not None:
            following.baton.release()


def _nothing() -> None:
    pass


class Event:
    """As `threading.Event`, in virtual time."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._set = scheduler, False
        self.waiting: list[Actor] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        for actor in self.waiting:
            self._scheduler.wake(actor)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self._scheduler.wait(self, None if timeout is None else int(timeout * 1e6))


class Later:
    """Work that a pool has taken: done at once, or when somebody asks for its result."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work: Callable[[], Any] | None = work
        self._result: Any = None
        self._error: Exception | None = None

    def do(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            try:
                self._result = work()
            except Exception as error:
                self._error = error

    def result(self, timeout: float | None = None) -> Any:
        self.do()
        if self._error is not None:
            raise self._error
        return self._result

    def exception(self, timeout: float | None = None) -> Exception | None:
        self.do()
        return self._error
