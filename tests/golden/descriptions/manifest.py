"""What the manifest of a job holds of its description."""

from __future__ import annotations

import warnings
from typing import Any

from tests.golden.descriptions.columns import SCHEMA
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.describe.chain import Chain


def operators_of(description: Chain) -> list[dict[str, Any]]:
    """Its operators in order, bound to streams that have the columns of recipes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        graph = bind_graph(description, dict.fromkeys(description.streams, SCHEMA))
    return [
        {
            "name": node.plan.name,
            "inputs": [feed.origin for feed in node.feeds],
            "configuration": node.plan.configuration,
        }
        for node in graph.nodes
    ]
