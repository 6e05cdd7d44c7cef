"""Rules of zones against ``zoneinfo`` and the files of tzdata."""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.process import LONG
from tests.helpers.zoned import HARD, zone_file
from tidestate.operators.zones.installed import installed_rules
from tidestate.operators.zones.rules import ZoneRules, rules_from, rules_of
from tidestate.statestore.errors import UsageError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WITHIN = st.integers(-(70 * 365 * 86_400), 129 * 365 * 86_400)
"""Seconds of the years 1900 to 2099."""


def local_time(zone: ZoneInfo, second: int) -> datetime:
    return (EPOCH + timedelta(seconds=second)).astimezone(zone)


def offset_of(zone: ZoneInfo, second: int) -> int:
    offset = local_time(zone, second).utcoffset()
    assert offset is not None
    return int(offset.total_seconds())


def near_transitions(rules: ZoneRules) -> list[int]:
    starts = (rules.starts[1:] // 1_000_000).tolist()
    return [start + step for start in starts for step in (-86_400, -3_600, -1, 0, 1, 1_800, 3_600, 86_400)]


def first_instant(zone: ZoneInfo, second: int) -> int:
    """The instant at which a clock shows ``second`` first, by trying; in a gap the moment of the change."""
    low, high = second - 100_000, second + 100_000
    offsets = sorted({offset_of(zone, instant) for instant in range(low, high, 900)}, reverse=True)
    exact = [second - offset for offset in offsets if offset_of(zone, second - offset) == offset]
    if exact:
        return min(exact)
    # Clocks show less before the change and more from it on.
    low, high = second - max(offsets), second - min(offsets)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle + offset_of(zone, middle) <= second else (low, middle)
    return high


@pytest.mark.parametrize("name", HARD)
def test_offsets_at_any_instant(name: str) -> None:
    rules, zone = installed_rules(name), ZoneInfo(name)

    @settings(max_examples=settings.default.max_examples * 5)  # type: ignore[union-attr]
    @given(st.lists(WITHIN, max_size=20))
    def check(seconds: list[int]) -> None:
        expected = [offset_of(zone, second) * 1_000_000 for second in seconds]
        assert rules.offsets_at(np.array(seconds, np.int64) * 1_000_000).tolist() == expected

    check()
    near = near_transitions(rules)
    expected = [(second + offset_of(zone, second)) * 1_000_000 for second in near]
    assert rules.local(np.array(near, np.int64) * 1_000_000).tolist() == expected


@pytest.mark.parametrize("name", HARD)
def test_the_way_back_is_the_first_instant_or_the_moment_of_the_change(name: str) -> None:
    rules, zone = installed_rules(name), ZoneInfo(name)
    near = near_transitions(rules)[:: 1 if LONG else 17]
    shown = [second + offset_of(zone, second) for second in near]
    # Just before a change and just after it: times that are shown twice, and times that are never shown.
    shown += [local + step for local in shown[::4] for step in (-1_800, 1_800)]
    expected = [first_instant(zone, local) * 1_000_000 for local in shown]
    assert rules.instants(np.array(shown, np.int64) * 1_000_000).tolist() == expected


def test_a_day_that_was_skipped_has_no_instant() -> None:
    rules = installed_rules("Pacific/Apia")
    skipped = np.array([datetime(2011, 12, 30, hour, tzinfo=UTC).timestamp() * 1e6 for hour in (0, 12, 23)], np.int64)
    change = int(datetime(2011, 12, 30, 10, tzinfo=UTC).timestamp() * 1e6)
    assert rules.instants(skipped).tolist() == [change] * 3


def test_outside_of_the_years_the_last_offset_stays() -> None:
    rules = installed_rules("Europe/Berlin")
    assert rules.offsets_at(np.array([-(2**62), 2**62])).tolist() == rules.offsets[[0, -1]].tolist()
    assert rules.offsets_at(np.zeros(0, np.int64)).tolist() == []
    assert rules.instants(np.zeros(0, np.int64)).tolist() == []


def explicit_transitions(name: str) -> list[tuple[int, int]]:
    """The transitions in the file that ``zoneinfo`` reads, with the offset from each on (RFC 9636, the block of 64
    bits).
    """
    data = zone_file(name)
    counts = struct.unpack(">6l", data[20:44])
    utc, std, leap, times, types, chars = counts
    start = 44 + times * 5 + types * 6 + chars + leap * 8 + std + utc
    utc, std, leap, times, types, chars = struct.unpack(">6l", data[start + 20 : start + 44])
    start += 44
    instants = struct.unpack(f">{times}q", data[start : start + 8 * times])
    indices = data[start + 8 * times : start + 9 * times]
    start += 9 * times
    offsets = [struct.unpack(">l", data[start + 6 * index : start + 6 * index + 4])[0] for index in range(types)]
    return [(instant, offsets[index]) for instant, index in zip(instants, indices, strict=True)]


ALL = sorted(name for name in available_timezones() if name not in ("localtime", "Factory"))


@pytest.mark.parametrize("name", ALL if LONG else HARD[::2])
def test_no_transition_of_tzdata_is_missing(name: str) -> None:
    rules = installed_rules(name)
    for instant, offset in explicit_transitions(name):
        if datetime(1900, 1, 1, tzinfo=UTC).timestamp() <= instant:
            assert rules.offsets_at(np.array([instant * 1_000_000])).tolist() == [offset * 1_000_000], instant


@pytest.mark.parametrize("name", HARD)
def test_what_a_manifest_holds_is_the_same_rules(name: str) -> None:
    rules = installed_rules(name)
    assert rules_from(name, rules.text) == rules
    assert len(rules.text) <= 2_200


def packed(*rows: tuple[int, int]) -> str:
    return b64encode(zlib.compress(b"".join(struct.pack("<qi", *row) for row in rows))).decode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ÄÖ",
        "AAAA",
        packed(),
        packed((0, 90_000)),
        packed((0, 0), (5, 0), (5, 0)),
        packed((0, 0), (9, 0), (5, 0)),
        packed((1, 0)),
        packed((0, 0), (2**60, 0)),
        packed(*[(0, 0)] * 5_000),
        b64encode(zlib.compress(bytes(13))).decode(),
        b64encode(zlib.compress(bytes(12)) + b"more").decode(),
        "A" * 20_000,
    ],
)
def test_what_no_manifest_holds_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="zone"):
        rules_from("Europe/Berlin", text)


@given(st.text(max_size=80) | st.binary(max_size=80).map(lambda data: b64encode(data).decode()))
def test_any_text_is_rules_or_a_value_error(text: str) -> None:
    try:
        rules_from("A/B", text)
    except ValueError as error:
        assert type(error) is ValueError  # noqa: PT017 (a subclass, as of a decoder, would be let through)


@pytest.mark.parametrize("name", ["", "Mars/Phobos", "../etc/passwd", "localtime", "a" * 300, 5, "Europe"])
def test_no_zone_of_that_name(name: object) -> None:
    with pytest.raises(UsageError, match="time-zone"):
        installed_rules(name)  # type: ignore[arg-type]


def test_rules_are_equal_by_what_they_say() -> None:
    one = rules_of("A", np.array([5]), np.array([0, 3_600]))
    assert one == rules_of("A", np.array([5]), np.array([0, 3_600]))
    assert hash(one) == hash(rules_of("A", np.array([5]), np.array([0, 3_600])))
    assert one != rules_of("B", np.array([5]), np.array([0, 3_600]))
    assert one != rules_of("A", np.array([6]), np.array([0, 3_600]))
