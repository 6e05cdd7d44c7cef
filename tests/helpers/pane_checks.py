"""What holds for the panes of any window operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tests.helpers.every_store import added
from tests.twins.words import Row, Setting


def check_panes(setting: Setting, found: list[Row], expected: list[Row], step: object) -> None:
    """The same panes, and no retraction after what it makes room for."""
    assert sorted(found, key=str) == sorted(expected, key=str), step
    for number, row in enumerate(found):
        later = [other for other in found[number + 1 :] if other.kind == "retract" and other.key == row.key]
        assert row.kind == "retract" or not any(related(setting, row, other) for other in later)


def related(setting: Setting, row: Row, other: Row) -> bool:
    if setting.windows.name == "session":
        return row.window_start < other.window_end and other.window_start < row.window_end
    return row[:2] == other[:2]


def net(setting: Setting, rows: Iterable[Row]) -> dict:
    """What a reader who puts all panes together ends up with, per window and key.

    Sessions in the other modes leave the panes of smaller sessions standing: discarding, the parts still add up per
    key; accumulating, there is no net.
    """
    found: dict = {}
    if setting.mode == "retracting":
        signed: Counter = Counter()
        for row in rows:
            signed[row[:4]] += 1 if row.kind == "emit" else -1
        assert set(signed.values()) <= {0, 1}
        found = {where[:3]: where[3] for where, times in signed.items() if times}
        assert len(found) == sum(signed.values())
    elif setting.mode == "discarding":
        for row in rows:
            where = row.key if setting.windows.name == "session" else row[:3]
            found[where] = added(found[where], row.values) if where in found else row.values[:6]
    elif setting.windows.name != "session":
        found = {row[:3]: row.values for row in rows}
    return found
