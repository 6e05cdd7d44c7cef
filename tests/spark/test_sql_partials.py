"""Partials that Spark SQL makes: the same rows, ledgers and claims as of rows that are handed over one by one."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as run_settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import tidestate as ts
from tests.helpers.process import LONG, REMOTE
from tests.helpers.spark_inputs import job, sample, write
from tests.helpers.spark_runs import output, stream
from tidestate import OperatorStream, agg, col, watermark
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.expressions.builder import expr
from tidestate.operators.plan.classify import Classified, classify
from tidestate.operators.plan.graph import Graph
from tidestate.operators.progress.progress import Context, joined_claims
from tidestate.operators.progress.watermarks import BEGINNING_US, LIMIT_US
from tidestate.operators.spark import in_driver, sql_partials
from tidestate.operators.spark.schemas import read_schemas
from tidestate.operators.spark.sql_partials import bounds_of, classified_entries, entries, sql_plan
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.summary import path_text
from tidestate.statestore.arrays import total
from tidestate.statestore.errors import LimitError
from tidestate.statestore.spec.limits import KEY_BYTES
from tidestate.statestore.table.fold import combine

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")]

UTC_US = pa.timestamp("us", tz="UTC")
NOW_US = 1_700_000_000_000_000
NAN, INFINITE = float("nan"), float("inf")
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "tiny": (pa.int8(), [-128, 127, 0, 5]),
    "small": (pa.int16(), [-(2**15), 2**15 - 1, 3]),
    "whole": (pa.int32(), [-(2**31), 2**31 - 1, 17]),
    "long": (pa.int64(), [-(2**63), 2**63 - 1, 2**32, -(2**32) - 1, -1, 0, 9]),
    "single": (pa.float32(), [0.5, -0.0, 0.0, NAN, INFINITE, -INFINITE, -2.25]),
    "double": (pa.float64(), [0.5, -0.0, 0.0, NAN, INFINITE, -INFINITE, 1e3, -2.25]),
    "price": (pa.decimal128(10, 2), [Decimal("99999999.99"), Decimal("-0.01"), Decimal("0.00")]),
    "wide": (pa.decimal128(28, 3), [Decimal("9" * 25 + ".999"), Decimal("-1.500")]),
    "flag": (pa.bool_(), [True, False]),
    "day": (pa.date32(), [date(1582, 10, 4), date(1970, 1, 1), date(2999, 12, 31)]),
    "moment": (UTC_US, [-62_135_596_800_000_000, -1, 0, 1_711_846_800_000_000]),
    "local": (pa.timestamp("us"), [datetime(1969, 12, 31, 23, 59), datetime(2024, 3, 31, 2, 30)]),
    "text": (pa.string(), ["", "a", "ä\U0001f600", "b\x00c"]),
    "raw": (pa.binary(), [b"", b"\xff\x00"]),
}
"""Columns with what they may hold, besides null."""
KEYS = ("tiny", "long", "flag", "day", "moment", "text", "raw", "price")
ADDED = ("tiny", "small", "whole", "long", "single", "double", "price", "wide")
ORDERED = tuple(name for name in VALUES if name not in ("text", "raw"))
WINDOWS = (
    ts.tumbling("7 seconds"),
    ts.tumbling("1 minute", offset="-13 seconds"),
    ts.sliding("60 seconds", "15 seconds"),
    ts.sliding("10 seconds", "4 seconds", offset="1 second", strict=False),
)


@st.composite
def described_jobs(draw: st.DrawFn) -> OperatorStream:
    """Windows of any kind that is combined, with any lateness, watermark, keys and aggregates."""
    aggregates: dict[str, Any] = {"n": agg.count()}
    for number in range(draw(st.integers(0, 5))):
        how = draw(st.sampled_from([agg.count, agg.sum, agg.mean, agg.min, agg.max]))
        columns = {agg.count: tuple(VALUES), agg.sum: ADDED, agg.mean: ADDED}.get(how, ORDERED)
        aggregates[f"a{number}"] = how(draw(st.sampled_from(columns)))
    if draw(st.booleans()) and len(aggregates) > 1:
        del aggregates["n"]
    hold = draw(st.sampled_from([None, "1 hour"]))
    generators = [watermark.bounded("5 seconds", "t", hold_future=hold), watermark.fixed("10 seconds")]
    by = draw(st.sampled_from([None, "text", "tiny"]))
    read = ts.stream(event_time="t").watermark(draw(st.sampled_from(generators)), by=by)
    keys = draw(st.lists(st.sampled_from(KEYS), max_size=2, unique=True))
    windows = read.group_by(*keys).window(draw(st.sampled_from(WINDOWS))).aggregate(**aggregates)
    lateness = draw(st.sampled_from(["0 seconds", "9 seconds", "90 seconds"]))
    ledger = draw(st.lists(st.sampled_from([name for name in VALUES if name != "t"]), max_size=4, unique=True))
    rule = draw(st.sampled_from(["event", "window"]))
    return windows.allowed_lateness(lateness, rule=rule, ledger_columns=ledger).named("windows")


CONDITIONS = (
    "long > 0",
    "flag or small is not null",
    "double < 1 or double is null",
    "text like '%a%' and not flag",
    "t > timestamp_micros(0) or tiny = 5",
    "price between -1 and 1000000",
    "false",
)
COMPUTED = {
    "t": "timestamp_micros(unix_micros(t) - 3000000)",
    "long": "long + small",
    "k1": "pmod(tiny, 3)",
    "k2": "concat(text, '!')",
    "k3": "to_date(moment)",
    "src": "coalesce(tiny, 7) % 2",
    "d1": "price * 2",
    "x1": "double / single",
}
"""Columns, some in the place of others, by what computes them of those of `VALUES`."""
OF_ROWS: tuple[Callable[..., Any], ...] = (agg.count, agg.sum, agg.mean, agg.min, agg.max)
EXPRESSIONS = ("long - 1", "double * 2", "tiny + whole", "cast(price as decimal(12,4))", "length(text)", "-single")


@st.composite
def staged_jobs(draw: st.DrawFn) -> OperatorStream:
    """Windows over rows that are filtered, computed, expected and selected, with aggregates of some rows and of
    expressions.
    """
    stages = draw(st.lists(st.sampled_from(["where", "columns", "expect"]), min_size=1, max_size=4))
    read, made = ts.stream(event_time="t"), dict[str, str]()
    by = draw(st.sampled_from([None, "text", "src"]))
    generators = [watermark.bounded("5 seconds", "t", hold_future="1 hour"), watermark.fixed("10 seconds")]
    stream: Any = read.watermark(draw(st.sampled_from(generators)), by=by)
    for number, stage in enumerate([*stages, "columns" if by == "src" else "where"]):
        if stage == "where":
            stream = stream.where(draw(st.sampled_from(CONDITIONS[:-1] if number else CONDITIONS)))
        elif stage == "expect":
            otherwise = draw(st.sampled_from(["ledger", "count"]))
            stream = stream.expect(f"e{number}", draw(st.sampled_from(CONDITIONS[:-1])), otherwise=otherwise)
        else:
            names = draw(st.lists(st.sampled_from([*COMPUTED]), min_size=1, max_size=4, unique=True))
            names += ["src"] if by == "src" and number == len(stages) and "src" not in [*names, *made] else []
            new = {name: COMPUTED[name] for name in names if name not in made}
            stream, made = (stream.with_columns(**new) if new else stream), made | new
    keys = draw(
        st.lists(st.sampled_from([*KEYS[:5], *(name for name in made if name in ("k1", "k2", "k3"))]), max_size=2)
    )
    if draw(st.booleans()):
        kept = dict.fromkeys(["t", *VALUES, *made])
        stream = stream.select(*kept, renamed="tiny")
        keys = [*keys, "renamed"]
    aggregates = {"n": agg.count()} if draw(st.booleans()) else {}
    for number in range(draw(st.integers(1, 4))):
        how, where = draw(st.sampled_from(OF_ROWS)), draw(st.none() | st.sampled_from(CONDITIONS))
        values = [expr(text) for text in EXPRESSIONS] + [*(ADDED if how in (agg.sum, agg.mean) else ORDERED)]
        values += [None] * (how is agg.count)
        value: Any = draw(st.sampled_from(values))
        aggregates[f"a{number}"] = how(*([] if value is None else [value]), where=where)
    windows = stream.group_by(*dict.fromkeys(keys)).window(draw(st.sampled_from(WINDOWS))).aggregate(**aggregates)
    ledger = draw(st.lists(st.sampled_from(["raw", "single", "local"]), max_size=2, unique=True))
    rule, lateness = draw(st.sampled_from(["event", "window"])), draw(st.sampled_from(["0 seconds", "90 seconds"]))
    return windows.allowed_lateness(lateness, rule=rule, ledger_columns=ledger).named("windows")


def drawn_rows(chance: random.Random, rows: int, now_us: int) -> pa.Table:
    """Rows around a time, some of them at any time that a column can hold, with nulls and the edges of each type."""
    strange = [None, -(2**63), 2**63 - 1, LIMIT_US, LIMIT_US + 1, -LIMIT_US - 1, -62_135_596_800_000_001, -1, 0]
    strange += [253_402_300_799_999_999, 253_402_300_800_000_000, now_us + 3_600_000_001]
    times = [
        chance.choice(strange) if chance.random() < 0.1 else now_us + chance.randint(-200_000_000, 200_000_000)
        for _ in range(rows)
    ]
    columns: dict[str, pa.Array] = {"t": pa.array(times, pa.int64()).cast(UTC_US)}
    for name, (kind, values) in VALUES.items():
        cells = [None if chance.random() < 0.1 else chance.choice(values[: chance.randint(1, 9)]) for _ in times]
        if name in ("text", "raw") and chance.random() < 0.3:
            long = "x" * KEY_BYTES if name == "text" else b"x" * (KEY_BYTES + 1)
            cells[chance.randrange(rows)] = long
        is_moment = kind == UTC_US
        columns[name] = pa.array(cells, pa.int64()).cast(kind) if is_moment else pa.array(cells, kind)
    return pa.table(columns)


def facts(graph: Graph, pieces: list[Classified], rows: pa.Table) -> dict[str, object]:
    """All that the step, the ledger, the manifest and the watermark get of these pieces of input."""
    plan = graph.output
    claims = joined_claims([piece.claims for piece in pieces])
    sent = [piece.partials.rows for piece in pieces]
    ledgers = [piece.rejected for piece in pieces if piece.rejected is not None]
    peaks = [piece.claims.peak for piece in pieces if piece.claims.peak is not None]
    return {
        "partials": _lines(combine(plan.exchanged, pa.concat_tables(sent)), zero=True) if sent else [],
        "ledger": _lines(pa.concat_tables(ledgers)) if ledgers else [],
        "counters": {name: many for name, many in total([piece.counters for piece in pieces]).items() if many},
        "reports": {name: report for name, report in claims.reports.items() if report.rows or not graph.single},
        "present": {name: report for name, report in claims.rejected.items() if report.rows},
        "newest": max([us for piece in pieces if (us := piece.claims.newest_us) is not None], default=None),
        "peak": max([peak.time_us for peak in peaks], default=None),
        "least": min([peak.least_us for peak in peaks], default=None),
        "partitions": sorted({number for piece in pieces for number, _ in piece.partials.counts}),
    }


def _lines(rows: pa.Table, *, zero: bool = False) -> list[str]:
    """The rows as text, sorted; with ``zero`` without the sign of one, which follows the order of rows."""
    plain = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in rows.columns]
    values = [column.to_pylist() for column in plain]
    if zero:
        values = [[value + 0.0 if isinstance(value, float) else value for value in column] for column in values]
    return sorted(map(repr, zip(*values, strict=True)))


RUNS = run_settings(
    max_examples=400 if LONG else 8,
    suppress_health_check=list(HealthCheck),
    deadline=None,
)


@pytest.mark.timeout(24 * 3600 if LONG else 600)
@RUNS
@given(described=described_jobs(), seed=st.integers(0, 2**32), base_us=st.sampled_from([NOW_US, -NOW_US, 0]))
def test_entries_are_judged_as_their_rows_are(
    spark: SparkSession, described: OperatorStream, seed: int, base_us: int
) -> None:
    chance = random.Random(seed)
    rows = drawn_rows(chance, chance.choice([1, 30, 200]), base_us)
    frame = spark.createDataFrame(rows)
    graph = bind_graph(described.graph.description, read_schemas(described.graph.description, frame))
    watermark_us = chance.choice([BEGINNING_US, base_us + chance.randint(-200_000_000, 200_000_000)])
    context = Context.between(watermark_us, watermark_us, now_us=base_us)
    frame = frame.select(*graph.columns)
    sql = sql_plan(graph, frame.schema)
    assert not isinstance(sql, str), sql
    bounds = bounds_of(sql, context, chance.choice([None, 1_000_000]))
    expected = _or_limit(lambda: facts(graph, [classify(graph.output, rows, context, 3)], rows))
    table = entries(frame, sql, bounds).toArrow()
    result = _or_limit(lambda: facts(graph, classified_entries(sql, table, context, 3), rows))
    assert result == expected


@pytest.mark.timeout(24 * 3600 if LONG else 600)
@RUNS
@given(described=staged_jobs(), seed=st.integers(0, 2**32), ansi=st.booleans())
def test_stages_and_expressions_are_judged_as_their_rows_are(
    spark: SparkSession, described: OperatorStream, seed: int, ansi: bool
) -> None:
    chance = random.Random(seed)
    rows = drawn_rows(chance, chance.choice([1, 30, 200]), NOW_US)
    frame = spark.createDataFrame(rows)
    graph = bind_graph(described.graph.description, read_schemas(described.graph.description, frame))
    watermark_us = chance.choice([BEGINNING_US, NOW_US + chance.randint(-200_000_000, 200_000_000)])
    context = Context.between(watermark_us, watermark_us, now_us=NOW_US)
    frame = frame.select(*graph.columns)
    sql = sql_plan(graph, frame.schema)
    assert not isinstance(sql, str), sql
    expected = _or_limit(lambda: facts(graph, [classify(graph.output, rows, context, 3)], rows))
    former = {name: spark.conf.get(name) for name in ("spark.sql.ansi.enabled", "spark.sql.session.timeZone")}
    try:
        spark.conf.set("spark.sql.ansi.enabled", str(ansi).lower())
        spark.conf.set("spark.sql.session.timeZone", "America/St_Johns" if ansi else "Asia/Kathmandu")
        table = entries(frame, sql, bounds_of(sql, context, 1_000_000)).toArrow()
    finally:
        for name, value in former.items():
            spark.conf.set(name, value)
    result = _or_limit(lambda: facts(graph, classified_entries(sql, table, context, 3), rows))
    assert result == expected


@pytest.mark.classic("jvm")
def test_spark_compiles_no_batch_anew(spark: SparkSession) -> None:
    """Batches differ by their bounds: times and a step, which Spark would write into the code that it generates."""
    session = spark.newSession()
    session.conf.set("spark.sql.codegen.wholeStage", "true")
    session.conf.set("spark.sql.codegen.factoryMode", "FALLBACK")
    frame = session.createDataFrame(drawn_rows(random.Random(1), 200, NOW_US)).localCheckpoint()
    read = ts.stream(event_time="t", watermark_delay="5 seconds").group_by("tiny")
    described = read.window(ts.tumbling("7 seconds")).aggregate(n=agg.sum("long"), x=agg.max("double"))
    graph = bind_graph(described.graph.description, read_schemas(described.graph.description, frame))
    sql = sql_plan(graph, frame.select(*graph.columns).schema)
    assert not isinstance(sql, str), sql
    compiled = spark._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()  # type: ignore[union-attr]
    counts = [compiled.getCount()]
    for number in range(3):
        context = Context.between(NOW_US + number, NOW_US + number, now_us=NOW_US + number)
        entries(frame, sql, bounds_of(sql, context, 1_000_000 + 1_000 * number)).toArrow()
        counts.append(compiled.getCount())
    assert counts[0] < counts[1] == counts[-1]


def _or_limit(made: Any) -> object:
    try:
        return made()
    except LimitError as error:
        return error.code


def run(described: OperatorStream, frame: Any, root: Path, paths: set[Any]) -> list[tuple[int | None, str]]:
    """Into how many entries each batch was combined, or why not."""
    started = described.on_spark(frame, checkpoint=root, partitions=3, paths=paths).start()
    started.processAllAvailable()
    started.stop(drain=True)
    scans = [manifest.scan for manifest in Checkpoint.open(root).history() if manifest.scan is not None]
    # Where state is small the driver takes the steps on either path.
    assert all(scan.in_driver for scan in scans)
    return [(scan.partials, scan.no_partials) for scan in scans]


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_driver, "LIMITS", in_driver.Limits())


@pytest.mark.classic("patched")
@pytest.mark.usefixtures("_small")
def test_the_checkpoints_are_the_same_and_too_many_entries_are_left_to_the_tasks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [*sample(2, 60), *(table.slice(0, 20) for table in sample(4, 60)[2:])]
    for number, table in enumerate(tables):
        write(tmp_path / "input", number, table)
    monkeypatch.setattr(sql_partials, "MOST_ENTRIES", 50)
    scans = run(job(), stream(spark, tmp_path / "input"), tmp_path / "root", {"in_driver", "sql_partials"})
    job().standalone(checkpoint=tmp_path / "alone").run(tables, drain=True)
    for kind in ("panes", "late"):
        assert output(tmp_path / "root", kind) == output(tmp_path / "alone", kind)
    counters = [
        [manifest.counters for manifest in Checkpoint.open(tmp_path / root).history() if manifest.kind == "batch"]
        for root in ("root", "alone")
    ]
    assert counters[0] == counters[1]
    # The first is tried, the second is not; tasks have found that to have few partials, so the third is tried.
    assert [entries is None for entries, _ in scans] == [True, True, False, False]
    assert scans[0][1] == scans[1][1] == sql_partials.TOO_MANY


@pytest.mark.usefixtures("_small")
def test_why_rows_are_handed_over(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 0, sample(1, 20)[0])
    scans = run(
        ts.stream(event_time="t").group_by("k").window(ts.sessions("5 seconds")).aggregate(n=agg.count()),
        stream(spark, tmp_path / "input"),
        tmp_path / "root",
        {"in_driver", "sql_partials"},
    )
    assert scans == [(None, "its windows are not of a fixed span")]
    (scan,) = (manifest.scan for manifest in Checkpoint.open(tmp_path / "root").history() if manifest.scan)
    sentence = path_text(scan)
    handed = "and hands them over to tasks (its windows are not of a fixed span)"
    assert sentence.endswith(f"{handed}, from whose partials the driver goes on.")


def staged() -> OperatorStream:
    """Filtered rows, a time, a key and a value that are computed, and aggregates of some rows."""
    read = ts.stream(event_time="at").watermark(watermark.bounded("5 seconds", "at"), by="half")
    read = read.with_columns(at=col("t"), half="id % 2").where("v > -40 or v is null").expect("known", "k <> 'e'")
    read = read.select("at", "half", "k", "v", "id", twice="v * 2")
    windows = read.group_by("k").window(ts.tumbling("10 seconds"))
    counted = windows.aggregate(
        n=agg.count(),
        some=agg.count(where="v > 0"),
        values=agg.count("v", where="id > 20"),
        total=agg.sum("twice", where="v < 30"),
        mean=agg.mean(expr("v / id")),
        most=agg.max(expr("-v"), where="k = 'a'"),
    )
    counted = counted.allowed_lateness("30 seconds", ledger_columns=["id"]).accumulation("retracting")
    return counted.derive(share="some / n").having("n > 1").named("counted")


@pytest.mark.usefixtures("_small")
def test_spark_sql_runs_stages_and_expressions(spark: SparkSession, tmp_path: Path) -> None:
    """On either path, with a restart that changes it, and in one process."""
    tables = sample(6, 60)
    paths: dict[str, list[set[Any]]] = {
        "sql": [{"in_driver", "sql_partials"}] * 2,
        "tasks": [set(), set()],
        "both": [set(), {"in_driver", "sql_partials"}],
    }
    for name, of_starts in paths.items():
        for start, allowed in enumerate(of_starts):
            for number in range(3 * start, 3 * start + 3):
                write(tmp_path / f"in-{name}", number, tables[number])
            frame = stream(spark, tmp_path / f"in-{name}")
            query = staged().on_spark(frame, checkpoint=tmp_path / name, partitions=3, paths=allowed).start()
            query.processAllAvailable()
            query.stop(drain=start == 1)
    staged().standalone(checkpoint=tmp_path / "alone", partitions=3).run(tables, drain=True)
    expected = {kind: _whole(tmp_path / "alone", kind) for kind in ("panes", "late")}
    assert all(expected.values())
    for name, of_starts in paths.items():
        assert {kind: _whole(tmp_path / name, kind) for kind in expected} == expected, name
        assert _totals(tmp_path / name) == _totals(tmp_path / "alone")
        scans = [m.scan for m in Checkpoint.open(tmp_path / name).history() if m.scan is not None]
        if not REMOTE:  # whose server decides that
            assert [scan.partials is not None for scan in scans] == [
                bool(paths) for paths in of_starts for _ in "123"
            ]
    assert {"filtered", "expectation:known", "very_late"} <= _totals(tmp_path / "alone").keys()


def _whole(root: Path, kind: str) -> list[str]:
    """All rows that were put out; doubles as far as they do not depend on the order of rows."""
    rows = [row for of_batch in output(root, kind).values() for row in of_batch]
    return sorted(repr([round(value, 9) if isinstance(value, float) else value for value in row]) for row in rows)


def _totals(root: Path) -> dict[str, int]:
    return {name: many for name, many in Checkpoint.open(root).head().manifest.totals.items() if many}


@pytest.mark.usefixtures("_small")
def test_the_function_that_hands_rows_over_is_named(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "input", 0, sample(1, 20)[0])
    read = ts.stream(event_time="t").where("k rlike 'a|b'")
    described = read.group_by("k").window(ts.tumbling("5 seconds")).aggregate(n=agg.count())
    frame, shortcuts = stream(spark, tmp_path / "input"), {"in_driver", "sql_partials"}
    query = described.on_spark(frame, checkpoint=tmp_path / "root", partitions=3, paths=shortcuts).start()
    query.processAllAvailable()
    query.explain()
    query.stop(drain=True)
    if REMOTE:
        return  # the session of the rows decides before
    why = "expression: rlike of a filter is not computed by Spark SQL"
    scans = [m.scan for m in Checkpoint.open(tmp_path / "root").history() if m.scan is not None]
    assert [(scan.partials, scan.no_partials) for scan in scans] == [(None, why)]
    assert why in capsys.readouterr().out.splitlines()[0]
