"""What is called otherwise now than in the checkpoint that a description continues. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from tidestate.statestore.errors import UsageError

RenamePairs = tuple[tuple[str, str], ...]
"""Old names with new ones."""

_NAMING = frozenset(
    {
        *("event_time", "end", "offset", "origin", "key", "on", "session", "shared", "identity", "equal", "order"),
        *("column", "columns", "by", "ledger_columns", "gap_column", "shape_column", "flag", "start"),
        *("shift_column", "duration_column"),
        *("sequence", "watermark", "chunk", "last", "whole", "empty"),
    }
)
"""Settings that name columns of the input, wherever they stand in a configuration."""
_OF_SIDES = ("offsets", "origins")
"""Settings of joins that name a column of each side, as the side calls it."""


class Renames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Aggregates and input columns with other names than before. A start that finds them done passes them over: they
    are about the past, and no part of the configuration.
    """

    aggregates: RenamePairs = ()
    columns: RenamePairs = ()


SAME_NAMES = Renames()


def given_renames(aggregates: Mapping[str, str] | None, columns: Mapping[str, str] | None) -> Renames:
    """The renames that a user gives. Raises `UsageError` where the pairs contradict each other."""
    for pairs in (aggregates or {}, columns or {}):
        twice = sorted(set(pairs) & set(pairs.values()))
        if twice or len(set(pairs.values())) != len(pairs):
            raise UsageError(
                "two names cannot become one, and a new name must not also be an old one: rename step by step, in "
                "several starts",
                code="renamed",
                found=dict(pairs),
            )
    return Renames(tuple((aggregates or {}).items()), tuple((columns or {}).items()))


def pending_renames(pairs: RenamePairs, stored: Collection[str], wanted: Collection[str]) -> dict[str, str]:
    """Those that are still to be done: the checkpoint knows the old name and not the new one, which is wanted."""
    return {old: new for old, new in pairs if old in stored and new not in stored and new in wanted}


def named_columns(configuration: Mapping[str, Any], types: Collection[str]) -> set[str]:
    """The columns of the one stream that an operator reads or names: the ``types`` of those that it reads, and the
    times of its sides, which are read as one column.
    """
    sides = configuration.get("sides") or {"names": (), "times": ()}
    return {*types, *(f"{side}_{time}" for side, time in zip(sides["names"], sides["times"], strict=True))}


def rename_columns(configuration: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """A configuration with the new names of columns, which are those of the one stream where there are sides."""
    renamed: dict[str, Any] = _in_all(configuration, columns)
    sides = renamed.get("sides") or {"names": ("left", "right")}
    for name in _OF_SIDES:
        if name in renamed:
            renamed[name] = _on_sides(renamed[name], sides, columns)
    if "times" in sides:
        renamed["sides"] = {**sides, "times": _on_sides(sides["times"], sides, columns)}
    for place, name in enumerate(("left_time", "right_time")):
        if name in renamed:
            renamed[name] = _on_side(renamed[name], sides["names"][place], columns)
    return renamed


def _on_sides(names: Sequence[str | None], sides: Mapping[str, Any], columns: Mapping[str, str]) -> list[str | None]:
    """The names of a column of each side."""
    if sides.get("same_columns"):
        return [columns.get(name, name) if name else name for name in names]
    return [_on_side(name, side, columns) for name, side in zip(names, sides["names"], strict=True)]


def _on_side(name: str | None, side: str, columns: Mapping[str, str]) -> str | None:
    """The name of a column on its side, which the one stream has in front of it."""
    new = columns.get(f"{side}_{name}")
    return name if name is None or new is None else new.removeprefix(f"{side}_")


def _in_all(setting: Any, columns: Mapping[str, str], *, naming: bool = False) -> Any:
    """A part of a configuration with the new names of columns, wherever they stand."""
    if isinstance(setting, dict):
        if setting.get("kind") == "col":  # in an expression
            return {**setting, "name": columns.get(setting["name"], setting["name"])}
        return {name: _in_all(value, columns, naming=name in _NAMING) for name, value in setting.items()}
    if isinstance(setting, list | tuple):
        return [_in_all(value, columns, naming=naming) for value in setting]
    return columns.get(setting, setting) if naming and isinstance(setting, str) else setting
