"""Streams that are decoded: on every runner as rows that came decoded, and what is no object in the ledger."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.children.decoded import SPOILED, decoded_sums, texts
from tests.helpers.forked import Forked
from tests.helpers.runners import RUNNERS, panes
from tidestate import Aggregation, OperatorStream, Stream, agg
from tidestate.operators import Policy
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import IncompatibleError, UsageError

TIME = pa.timestamp("us", "UTC")
FIELDS = {"k": "string", "t": TIME, "v": "int64"}
VALUES = pa.schema([("value", pa.binary()), ("part", pa.int32()), ("at", pa.int64())])
BAD = b'{"k":"a","t":"2024-01-01T00:00:05","v":"no number"}'


def text(second: float, key: str | None = "a", v: int | None = 1, **more: Any) -> bytes:
    time = f"2024-01-01T00:{int(second) // 60:02d}:{second % 60:06.3f}"
    return json.dumps({"k": key, "t": time, "v": v, **more}).encode()


def values(*texts: bytes | None, part: int = 0, first: int = 0) -> pa.Table:
    numbers = range(first, first + len(texts))
    return pa.table({"value": list(texts), "part": [part] * len(texts), "at": list(numbers)}, schema=VALUES)


def stream(fields: Any = FIELDS, **options: Any) -> Stream:
    return ts.stream(event_time="t", decode=ts.json("value", fields, **options), offset="at", origin="part")


def plain() -> Stream:
    return ts.stream(event_time="t", offset="at", origin="part")


def totals(source: Stream) -> Aggregation:
    return (
        source.group_by("k")
        .window(ts.tumbling("10 seconds"))
        .aggregate(n=agg.count(), v=agg.sum("v"))
        .allowed_lateness("5 seconds", ledger_columns=["part", "at"])
        .retain_windows("1 hour")
    )


def parsed(batch: pa.Table) -> pa.Table:
    """The rows of a batch, decoded with Python, without those that are no objects."""
    rows = [json.loads(value) for value in batch["value"].to_pylist()]
    columns = {name: [row.get(name) for row in rows] for name in ("k", "v")}
    times = pa.array([row["t"] for row in rows]).cast(pa.timestamp("us")).cast(TIME)
    return pa.table({**columns, "t": times, "part": batch["part"], "at": batch["at"]})


BATCHES = [
    values(text(1), text(2, "b", 5), text(12, v=7), text(3)),
    values(text(11, "b"), text(25), text(13, None), first=4),
    values(text(4, v=100), text(40), part=1, first=7),
    values(text(70, "c"), first=9),
]


def ledger(root: Path, operator: str | None = None) -> list[dict[str, Any]]:
    return ts.Root(root).late(operator=operator).to_table().to_pylist()


def counted(root: Path) -> dict[str, int]:
    head = Checkpoint.open(root).newest()
    assert head is not None
    return dict(head.manifest.totals)


def chosen(rows: list[dict[str, Any]], names: list[str]) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[name] for name in names) for row in rows if set(names) <= set(row)), key=repr)


def standing(root: Path) -> list[dict[str, Any]]:
    """The panes that stand, by window, those of a window in the order of their numbers."""
    return ts.Root(root).panes(net=True).to_table().sort_by("window_start").to_pylist()


JOBS = {
    "windows": totals,
    "sessions": lambda source: source.group_by("k").window(ts.sessions("3 seconds")).aggregate(n=agg.count()),
    "in order": lambda source: totals(source).in_order(),
    "messages": lambda source: totals(source).messages(retain="1 hour"),
    "list": lambda source: totals(source).messages().accumulation("retracting"),
    "distinct": lambda source: source.deduplicate("k", within="20 seconds"),
    "shifted": lambda source: source.shift_time("5 seconds"),
    "two operators": lambda source: totals(source.deduplicate(("k", "t"), within="1 hour", name="once")),
}


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("runner", ["standalone", "harness"])
def test_a_decoded_stream_is_one_whose_rows_came_decoded(runner: str, job: str, tmp_path: Path) -> None:
    """Whatever stands between the objects, and in other columns than those that are read."""
    disturbed = [
        values(
            *(part for one in batch["value"].to_pylist() for part in (one, BAD)), part=int(batch["part"][0].as_py())
        ).set_column(2, "at", pa.array([2 * n for at in batch["at"].to_pylist() for n in (at, at + 10_000)]))
        for batch in BATCHES
    ]
    numbered = [batch.set_column(2, "at", pa.array([2 * n for n in batch["at"].to_pylist()])) for batch in BATCHES]
    made = RUNNERS[runner](JOBS[job](stream()), VALUES, tmp_path / "values").run(disturbed)
    rows = [parsed(batch) for batch in numbered]
    wanted = RUNNERS[runner](JOBS[job](plain()), rows[0].schema, tmp_path / "rows").run(rows)
    assert chosen(made, list(wanted[0])) == chosen(wanted, list(wanted[0]))
    first = "once" if job == "two operators" else None
    bad = [row for row in ledger(tmp_path / "values", first) if row["reason"] == "undecodable"]
    assert [row["value"] for row in bad] == [BAD] * sum(batch.num_rows for batch in BATCHES)
    reasons = [row["reason"] for row in ledger(tmp_path / "rows", first)]
    assert [row["reason"] for row in ledger(tmp_path / "values", first) if row not in bad] == reasons
    if first:
        return
    ours, theirs = counted(tmp_path / "values"), counted(tmp_path / "rows")
    assert ours.pop("undecodable") == len(bad)
    assert ours.pop("events") == theirs.pop("events") + len(bad)
    assert ours == theirs


def test_by_hand(tmp_path: Path) -> None:
    description = totals(stream())
    by_hand = RUNNERS["by hand"](description, VALUES, tmp_path / "values")
    made = by_hand.run([BATCHES[0], values(BAD, b"", part=3, first=50), *BATCHES[1:]])
    rows = [parsed(batch) for batch in BATCHES]
    assert made == RUNNERS["by hand"](totals(plain()), rows[0].schema, tmp_path / "rows").run(rows)
    bad = [row for row in ledger(tmp_path / "values") if row["reason"] == "undecodable"]
    assert [(row["value"], row["part"], row["at"]) for row in bad] == [(BAD, 3, 50), (b"", 3, 51)]


SIDED = {
    "union": lambda a, b: ts.union(a=a, b=b),
    "join": lambda a, b: a.join(b, on="k", within=("-5 seconds", "5 seconds"), how="left"),
    "session join": lambda a, b: a.join_sessions(b, on="k", gap="5 seconds"),
    "merge": lambda a, b: (
        ts.merge(a=a, b=b).group_by("k").window(ts.tumbling("10 seconds")).aggregate(x=agg.sum("a_v"), n=agg.count())
    ),
}


@pytest.mark.parametrize("kind", SIDED)
def test_sides_are_decoded_by_an_operator_in_front(kind: str, tmp_path: Path) -> None:
    def sides(decoded: bool) -> OperatorStream:
        how = {"decode": ts.json("value", FIELDS)} if decoded else {}
        one = ts.stream("one", event_time="t", **how)
        return SIDED[kind](one, ts.stream("two", event_time="t"))

    two = [parsed(batch).select(["k", "v", "t"]) for batch in reversed(BATCHES)]
    disturbed = [pa.concat_tables([batch, values(BAD)]).select(["value"]) for batch in BATCHES]
    made = sides(True).standalone(checkpoint=tmp_path / "values")
    batches = [{"one": batch, "two": other} for batch, other in zip(disturbed, two, strict=True)]
    made.run(batches, drain=True)
    rows = [
        {"one": parsed(batch).select(["k", "v", "t"]), "two": other}
        for batch, other in zip(BATCHES, two, strict=True)
    ]
    wanted = sides(False).standalone(checkpoint=tmp_path / "rows")
    wanted.run(rows, drain=True)
    named = panes(tmp_path / "rows")
    assert chosen(panes(tmp_path / "values"), list(named[0])) == chosen(named, list(named[0]))
    assert sides(True).operators == ("one_prepared", sides(False).operators[-1])
    assert [row["value"] for row in ledger(tmp_path / "values", "one_prepared")] == [BAD] * len(BATCHES)


def test_a_stream_joined_with_itself_is_decoded_once(tmp_path: Path) -> None:
    source = ts.stream(event_time="t", decode=ts.json("value", FIELDS))
    job = source.join(source, on="k", within=("1 second", "5 seconds"))
    assert job.operators == ("input_prepared", "joined")
    job.standalone(checkpoint=tmp_path / "root").run([batch.select(["value"]) for batch in BATCHES], drain=True)
    pairs = {(row["left_v"], row["right_v"]) for row in panes(tmp_path / "root") if "left_v" in row}
    assert pairs == {(1, 1)}


@pytest.mark.parametrize("sent", [[BAD, b'{"t":"2030-01-01"'], []])
def test_rows_that_are_no_objects_move_no_time_and_keep_their_source_awake(sent: list[bytes]) -> None:
    source = ts.stream(event_time="t", decode=ts.json("value", FIELDS)).watermark(by="part", idle_timeout="1 minute")
    harness = source.group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count()).harness(VALUES)
    harness.advance_processing_time("2024-01-01T00:00:00Z")
    harness.feed(pa.concat_tables([values(text(5), part=1), values(text(30), part=2)]))
    panes_of = [harness.advance_processing_time("2024-01-01T00:00:50Z")]
    panes_of.append(harness.feed(pa.concat_tables([values(*sent, part=1), values(text(40), part=2)])))
    panes_of.append(harness.advance_processing_time("2024-01-01T00:01:40Z"))
    starts = [start.second for panes in panes_of for start in panes["window_start"].to_pylist()]
    assert starts == ([] if sent else [0, 30]), "part 1, which is at 5 seconds, holds the watermark while it sends"


def test_a_column_may_have_the_name_of_what_it_is_decoded_from(tmp_path: Path) -> None:
    fields = {"t": TIME, "value": "int64", "part": "string"}
    source = ts.stream(event_time="t", decode=ts.json("value", fields))
    job = (
        source.group_by("part")
        .window(ts.tumbling("10 seconds"))
        .aggregate(v=agg.sum("value"))
        .retain_windows("1 day")
    )
    batch = values(b'{"t":"2024-01-01T00:00:01","value":5,"part":"x"}', b"5")
    late = values(b'{"t":"2024-01-01T00:00:01","value":6,"part":"x"}')
    root = tmp_path / "root"
    running = job.standalone(checkpoint=root)
    running.run([batch, values(b'{"t":"2024-01-01T01:00:00","value":6,"part":"y"}'), late])
    assert [(row["value"], row["received_value"], row["reason"]) for row in ledger(root)] == [
        (None, b"5", "undecodable"),
        (6, late["value"][0].as_py(), "very_late"),
    ]
    running.reprocess_late()
    assert standing(root)[0]["v"] == 11
    assert [(row["value"], row["received_value"]) for row in ledger(root)][2:] == [(None, b"5")]


@pytest.mark.parametrize("known", [False, True])
def test_rows_are_put_back_by_the_schema_of_then(known: bool, tmp_path: Path) -> None:
    """Late rows too: a field that the schema has by then is not lost."""

    def job(fields: dict[str, Any], *results: str) -> Aggregation:
        made = {"n": agg.count(), **{name: agg.sum(name) for name in results}}
        windows = stream(fields).group_by("k").window(ts.tumbling("10 seconds")).aggregate(**made)
        windows = windows.retain_windows("1 day").allowed_lateness("1 second")
        return windows.messages(retain="1 day") if known else windows

    root, batches = tmp_path / "root", [values(text(1), text(2, v=3)), values(text(300), first=2)]
    batches.append(values(text(3, w=7), text(4, v=1.5, w=8), first=3))  # type: ignore[arg-type]
    job({"k": "string", "t": TIME, "v": "int64"}).standalone(checkpoint=root).run(batches)
    assert [row["reason"] for row in ledger(root)] in (["undecodable", "very_late"], ["very_late", "undecodable"])
    running = job({"k": "string", "t": TIME, "v": "double", "w": "int64"}, "w").standalone(checkpoint=root)
    running.run(batches)
    running.reprocess_late()
    newest = standing(root)[0]
    assert (newest["n"], newest["w"]) == (4, 8 if known else 15)
    assert len(ledger(root)) == 2
    running.reprocess_late()
    assert standing(root)[0] == newest


def test_rows_of_another_column_stay_in_the_ledger(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A row that could not be decoded is never an event of nulls, whatever became of ``decode=``."""

    def job(column: str | None, **renames: Any) -> Aggregation:
        decode = None if column is None else ts.json(column, {"v": "int64"})
        events = ts.stream(event_time="t", decode=decode).group_by("k").window(ts.tumbling("10 seconds"))
        counted = events.aggregate(n=agg.count()).retain_windows("1 day")
        return counted.renamed(columns=renames) if renames else counted

    times = pa.array([1_000_000, 2_000_000]).cast(TIME)
    rows = pa.table(
        {"value": [b'{"v": 1}', BAD], "payload": [b"{}", b"{}"], "v": [1, 1], "k": ["a", "a"], "t": times}
    )
    for name, changed in {"other": job("payload"), "none": job(None)}.items():
        root = tmp_path / name
        job("value").standalone(checkpoint=root).run([rows])
        running = changed.standalone(checkpoint=root)
        running.run([rows])
        caplog.clear()
        running.reprocess_late()
        running.run([rows], drain=True)
        assert "1 rows of windows that could not be decoded stay in the ledger" in caplog.text
        assert [row["n"] for row in standing(root)] == [1]
        assert [row["reason"] for row in ledger(root)] == ["undecodable"]


