"""What a graph of operators is printed as, and what runs it: of one output, and of several."""

from __future__ import annotations

from typing import Any

from tidestate.operators.describe.chain import Chain
from tidestate.operators.describe.runs import Panes
from tidestate.operators.streams.calls import Explanation, expressions
from tidestate.operators.streams.drawing import drawn
from tidestate.operators.streams.readings import readings_of
from tidestate.operators.streams.running import Runs
from tidestate.statestore.errors import UsageError


class OfGraph(Runs[Panes]):
    """What has a graph of operators, and was made by verbs."""

    @property
    def streams(self) -> tuple[str, ...]:
        """The names of the inputs of the job, in order."""
        return self.graph.streams

    @property
    def operators(self) -> tuple[str, ...]:
        """The names of the operators of the job, in order: each comes after those it reads."""
        return self.graph.operators

    def explain(self) -> Explanation:
        """The job as it was written, a line for each stream and operator; then, as comments, which of two readings
        applies where the specifications of windows differ. Raises `UsageError` as `graph` does.
        """
        lines = [f"{name} = {calls}" for name, calls in self._expressions().items()]
        described = self.graph.description
        lines += [f"job({', '.join(self.graph.outputs)})"] if self.graph.outputs else []
        for operator in described.operators if isinstance(described, Chain) else (described,):
            lines += [f"# {operator.name}: {reading}" for reading in readings_of(operator)]
        return Explanation("\n".join(lines))

    def _repr_html_(self) -> str | None:
        """The job as a picture, for a notebook; none while names are not clear."""
        try:
            return drawn(self.graph, self._expressions())
        except UsageError:
            return None

    def _expressions(self) -> dict[str, str]:
        made: Any = self
        return expressions(made, self.graph.names)
