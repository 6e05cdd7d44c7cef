"""Every form of every sink, for every kind of job: it holds the net, or is refused before anything is written."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.internals import plan_of
from tests.helpers.memory_broker import Broker
from tests.helpers.memory_broker import broker as broker
from tests.helpers.process import LONG
from tests.helpers.targets import KINDS, target_of
from tests.servers.postgres import postgres as postgres
from tidestate import OperatorStream, agg
from tidestate.operators.describe.sinks import Emitted
from tidestate.operators.engine.emitted import emitted_by
from tidestate.operators.sinks.delta import DeltaSink
from tidestate.operators.sinks.forms import Form
from tidestate.operators.sinks.iceberg import IcebergSink
from tidestate.operators.sinks.included import IncludedSink
from tidestate.operators.sinks.kafka import KafkaSink
from tidestate.operators.sinks.parquet import ParquetSink
from tidestate.operators.sinks.postgres import PostgresSink
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.plain import plain_table

Row = dict[str, Any]
SCHEMA = pa.schema([("t", pa.timestamp("us", "UTC")), ("k", pa.string()), ("c", pa.string()), ("x", pa.int64())])


def events(*rows: tuple[int, str, str, int]) -> list[Row]:
    return [{"t": t * 1_000_000, "k": k, "c": c, "x": x} for t, k, c, x in rows]


BATCHES = [
    events((1, "a", "u", 1), (2, "a", "v", 2), (3, "b", "u", 4), (4, "b", "v", 8)),
    events((30, "a", "u", 16), (31, "b", "v", 32)),
    events((5, "a", "u", 100), (12, "b", "v", 200), (60, "a", "u", 0)),
]


def counting(kind: Any, mode: Any, key: Any = ("k", "c"), late: str = "1 hour") -> OperatorStream:
    described = (
        ts.stream(event_time="t")
        .group_by(list(key))
        .window(kind)
        .aggregate(n=agg.count(), s=agg.sum("x"), l=agg.latest("x"))
    )
    return described.allowed_lateness(late).accumulation(mode)


JOBS: dict[str, tuple[Callable[[], OperatorStream], bool, tuple[str, ...] | None]] = {
    # what it is, whether the newest pane is the result, the key that it has
    "one pane": (lambda: counting(ts.tumbling("10 seconds"), "accumulating", late="0 seconds"), True, ("k", "c")),
    "one part": (lambda: counting(ts.tumbling("10 seconds"), "discarding", late="0 seconds"), True, ("k", "c")),
    "accumulating": (lambda: counting(ts.tumbling("10 seconds"), "accumulating"), True, ("k", "c")),
    "discarding": (lambda: counting(ts.tumbling("10 seconds"), "discarding"), False, ("k", "c")),
    "retracting": (lambda: counting(ts.tumbling("10 seconds"), "retracting"), True, ("k", "c")),
    "without a key": (lambda: counting(ts.tumbling("10 seconds"), "retracting", ()), True, ()),
    "sessions": (lambda: counting(ts.sessions("10 seconds"), "accumulating"), False, ("k", "c")),
    "discarding sessions": (lambda: counting(ts.sessions("10 seconds"), "discarding"), False, ("k", "c")),
    "retracting sessions": (lambda: counting(ts.sessions("10 seconds"), "retracting"), True, ("k", "c")),
    "deduplication": (lambda: ts.stream(event_time="t").deduplicate(["k", "c"], within="1 hour"), True, ("k", "c")),
    "join": (
        lambda: ts.stream(event_time="t").join(ts.stream(event_time="t"), on="k", within=("0 seconds", "5 seconds")),
        True,
        None,
    ),
    "union": (lambda: ts.union(left=ts.stream(event_time="t"), right=ts.stream(event_time="t")), True, None),
}
NAMED = {"join": ["k", "left_c", "left_t", "left_x", "right_x"], "union": ["k", "t", "x", "side"]}
"""What identifies a row that has no key, by choice of the user."""


@cache
def made(what: str) -> tuple[Emitted, list[pa.Table]]:
    """What a job emits, and the panes of each of its deliveries."""
    described = JOBS[what][0]()
    schemas, tables = SCHEMA, [pa.Table.from_pylist(rows, SCHEMA) for rows in BATCHES]
    if len(described.graph.streams) == 2:
        schemas = dict.fromkeys(described.graph.streams, SCHEMA)
        tables = [{"left": rows, "right": rows} for rows in tables]  # type: ignore[attr-defined]
    running = described.harness(schemas)
    found = [plain_table(running.feed(one)) for one in tables]
    return emitted_by(plan_of(running)), [one for one in found if one.num_rows]


def plain(row: Row, *, without: tuple[str, ...] = ()) -> str:
    """A row as text, the same from a file, a table, or JSON."""
    row = {name: value for name, value in row.items() if name not in ("kind", "change", *without)}
    return json.dumps(json.loads(msgspec.json.encode(row)), sort_keys=True)


def net(what: str) -> list[Row]:
    """Of windows the last pane of each window and key, unless it was retracted; of others what was not retracted."""
    rows = [row for table in made(what)[1] for row in table.to_pylist()]
    key, stands = JOBS[what][2], dict[Any, Row]()
    for number, row in enumerate(rows):
        by = ("window_start", "window_end", *(key or ())) if "window_start" in row else key
        identity = tuple(row[name] for name in by) if by is not None else plain(row)
        if row.get("kind") == "retract":
            del stands[identity]
        else:
            stands[identity if by is not None or "kind" in row else number] = row
    return list(stands.values())


def held(form: Form, rows: list[Row], key: list[str]) -> list[Row]:
    """What a reader of a form makes of what it finds, rows in the order of their deliveries."""
    if form == "upsert":
        return rows
    stands = dict[Any, Row]()
    for row in rows:
        by = [*(["window_start", "window_end"] if "window_start" in row else []), *key]
        identity = tuple(str(row[name]) for name in by)
        gone = row.get("kind") == "retract" or row.get("change") in ("delete", "update_before")
        if gone:
            stands.pop(identity)
        else:
            stands[identity] = row
    return list(stands.values())


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


EXACT = [(kind, form, what) for kind, one in KINDS.items() for form in one.forms for what in JOBS]
EXACT = [case for case in EXACT if case[1] == "append" or JOBS[case[2]][1]]
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
    if JOBS[what][1] and (form == "upsert" or kind in ("parquet", "kafka")):  # what is read in order
        key = [*(JOBS[what][2] or NAMED.get(what, ()))]
        assert Counter(map(plain, held(form, found, key))) == Counter(map(plain, net(what)))
    assert len(net(what)) > 2


SINKS: list[Callable[..., IncludedSink]] = [
    lambda **more: ParquetSink("/tmp/never", **more),
    lambda **more: DeltaSink("/tmp/never", **more),
    lambda **more: IcebergSink("n.t", **more),
    lambda **more: PostgresSink("postgresql://", "t", **more),
    lambda **more: KafkaSink("", "t", **more),
]


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("what", JOBS)
def test_what_would_not_hold_the_net_is_refused_before_anything_is_written(
    what: str, sink: Callable[..., IncludedSink]
) -> None:
    (emitted, _), (_, whole, key) = made(what), JOBS[what]
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
    counting(ts.tumbling("10 seconds"), "retracting").harness(SCHEMA, folder=root, sink=sink).feed(BATCHES[0])


def alone(root: Path, sink: IncludedSink) -> None:
    batch = pa.Table.from_pylist(BATCHES[0], SCHEMA)
    counting(ts.tumbling("10 seconds"), "retracting").standalone(checkpoint=root, sink=sink).run([batch], drain=True)


def by_hand(root: Path, sink: IncludedSink) -> None:
    rows = [{**row, "origin": 0, "offset": number} for number, row in enumerate(BATCHES[0])]
    schema = pa.schema([*SCHEMA, ("origin", pa.int64()), ("offset", pa.int64())])
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
        ParquetSink("/tmp/never", changes="changelog").by(SCHEMA)


def test_a_catalogue_is_named() -> None:
    with pytest.raises(UsageError, match=r"catalog= must be the name.*sink-form.*found=object"):
        IcebergSink("n.t", catalog=object())  # type: ignore[arg-type]
