"""A scenario that is run once, and once more from what each death on the way would have left."""

from __future__ import annotations

import concurrent.futures
import logging
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.faults.outcome import Outcome, differences, outcome
from tests.faults.places import IMAGES, NOTHING, PLACES, Durable, Image, Place
from tests.faults.scenarios import SCENARIOS, SIMILAR, Scenario
from tests.faults.world import STORES, World
from tests.helpers.process import SCRATCH
from tidestate.statestore.storage import write_behind
from tidestate.statestore.testing.calls import Call
from tidestate.statestore.testing.faults import When

log = logging.getLogger("tidestate")


@dataclass(frozen=True)
class Death:
    """A moment: who dies there leaves this image of its roots, and of the caches of its store. The sinks ``had`` so
    many deliveries. ``durable``: what of the image was synced.
    """

    call: Call
    when: When
    kind: str
    step: int
    had: dict[str, int]
    image: Image
    caches: Image
    durable: Durable

    def __str__(self) -> str:
        number, name, path = self.call
        return f"{self.when} call {number}, {name} {path}, in step {self.step}; {self.kind}"


@dataclass(frozen=True)
class Unit:
    """A scenario, with a store and a place."""

    scenario: str
    store: str
    place: str

    def __str__(self) -> str:
        return f"{self.scenario}, {self.store}, {self.place}"


def units(scenarios: Sequence[str] = (), stores: Sequence[str] = (), places: Sequence[str] = ()) -> list[Unit]:
    """All of these; where none is named, all that there are."""
    return [Unit(*one) for one in product(scenarios or SCENARIOS, stores or STORES, places or PLACES)]


def in_turns() -> list[Unit]:
    """Each scenario that differs from the others in how it commits, once; stores and places take turns."""
    turns = [*product(("disk", "disk", "bucket"), STORES)]
    chosen = [name for name in SCENARIOS if name not in SIMILAR]
    return [Unit(name, *reversed(turns[at * 4 % len(turns)])) for at, name in enumerate(chosen)]


@dataclass
class Tried:
    """What came of a unit. ``points``: calls, moments and images; ``recovered``: those of them that are different;
    ``twice``: how often the power went while another process recovered from a death.
    """

    unit: Unit
    calls: int = 0
    points: int = 0
    recovered: int = 0
    twice: int = 0
    wrong: list[str] = field(default_factory=list)


class Sample(Protocol):
    """Which moments are tried."""

    def __call__(self, call: Call, when: When, images: Sequence[str]) -> Sequence[str]:
        """The images that are taken there."""

    def instead(self, call: Call, when: When) -> object:
        """What it has chosen here takes the place of what it has chosen under the same name; None: of nothing."""


@dataclass
class Every:
    """Of each kind of call and moment every so many, whose images take turns; with 1 all, each with all images.
    ``kinds``: of images, those that are taken.
    """

    every: int
    seed: str
    kinds: Sequence[str] = IMAGES
    _seen: Counter[tuple[str, When]] = field(default_factory=Counter)
    _turn: int = 0

    def __call__(self, call: Call, when: When, images: Sequence[str]) -> Sequence[str]:
        images = [one for one in images if one in self.kinds]
        if self.every == 1:
            return images
        known = call.name, when
        self._seen[known] += 1
        offset = sum(map(ord, f"{self.seed}{call.name}{when}"))
        if (self._seen[known] + offset) % self.every:
            return ()
        self._turn += 1
        return images and [images[self._turn % len(images)]]

    def instead(self, call: Call, when: When) -> None:
        return None


