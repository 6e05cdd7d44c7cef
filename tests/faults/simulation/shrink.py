"""A failing seed made smaller: fewer kinds of faults, fewer actors, fewer batches, then single faults left out, as
long as the same promise is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from tests.faults.simulation.chance import FAULTS, Options
from tests.faults.simulation.run import Outcome, simulate

_T = TypeVar("_T")
MOST_RUNS = 300
"""How many runs it may take."""


class Shrinker:
    """Tries smaller runs of a seed, as long as they fail like ``first``."""

    def __init__(self, first: Outcome, options: Options, run: Callable[[int, Options], Outcome] = simulate) -> None:
        assert first.violation is not None
        self.smallest, self.options = first, options
        self._kind, self._run = first.violation.kind, run
        self.runs = 0

    def shrink(self) -> Outcome:
        """The smallest run that was found; ``options`` has what it leaves out."""
        for kind in FAULTS:
            self._try(replace(self.options, off=self.options.off | {kind}))
        for place in reversed(range(len(self.smallest.plan))):
            self._try(replace(self.options, dropped=self.options.dropped | {place}))
        for count in range(1, 8):
            if self._try(replace(self.options, batches=count)):
                break
        self._quieten()
        return self.smallest

    def _quieten(self) -> None:
        """Leave out faults, many at first, then one by one."""
        size = max(1, len(self.smallest.fired) // 2)
        while True:
            left = self.smallest.fired
            for part in _parts(left, size):
                self._try(replace(self.options, quiet=self.options.quiet | set(part)))
            if size == 1 or self.runs >= MOST_RUNS:
                return
            size = max(1, min(size, len(self.smallest.fired)) // 2)

    def _try(self, options: Options) -> bool:
        if options == self.options or self.runs >= MOST_RUNS:
            return False
        self.runs += 1
        outcome = self._run(self.smallest.seed, options)
        if outcome.violation is None or outcome.violation.kind != self._kind:
            return False
        self.smallest, self.options = outcome, options
        return True


def _parts(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]