def test_a_renamed_field_keeps_the_values_of_late_rows(tmp_path: Path) -> None:
    root, fields = tmp_path / "root", {"k": "string", "t": TIME}

    def job(name: str, result: Any, **renames: str) -> Aggregation:
        events = stream({**fields, name: "int64"}).group_by("k").window(ts.tumbling("10 seconds"))
        summed = events.aggregate(total=result).retain_windows("1 day").allowed_lateness("1 second")
        return summed.renamed(columns=renames) if renames else summed

    batches = [values(text(100)), values(text(1, v=7), BAD, first=2)]
    job("v", agg.sum("v")).standalone(checkpoint=root).run(batches)
    running = job("w", agg.sum("w"), v="w").standalone(checkpoint=root)
    running.run(batches)
    running.reprocess_late()
    assert [row["total"] for row in standing(root)] == [7]
    assert sorted(row["reason"] for row in ledger(root)) == ["undecodable", "very_late"]


def test_a_reason_alone_passes_over_no_other(tmp_path: Path) -> None:
    root = tmp_path / "root"
    running = totals(stream()).standalone(checkpoint=root)
    running.run([values(text(1), BAD), values(text(100), first=2), values(text(2), first=3)])
    running.reprocess_late(reason="very_late")
    assert [row["reason"] for row in ledger(root)] == ["undecodable", "very_late"]
    assert ts.Root(root).manifest().totals["fed"] == 1
    running.reprocess_late()
    assert [row["reason"] for row in ledger(root)] == ["undecodable", "very_late", "undecodable"]
    assert ts.Root(root).manifest().totals["fed"] == 2, "the row that came too late is not put back again"
    running.reprocess_late(reason="undecodable")
    assert [row["reason"] for row in ledger(root)][3:] == ["undecodable"]


