"""A job of several outputs: operators of one graph whose panes are all kept, each for sinks of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tidestate.operators.streams.by_hand import NOT_BY_HAND
from tidestate.operators.streams.calls import MadeByVerb, VerbCall, recorded
from tidestate.operators.streams.graph import JobGraph, job_graph
from tidestate.operators.streams.of_graph import OfGraph
from tidestate.operators.streams.stream import OperatorStream, StagedStream
from tidestate.recovery.log.manifest_file import OUTPUTS
from tidestate.statestore.arguments import called
from tidestate.statestore.errors import UsageError


@called("a job", "job(per_user, per_country)")
@dataclass(frozen=True, eq=False, repr=False)
class OutputsJob(MadeByVerb, OfGraph[dict[str, pa.Table]]):
    """Several operators whose panes one job emits, with all that is in front of them. What a runner returns of panes
    is a table for each output, by its name.
    """

    outputs: tuple[OperatorStream | StagedStream, ...]
    call: VerbCall | None = field(default=None, kw_only=True)

    @property
    def graph(self) -> JobGraph:
        """All operators. Raises `UsageError` for names that are not clear."""
        return job_graph(*(output.operator for output in self.outputs))

    def by_hand(self, *_: Any, **__: Any) -> Any:
        """Raises `UsageError`: by hand there is one operator."""
        raise UsageError(NOT_BY_HAND, code="operator-window", found=[output.view.name for output in self.outputs])


def job_of(*outputs: OperatorStream | StagedStream) -> OutputsJob:
    """A job that emits the panes of each of these operators: ``job(per_user, per_country)``. Its input is read once,
    and one checkpoint commits all. It runs as an operator does, with ``sink={"per_user": …, "per_country": …}``; an
    operator that others of the job read may be an output too (docs/how-to/several-outputs.md).
    """
    if wrong := [output for output in outputs if not isinstance(output, OperatorStream | StagedStream)]:
        raise UsageError(
            "only what an operator puts out can be an output: give what .aggregate(…), .join(…) or another verb "
            "returned, as separate arguments, job(per_user, per_country)",
            code="job-outputs",
            found=f"{wrong[0]!r:.100}",
        )
    operators = [output.operator for output in outputs]
    if len(set(operators)) < len(operators) or not 1 <= len(operators) <= OUTPUTS:
        raise UsageError(
            f"a job has from one to {OUTPUTS} outputs, each of them once",
            code="job-outputs",
            outputs=[str(output.view.name) for output in outputs],
        )
    return OutputsJob(outputs)


# The parameters are checked above, whose error says what an output is.
job_of = recorded(job_of, "job")
