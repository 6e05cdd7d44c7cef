"""What has changed of an operator, as it is written. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

AGGREGATES = "aggregates"
"""The field of a configuration that has them."""


@dataclass(frozen=True)
class SettingChange:
    """One thing that is not as it was: a setting, by its word of the builder; an aggregate, a column, a table.
    ``was`` is None of what is new, ``now`` of what has gone. ``refused``: why it cannot be; ``note``: else what that
    means. ``loses``: stored values belong to it. ``content``: what came or went, as it is stored.
    """

    setting: str
    was: str | None
    now: str | None
    note: str = ""
    refused: str = ""
    loses: bool = False
    content: Any = None

    def __str__(self) -> str:
        return f"{_written(self.was)} -> {_written(self.now)}"


def _written(value: str | None) -> str:
    return "-" if value is None else value
