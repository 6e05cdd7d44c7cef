"""The analysed plan of a DataFrame of Spark Connect, from the text of its explanation: its client has no plan."""

from __future__ import annotations

import re

from pyspark.sql import DataFrame

from tidestate.operators.spark.scan.analysed import PlanStep

_SECTION = re.compile(r"^== Analyzed Logical Plan ==\n[^\n]*\n(.*?)(?=^== |\Z)", re.MULTILINE | re.DOTALL)
_STEP = re.compile(r"^(?P<depth>[ :]*(?:[:+]- )?)(?P<streaming>~?)(?P<name>[A-Z]\w*)(?P<rest>.*)$")
_SOURCE = {
    "StreamingRelation": re.compile(r" (?P<name>.+?), \["),
    "StreamingRelationV2": re.compile(r" \S+, (?P<name>[^,]+), "),
}
"""What follows the name of a step that reads a source as a stream, and in it what Spark calls the source."""


def plan_explained(frame: DataFrame) -> PlanStep:
    """The plan of a DataFrame, without columns and expressions."""
    return plan_of_text(frame._explain_string(extended=True))


def plan_of_text(explanation: str) -> PlanStep:
    """The plan in the text of ``explain(extended=True)``: the indentation of a line says how deep its step is, and
    ``~`` that its rows are a stream. A line that is none, as of a text with several lines in a filter, is skipped.
    """
    section = _SECTION.search(explanation)
    steps = [(len(step["depth"]) // 3, step) for line in _lines(section) if (step := _STEP.match(line))]
    # From the last line to the first: what is below a step follows it, so its subtrees are complete when it comes.
    subtrees: list[tuple[int, PlanStep]] = []
    for depth, step in reversed(steps):
        below = tuple(reversed([subtree for deeper, subtree in subtrees if deeper == depth + 1]))
        subtrees = [(deeper, subtree) for deeper, subtree in subtrees if deeper <= depth]
        subtrees.append((depth, _step(step, below)))
    return next((subtree for depth, subtree in subtrees if depth == 0), PlanStep(""))


def source_twice(explanation: str) -> str | None:
    """What Spark calls a source that is there twice, as one and the same: its columns have the same ids. None if all
    are apart.
    """
    relations = set[str]()
    for line in _lines(_SECTION.search(explanation)):
        step = _STEP.match(line)
        if step is None or step["name"] not in _SOURCE:
            continue
        relation = step["rest"]
        if relation in relations:
            source = _SOURCE[step["name"]].match(relation)
            return source["name"] if source else step["name"]
        relations.add(relation)
    return None


def _lines(section: re.Match[str] | None) -> list[str]:
    return section[1].splitlines() if section is not None else []


def _step(text: re.Match[str], below: tuple[PlanStep, ...]) -> PlanStep:
    name = text["name"]
    source = found["name"] if name in _SOURCE and (found := _SOURCE[name].match(text["rest"])) else None
    streaming = bool(text["streaming"]) or name in _SOURCE
    return PlanStep(name, below=below, name=name, source=source, streaming=streaming)
