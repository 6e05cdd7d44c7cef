"""Values of a recipe that are no JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.golden.descriptions import functions
from tidestate.statestore.spec.arrowtypes import parse_type

Space = Callable[[str], Callable[..., Any]]
"""From a name to what makes a value: of `tidestate.agg`, of `tidestate.trigger` and so on."""


def value(stored: Any, spaces: Mapping[str, Space]) -> Any:
    """What a value of a recipe stands for; ``spaces`` by tag: ``agg``, ``trigger``, ``watermark``, ``window``,
    ``ts``.
    """
    if isinstance(stored, list):
        return tuple(value(part, spaces) for part in stored)
    if not isinstance(stored, dict):
        return stored
    if "function" in stored:
        return getattr(functions, stored["function"])
    if "type" in stored:
        return parse_type(stored["type"])
    if tag := next((tag for tag in spaces if tag in stored), None):
        args, options = arguments(stored, spaces)
        if stored[tag] == "offset_windows":
            # Recipes are of a time when windows that name no start were from 0, those of the sides of joins too.
            options.setdefault("start", 0)
        return spaces[tag](stored[tag])(*args, **options)
    return {name: value(part, spaces) for name, part in stored.items()}


def arguments(stored: Mapping[str, Any], spaces: Mapping[str, Space]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call: by place and by name."""
    options = {name: value(part, spaces) for name, part in stored.get("options", {}).items()}
    return value(stored.get("args", []), spaces), options
