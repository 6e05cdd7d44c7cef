"""A broker of Kafka in memory, with as much of the client's interface as the sink uses."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import confluent_kafka as kafka
import pytest
from confluent_kafka import admin

from tidestate.operators.sinks import included
from tidestate.operators.sinks.kafka import HEADER

IDS = "panes.deliveries"


@dataclass
class Message:
    """One of a topic; ``committed``: whether its transaction was."""

    topic: str
    sent: dict[str, Any]
    committed: bool = False

    def key(self) -> Any:
        key = self.sent.get("key")
        return key.encode() if isinstance(key, str) else key

    def value(self) -> Any:
        return self.sent.get("value")

    def error(self) -> None:
        return None


@dataclass
class Broker:
    """``full``: so many messages are not taken at once; ``fails``: before the next commit, or after it."""

    log: list[Message] = field(default_factory=list)
    topics: set[str] = field(default_factory=set)
    full: int = 0
    fails: str = ""

    def producer(self, _settings: Any) -> Producer:
        return Producer(self)

    def consumer(self, settings: Any) -> Any:
        committed = settings["isolation.level"] == "read_committed"
        found: list[Any] = [one for one in self.log if one.topic == IDS and (one.committed or not committed)]
        end = kafka.KafkaError(kafka.KafkaError._PARTITION_EOF)
        polled = iter([*found, SimpleNamespace(error=lambda: end)])
        return SimpleNamespace(assign=lambda _: None, poll=lambda _: next(polled), close=lambda: None)

    def client(self, _settings: Any) -> Any:
        def made(topics: list[Any], **_: Any) -> dict[str, Any]:
            self.topics |= {one.topic for one in topics}
            return {one.topic: SimpleNamespace(result=lambda _: None) for one in topics}

        return SimpleNamespace(list_topics=lambda **_: self, create_topics=made)

    def rows(self, *, committed: bool = True) -> list[tuple[Any, Any, str]]:
        """Key, value and header of each message of the topic."""
        own = [one for one in self.log if one.topic == "panes" and (one.committed or not committed)]
        return [(_json(one.key()), _json(one.value()), dict(one.sent["headers"])[HEADER].decode()) for one in own]


class Producer:
    def __init__(self, broker: Broker) -> None:
        self._broker, self._open = broker, list[Message]()
        self._begun = False

    def init_transactions(self, _timeout: float) -> None:
        pass

    def begin_transaction(self) -> None:
        assert not self._begun
        self._open, self._begun = [], True

    def produce(self, topic: str, **sent: Any) -> None:
        assert self._begun, "every message is in a transaction"
        if self._broker.full:
            self._broker.full -= 1
            raise BufferError
        self._open.append(Message(topic, sent))
        self._broker.log.append(self._open[-1])

    def poll(self, _timeout: float) -> None:
        pass

    def commit_transaction(self, _timeout: float) -> None:
        fails, self._broker.fails = self._broker.fails, ""
        for one in self._open:
            one.committed = fails != "before"
        self._begun = bool(fails)
        if fails:
            raise kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._TIMED_OUT))


def _json(given: bytes | None) -> Any:
    return None if given is None else json.loads(given)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    """In place of the client's own."""
    found = Broker()
    monkeypatch.setattr(kafka, "Producer", found.producer)
    monkeypatch.setattr(kafka, "Consumer", found.consumer)
    monkeypatch.setattr(admin, "AdminClient", found.client)
    monkeypatch.setattr(included, "FIRST_WAIT_S", 0.0)
    return found
