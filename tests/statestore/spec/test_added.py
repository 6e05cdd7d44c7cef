"""Fields that are new in stored structs are left out at their default, and say what a reader needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import msgspec
import pytest

from tidestate.statestore.spec.added import Added, needs_of, without_defaults


class Window(msgspec.Struct, frozen=True, tag="window"):
    size: int
    zone: Annotated[str | None, Added("zones/1")] = msgspec.field(default=None, name="time_zone")
    notes: Annotated[list[int], Added()] = []


class NewWindow(msgspec.Struct, frozen=True, tag="new"):
    needs: ClassVar[tuple[str, ...]] = ("new-windows/1",)


@dataclass(frozen=True)
class Kept:
    count: int = 0
    age: Annotated[int, Added("ages/1")] = 0


class Job(msgspec.Struct, frozen=True):
    window: Window | NewWindow
    named: dict[str, Window] = {}
    parts: tuple[Window, ...] = ()
    kept: Kept | None = None
    none: int | None = None
    late: Annotated[int, Added("late/1")] = 0


CASES: list[tuple[Job, set[str], set[str]]] = [
    (Job(Window(1)), set(), set()),
    (Job(Window(1, "UTC")), {"window.time_zone"}, {"zones/1"}),
    (Job(Window(1, notes=[5])), {"window.notes.0"}, set()),
    (Job(NewWindow()), set(), {"new-windows/1"}),
    (
        Job(Window(1), {"a": Window(2), "b": Window(3, "UTC")}, late=7),
        {"named.b.time_zone", "late"},
        {"zones/1", "late/1"},
    ),
    (Job(Window(1), parts=(Window(2, "UTC"),)), {"parts.0.time_zone"}, {"zones/1"}),
    (Job(Window(1), kept=Kept(3)), set(), set()),
    (Job(Window(1), kept=Kept(0, 4)), {"kept.age"}, {"ages/1"}),
]
NEW = {"time_zone", "notes", "age", "late"}


@pytest.mark.parametrize(("job", "there", "needed"), CASES)
def test_new_fields_are_stored_only_where_they_are_used(job: Job, there: set[str], needed: set[str]) -> None:
    stored = without_defaults(job, msgspec.to_builtins(job))
    paths = set(_paths(stored))
    assert {path for path in paths if NEW & set(path.split("."))} == there
    assert {"none", "window.type"} <= paths  # what was there before stays as it is stored
    assert msgspec.convert(stored, Job) == job
    assert set(needs_of(job)) == needed


def _paths(stored: Any, before: str = "") -> list[str]:
    parts = (
        stored.items() if isinstance(stored, dict) else enumerate(stored) if isinstance(stored, list | tuple) else ()
    )
    return [path for name, part in parts for path in _paths(part, f"{before}{name}.")] or [before.rstrip(".")]
