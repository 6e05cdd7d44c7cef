"""Offsets by topic and partition, as Kafka's source has them: which positions are such, and the consumer lag."""

from __future__ import annotations

from typing import Any

import pytest

from tidestate.recovery.log.topic_offsets import offsets_behind, topic_offsets

READ = '{"clicks":{"0":161,"10":9223372036854775807},"users":{"2":0}}'
OTHERS: list[Any] = [
    *(None, 7, "7", "", "no JSON", "null", "{}", [1, 2], '{"logOffset":3}', '{"t":{}}', '{"t":{"0":"1"}}'),
    *('{"t":{"0":1.5}}', '{"t":{"x":1}}', '{"t":{"0":true}}', {"reservoirVersion": 4, "index": -1}),
]


def test_offsets_are_those_of_topics_and_partitions() -> None:
    offsets = {("clicks", "0"): 161, ("clicks", "10"): 2**63 - 1, ("users", "2"): 0}
    assert topic_offsets(READ) == offsets
    assert topic_offsets({"clicks": {"0": 161, "10": 2**63 - 1}, "users": {"2": 0}}) == offsets


@pytest.mark.parametrize("stored", OTHERS, ids=repr)
def test_positions_of_other_sources_are_none(stored: Any) -> None:
    assert topic_offsets(stored) == {}
    assert offsets_behind(READ, stored) == {}


def test_the_lag_is_what_there_was_beyond_what_was_read() -> None:
    latest = {"clicks": {"0": 200, "10": 5, "11": 3}}
    assert offsets_behind(READ, latest) == {("clicks", "0"): 39, ("clicks", "10"): 0}, "a topic may have begun again"
