"""What the sink of Kafka asks of a broker: rows and id in one transaction; in doubt a look at what is there."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.helpers.memory_broker import Broker
from tests.helpers.memory_broker import broker as broker
from tidestate.operators import DeliveryId
from tidestate.sinks import KafkaSink

RUN = "f" * 32


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
