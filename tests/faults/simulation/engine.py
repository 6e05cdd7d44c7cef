"""The engine of the simulation: tasks run on executors, which are slow, die, or run a task twice.

An attempt that nobody waits for any more goes on, and writes its files after the micro-batch was published.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from tests.faults.simulation.scheduler import Actor, Event, Process
from tidestate.operators.engine.micro_batch import TaskResult
from tidestate.operators.engine.tasks import InProcess
from tidestate.statestore.errors import TidestateError, UnavailableError

if TYPE_CHECKING:
    from tests.faults.simulation.world import World

MOST_FAILURES, MOST_ATTEMPTS = 4, 12
PATIENCE_S = 0.4
"""When a second attempt of a task that is slow begins, and how soon it is seen that an executor is lost."""


class Executors(InProcess):
    """As the engine in this process, with two tasks a micro-batch: `attempted` runs them."""

    parallelism = 2
    max_tasks = 2


class _Task:
    """A task of a level, and its attempts."""

    def __init__(self) -> None:
        self.answer: Any = None
        self.failures: list[TidestateError] = []
        self.attempts: list[Actor] = []

    @property
    def alive(self) -> int:
        return sum(not one.ended.is_set() for one in self.attempts)


def attempted(world: World, work: Callable[[int], Any], tasks: int) -> list[Any]:
    """What ``work`` gives for each task, from the attempt of it that ends first."""
    me, chance = world.scheduler.running(), world.chance
    if me is None or not (chance.enabled("attempt-dies") or chance.enabled("attempt-twice")):
        return [work(task) for task in range(tasks)]
    driver, changed = me.process, Event(world.scheduler)
    those = [_Task() for _ in range(tasks)]
    for number, task in enumerate(those):
        _attempt(world, driver, task, number, work, changed)
    while not all(task.answer is not None for task in those):
        changed.clear()
        slow = not changed.wait(PATIENCE_S)
        for number, task in enumerate(those):
            if task.answer is not None:
                continue
            if len(task.failures) >= MOST_FAILURES:
                raise task.failures[-1]
            if len(task.attempts) >= MOST_ATTEMPTS:
                raise UnavailableError("executors are lost again and again", code="storage", reason="executors")
            place = (driver.name, next(driver.steps))
            if not task.alive or (slow and task.alive < 2 and chance.happens("attempt-twice", *place)):
                _attempt(world, driver, task, number, work, changed)
    return [task.answer for task in those]


def _attempt(
    world: World, driver: Process, task: _Task, number: int, work: Callable[[int], Any], changed: Event
) -> None:
    chance, name = world.chance, f"{driver.name}/task-{next(driver.steps)}"
    while driver.idle and driver.idle[0].dead:
        driver.idle.pop(0)
    executor = driver.idle.pop(0) if driver.idle else world.new_process(f"{name}-host", driver.site)
    if chance.happens("attempt-dies", name):
        delay_us = int(chance.between(1_000, 2_000_000, "lives", name))
        world.scheduler.at(delay_us, lambda: world.scheduler.kill(executor, "lost"))

    def attempt() -> None:
        try:
            made = work(number)
            world.scheduler.sleep(1_000)  # the answer travels
            if task.answer is None:
                host = executor.name
                task.answer = [
                    msgspec.structs.replace(one, host=host) if isinstance(one, TaskResult) else one for one in made
                ]
        except TidestateError as error:
            task.failures.append(error)
        driver.idle.append(executor)
        changed.set()

    delay_us = int(chance.between(100, 300_000, "begins", name))
    task.attempts.append(world.spawn(executor, name, attempt, delay_us, daemon=True))