class Few:
    """One, anywhere, of one kind of call and moment; kinds and images take turns from one number to the next, those
    of a job that makes calls of many kinds less often.
    """

    of_kinds = 8

    def __init__(self, number: int) -> None:
        self._number, self._chance = number, random.Random(number)
        self._seen: dict[tuple[str, When], int] = {}

    def __call__(self, call: Call, when: When, images: Sequence[str]) -> Sequence[str]:
        place = list(self._seen).index((call.name, when)) if (call.name, when) in self._seen else len(self._seen)
        count = self._seen[call.name, when] = self._seen.get((call.name, when), 0) + 1
        others = place >= self.of_kinds and (place + self._number) // self.of_kinds % 2
        if others or (place + self._number) % self.of_kinds or self._chance.random() * count >= 1:
            return ()
        return [images[(place + self._number // self.of_kinds) % len(images)]]

    def instead(self, call: Call, when: When) -> str:
        return "the last"


class AnyOne:
    """One moment, anywhere, when the power goes."""

    def __init__(self, number: int) -> None:
        self._chance, self._count = random.Random(number), 0

    def __call__(self, call: Call, when: When, images: Sequence[str]) -> Sequence[str]:
        self._count += 1
        return [self._chance.choice(("cut", "cut", "mixed"))] if self._chance.random() * self._count < 1 else ()

    def instead(self, call: Call, when: When) -> str:
        return "the one"


class Recorder:
    """A hook that keeps what a death would leave, each image once."""

    def __init__(self, place: Place, world: World, sample: Sample) -> None:
        self._place, self._world, self._sample = place, world, sample
        self._chance = random.Random(0)
        self._older: Image = {}
        self._step = -1
        self.deaths: dict[object, Death] = {}
        self.calls = self.points = 0

    def __call__(self, call: Call, when: When) -> None:
        self.calls = max(self.calls, call.number)
        world = self._world
        if world.step != self._step:
            self._step, self._older = world.step, self._place.caches()
        for kind in self._sample(call, when, self._place.images):
            self.points += 1
            image, had = self._place.image(kind, self._chance), world.had
            # After a power cut a cache may be gone, or be one of before.
            caches = self._place.caches() if kind == "died" else self._older if self.points % 2 else {}
            about = frozenset(image.items()), frozenset(had.items()), world.step
            durable = self._place.durable() if kind == "died" else NOTHING
            death = Death(call, when, kind, world.step, had, image, caches, durable)
            key = self._sample.instead(call, when)
            if key is not None:
                self.deaths[key] = death
            else:
                key = hash((*about, frozenset(caches.items())) if kind == "died" else about)
                self.deaths.setdefault(key, death)


def play(scenario: Scenario, world: World) -> None:
    """All steps from the one that the user is at, each in a process of its own."""
    for number, step in enumerate(scenario.steps):
        if number >= world.step:
            world.step = number
            with world.process():
                step(world)


def tried(
    unit: Unit,
    sample: Sample,
    on_recovered: Callable[[int, int], None] = lambda _done, _all: None,
    twice: int = 1,
) -> Tried:
    """Run it, and recover from every death of the sample. While a process recovers from every ``twice``-th death of
    another the power goes. ``on_recovered`` gets how many are done, of how many.
    """
    found = Tried(unit)
    with tempfile.TemporaryDirectory(dir=SCRATCH, prefix="tidestate-crash-") as folder:
        place = PLACES[unit.place](Path(folder))
        world = World(place, unit.store)
        recorder = Recorder(place, world, sample)
        scenario = SCENARIOS[unit.scenario]
        level, _ = log.level, log.setLevel(logging.CRITICAL)  # thousands of starts warn of the same late rows
        with place.watched(recorder):
            play(scenario, world)
        wanted = outcome(world, scenario)
        found.calls, found.recovered = recorder.calls, len(recorder.deaths)
        found.points = max(recorder.points, found.recovered)
        for number, death in enumerate(recorder.deaths.values(), 1):
            cut = death.kind == "died" and len(place.images) > 1 and number % twice == 0
            again = AnyOne(number) if cut else None
            found.twice += again is not None
            wrong = _recovered(scenario, world, death, wanted, again)
            found.wrong += [f"{unit}: {death}: {what}" for what in wrong]
            on_recovered(number, found.recovered)
        place.restore({})
        log.setLevel(level)
    return found


class _AtOnce(concurrent.futures.Executor):
    """Calls a function when it is submitted."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


@contextmanager
def _without_threads() -> Iterator[None]:
    """A process that does not die does the same with threads, and takes a third longer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(concurrent.futures, "ThreadPoolExecutor", _AtOnce)
        patch.setattr(write_behind, "_writers", _AtOnce)
        yield


def _recovered(
    scenario: Scenario, world: World, death: Death, wanted: Outcome, again: Sample | None = None
) -> Iterator[str]:
    """What differs where that death is recovered from; and from another one on the way, chosen by ``again``."""
    place, after = world.place, world.after(death.step, death.had)
    place.restore(death.image)
    place.restore_caches(death.caches)
    deaths: dict[object, Death] = {}
    try:
        if again is None:
            with _without_threads():
                play(scenario, after)
        else:
            recorder = Recorder(place, after, again)
            with place.watched(recorder, death.durable):
                play(scenario, after)
            deaths = recorder.deaths
        with _without_threads():
            found = outcome(after, scenario)
        yield from differences(wanted, found)
    except Exception as error:
        yield f"{type(error).__name__}: {error}"
    for second in deaths.values():
        yield from (f"then {second}: {what}" for what in _recovered(scenario, after, second, wanted))
