"""Where a case runs, and how its description is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.conformance import harness
from tests.conformance.aggregates import Asked, asked
from tests.conformance.case import Case, Unsupported
from tests.conformance.compare import Fields
from tests.conformance.driver import Driver
from tests.conformance.harness import Opener
from tests.conformance.mapping import Input as Input
from tests.conformance.mapping import Setup, describe, input_of, quietly, setup
from tidestate.statestore.errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class Bench:
    """On which store, in which folder, by whose harness."""

    store: Any
    folder: Path
    open: Opener = harness.public

    def room(self, name: object) -> Path:
        """A folder of its own for one more harness."""
        return self.folder / f"run-{name}"

    def driver(self, case: Case, made: Setup, name: object = 0) -> Driver:
        """A harness for ``case``. Raises `Unsupported` when the description cannot be bound."""
        return _refusals(lambda: Driver(case, made, self.open, self.store, self.room(name)))


def built(case: Case) -> Setup:
    """The case's own description. Raises `Unsupported` when it is refused."""
    return _refusals(lambda: setup(case))


def plainly(case: Case, made: Input | None = None, wanted: Asked | None = None, **triggers: Any) -> Setup:
    """The case's windows with one pane at the end, or as ``triggers`` say."""

    def build() -> Setup:
        columns = made or input_of(case)
        what = wanted or asked(case.aggregate, columns.value)
        return Setup(columns, what, describe(case, columns, what, **({"late": None, "closing": "never"} | triggers)))

    return _refusals(build)


def fields_of(case: Case, wanted: Asked) -> Fields:
    """How the case's emissions are compared."""
    return Fields(wanted.shapes, wanted.several, frozenset(case.soft_fields))


def _refusals(build: Callable[[], T]) -> T:
    try:
        return quietly(build)
    except UsageError as error:
        raise Unsupported(f"description refused: {error.code}") from None
