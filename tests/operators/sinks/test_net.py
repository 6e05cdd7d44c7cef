"""Every form of every sink, for every kind of job: it holds the net, or is refused before anything is written."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.memory_broker import Broker
from tests.helpers.memory_broker import broker as broker
from tests.helpers.nets import NAMED, NET_BATCHES, NET_JOBS, NET_SCHEMA, Row, counting, held, made, net, plain
from tests.helpers.process import LONG
from tests.helpers.targets import KINDS, target_of
from tests.servers.postgres import postgres as postgres
from tidestate.operators.sinks.delta import DeltaSink
from tidestate.operators.sinks.forms import Form
from tidestate.operators.sinks.iceberg import IcebergSink
from tidestate.operators.sinks.included import IncludedSink
from tidestate.operators.sinks.kafka import KafkaSink
from tidestate.operators.sinks.parquet import ParquetSink
from tidestate.operators.sinks.postgres import PostgresSink
from tidestate.operators.sinks.table import TableSink
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.plain import plain_table


class InMemory:
    """A topic of the broker in memory."""

    forms = KINDS["kafka"].forms

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def sink(self, form: Form, **more: Any) -> KafkaSink:
        return KafkaSink("", "panes", changes=form, **more)

    def rows(self, form: Form) -> list[Row]:
        messages = {str(key) if form == "upsert" else n: row for n, (key, row, _) in enumerate(self._broker.rows())}
        return [row for row in messages.values() if row is not None]


class Stored:
    def __init__(self, place: str) -> None:
        self._target = target_of(place)
        self.forms = self._target.forms

    def sink(self, form: Form, **more: Any) -> IncludedSink:
        return self._target.sink(form, **more)

    def rows(self, form: Form) -> list[Row]:
        return plain_table(self._target.table()).to_pylist()


def place_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if kind == "kafka":
        return InMemory(request.getfixturevalue("broker"))
    if kind == "postgres":
        return Stored(f"postgres:{request.getfixturevalue('postgres').uri}#{uuid.uuid4().hex}")
    return Stored(f"{kind}:{tmp_path / 'target'}")


EXACT = [(kind, form, what) for kind, one in KINDS.items() for form in one.forms for what in NET_JOBS]
EXACT = [case for case in EXACT if case[1] == "append" or NET_JOBS[case[2]][1]]
WITHOUT_DAYS = ("without a key", "deduplication", "join", "union")
"""Whose rows have no window, or no key, to be in partitions by."""
EXACT = [case for case in EXACT if not (case[0].endswith("_by_day") and case[2] in WITHOUT_DAYS)]
SHORT = [case for n, case in enumerate(EXACT) if n % (5 if case[0] in ("parquet", "kafka") else 9) == 0]
"""Each kind of sink with each of its forms, and most of the jobs."""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "form", "what"), EXACT if LONG else SHORT)
def test_a_form_that_is_taken_holds_the_net(
    kind: str, form: Form, what: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    target, (emitted, deliveries) = place_of(kind, request, tmp_path), made(what)
    sink = target.sink(form, key=NAMED.get(what))
    sink.fit(emitted)
    for number, panes in enumerate(deliveries, 1):
        sink(panes, ts.DeliveryId("f" * 32, number))
    found = target.rows(form)
    if form == "append":
        rows = [row for panes in deliveries for row in panes.to_pylist()]
        assert Counter(plain(row) for row in found) == Counter(map(plain, rows))
    if NET_JOBS[what][1] and (form == "upsert" or kind in ("parquet", "kafka")):  # what is read in order
        key = [*(NET_JOBS[what][2] or NAMED.get(what, ()))]
        assert Counter(map(plain, held(form, found, key))) == Counter(map(plain, net(what)))
    assert len(net(what)) > 2


SINKS: list[Callable[..., IncludedSink]] = [
    lambda **more: ParquetSink("/tmp/never", **more),
    lambda **more: DeltaSink("/tmp/never", **more),
    lambda **more: IcebergSink("n.t", **more),
    lambda **more: TableSink("t", **more),
    lambda **more: PostgresSink("postgresql://", "t", **more),
    lambda **more: KafkaSink("", "t", **more),
]


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("what", NET_JOBS)
def test_what_would_not_hold_the_net_is_refused_before_anything_is_written(
    what: str, sink: Callable[..., IncludedSink]
) -> None:
    (emitted, _), (_, whole, key) = made(what), NET_JOBS[what]
    for form in sink().forms:
        if form == "append":
            sink(changes=form).fit(emitted)
        elif not whole:
            with pytest.raises(UsageError, match=r"sink-form"):
                sink(changes=form, key=key).fit(emitted)
        elif key is None:
            with pytest.raises(UsageError, match=r"sink-key"):
                sink(changes=form).fit(emitted)
            sink(changes=form, key=NAMED[what]).fit(emitted)
        else:
            for given in (None, key, (*reversed(key),)):
                sink(changes=form, key=given).fit(emitted)
            for less in [key[:1], key[1:]] if len(key) > 1 else []:
                with pytest.raises(UsageError, match=r"sink-key"):
                    sink(changes=form, key=less).fit(emitted)
            with pytest.raises(UsageError, match=r"sink-key"):
                sink(changes=form, key=[*key, "nothing"]).fit(emitted)
    if whole and key is not None and not emitted.withdraws and "s" in emitted.schema.names:
        with pytest.raises(UsageError, match=r"sink-key"):  # a pane would not replace the one before
            DeltaSink("/tmp/never", changes="upsert", key=[*key, "s"]).fit(emitted)


def by_harness(root: Path, sink: IncludedSink) -> None:
    counting(ts.tumbling("10 seconds"), "retracting").harness(NET_SCHEMA, folder=root, sink=sink).feed(NET_BATCHES[0])


def alone(root: Path, sink: IncludedSink) -> None:
    batch = pa.Table.from_pylist(NET_BATCHES[0], NET_SCHEMA)
    counting(ts.tumbling("10 seconds"), "retracting").standalone(checkpoint=root, sink=sink).run([batch], drain=True)


def by_hand(root: Path, sink: IncludedSink) -> None:
    rows = [{**row, "origin": 0, "offset": number} for number, row in enumerate(NET_BATCHES[0])]
    schema = pa.schema([*NET_SCHEMA, ("origin", pa.int64()), ("offset", pa.int64())])
    described = counting(ts.tumbling("10 seconds"), "retracting")
    with described.by_hand(schema, checkpoint=root) as operator:  # type: ignore[arg-type]
        ts.run_operator(operator, [pa.Table.from_pylist(rows, schema)], sink, drain=True)


@pytest.mark.parametrize("runs", [by_harness, alone, by_hand])
def test_each_runner_tells_its_sinks(runs: Callable[[Path, IncludedSink], None], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"sink-key.*columns=\['k', 'c'\] found=\['k'\]"):
        runs(tmp_path / "less", DeltaSink(tmp_path / "delta", changes="upsert", key="k"))
    assert not (tmp_path / "delta").exists()
    assert runs is by_hand or not (tmp_path / "less").exists(), "not even the root was made"
    sink = ParquetSink(tmp_path / "target", changes="changelog")
    runs(tmp_path / "root", sink)
    assert sink.key == ("k", "c")


def test_a_sink_that_knows_no_job_says_so() -> None:
    with pytest.raises(UsageError, match=r"give the sink itself to the job.*sink-key"):
        ParquetSink("/tmp/never", changes="changelog").by(NET_SCHEMA)


def test_a_catalogue_is_named() -> None:
    with pytest.raises(UsageError, match=r"catalog= must be the name.*sink-form.*found=object"):
        IcebergSink("n.t", catalog=object())  # type: ignore[arg-type]
