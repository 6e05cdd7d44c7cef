"""No figure of the source is worse than `ratchets.json` says, and what is much better is written down there."""

from __future__ import annotations

import gc

import pytest

from tools.ratchets import complaints, read_figures, survey


@pytest.mark.slow
def test_the_figures_of_the_source_only_get_better() -> None:
    gc.disable()  # nothing of a million nodes is garbage, and to look for it takes a fifth of the time
    try:
        figures = {group: files.figures() for group, files in survey().items()}
    finally:
        gc.enable()
    assert list(complaints(figures, read_figures())) == []
