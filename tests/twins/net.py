"""The net of panes, naively: a dictionary by window and key that retractions delete from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def counting(panes: Iterable[dict[str, Any]], key: Sequence[str]) -> list[dict[str, Any]]:
    """What counts of ``panes``, in the order in which it was emitted."""
    last: dict[tuple[Any, ...], dict[str, Any]] = {}
    for pane in panes:
        window = (pane["window_start"], pane["window_end"], *(pane[name] for name in key))
        last.pop(window, None)
        if pane["kind"] == "emit":
            last[window] = pane
    return list(last.values())
