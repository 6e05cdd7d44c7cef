"""Values as the text that filters of rows take. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, time
from typing import Any

from tidestate.statestore.durations import Moment
from tidestate.statestore.errors import UsageError


def key_texts(key: Any, columns: Sequence[str]) -> dict[str, str]:
    """A key by its columns: a value, a tuple if it has several columns, or columns with their values. Raises
    `UsageError` (``window-key``) for another number of values.
    """
    if key is None or isinstance(key, Mapping):
        return {name: _text(value) for name, value in (key or {}).items()}
    values = key if isinstance(key, tuple) else (key,)
    if len(values) != len(columns):
        advice = "give one value for each column of the key" if columns else "there is no key: remove key="
        raise UsageError(advice, code="window-key", columns=list(columns), found=len(values))
    return dict(zip(columns, map(_text, values), strict=True))


def bound_text(moment: Moment | None, *, is_time: bool) -> str | None:
    """A bound of windows, which are of times or of numbers."""
    if moment is None:
        return None
    return f"{moment} us" if is_time and isinstance(moment, int) else _text(moment)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    return value.isoformat() if isinstance(value, date | time) else str(value)