def test_given_rows_may_be_texts_or_columns(tmp_path: Path) -> None:
    running = totals(stream()).standalone(checkpoint=tmp_path / "root")
    running.run([values(text(1)), values(text(100), first=2)])
    running.reprocess_late(values(text(2, v=5), first=3))
    mended = {"k": ["a"], "t": pa.array(["2024-01-01T00:00:03"]).cast(pa.timestamp("us")).cast(TIME), "v": [10]}
    running.reprocess_late(pa.table({**mended, "part": pa.array([0], pa.int32()), "at": [4]}))
    assert [(row["n"], row["v"]) for row in standing(tmp_path / "root")] == [(3, 16)]


def test_what_may_change(tmp_path: Path) -> None:
    root, first = tmp_path / "root", [BATCHES[0]]
    rows = [parsed(batch) for batch in BATCHES]
    totals(plain()).standalone(checkpoint=root).run([rows[0]])  # decoded in front of the job, as by Spark's from_json
    running = totals(stream()).standalone(checkpoint=root)
    running.run([*first, BATCHES[1]])
    change = totals(stream({**FIELDS, "w": "string"}, epoch=None)).plan(root, schema=VALUES)
    assert "decode" in str(change)
    assert not change.refusals
    running = totals(stream({**FIELDS, "w": "string"})).standalone(checkpoint=root)
    running.run([*first, BATCHES[1], BATCHES[2]])
    with pytest.raises(IncompatibleError) as error:
        totals(stream({**FIELDS, "v": "double"})).standalone(checkpoint=root).run([*first, *BATCHES[1:]])
    assert error.value.code == "configuration-changed"
    assert "column v" in error.value.context["changed"]
    totals(plain()).standalone(checkpoint=root).run([rows[0], *rows[1:]], drain=True)
    alone = tmp_path / "alone"
    totals(plain()).standalone(checkpoint=alone).run(rows, drain=True)
    assert panes(root) == panes(alone)


