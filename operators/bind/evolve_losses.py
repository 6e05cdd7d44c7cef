"""What a changed job would lose of its stored values, and whether its start may. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tidestate.operators.bind.same_functions import same_function
from tidestate.operators.bind.setting_change import SettingChange
from tidestate.operators.plan.plan import Plan
from tidestate.operators.windows.tables import GroupTables
from tidestate.recovery.log.manifest import OperatorState
from tidestate.recovery.start.policy import Dropped
from tidestate.statestore.errors import IncompatibleError
from tidestate.statestore.spec.arrowtypes import type_texts

_KEPT = 'the policy, Policy(dropped="refuse"), is to drop no values'
_COMPARED = ("function", "column", "columns", "name", "version", "where", "expression", "expression_by")
"""What an aggregate that could be the same under another name has in common with it."""
_SHARED = ("kind", "key", "on", "session", "window", "windows")
"""And what an operator has."""


def input_columns_changed(stored: OperatorState, plan: Plan, renamed: Mapping[str, str]) -> list[SettingChange]:
    """Columns of rows that pass or are kept whole that came and went; those of windows are what aggregates read."""
    if isinstance(plan, GroupTables):
        return []
    was = {renamed.get(name, name): kind for name, kind in stored.types.items()}
    now = type_texts(plan.input.schema)
    kept = {column.name for spec in stored.tables for column in spec.values}
    earlier = {new: old for old, new in renamed.items()}
    new = [
        SettingChange(f"column {name}", None, kind, "null in earlier rows", content=kind)
        for name, kind in now.items()
        if name not in was
    ]
    gone = [
        SettingChange(
            f"column {name}", kind, None, "earlier rows lose it", loses=earlier.get(name, name) in kept, content=kind
        )
        for name, kind in was.items()
        if name not in now
    ]
    return [*new, *gone]


def without_losses(
    name: str, stored: OperatorState, changes: Sequence[SettingChange], dropped: Dropped
) -> list[SettingChange]:
    """The changes of an operator as the policy has them. Raises `IncompatibleError` (``renamed-unclear``) for one
    that may be an undeclared renaming.
    """
    if dropped == "accept" or not holds_rows(stored):
        return list(changes)
    if dropped == "refuse":
        return [replace(one, refused=one.refused or _KEPT) if one.loses else one for one in changes]
    if any(one.refused for one in changes):
        return list(changes)
    time = str(stored.configuration.get("event_time"))
    unclear = {one.setting: twins for one in changes if one.loses and (twins := _twins(one, changes, time))}
    if unclear:
        lost, (new, *_) = next(iter(unclear.items()))
        kind, old = lost.split(" ", 1)
        raise IncompatibleError(
            f"the {kind} {old} is gone, and {new} has appeared with the same content: if it is the same under "
            f'another name, add .renamed({kind}s={{"{old}": "{new}"}}), else drop its values with '
            'Policy(dropped="accept")',
            code="renamed-unclear",
            operator=name,
            gone_and_new=unclear,
        )
    return list(changes)


def holds_rows(stored: OperatorState) -> bool:
    """Whether an operator has anything to lose."""
    return any(part.files for part in stored.partitions)


def check_operators(names: Mapping[str, OperatorState], plans: Mapping[str, Plan], dropped: Dropped) -> None:
    """Raises `IncompatibleError` if operators with state have gone and the policy is to lose nothing, or
    (``renamed-unclear``) if one may go on under another name.
    """
    gone = [name for name, stored in names.items() if name not in plans and holds_rows(stored)]
    if gone and dropped == "refuse":
        raise IncompatibleError(
            "these operators are no longer in the job, and their state would be dropped: restore them, start with "
            'a new folder, or accept the loss with Policy(dropped="accept")',
            code="configuration-changed",
            changed=dict.fromkeys(gone, "-"),
            why=dict.fromkeys(gone, _KEPT),
        )
    new = {name: plan for name, plan in plans.items() if name not in names}
    unclear = {
        name: twins for name in gone if (twins := [one for one in new if _may_continue(names[name], new[one])])
    }
    if unclear and dropped == "ask":
        old, (one, *_) = next(iter(unclear.items()))
        raise IncompatibleError(
            f"the operator {old} is gone, and {one} has appeared, of the same kind and with the same key and "
            f'windows: if it is the same, keep its name, name="{old}", as state is found by that; else drop its '
            'state with Policy(dropped="accept")',
            code="renamed-unclear",
            gone_and_new=unclear,
        )


def _may_continue(stored: OperatorState, plan: Plan) -> bool:
    """Whether an operator could be that of the stored state."""
    return all(stored.configuration.get(name) == plan.configuration.get(name) for name in _SHARED)


def _twins(lost: SettingChange, changes: Sequence[SettingChange], time: str) -> list[str]:
    """The names of what has come with the content of what was lost."""
    kind = lost.setting.split(" ", 1)[0]
    new = [one for one in changes if one.was is None and one.setting.startswith(f"{kind} ")]
    return [one.setting.split(" ", 1)[1] for one in new if _same_content(one.content, lost.content, time)]


def _same_content(now: Any, was: Any, time: str) -> bool:
    """Whether an aggregate may be the same, by its function and columns; of a column its type."""
    if not isinstance(now, Mapping) or not isinstance(was, Mapping):
        return bool(now == was)
    return all(now.get(name) == was.get(name) for name in _COMPARED) or same_function(now, was, time)
