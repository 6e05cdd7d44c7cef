"""What columns of earlier files are called now. Pure."""

from __future__ import annotations

from collections.abc import Sequence

Renamed = tuple[int, str, str]
"""A renamed column: the checkpoint since when, its old and its new name."""


def names_now(renamed: Sequence[Renamed], checkpoint: int) -> dict[str, str]:
    """Of columns of a file that ``checkpoint`` wrote what they are called now, by their name there, however often
    they were ``renamed`` since. Columns that kept their name are left out.
    """
    names: dict[str, str] = {}
    for since, old, new in renamed:
        if since <= checkpoint:
            continue
        followed = [name for name, last in names.items() if last == old]
        names |= dict.fromkeys(followed, new)
        if not followed:
            names.setdefault(old, new)
    return names
