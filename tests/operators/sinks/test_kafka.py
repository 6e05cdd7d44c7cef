"""What the sink of Kafka asks of a broker: rows and id in one transaction; in doubt a look at what is there."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import confluent_kafka as kafka
import pyarrow as pa
import pytest
from confluent_kafka import admin

from tidestate.operators import DeliveryId, KafkaSink
from tidestate.operators.sinks import included
from tidestate.operators.sinks.kafka import HEADER

RUN = "f" * 32
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
    """In memory, with as much of the client's interface as the sink uses. ``full``: so many messages are not taken at
    once; ``fails``: before the next commit, or after it.
    """

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
    found = Broker()
    monkeypatch.setattr(kafka, "Producer", found.producer)
    monkeypatch.setattr(kafka, "Consumer", found.consumer)
    monkeypatch.setattr(admin, "AdminClient", found.client)
    monkeypatch.setattr(included, "FIRST_WAIT_S", 0.0)
    return found


def rows(*keys: str, kind: str = "emit") -> pa.Table:
    return pa.table({"k": [*keys], "kind": [kind] * len(keys), "n": [*range(len(keys))]})


def test_a_delivery_that_comes_again_is_not_written_by_this_sink_or_another(broker: Broker) -> None:
    first, second = KafkaSink("", "panes"), KafkaSink("", "panes")
    first(rows("a", "b"), DeliveryId(RUN, 2))
    for sink in (first, second, first):
        sink(rows("a", "b"), DeliveryId(RUN, 2))
        sink(rows("old"), DeliveryId(RUN, 1))
    second(rows("c"), DeliveryId("e" * 32, 1))
    assert [(value["k"], header) for _, value, header in broker.rows(committed=False)] == [
        ("a", f"{RUN}-2"),
        ("b", f"{RUN}-2"),
        ("c", f"{'e' * 32}-1"),
    ]


@pytest.mark.parametrize("fails", ["before", "after"])
def test_a_commit_without_an_answer_is_looked_up_and_not_guessed(broker: Broker, fails: str) -> None:
    sink = KafkaSink("", "panes")
    sink(rows("a"), DeliveryId(RUN, 1))
    broker.fails = fails
    sink(rows("b"), DeliveryId(RUN, 2))
    assert [value["k"] for _, value, _ in broker.rows()] == ["a", "b"]
    assert len(broker.rows(committed=False)) == (3 if fails == "before" else 2)


def test_a_full_buffer_loses_no_row(broker: Broker) -> None:
    broker.full = 3
    KafkaSink("", "panes")(rows("a", "b"), DeliveryId(RUN, 1))
    assert [value["k"] for _, value, _ in broker.rows()] == ["a", "b"]


def test_an_upsert_has_a_message_without_a_value_for_what_is_gone(broker: Broker) -> None:
    sink = KafkaSink("", "panes", changes="upsert", key="k")
    sink(rows("a", "b"), DeliveryId(RUN, 1))
    sink(pa.concat_tables([rows("a", kind="retract"), rows("b")]), DeliveryId(RUN, 2))
    assert [(key, value) for key, value, _ in broker.rows()] == [
        ({"k": "a"}, {"k": "a", "n": 0}),
        ({"k": "b"}, {"k": "b", "n": 1}),
        ({"k": "a"}, None),
        ({"k": "b"}, {"k": "b", "n": 0}),
    ]


def test_a_key_of_ones_own_is_the_key_of_appended_messages(broker: Broker) -> None:
    KafkaSink("", "panes", key="k")(rows("a"), DeliveryId(RUN, 1))
    assert broker.rows() == [({"k": "a"}, {"k": "a", "kind": "emit", "n": 0}, f"{RUN}-1")]
