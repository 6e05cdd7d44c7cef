"""The rules of a zone from the tzdata of this host, as Python's ``zoneinfo`` knows it."""

from __future__ import annotations

from datetime import UTC as UTC_ZONE
from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import numpy as np

from tidestate.operators.zones.rules import ZONE_NAME, ZoneRules, rules_of
from tidestate.statestore.errors import UsageError

FIRST_YEAR, LAST_YEAR = 1900, 2099
"""The years whose transitions are looked up; before and after them an offset stays what it is."""
_FEW_ZONES = 100
"""The database has some 600; a host without it may still know a few, UTC among them."""
_STEP_S = 43_200
"""No zone has had two transitions within half a day: `tests/operators/zones/test_rules.py` looks at all of them."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC_ZONE)


@lru_cache(maxsize=64)
def installed_rules(name: str) -> ZoneRules:
    """The rules of a zone by its name, such as ``Europe/Berlin``; a tenth of a second the first time.

    Raises `UsageError` (``time-zone``) for a name that this host does not know.
    """
    zone = _zone(name)
    first, end = _seconds(FIRST_YEAR), _seconds(LAST_YEAR + 1)
    times = range(first, end + 1, _STEP_S)
    probes = np.array([_offset_s(zone, second) for second in times])
    changes = np.flatnonzero(probes[1:] != probes[:-1])
    starts = [_transition(zone, times[index], times[index + 1]) for index in changes.tolist()]
    return rules_of(name, np.array(starts, np.int64), probes[np.concatenate([[0], changes + 1])])


def _zone(name: str) -> ZoneInfo:
    # "localtime" is a zone of the host, and what this host calls so is not what the next one does.
    if isinstance(name, str) and ZONE_NAME.fullmatch(name) and name != "localtime":
        try:
            return ZoneInfo(name)
        except (ZoneInfoNotFoundError, OSError, ValueError):
            pass
    advice = "" if len(available_timezones()) > _FEW_ZONES else "; this host has no such database: install tzdata"
    raise UsageError(
        f'zone= takes the name of a time zone in the database of IANA, such as zone="Europe/Berlin"{advice}',
        code="time-zone",
        found=f"{name!r:.100}",
    )


def _transition(zone: ZoneInfo, before: int, after: int) -> int:
    """The second at which the offset of ``before`` ends, which is not that of ``after``."""
    old = _offset_s(zone, before)
    while after - before > 1:
        middle = (before + after) // 2
        before, after = (middle, after) if _offset_s(zone, middle) == old else (before, middle)
    return after


def _offset_s(zone: ZoneInfo, second: int) -> int:
    offset = (_EPOCH + timedelta(seconds=second)).astimezone(zone).utcoffset() or timedelta(0)
    return offset.days * 86_400 + offset.seconds


def _seconds(year: int) -> int:
    return int((datetime(year, 1, 1, tzinfo=UTC_ZONE) - _EPOCH).total_seconds())
