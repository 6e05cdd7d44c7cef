"""Sinks try again as often as they would, however long a try takes on a busy machine."""

from __future__ import annotations

import pytest

from tidestate.operators.sinks import included


@pytest.fixture(autouse=True)
def tries_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that was overtaken is tried again also if that took longer than a sink would go on."""
    monkeypatch.setattr(included, "TRYING_S", 600.0)
