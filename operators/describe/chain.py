"""Several operators that work on each other's panes."""

from __future__ import annotations

from tidestate.operators.describe.runnable import Runnable, Sided
from tidestate.operators.progress.watermarks import INPUT


class Chain(Runnable, frozen=True):
    """Several operators in one job.

    ``operators`` are ordered: each comes after those it reads. ``inputs`` are parallel to them: the names of the
    streams or earlier operators that each one reads. The job has the name of the last operator and emits its panes;
    with ``outputs`` those of several operators, in their order, of which the last one always is one. Each operator
    has a configuration of its own, which does not say whether it is an output.
    """

    operators: tuple[Runnable, ...]
    inputs: tuple[tuple[str, ...], ...]
    outputs: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Names of the operators, in order."""
        return [one.name for one in self.operators]

    @property
    def streams(self) -> list[str]:
        """Names of the streams it reads, in order of first use."""
        return list(dict.fromkeys(name for names in self.inputs for name in names if name not in self.names))


def streams_of(description: Runnable) -> list[str]:
    """The names of the streams or sides that a description reads, in Spark's order."""
    if isinstance(description, Chain):
        return description.streams
    return list(description.sides.names) if isinstance(description, Sided) else [INPUT]


def outputs_of(description: Runnable) -> tuple[str, ...]:
    """The names of the outputs of a job that has several; none where there is one."""
    return description.outputs if isinstance(description, Chain) else ()
