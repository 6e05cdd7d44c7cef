"""Why rows are in the late ledger, and names of counters beside. Pure."""

from __future__ import annotations

KEY_TOO_LONG = "key_too_long"
VERY_LATE, NULL_KEY, NULL_TIME, OUT_OF_RANGE = "very_late", "null_key", "null_event_time", "event_time_out_of_range"
BAD_OFFSET, BAD_WINDOW, PURGED, WINDOW_CLOSED = "bad_offset", "bad_window", "purged", "window_closed"
UNDECODABLE = "undecodable"
"""The reason of a row whose value is no object of the schema that it is decoded by."""
EXPECTATION = "expectation"
"""The reason of a row that does not meet an expectation; with the name behind it, ``expectation:name``, a counter."""
NO_WINDOW = "no_window"
"""The reason of a row that is late and was never in a window."""
BEYOND_RETENTION = "out_of_retention"
"""The reason of a row that is older than the retention."""
PUT_BACK_REASONS = (VERY_LATE, UNDECODABLE, EXPECTATION)
"""The reasons of rows that the job can take in again: their windows may be there still, or the schema or the
expectation has changed.
"""
WHY_NEVER = {
    NULL_KEY: "a null key has no group",
    NULL_TIME: "without an event time it is in no window",
    NO_WINDOW: "no window takes it, late or not",
    PURGED: "its windows have expired; a fork of a checkpoint that has them takes it",
    WINDOW_CLOSED: "its window is closed by its trigger",
    BEYOND_RETENTION: "nobody knows any more whether it was taken in before",
}
"""Why a row with such a reason is never put back. All others were refused for what they hold."""
DUPLICATES = "duplicates"
"""Counts rows that are known already; they are in no ledger."""
FILTERED = "filtered"
"""Counts rows that a condition leaves out; they are no events, and in no ledger."""
EDGE_ENDS = "edge_ends"
"""Counts ends of edges that were taken; they are in no window."""
PUT_BACK, INCOMPLETE, INCOMPLETE_PANES = "put_back", "incomplete_windows", "incomplete_panes"
"""Counters where messages were lost: those put back, windows that lack some, panes of such windows."""
LEDGER_REASONS = (
    VERY_LATE,
    NO_WINDOW,
    PURGED,
    NULL_KEY,
    KEY_TOO_LONG,
    NULL_TIME,
    OUT_OF_RANGE,
    BAD_OFFSET,
    BAD_WINDOW,
    UNDECODABLE,
    EXPECTATION,
)
