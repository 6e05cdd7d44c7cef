"""`DurableQuery` is used like PySpark's `StreamingQuery`: the same names, kinds and parameters, and nothing twice."""

import inspect
import re
from typing import Any

import pytest

from tidestate.operators import DurableQuery

pytest.importorskip("pyspark")


def members(kind: type[Any]) -> dict[str, Any]:
    return {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}


def parameters(method: Any) -> list[tuple[str, Any]]:
    """Without those that are by keyword alone, which ours may have in addition."""
    every = inspect.signature(method).parameters.values()
    return [(one.name, one.default) for one in every if one.kind is not one.KEYWORD_ONLY]


def test_a_query_has_what_that_of_spark_has() -> None:
    from pyspark.sql.streaming import StreamingQuery

    ours, of_spark = members(DurableQuery), members(StreamingQuery)
    assert len(of_spark) >= 12
    assert of_spark.keys() <= ours.keys()
    for name, member in of_spark.items():
        assert isinstance(member, property) == isinstance(ours[name], property), name
        if not isinstance(member, property):
            assert parameters(member) == parameters(ours[name]), name


def test_a_query_has_nothing_twice() -> None:
    from pyspark.sql.streaming import StreamingQuery

    ours, of_spark = members(DurableQuery), members(StreamingQuery)
    snake = {name: re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in of_spark}
    assert [name for name, other in snake.items() if other != name and other in ours] == []
    assert sorted(name for name in ours.keys() - of_spark.keys() if name.lower() != name) == []
