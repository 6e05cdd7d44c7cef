"""The description of a job: the operators in front of the one that runs, each once, with the names of what they read.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidestate.operators.describe.chain import chain
from tidestate.operators.describe.runnable import Runnable, Sided
from tidestate.operators.describe.windowed import Windowed
from tidestate.operators.progress.watermarks import INPUT
from tidestate.operators.streams.nodes import OperatorNode, StreamInput
from tidestate.statestore.errors import UsageError


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


def job_graph(last: OperatorNode) -> JobGraph:
    """The operators that ``last`` needs, and itself. Raises `UsageError` for names that are not clear."""
    walk = _Walk()
    walk.visit(last)
    operators = _named_operators(walk.operators)
    streams = _named_streams(walk)
    if twice := sorted(set(operators.values()) & set(streams.values())):
        raise UsageError("a stream and an operator have one name: rename one", code="operator-name", twice=twice)
    names: dict[Any, str] = {**streams, **operators}
    names |= {node: names[walk.same(node)] for node, _ in walk.read}
    inputs = tuple(tuple(names[node] for node in one.inputs) for one in walk.operators)
    _check_tolerances(walk)
    described = [one.description for one in walk.operators]
    order = tuple(dict.fromkeys(streams.values()))
    if len(described) == 1 and _stands_alone(walk, described[0]):
        return JobGraph(described[0], order, tuple(operators.values()), inputs, names)
    chained = chain(*described, inputs=dict(zip(operators.values(), inputs, strict=True)))
    return JobGraph(chained, tuple(chained.streams), tuple(chained.names), chained.inputs, names)


@dataclass
class _Walk:
    """Inputs and operators in the order in which they are reached, each after what it reads."""

    operators: list[OperatorNode] = field(default_factory=list)
    inputs: list[StreamInput] = field(default_factory=list)
    read: list[tuple[StreamInput, OperatorNode]] = field(default_factory=list)
    """Each input with each operator that reads it."""

    def visit(self, operator: OperatorNode) -> None:
        """Without recursion over long chains of operators that read one each."""
        for one in _in_order(operator):
            for node in one.inputs:
                if isinstance(node, StreamInput):
                    self.read.append((node, one))
                    if self.same(node) is node and node not in self.inputs:
                        self.inputs.append(node)
            self.operators.append(one)

    def same(self, node: StreamInput | OperatorNode) -> StreamInput | OperatorNode:
        """The one that stands for all objects of its name."""
        if isinstance(node, OperatorNode) or node.name is None:
            return node
        return next((one for one in self.inputs if one.name == node.name), node)


def _in_order(last: OperatorNode) -> Iterator[OperatorNode]:
    """Each operator once, after those that it reads."""
    done: set[int] = set()
    waiting: list[tuple[OperatorNode, Iterator[StreamInput | OperatorNode]]] = [(last, iter(last.inputs))]
    while waiting:
        operator, inputs = waiting[-1]
        following = next((one for one in inputs if isinstance(one, OperatorNode) and id(one) not in done), None)
        if following is not None:
            waiting.append((following, iter(following.inputs)))
            continue
        waiting.pop()
        if id(operator) not in done:
            done.add(id(operator))
            yield operator


def _named_operators(operators: list[OperatorNode]) -> dict[OperatorNode, str]:
    names = {one: one.description.name for one in operators}
    for name in names.values():
        same = [one for one in operators if names[one] == name]
        if len(same) > 1:
            raise UsageError(
                f"{len(same)} operators of this job are called {name}: give each a name, "
                + (".named(…)" if isinstance(same[0].description, Windowed) else "name=…"),
                code="operator-name",
                name=name,
                reads=[
                    [node.name if isinstance(node, StreamInput) else names[node] for node in one.inputs]
                    for one in same
                ],
            )
    return names


def _name(node: StreamInput | OperatorNode) -> str | None:
    return node.name if isinstance(node, StreamInput) else node.description.name


def _named_streams(walk: _Walk) -> dict[StreamInput, str]:
    """The name of each input: its own; ``input`` of a single one; or that of the side that alone reads it."""
    unnamed = [one for one in walk.inputs if one.name is None]
    if len(walk.inputs) == 1:
        return {one: one.name or INPUT for one in walk.inputs}
    if not unnamed:
        return {one: str(one.name) for one in walk.inputs}
    sides = {one: _sides_that_read(walk, one) for one in unnamed}
    names = {one: found[0] for one, found in sides.items() if len(found) == 1}
    if len(unnamed) < len(walk.inputs) or len(names) < len(unnamed) or len(set(names.values())) < len(names):
        raise UsageError(
            "a job of several streams names them all: stream(…) with a name first; they may be without one where "
            "each is one side of one join, merge or union alone",
            code="stream-name",
            named=[one.name for one in walk.inputs if one.name is not None],
            unnamed=len(unnamed),
        )
    return names


def _sides_that_read(walk: _Walk, stream: StreamInput) -> list[str]:
    """The sides that read a stream directly; an empty name where an operator without sides does."""
    found = []
    for operator in walk.operators:
        names = operator.description.sides.names if isinstance(operator.description, Sided) else ("",)
        found += [name for name, node in zip(names, operator.inputs, strict=True) if node is stream]
    return found if all(found) else []


def _stands_alone(walk: _Walk, description: Runnable) -> bool:
    """Whether a job of one operator is stored without the names of its streams: where they have none of their own."""
    return not isinstance(description, Sided) or (
        len(walk.inputs) == len(description.sides.names) and all(one.name is None for one in walk.inputs)
    )


def _check_tolerances(walk: _Walk) -> None:
    taken = {node for node, operator in walk.read if isinstance(operator.description, Windowed)}
    for node, _ in walk.read:
        if node.future_tolerance is not None and node not in taken:
            raise UsageError(
                "only windows and merges have a future tolerance, and none reads this stream: leave it out, or say "
                ".allowed_lateness(future_tolerance=…) of the windows behind",
                code="future-tolerance",
                stream=node.name or INPUT,
            )
