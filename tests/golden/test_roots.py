"""Roots of an earlier version go on as it would have gone on itself, and without a word in the log."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.golden.continued import as_counted_then, continued, log_lines, read_root, root_names, written
from tests.golden.jobs import job_of
from tidestate.operators.describe.configuration import configuration_of, description_of

LINES: dict[str, list[str]] = {
    "future": [
        "checkpoint 7: 1 events of job are far ahead of the watermark, 2023-11-14 22:16:33, by more than"
        " its delay, 2 minutes, and the tolerance, 1 minute (.allowed_lateness(future_tolerance=…)), together;"
        " they are processed; if its time is wrong, watermark.bounded(…, hold_future=…) ignores events ahead of"
        " the clock; if it is right, a longer watermark delay (now 2 minutes) or .allowed_lateness(…) (now 5 seconds)"
        " waits for the other events"
    ],
    "kind_by_name": [
        "operator moved has begun when a column was known by its name, so it goes on to take kind for what panes have"
        " under these names: if that is right, say stream(…, retractions=True); if they are columns of your own, give"
        " them other names, or begin with a new folder"
    ],
    "chain_deduplicated": [
        "operator once has begun without an allowed lateness, so it rejects late rows that the operator behind it "
        'would accept: give it allowed_lateness="5 seconds" to accept these, or "0 seconds" to keep rejecting them'
    ],
}
"""By root: the lines of its start and continuation. A change that adds some says so in the changelog."""
DELAY, WATERMARK = {"watermark_delay_us"}, {"watermark"}
ACTING_THE_SAME: dict[str, set[str]] = {
    **dict.fromkeys(("buffers", "buffers_with_patience", "fixed_watermark", "hold_future"), DELAY),
    **dict.fromkeys(("idle_sources", "punctuation", "quiet", "sources"), DELAY),
    **dict.fromkeys(("overlap", "overlap_of_edges"), WATERMARK),
    "join_of_offsets": {"windows"},
}
"""By root: settings that were stored in another form. A delay next to a generator of watermarks, which has no effect,
is stored no more. CTI settings that were given once for both sides are now those of each. Windows of offsets of a
side without a start were from 0: such a root goes on with them.
"""
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.mark.parametrize("name", root_names("standalone", "harness", "by hand"))
def test_a_root_goes_on(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stored = read_root(name)
    with caplog.at_level(logging.WARNING, "tidestate"):
        found = continued(stored, job_of(name), tmp_path)
    assert as_counted_then(found, stored.expected) == stored.expected
    assert log_lines(caplog.records) == LINES.get(name, [])


@pytest.mark.parametrize("name", root_names("standalone", "harness", "by hand", "spark"))
def test_a_configuration_is_stored_as_it_was(name: str) -> None:
    """A new field is absent while it has its default: else the root would change with the version."""
    for stored in read_root(name).about["operators"]:
        if "own_function" not in name:
            assert configuration_of(description_of(stored)) == stored


@pytest.mark.parametrize("name", root_names("standalone", "harness", "by hand", "spark"))
def test_a_job_is_stored_as_it_was(name: str) -> None:
    """Written with streams and verbs, as the functions of then described it."""
    about, made = read_root(name).about, written(job_of(name))
    assert made["inputs"] == about["inputs"]
    differ: set[str] = set()
    for now, was in zip(made["operators"], about["operators"], strict=True):
        differ |= {field for field in now.keys() | was.keys() if now.get(field) != was.get(field)}
    assert differ == ACTING_THE_SAME.get(name, set())
