"""The server that a sink writes to is killed while it takes a delivery, and comes back: each pane is there once."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Timer

import pyarrow as pa
import pytest

from tests.helpers.process import LONG
from tests.helpers.spark_inputs import job, sample
from tests.helpers.targets import Target, holds_all_once, target_of
from tests.servers.kafka import BROKER, Broker, UnavailableError, fetched
from tests.servers.postgres import PROGRAMS, WHY_NOT, Postgres
from tests.servers.postgres import postgres as postgres
from tidestate.operators import DeliveryId
from tidestate.operators.sinks.forms import Form

pytestmark = [pytest.mark.slow, pytest.mark.kill]

BATCHES = sample(40, 60) if LONG else sample(5, 40)


@pytest.fixture
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("kafka")
    try:
        broker = Broker(fetched(BROKER, folder), folder)
    except UnavailableError as error:
        pytest.skip(f"Kafka could not be had from Maven Central: {error}")
    yield broker
    broker.stop()


def run(target: Target, form: Form, root: Path, restart: Callable[[], None], moments_s: Iterator[float]) -> int:
    """A job whose target dies so long after it was offered a delivery; how often that was."""
    sink, kills = target.sink(form), 0

    def taken(rows: pa.Table, delivery: DeliveryId) -> None:
        nonlocal kills
        moment = next(moments_s, None)
        if moment is None:
            sink(rows, delivery)
            return
        killer = Timer(moment, restart)
        killer.start()
        try:
            sink(rows, delivery)
        finally:
            killer.join()
            kills += 1

    job().standalone(checkpoint=root, sink=taken).run(BATCHES, drain=True)
    return kills


def moments(seed: str, most: int, longest_s: float) -> Iterator[float]:
    chance = random.Random(seed)
    return iter([chance.uniform(0, longest_s) for _ in range(most)])


@pytest.mark.skipif(not PROGRAMS, reason=WHY_NOT)
@pytest.mark.parametrize("form", ["append", "upsert"] if LONG else ["upsert"])
def test_postgres(postgres: Postgres, form: Form, tmp_path: Path) -> None:
    def restart() -> None:
        postgres.kill()
        postgres.start()

    target = target_of(f"postgres:{postgres.uri}#{uuid.uuid4().hex}")
    kills = 60 if LONG else 1
    assert run(target, form, tmp_path / "root", restart, moments(form, kills, 0.03)) == kills
    holds_all_once(target, form, tmp_path / "root")


@pytest.mark.long
@pytest.mark.parametrize("form", ["append", "upsert"])
def test_kafka(kafka: Broker, form: Form, tmp_path: Path) -> None:
    """In every run PostgreSQL is killed; a job that writes to a Kafka dies in `tests.operators.sinks.test_each_once`,
    and commits without an answer are in `tests.operators.sinks.test_kafka`.
    """

    def restart() -> None:
        kafka.stop()
        kafka.start()

    target = target_of(f"kafka:{kafka.servers}#{uuid.uuid4().hex}")
    kills = 20
    assert run(target, form, tmp_path / "root", restart, moments(form, kills, 0.1)) == kills
    holds_all_once(target, form, tmp_path / "root")
