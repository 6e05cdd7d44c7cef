"""The description of a job: the operators in front of the one that runs, each once, with the names of what they read.

Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from tidestate.operators.describe.chain import Chain, outputs_of
from tidestate.operators.describe.job_streams import JobStreams
from tidestate.operators.describe.runnable import Runnable, Sided
from tidestate.operators.describe.windowed import Windowed
from tidestate.operators.progress.watermarks import INPUT
from tidestate.operators.streams.nodes import OperatorNode, StreamInput, operators_read
from tidestate.operators.streams.order import after_parts
from tidestate.statestore.errors import UsageError

_OfStream = TypeVar("_OfStream")


@dataclass(frozen=True)
class JobGraph:
    """What a stream was made from: ``description`` of its operators, and the ``streams`` that they read, in order.
    ``names`` are those of the nodes.
    """

    description: Runnable
    streams: tuple[str, ...]
    operators: tuple[str, ...]
    inputs: tuple[tuple[str, ...], ...]
    names: Mapping[StreamInput | OperatorNode, str]

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of its outputs, where there are several."""
        return outputs_of(self.description)

    def stored(self, by_stream: Mapping[str, _OfStream]) -> dict[str, _OfStream]:
        """What is given for each stream, by the names that a manifest has. Raises `UsageError` for other streams."""
        return JobStreams(self.description, self.streams).each(by_stream)


def job_graph(*outputs: OperatorNode) -> JobGraph:
    """The operators that the ``outputs`` need, and themselves. Raises `UsageError` for names that are not clear."""
    walk = _Walk()
    for output in outputs:
        walk.visit(output)
    operators = _named_operators(walk.operators)
    streams = _named_streams(walk)
    if twice := sorted(set(operators.values()) & set(streams.values())):
        raise UsageError("a stream and an operator have the same name: rename one", code="operator-name", twice=twice)
    names: dict[Any, str] = {**streams, **operators}
    names |= {stream: names[walk.same(stream)] for stream, _ in walk.read}
    inputs = tuple(tuple(names[node] for node in operator.inputs) for operator in walk.operators)
    _check_tolerances(walk)
    descriptions = [_under(operators[operator], operator.description) for operator in walk.operators]
    order = tuple(dict.fromkeys(streams.values()))
    if len(descriptions) == 1 and _stands_alone(walk, descriptions[0]):
        return JobGraph(descriptions[0], order, tuple(operators.values()), inputs, names)
    # An operator that none reads is in the job as an output alone, so the last one always is one.
    several = tuple(operators[node] for node in walk.operators if node in outputs) if len(outputs) > 1 else ()
    chained = Chain(tuple(descriptions), inputs, several, name=descriptions[-1].name)
    return JobGraph(chained, tuple(chained.streams), tuple(chained.names), chained.inputs, names)


@dataclass
class _Walk:
    """Inputs and operators in the order in which they are reached, each after what it reads."""

    operators: list[OperatorNode] = field(default_factory=list)
    inputs: list[StreamInput] = field(default_factory=list)
    read: list[tuple[StreamInput, OperatorNode]] = field(default_factory=list)
    """Each input with each operator that reads it."""
    _reached: set[OperatorNode] = field(default_factory=set)

    def visit(self, last: OperatorNode) -> None:
        """Reach all that is in front of ``last``, and itself, as far as an earlier visit has not."""
        for operator in after_parts(last, operators_read):
            if operator in self._reached:
                continue
            self._reached.add(operator)
            for node in operator.inputs:
                if isinstance(node, StreamInput):
                    self.read.append((node, operator))
                    if self.same(node) is node and node not in self.inputs:
                        self.inputs.append(node)
            self.operators.append(operator)

    def same(self, node: StreamInput | OperatorNode) -> StreamInput | OperatorNode:
        """The input that stands for all objects of its name; of what has none itself."""
        if isinstance(node, OperatorNode) or node.name is None:
            return node
        return next((stream for stream in self.inputs if stream.name == node.name), node)


def _under(name: str, description: Runnable) -> Runnable:
    return description if description.name == name else msgspec.structs.replace(description, name=name)


def _named_operators(operators: list[OperatorNode]) -> dict[OperatorNode, str]:
    names = {operator: operator.description.name for operator in operators}
    counts = Counter[str]()
    for operator in operators:
        # Two filters of one stream, each in front of a join, are two operators that nobody has named.
        if operator.is_prepared:
            counts[names[operator]] += 1
            number = counts[names[operator]]
            names[operator] += str(number) if number > 1 else ""
    for name, count in Counter(names.values()).items():
        if count == 1:
            continue
        same = [operator for operator in operators if names[operator] == name]
        # Results of an aggregation are keywords, so it has no name=.
        way = ".named(…)" if isinstance(same[0].description, Windowed) else "name=…"
        raise UsageError(
            f"{count} operators of this job have the name {name}: give each its own name, {way}",
            code="operator-name",
            name=name,
            reads=[
                [node.name if isinstance(node, StreamInput) else names[node] for node in operator.inputs]
                for operator in same
            ],
        )
    return names


def _named_streams(walk: _Walk) -> dict[StreamInput, str]:
    """The name of each input: its own; ``input`` of a single one; or that of the side that alone reads it."""
    unnamed = [stream for stream in walk.inputs if stream.name is None]
    if len(walk.inputs) == 1:
        return {stream: stream.name or INPUT for stream in walk.inputs}
    if not unnamed:
        return {stream: str(stream.name) for stream in walk.inputs}
    # Read twice, a stream would have two names; read without a side, none. So a stream without a name is never
    # joined with itself by mistake, and the jobs that have been stored with `left` and `right` go on.
    sides = {stream: _sides_that_read(walk, stream) for stream in unnamed}
    names = {stream: readers[0] for stream, readers in sides.items() if len(readers) == 1}
    if len(unnamed) < len(walk.inputs) or len(names) < len(unnamed) or len(set(names.values())) < len(names):
        raise UsageError(
            'a job with several streams needs a name for each: give it first, stream("orders", …); only streams '
            "that are each one side of one join, merge or union need none",
            code="stream-name",
            named=[stream.name for stream in walk.inputs if stream.name is not None],
            unnamed=len(unnamed),
        )
    return names


def _sides_that_read(walk: _Walk, stream: StreamInput) -> list[str]:
    """The sides that read a stream directly; none where an operator without sides reads it too."""
    readers = []
    for operator in walk.operators:
        names = operator.description.sides.names if isinstance(operator.description, Sided) else ("",)
        readers += [name for name, node in zip(names, operator.inputs, strict=True) if node is stream]
    return readers if all(readers) else []


def _stands_alone(walk: _Walk, description: Runnable) -> bool:
    """Whether a job of one operator is stored without the names of its streams: where they have none of their own."""
    return not isinstance(description, Sided) or (
        len(walk.inputs) == len(description.sides.names) and all(stream.name is None for stream in walk.inputs)
    )


def _check_tolerances(walk: _Walk) -> None:
    taken = {node for node, operator in walk.read if isinstance(operator.description, Windowed)}
    for node, _ in walk.read:
        if node.future_tolerance is not None and node not in taken:
            raise UsageError(
                "only windows and merges have a future tolerance, and none of them reads this stream: remove it, "
                "or set .allowed_lateness(future_tolerance=…) on the windows further down",
                code="future-tolerance",
                stream=node.name or INPUT,
            )
