"""What a table notes of withdrawn deliveries, and what a reader makes of it."""

from __future__ import annotations

import pytest

from tidestate.operators.sinks.withdrawn_runs import (
    WithdrawnRun,
    last_checkpoints,
    noted_checkpoint,
    noted_withdrawal,
)


@pytest.mark.parametrize(
    ("note", "run", "application", "checkpoint"),
    [
        ("tidestate:r-7", "r", "r", 7),
        ("tidestate:r-late rows-7", "r-late rows", "r-late rows", 7),
        ("tidestate:r-late rows-7", "r", "r", None),
        ("tidestate:r-7", "r", "r.1", None),
        ("tidestate:r.1-8", "r", "r.1", 8),
        (noted_withdrawal({"r": 5, "s": 0}), "r", "r", 5),
        (noted_withdrawal({"r": 5, "s": 0}), "s", "s.1", 0),
        (noted_withdrawal({"r": 5}), "s", "s", None),
        ("tidestate:r-x", "r", "r", None),
        ("r-7", "r", "r", None),
        ("tidestate:[1]", "r", "r", None),
        ("", "r", "r", None),
    ],
)
def test_a_note(note: str, run: str, application: str, checkpoint: int | None) -> None:
    assert noted_checkpoint(note, run, application) == checkpoint


def test_the_last_checkpoints_with_or_without_the_mark() -> None:
    assert last_checkpoints('{"r": 5}') == last_checkpoints('tidestate:{"r": 5}') == {"r": 5}
    assert last_checkpoints("none") == last_checkpoints("") == {}


def test_a_run_is_stored_as_a_text() -> None:
    run = WithdrawnRun("r.1", "r", 5, "delivery id")
    assert WithdrawnRun.of_text(run.as_text()) == run
