"""Settings of a stored description as a user writes them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tidestate.operators.bind.evolve_settings import SettingChange
from tidestate.operators.describe.configuration import aggregate_of, description_of
from tidestate.operators.describe.triggers import DEFAULT, Triggers
from tidestate.operators.streams.words import value_text

WINDOW, TRIGGERS, AGGREGATE = "window", "triggers", "aggregate "
"""Settings whose values are more than text and numbers."""
Stored = Mapping[str, Any]


def change_in_words(change: SettingChange, was: Stored, now: Stored) -> SettingChange:
    """The change, whose values are texts; ``was`` and ``now`` are the configurations that they stand in."""
    return replace(change, was=_words(change.setting, change.was, was), now=_words(change.setting, change.now, now))


def _words(setting: str, value: Any, configuration: Stored) -> Any:
    if not isinstance(value, Mapping):
        return value
    if setting in (WINDOW, TRIGGERS):
        description: Any = description_of(configuration)
        return _Words(value_text(description.windows) if setting == WINDOW else _triggers(description.triggers))
    if setting.startswith(AGGREGATE):
        return _Words(value_text(aggregate_of(value)))
    return _Words(value_text({name: one for name, one in value.items() if one not in (None, [], {})}))


class _Words(str):
    """Text that is no value of a setting itself, so without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _triggers(triggers: Triggers) -> str:
    """The call that sets them, without what it sets by default."""
    changed = [
        f"{name}={value_text(getattr(triggers, name))}"
        for name in triggers.__struct_fields__
        if getattr(triggers, name) != getattr(DEFAULT, name)
    ]
    return f"trigger({', '.join(changed)})"
