"""Messages that are known by text, bytes, decimals, dates: as the same job knows them by whole numbers."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.internals import head_of
from tests.helpers.process import some
from tidestate import Aggregation, GroupedStream, agg, trigger
from tidestate.operators import Harness
from tidestate.operators.inspect.query import query
from tidestate.recovery.start.policy import Policy
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import Memory, Parquet
from tidestate.statestore.spec.tables import TIME

SECOND = 1_000_000
TEXT = pa.string()
KINDS: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "text": (TEXT, lambda n: f"{n:08}-ä"),
    "bytes": (pa.binary(), lambda n: n.to_bytes(4, "big") + b"\xff/\\"),
    "decimal": (pa.decimal128(30, 4), lambda n: Decimal(n) / 10),
    "date": (pa.date32(), lambda n: date(1969, 1, 1) + timedelta(n)),
    "instant": (TIME, lambda n: datetime(1969, 1, 1, tzinfo=UTC) + timedelta(hours=n)),
    "time of day": (pa.time64("us"), lambda n: (datetime(2000, 1, 1) + timedelta(seconds=n)).time()),
    "truth": (pa.bool_(), bool),
}


def schema(kind: pa.DataType) -> pa.Schema:
    return pa.schema([("t", TIME), ("k", TEXT), ("n", pa.int64()), ("part", TEXT), ("id", kind)])


def drawn(chance: random.Random, made: Callable[[int], Any], ids: int) -> list[list[dict[str, Any]]]:
    """Batches of rows that are late by up to 40 seconds; a third of them come again, some with another time."""
    rows: list[dict[str, Any]] = []
    for number in range(60):
        if rows and chance.random() < 0.35:
            again = chance.choice(rows[-40:])
            rows.append(again | ({"t": again["t"] + SECOND} if chance.random() < 0.2 else {}))
            continue
        t = max(0, number - chance.choice([0, 0, 0, chance.randrange(40)])) * SECOND
        n = number % ids
        rows.append({"t": t, "k": chance.choice("ab"), "n": n, "part": chance.choice("xy"), "id": made(n)})
    cuts = sorted(chance.sample(range(1, len(rows)), 3))
    return [rows[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(rows)], strict=True)]


def base() -> GroupedStream:
    return ts.stream(event_time="t").group_by("k")


KEPT = {"n": agg.count(), "all": agg.list("n")}
FINISHES = trigger.or_finally(trigger.repeatedly(trigger.after_count(3)), trigger.after_watermark())
JOBS: dict[str, Any] = {
    "tumbling": base()
    .window(ts.tumbling("10 s"))
    .aggregate(**KEPT)
    .allowed_lateness("8 s")
    .accumulation("retracting"),
    "sliding, by their ends": base()
    .window(ts.sliding("20 s", "5 s"))
    .aggregate(**KEPT)
    .allowed_lateness("4 s", rule="window")
    .retain_windows("30 s"),
    "sessions": base()
    .window(ts.sessions("4 s"))
    .aggregate(**KEPT)
    .allowed_lateness("8 s")
    .accumulation("retracting"),
    "without a key": ts.stream(event_time="t").group_by().window(ts.tumbling("10 s")).aggregate(n=agg.sum("n")),
    "a retention": base().window(ts.tumbling("10 s")).aggregate(n=agg.count()),
    "in order": base().window(ts.tumbling("10 s")).aggregate(**KEPT).in_order(),
    "a trigger that finishes": base()
    .window(ts.sliding("20 s", "10 s"))
    .aggregate(n=agg.count())
    .trigger(when=FINISHES),
}
KEEPING = {"a retention": {"retain": ts.Retention(span="15 seconds")}}


def seen(job: Harness) -> Any:
    names = [name for name in ("t", "reason", "watermark", "window_start") if name in job.ledger().column_names]
    ledger = job.ledger().select(names).to_pylist()
    counters = {name: value for name, value in job.counters().items() if value}
    windows = job.windows()
    return ledger, counters, windows.drop_columns([one for one in ("offsets",) if one in windows.column_names])


@pytest.mark.slow
@pytest.mark.parametrize("name", some(JOBS, 4))
@pytest.mark.long
def test_a_job_is_as_with_whole_numbers(name: str, tmp_path: Path) -> None:
    chance = random.Random(name)
    kind, made = list(KINDS.values())[list(JOBS).index(name) % 6]
    given, about = schema(kind), KEEPING.get(name, {})
    twin = JOBS[name].messages("n", **about).harness(given, folder=tmp_path / "n", partitions=2)
    store = Parquet(max_levels=2, snapshot_bytes=1)
    own = JOBS[name].messages("id", **about).harness(given, folder=tmp_path / "id", partitions=2, store=store)
    for number, batch in enumerate(drawn(chance, made, 60)):
        assert own.feed(batch).equals(twin.feed(batch))
        if number == 1:
            own.restart()
        if "retain" in name or "ends" in name:
            assert own.reprocess_late().equals(twin.reprocess_late())
            again = chance.sample(batch, 2)
            assert own.reprocess_late(again).equals(twin.reprocess_late(again))
    assert seen(own) == seen(twin)
    assert own.counters()["duplicates"] > 10
    assert {*head_of(own).needs} - {*head_of(twin).needs} == {"unordered-identity/1"}
    assert own.finish().equals(twin.finish())


@pytest.mark.parametrize("name", KINDS)
def test_every_type_of_a_key_alone_and_behind_another_column(name: str) -> None:
    kind, made = KINDS[name]
    rows = [{"t": n * SECOND, "k": "a", "n": n, "part": part, "id": made(n)} for n in (0, 1) for part in ("x/", "x")]
    for identity, known in (("id", 2), (("part", "id"), 4)):
        described = base().window(ts.tumbling("1 minute")).aggregate(**KEPT).messages(identity)
        job = described.harness(schema(kind), store=Memory())
        job.feed(rows)
        job.feed([*rows, *rows])
        assert job.counters()["duplicates"] == 3 * len(rows) - known
        assert job.finish()["n"].to_pylist() == [known]


def test_parts_of_an_identity_do_not_run_into_each_other() -> None:
    pairs = [("x", "y/z"), ("x/y", "z"), ("x\\", "/z"), ("x", "\\/z")]
    rows = [{"t": 0, "k": "a", "n": 0, "part": part, "id": one} for part, one in pairs]
    job = (
        base()
        .window(ts.tumbling("1 s"))
        .aggregate(n=agg.count())
        .messages(("part", "id"))
        .harness(schema(TEXT), store=Memory())
    )
    job.feed([*rows, *rows])
    assert job.finish()["n"].to_pylist() == [4]


def test_sides_of_a_merge_have_identities_of_their_own(tmp_path: Path) -> None:
    described = (
        ts.merge(left=ts.stream(event_time="t"), right=ts.stream(event_time="t"))
        .sharing("id")
        .group_by("k")
        .window(ts.tumbling("10 s"))
        .aggregate(n=agg.count())
    )
    sides = dict.fromkeys(("left", "right"), schema(pa.binary()))
    row = {"t": 0, "k": "a", "n": 1, "part": "x", "id": b"\xff"}
    with described.messages("id").by_hand(sides, checkpoint=tmp_path) as operator:
        left, right = (pa.Table.from_pylist([row] * times, schema(pa.binary())) for times in (2, 1))
        assert operator.add_messages(left=left, right=right)["duplicates"] == 1
        operator.drain()
        (result,) = operator.get_result()
    assert result.panes["n"].to_pylist() == [2]


LAYOUTS = ["ts_id", "eq_ts_id", "ts_eq_id", "session_ts_id", "session_eq_ts_id", "session_ts_eq_id"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_messages_of_each_layout_are_read_by_time(layout: str, tmp_path: Path) -> None:
    about: dict[str, Any] = {"layout": layout}
    if "eq" in layout and "session" in layout:
        about["equal"] = "part"
    described = base().window(ts.tumbling("10 s")).aggregate(**KEPT).messages("id", **about)
    rows = [{"t": n * SECOND, "k": "a", "n": n, "part": "x", "id": f"{n % 5}"} for n in range(8)]
    described.standalone(checkpoint=tmp_path).run([pa.Table.from_pylist(rows, schema(TEXT))])
    found = query(tmp_path).get_messages(start_time=1 * SECOND, end_time=3 * SECOND)
    assert found["identity"].to_pylist() == ["1", "2", "3"]
    assert query(tmp_path).get_messages(start_time="1970-01-01T00:00:01Z", end_time=np.datetime64(3, "s")) == found
    assert {"offset", "origin"} & set(found.column_names) == set()
    assert query(tmp_path).get_windows()["events"].to_pylist() == [5]
    with pytest.raises(UsageError, match="identity-order"):
        query(tmp_path).get_messages(start_time=1, start_offset=1)
    with pytest.raises(UsageError, match="identity-order"):
        query(tmp_path).replay_from()


def test_by_hand(tmp_path: Path) -> None:
    described = base().window(ts.tumbling("10 s")).aggregate(**KEPT).allowed_lateness("5 s").messages("id")
    rows = [{"t": n * SECOND, "k": "a", "n": n, "part": "x", "id": f"{n % 5}"} for n in range(12)]
    with described.by_hand(schema(TEXT), checkpoint=tmp_path) as operator:
        assert str(operator.layout) == "<ts>_<id>"
        assert operator.add_messages(pa.Table.from_pylist(rows, schema(TEXT)))["duplicates"] == 7
        operator.flush()
    with described.by_hand(schema(TEXT), checkpoint=tmp_path) as operator:
        assert operator.add_messages(pa.Table.from_pylist(rows, schema(TEXT)))["duplicates"] == 12
        assert operator.get_windows()["all"].to_pylist() == [[0, 1, 2, 3, 4]]
        with pytest.raises(UsageError, match="identity-order"):
            operator.replay_from()


def test_lost_messages_come_back_by_a_replay_of_all(tmp_path: Path) -> None:
    described = base().window(ts.tumbling("10 s")).aggregate(**KEPT).allowed_lateness("20 s").messages("id")
    rows = [{"t": n * SECOND, "k": "ab"[n % 2], "n": n, "part": "x", "id": f"{n}"} for n in range(16)]
    job = described.harness(schema(TEXT), folder=tmp_path, store=Parquet(max_levels=2, snapshot_bytes=1))
    job.feed(rows[:8])
    job.feed(rows[8:])
    files = [ref for part in head_of(job).operators["windows"].partitions for ref in part.files]
    for path in {ref.path for ref in files if ref.table == "messages"}:
        (tmp_path / path).unlink()
    job.restart(Policy(messages="rebuild"))
    job.rebuild([*reversed(rows), {**rows[0], "id": "another"}])
    assert job.counters()["put_back"] == 16
    found = {(row["k"], tuple(row["all"])) for row in job.finish().to_pylist()}
    assert found == {("a", (10, 12, 14)), ("b", (11, 13, 15))}


def refused(window: Any, identity: str = "id", **about: Any) -> Callable[[], Aggregation]:
    return lambda: base().window(window).aggregate(n=agg.count()).messages(identity, **about)


SECONDS = ts.tumbling("1 s")
OF_OFFSETS = ts.stream(offset="n").group_by("k").window(ts.offset_windows(3)).aggregate(n=agg.count())
REFUSED: dict[str, tuple[Callable[[], Aggregation], str]] = {
    "counted": (refused(ts.count_windows(3)), "identity-order"),
    "offsets": (lambda: OF_OFFSETS.messages("id"), "message-identity|identity-order"),
    "number": (refused(SECONDS, retain=ts.Retention(messages=5)), "identity-order"),
    "size": (refused(SECONDS, retain=ts.Retention(bytes=5)), "identity-order"),
    "offset layout": (refused(SECONDS, layout="ts_offset"), "message-layout"),
    "id layout": (refused(SECONDS, "n", layout="ts_id"), "message-layout"),
    "no layout": (refused(SECONDS, layout="id"), "message-layout"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_goes_by_the_order_of_messages_is_refused(name: str) -> None:
    described, code = REFUSED[name]
    with pytest.raises(UsageError, match=code):
        described().harness(schema(TEXT), store=Memory())


def test_a_float_is_no_identity() -> None:
    with pytest.raises(UsageError, match="key-float"):
        base().window(ts.tumbling("1 s")).aggregate(n=agg.count()).messages("id").harness(
            schema(pa.float64()), store=Memory()
        )
