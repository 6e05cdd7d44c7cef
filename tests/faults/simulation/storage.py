"""Object storage of the simulation, under the scheme ``sim``: a dictionary, and what may go wrong on the way there.

Requests take time. They fail before their effect, or after it, so that the reply is lost; they are carried out twice,
or much later than their sender has given up; storage is throttled, or full. A list is not one moment: of what changed
while it was made it has some. Else storage keeps the promises of S3: a create is atomic, and who reads or lists
afterwards sees what was written.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import fsspec
from fsspec.spec import AbstractFileSystem

from tidestate.statestore.checksums import checksum
from tidestate.statestore.testing.faults import Crash

if TYPE_CHECKING:
    from tests.faults.simulation.scheduler import Actor
    from tests.faults.simulation.world import World

_T = TypeVar("_T")
SECOND = 1_000_000
USUAL_US = (200, 8_000)
"""How long a request takes."""
SLOW_US = (SECOND, 45 * SECOND)
LATER_US = (10_000, 40 * SECOND)
"""When a request is carried out that its sender has given up."""


class ReplyError(OSError):
    """An HTTP reply, in the form in which botocore has it."""

    def __init__(self, code: str, status: int) -> None:
        super().__init__(f"{code} ({status})")
        self.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}


class Store:
    """All objects by their full path, and the faults of requests for them."""

    def __init__(self, world: World) -> None:
        self.objects: dict[str, bytes] = {}
        self._world = world
        chance = world.chance
        self._throttled = _periods(world, "throttle") if chance.enabled("throttle") else []
        self._full = _periods(world, "full") if chance.enabled("full") else []

    def request(self, verb: str, path: str, effect: Callable[[], _T], *, writes: bool = False) -> _T:
        """Carry out a request of the actor that calls, as well as the seed allows."""
        world = self._world
        me = world.scheduler.running()
        if me is None:
            return effect()
        chance, process = world.chance, me.process
        place = (process.name, next(process.steps))
        self._take_time(me, place)
        if chance.happens("die", *place):
            before = chance.share("die-when", *place) < 0.5
            if not before:
                self._tried(effect)
            world.trace(me, verb, path, f"dies {'before' if before else 'after'} it")
            world.scheduler.kill(process, "killed")
            raise Crash("killed")
        if (error := self._refusal(place, writes)) is not None:
            world.trace(me, verb, path, f"refused: {error}")
            raise error
        if writes and chance.happens("late", *place):
            world.trace(me, verb, path, "no reply, later carried out")
            self._later(me, verb, path, effect, place)
            raise TimeoutError("no reply in time")
        try:
            found = effect()
        except OSError as error:
            world.trace(me, verb, path, type(error).__name__)
            raise
        if verb == "head" and "/manifests/" in path:
            process.checked_us = world.scheduler.now
        if writes and chance.happens("duplicate", *place):
            self._later(me, verb, path, effect, place)
        if chance.happens("lost", *place):
            world.trace(me, verb, path, "done, reply lost")
            raise _lost(chance.number("how", *place))
        world.trace(me, verb, path, _text(found))
        return found

    def _take_time(self, me: Actor, place: tuple[object, ...]) -> None:
        world = self._world
        chance, process = world.chance, me.process
        if chance.happens("stall", *place):
            process.stalled_until = world.scheduler.now + int(chance.between(50_000, 90 * SECOND, "stalled", *place))
            world.trace(me, "stalls", "", f"{process.stalled_until - world.scheduler.now} us")
        range_us = SLOW_US if chance.happens("slow", *place) else USUAL_US
        world.scheduler.sleep(int(chance.between(*range_us, "time", *place)))

    def _refusal(self, place: tuple[object, ...], writes: bool) -> OSError | None:
        """The error of a request that storage has not carried out."""
        chance, now = self._world.chance, self._world.scheduler.now
        if writes and _within(self._full, now) and chance.happens("full", *place):
            return OSError(errno.ENOSPC, "no space left on device")
        if _within(self._throttled, now) and chance.happens("throttle", *place):
            return chance.one_of((ReplyError("SlowDown", 503), ReplyError("TooManyRequests", 429)), "how", *place)
        if chance.happens("error", *place):
            errors = (
                ConnectionRefusedError(errno.ECONNREFUSED, "connection refused"),
                ReplyError("InternalError", 500),
                OSError(errno.EIO, "input/output error"),
                ReplyError("ConditionalRequestConflict", 409),
                TimeoutError("no reply in time"),
            )
            return chance.one_of(errors, "how", *place)
        return None

    def _later(self, me: Actor, verb: str, path: str, effect: Callable[[], Any], place: tuple[object, ...]) -> None:
        world = self._world

        def carry_out() -> None:
            done = self._tried(effect)
            world.trace(None, verb, path, f"of {me.name}, carried out {'now' if done else 'in vain'}")

        world.scheduler.at(int(world.chance.between(*LATER_US, "later", *place)), carry_out)

    def _tried(self, effect: Callable[[], Any]) -> bool:
        try:
            effect()
        except OSError:
            return False
        return True

    def put(self, path: str, data: bytes, *, create: bool) -> None:
        """The effect of a write."""
        if create and path in self.objects and self._world.planted != "create-overwrites":
            raise FileExistsError(path)
        self.objects[path] = data
        self._world.auditor.written(path, data)

    def remove(self, path: str) -> None:
        """The effect of a delete."""
        if path not in self.objects:
            raise FileNotFoundError(path)
        self._world.auditor.removing(path)
        del self.objects[path]

    def get(self, path: str) -> bytes:
        """The effect of a read."""
        try:
            return self.objects[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    def children(self, folder: str) -> set[str]:
        """Full paths directly in a folder, at this moment."""
        begin = f"{folder}/"
        return {begin + path[len(begin) :].partition("/")[0] for path in self.objects if path.startswith(begin)}

    def listed(self, folder: str) -> list[str]:
        """A list of a folder: of what came or went while it was made each entry is in it or not."""
        first = self.request("list", folder, lambda: self.children(folder))
        me = self._world.scheduler.running()
        chance = self._world.chance
        if me is None or not chance.enabled("listing"):
            return sorted(first)
        place = (me.process.name, next(me.process.steps))
        self._world.scheduler.sleep(int(chance.between(*USUAL_US, "time", *place)))
        second = self.children(folder)
        unsure = sorted(first ^ second)
        seen = {name for name in unsure if (name in first) == chance.happens("listing", *place, name)}
        return sorted((first & second) | seen)


def _periods(world: World, kind: str) -> list[tuple[int, int]]:
    chance = world.chance
    begins = [int(chance.between(10_000, 60 * SECOND, kind, "begins", n)) for n in range(chance.whole(1, 3, kind))]
    return [(at, at + int(chance.between(50_000, 20 * SECOND, kind, "lasts", at))) for at in begins]


def _within(periods: list[tuple[int, int]], now: int) -> bool:
    return any(begins <= now < ends for begins, ends in periods)


def _lost(number: int) -> OSError:
    errors = (
        TimeoutError("no reply in time"),
        ConnectionResetError(errno.ECONNRESET, "connection reset"),
        ReplyError("InternalError", 500),
    )
    return errors[number % len(errors)]


def _text(found: object) -> str:
    if isinstance(found, bytes):
        return f"{len(found)} bytes {checksum(found)}"
    if isinstance(found, set):
        return f"{len(found)} names"
    return "done" if found is None else str(found)


class SimulatedFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """What fsspec knows of it: the objects of the world that is being simulated."""

    protocol = "sim"
    cachable = False
    world: ClassVar[World | None] = None

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(path).split("://", 1)[-1].strip("/")

    @property
    def _store(self) -> Store:
        assert type(self).world is not None, "no simulation is running"
        return type(self).world.store

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        data, create, store = bytes(value), mode == "create", self._store
        verb = f"{'create' if create else 'put'} {checksum(data)}"
        store.request(verb, path, lambda: store.put(path, data, create=create), writes=True)

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        self.pipe_file(rpath, Path(lpath).read_bytes())

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        store = self._store
        return store.request("get", path, lambda: store.get(path)[start:end])

    def get_file(self, rpath: str, lpath: str, **_: Any) -> None:
        Path(lpath).write_bytes(self.cat_file(rpath))

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        store = self._store

        def found() -> int:
            return -1 if path not in store.objects and store.children(path) else len(store.get(path))

        size = store.request("head", path, found)
        return {"name": path, "size": max(0, size), "type": "directory" if size < 0 else "file"}

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        found = self._store.listed(path)
        if not found:
            raise FileNotFoundError(path)
        return [{"name": name, "size": None, "type": "other"} for name in found] if detail else found

    def find(self, path: str, **_: Any) -> list[str]:
        store = self._store
        return store.request(
            "find", path, lambda: sorted(name for name in store.objects if name.startswith(f"{path}/"))
        )

    def rm_file(self, path: str) -> None:
        store = self._store
        store.request("delete", path, lambda: store.remove(path), writes=True)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        store = self._store
        store.request(f"copy {path2}", path1, lambda: store.put(path2, store.get(path1), create=False), writes=True)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        pass


fsspec.register_implementation("sim", SimulatedFileSystem, clobber=True)