def test_passed_rows_gain_a_column(tmp_path: Path) -> None:
    root = tmp_path / "root"
    job = stream().deduplicate("k", in_order=True)
    job.standalone(checkpoint=root).run([BATCHES[0]])
    wider = stream({**FIELDS, "w": "int64"}).deduplicate("k", in_order=True)
    batches = [BATCHES[0], values(text(50, "z", w=5), first=20)]
    wider.standalone(checkpoint=root, policy=Policy(dropped="accept")).run(batches, drain=True)
    rows = ts.Root(root).panes().to_table().to_pylist()
    assert {(row["k"], row.get("w")) for row in rows} == {("a", None), ("b", None), ("z", 5)}


def test_the_manifest_says_it_and_an_upgrade_changes_nothing(tmp_path: Path) -> None:
    totals(stream()).standalone(checkpoint=tmp_path / "values").run(BATCHES)
    totals(plain()).standalone(checkpoint=tmp_path / "rows").run([parsed(batch) for batch in BATCHES])
    head, other = (Checkpoint.open(tmp_path / name).newest().manifest for name in ("values", "rows"))
    assert "stages/1" in head.needs
    assert "stages/1" not in other.needs
    stored = head.operators["windows"]
    assert stored.configuration["stages"][0]["column"] == "value"
    assert "stages" not in other.operators["windows"].configuration
    assert stored.types == {"value": "binary", "part": "int32", "at": "int64"}
    assert 'decode=json("value", {"k": "string"' in str(totals(stream()).explain())


