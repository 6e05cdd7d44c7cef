"""Offsets of a source of topics, such as Kafka's, as Spark and manifests have them: by topic and partition the offset
to read next. Pure.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from tidestate.recovery.log.manifest import spark_number

TopicOffsets: TypeAlias = dict[tuple[str, str], int]
"""By topic and partition."""


def topic_offsets(stored: Any) -> TopicOffsets:
    """The offsets in ``stored``, JSON or what it holds; empty where it is a position of another form."""
    try:
        plain = msgspec.json.decode(stored) if isinstance(stored, str) else stored
        topics = msgspec.convert(plain, dict[str, dict[str, int]])
    except (msgspec.DecodeError, msgspec.ValidationError):
        return {}
    offsets = {(topic, number): at for topic, numbers in topics.items() for number, at in numbers.items()}
    complete = all(topics.values()) and all(spark_number(number) is not None for _, number in offsets)
    return offsets if complete else {}


def offsets_behind(end: Any, latest: Any) -> TopicOffsets:
    """How many offsets a read up to ``end`` is behind the ``latest`` that there were, of partitions in both."""
    newest = topic_offsets(latest)
    return {name: max(0, newest[name] - at) for name, at in topic_offsets(end).items() if name in newest}
