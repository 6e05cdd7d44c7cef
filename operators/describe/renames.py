"""What is called otherwise now than in the checkpoint that a description continues. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from tidestate.statestore.errors import UsageError

RenamePairs = tuple[tuple[str, str], ...]
"""Old names with new ones."""

_NAMING = ("event_time", "key", "origin", "column", "by", "columns", "ledger_columns", "on", "gap_column", "flag")
"""Settings that name columns of the input, wherever they stand in a configuration."""


class Renames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Aggregates and input columns with other names than before. A start that finds them done passes them over: they
    are about the past, and no part of the configuration.
    """

    aggregates: RenamePairs = ()
    columns: RenamePairs = ()


SAME_NAMES = Renames()


def given_renames(aggregates: Mapping[str, str] | None, columns: Mapping[str, str] | None) -> Renames:
    """As a user gives them. Raises `UsageError` where the pairs contradict each other."""
    for pairs in (aggregates or {}, columns or {}):
        twice = sorted(set(pairs) & set(pairs.values()))
        if twice or len(set(pairs.values())) != len(pairs):
            raise UsageError(
                "each name becomes one other, which is nobody's old name: rename step by step",
                code="renamed",
                found=dict(pairs),
            )
    return Renames(tuple((aggregates or {}).items()), tuple((columns or {}).items()))


def pending_renames(pairs: RenamePairs, stored: Collection[str], wanted: Collection[str]) -> dict[str, str]:
    """Those that are still to be done: the checkpoint knows the old name and not the new one, which is wanted."""
    return {old: new for old, new in pairs if old in stored and new not in stored and new in wanted}


def rename_columns(setting: Any, columns: Mapping[str, str], *, naming: bool = False) -> Any:
    """A part of a configuration with the new names of columns."""
    if isinstance(setting, dict):
        return {name: rename_columns(value, columns, naming=name in _NAMING) for name, value in setting.items()}
    if isinstance(setting, list | tuple):
        return [rename_columns(value, columns, naming=naming) for value in setting]
    return columns.get(setting, setting) if naming and isinstance(setting, str) else setting
