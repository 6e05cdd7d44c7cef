"""The settings of an operator as one writes them, which the package knows that runs it.

That package has an entry point of the group ``tidestate.settings``: a function of a stored configuration, which
returns texts by the words that set them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from tidestate.statestore.errors import UsageError
from tidestate.statestore.plugins import loaded

SETTINGS = "tidestate.settings"


def settings_in_words(configuration: Mapping[str, Any]) -> Mapping[str, str]:
    """By words; as they are stored where no package knows the operator."""
    for entry in entry_points(group=SETTINGS):
        settings_of = loaded(entry, "operator", UsageError, code="verb-broken", verb=entry.name)
        try:
            return settings_of(configuration)  # type: ignore[no-any-return]
        except (LookupError, TypeError, ValueError, AttributeError):
            continue  # no job of that package has written it
    return {name: json.dumps(value, ensure_ascii=False) for name, value in configuration.items()}