def refused(code: str, *arguments: Any, **options: Any) -> UsageError:
    with pytest.raises(UsageError) as error:
        ts.json(*arguments, **options)
    assert error.value.code == code
    return error.value


def test_what_is_no_schema() -> None:
    refused("decode-schema", "value", {})
    refused("decode-schema", "value", "k string")
    refused("decode-schema", "value", {"k": 5})
    refused("decode-schema", "value", pa.schema([("k", pa.string()), ("k", pa.int64())]))
    refused("column-type", "value", {"k": "text"})
    refused("decode-epoch", "value", FIELDS, epoch="minutes")
    with pytest.raises(UsageError) as error:
        ts.stream(event_time="t", decode="value")  # type: ignore[arg-type]
    assert error.value.code == "argument"


@pytest.mark.parametrize(
    ("fields", "schema", "code"),
    [
        ({**FIELDS, "m": pa.map_(pa.string(), pa.string())}, VALUES, "decode-type"),
        ({**FIELDS, "t": pa.timestamp("us")}, VALUES, "decode-type"),
        ({**FIELDS, "s": pa.struct([("a", pa.int64()), ("a", pa.int64())])}, VALUES, "decode-type"),
        ({**FIELDS, "d": pa.decimal128(10, -2)}, VALUES, "decode-type"),
        (FIELDS, VALUES.set(0, pa.field("value", pa.int64())), "decode-column"),
        (FIELDS, VALUES.remove(0), "column-missing"),
        ({"k": "string", "t": TIME}, VALUES, "column-missing"),
    ],
)
def test_what_cannot_be_decoded(fields: dict[str, Any], schema: pa.Schema, code: str) -> None:
    with pytest.raises(UsageError) as error:
        totals(stream(fields)).harness(schema)
    assert error.value.code == code


def test_schemas_of_spark_and_arrow() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    of_spark = types.StructType(
        [
            types.StructField("k", types.StringType()),
            types.StructField("t", types.TimestampType()),
            types.StructField("v", types.LongType()),
        ]
    )
    wanted = ts.json("value", {"k": "string", "t": TIME, "v": pa.int64()})
    assert ts.json("value", of_spark) == wanted
    assert ts.json("value", pa.schema([("k", pa.string()), ("t", TIME), ("v", pa.int64())])) == wanted


@pytest.mark.parametrize("death", ["before-manifest:5", "after-manifest:5", "before-manifest:2"])
def test_killed_at_a_side_of_the_commit(death: str, tmp_path: Path) -> None:
    process = Forked("tests.children.decoded", tmp_path / "killed", death)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    roots = [tmp_path / "killed", tmp_path / "alone"]
    for root in roots:
        decoded_sums().standalone(checkpoint=root).run(texts(), drain=True)
    assert panes(roots[0]) == panes(roots[1])
    names = ["t", "k", "v", "value", "reason", "watermark"]  # the checkpoints of the other run have other numbers
    assert chosen(ledger(roots[0]), names) == chosen(ledger(roots[1]), names)
    assert [row["value"] for row in ledger(roots[0]) if row["reason"] == "undecodable"] == [SPOILED] * 16
