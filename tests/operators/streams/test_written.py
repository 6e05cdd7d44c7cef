"""What is written with streams and verbs is stored as descriptions always were."""

from __future__ import annotations

import gzip
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import tidestate as ts
from tests.golden import descriptions
from tests.golden.descriptions.manifest import operators_of
from tests.golden.descriptions.written import written
from tests.helpers.process import some
from tidestate import OperatorStream
from tidestate.operators.describe.chain import Chain

FOLDER = Path(descriptions.__file__).parent
DRAWN = [json.loads(line) for line in gzip.decompress((FOLDER / "descriptions.jsonl.gz").read_bytes()).splitlines()]
EXAMPLES = [json.loads(line) for line in (FOLDER / "examples.jsonl").read_text().splitlines()]


def stored_of(stream: OperatorStream) -> list[dict[str, Any]]:
    """What the manifest of a job holds."""
    graph = stream.graph
    operators = graph.description.operators if isinstance(graph.description, Chain) else (graph.description,)
    return operators_of(Chain(operators, graph.inputs, name=operators[-1].name))


@pytest.mark.parametrize("example", EXAMPLES, ids=[one["about"] for one in EXAMPLES])
def test_examples(example: dict[str, Any]) -> None:
    check(example)


@pytest.mark.parametrize("place", some(range(len(DRAWN)), 100))
def test_drawn_jobs(place: int) -> None:
    check(DRAWN[place])


def check(kept: dict[str, Any]) -> None:
    """A recipe is stored as it always was, as is the text that it is printed as."""
    assert stored_of(written(kept["recipe"])) == kept["operators"]
    if not names_functions(kept["recipe"]):
        assert of_text(kept["recipe"]) == kept["operators"]


def names_functions(recipe: dict[str, Any]) -> bool:
    """Whether functions of the user's are in it, which have no text."""
    return '"function"' in json.dumps(recipe)


NAMES = {name: getattr(ts, name) for name in ts.__all__}
"""What stands in the text of a stream."""


def of_text(recipe: dict[str, Any]) -> list[dict[str, Any]]:
    """What is stored of the text that a job is printed as, line by line."""
    lines: dict[str, Any] = {}
    exec(written(recipe).explain(), dict(NAMES), lines)
    return stored_of(lines[recipe["operators"][-1]["name"]])


def test_a_stream_is_printed_as_it_was_written() -> None:
    orders = ts.stream("orders", event_time="at", watermark_delay=timedelta(minutes=5))
    daily = (
        orders.group_by("country").window(ts.tumbling("1 day")).aggregate(n=ts.agg.count(), x=ts.agg.max("amount"))
    )
    text = (
        'stream("orders", event_time="at", watermark_delay="5 minutes").group_by("country")'
        '.window(tumbling("1 day")).aggregate(n=agg.count(), x=agg.max("amount"))'
    )
    assert repr(daily) == text
    assert stored_of(eval(text, dict(NAMES))) == stored_of(daily)
    assert repr(orders.join(orders, on="k", within=("0 seconds", None)).explain()).splitlines() == [
        'orders = stream("orders", event_time="at", watermark_delay="5 minutes")',
        'joined = orders.join(orders, on="k", within=("0 seconds", None))',
    ]


def test_one_stream_read_in_two_ways_is_printed_with_both() -> None:
    """Objects of one name are one stream; text that shows one of them would make another job."""
    placed, shipped = ts.stream("orders", event_time="at"), ts.stream("orders", event_time="seen")
    same = ts.stream("orders", event_time="at")
    both = placed.join(shipped, on="user", within=("0 seconds", None))
    lines = both.explain().splitlines()
    assert lines == [
        'orders = stream("orders", event_time="at")',
        'joined = orders.join(stream("orders", event_time="seen"), on="user", within=("0 seconds", None))',
    ]
    namespace: dict[str, Any] = dict(NAMES)
    exec("\n".join(lines), namespace)
    assert stored_of(namespace["joined"]) == stored_of(both)
    assert placed.join(same, on="user", within=("0 seconds", None)).explain().splitlines() == [
        'orders = stream("orders", event_time="at")',
        'joined = orders.join(orders, on="user", within=("0 seconds", None))',
    ]
