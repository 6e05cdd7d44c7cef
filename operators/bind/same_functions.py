"""Functions that have two names: which aggregates are the same, by what is stored of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ENDS = {"first": "first", "arg_min": "first", "earliest": "first", "last": "last", "latest": "last"}
"""Functions that are the same with the same ``by``, which is the event time by default."""


def same_function(one: Mapping[str, Any], other: Mapping[str, Any], time: str) -> bool:
    """Whether two aggregates are one of these functions, of the same columns; ``time`` is the event time."""
    meaning = _meaning(one, time)
    return meaning is not None and meaning == _meaning(other, time)


def _meaning(described: Mapping[str, Any], time: str) -> tuple[Any, ...] | None:
    """The one name of a function that has two, with its columns, and the rows that it is of."""
    function = str(described.get("function"))
    column = described.get("column"), described.get("expression"), described.get("where")
    middle = (described.get("q", 0.5), described.get("interpolation", "linear")) == (0.5, "linear")
    if function == "median" or (function == "quantile" and middle):
        return "median", column
    if function in _ENDS:
        return _ENDS[function], column, described.get("expression_by") or described.get("by") or time
    return None
