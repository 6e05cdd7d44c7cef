"""The settings of stored operators, for the verb show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidestate.operators.describe.configuration import description_of
from tidestate.operators.streams.setting_words import settings_of


def written_settings(configuration: Mapping[str, Any]) -> dict[str, str]:
    """What is set of an operator, by words of the builder. Raises `ValueError` for what no job stores."""
    return settings_of(description_of(configuration))
