"""The error for names of columns that are not there: it offers the nearest ones that are, and lists all. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from tidestate.statestore.errors import UsageError


def missing_columns(
    message: str, missing: Sequence[str], columns: Sequence[str], *, code: str | None = None, **context: Any
) -> UsageError:
    """The error that ``missing`` are not among these ``columns``, which are all that there are; its code is
    ``column-missing`` unless it is of another kind.
    """
    offers = {name: nearest(name, columns) for name in missing}
    texts = [f"{' or '.join(map(repr, offer))} for {name!r}" for name, offer in offers.items() if offer]
    hint = f": did you mean {', '.join(texts)}?" if texts else ""
    facts = {**context, "missing": list(missing), "columns": list(columns)}
    if code is not None:
        return UsageError(f"{message}{hint}", code=code, **facts)
    return UsageError(f"{message}{hint}", code="column-missing", **facts)


def nearest(name: str, columns: Sequence[str]) -> list[str]:
    """The ``columns`` whose names are most like this one, whatever their case; at most two, the nearest first."""
    by_lower = {column.lower(): column for column in reversed(columns)}
    # Columns of joins have the name of their side in front.
    if of_sides := [column for column in columns if column.endswith(f"_{name}")]:
        return of_sides[:2]
    return [by_lower[lower] for lower in get_close_matches(name.lower(), by_lower, n=2, cutoff=0.7)]
