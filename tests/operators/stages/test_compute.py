"""Filters and computed columns of a stream: against the job that has these columns, and a key for rows left out.

A row that is left out counts for time as if it were there, so it does what a row of a key does that nobody looks at.
"""

from __future__ import annotations

import signal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.children.computed import computed_sums, orders
from tests.helpers.arriving_rows import DRAWN_BATCHES, STAGED_SCHEMA, arriving
from tests.helpers.cti_rows import SETTINGS
from tests.helpers.cti_rows import job as cti_job
from tests.helpers.cti_rows import rows as cti_rows
from tests.helpers.forked import Forked
from tests.helpers.process import SCRATCH
from tests.helpers.runners import RUNNERS, panes
from tidestate import OperatorStream, agg, col, fn, watermark, when
from tidestate.operators import Policy
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import IncompatibleError, UsageError

LEFT_OUT = "left out"


def by_python(rows: list[Any]) -> list[Any]:
    """The same rows with what the stages compute: rows that they leave out have a key of their own."""
    return [(at, p if p is None else p * q, q, k if p is not None and p > 0 else LEFT_OUT) for at, p, q, k in rows]


def windows(stream: Any) -> Any:
    grouped = stream.group_by("k").window(ts.tumbling("1 minute"))
    return grouped.aggregate(n=agg.count(), total=agg.sum("p")).allowed_lateness("1 minute")


def result(job: Any, batches: list[pa.Table]) -> list[Any]:
    harness = job.harness(STAGED_SCHEMA)
    tables = [harness.feed(batch) for batch in batches]
    names = ["window_start", "k", "n", "total", "timing", "kind"]
    return [[row for row in t.select(names).to_pylist() if row["k"] != LEFT_OUT] for t in tables]


@settings(max_examples=settings.default.max_examples * 3)  # type: ignore[union-attr]
@given(DRAWN_BATCHES)
def test_rows_that_are_left_out_move_the_watermark_and_nothing_else(batches: list[list[Any]]) -> None:
    source = ts.stream(event_time="at")
    staged = source.with_columns(p=col("p") * col("q"), was=col("p")).where("was > 0")
    wanted = result(windows(source), [arriving(by_python(rows)) for rows in batches])
    assert result(windows(staged), [arriving(rows) for rows in batches]) == wanted


def test_the_late_ledger_has_rows_as_they_arrived(tmp_path: Path) -> None:
    job = windows(ts.stream(event_time="at").with_columns(p=col("p") * 2).where(col("q") > 0))
    late, left_out = (5, 4, 1, "a"), (6, 4, 0, "a")
    job.standalone(checkpoint=tmp_path).run([arriving([(300, 1, 1, "a")]), arriving([late, left_out])])
    rows = ts.Root(tmp_path).late().to_table().to_pylist()
    assert [(row["reason"], row["received_p"], row["q"]) for row in rows] == [("very_late", 4, 1)]


def test_a_column_that_stages_alone_read_is_renamed_in_the_ledger(tmp_path: Path) -> None:
    source, names = ts.stream(event_time="at"), ["at", "p", "qty", "k"]
    before = windows(source.where("q > 0")).harness(STAGED_SCHEMA, folder=tmp_path)
    before.feed(arriving([(300, 1, 1, "a")]))
    before.feed(arriving([(5, 4, 1, "a")]))
    schema = STAGED_SCHEMA.empty_table().rename_columns(names).schema
    job = windows(source.where("qty > 0")).renamed(columns={"q": "qty"})
    assert [change.setting for change in job.plan(tmp_path, schema=schema).changes] == ["column q"]
    harness = job.harness(schema, folder=tmp_path)
    harness.feed(arriving([(6, 4, 3, "a")]).rename_columns(names))
    assert harness.ledger()["qty"].to_pylist() == [1, 3]
    harness.restart()
    assert harness.ledger()["qty"].to_pylist() == [1, 3]


def test_a_column_that_stages_alone_read_is_renamed_in_front_of_a_join(tmp_path: Path) -> None:
    """What a key is computed by has another name, and is the same."""
    schemas = {"a": STAGED_SCHEMA, "b": STAGED_SCHEMA}
    new_schema = pa.schema([field.with_name("name") if field.name == "k" else field for field in STAGED_SCHEMA])

    def job(column: str) -> Any:
        left = ts.stream("a", event_time="at").select("at", "p", key=fn.upper(column))
        right = ts.stream("b", event_time="at").select("at", key="k")
        return left, right

    for column, schema in (("k", STAGED_SCHEMA), ("name", new_schema)):
        left, right = job(column)
        left = left.named("left_rows").renamed(columns={"k": "name"})
        pairs = left.join(right, on="key", within=("-9 seconds", "9 seconds"))
        harness = pairs.harness({**schemas, "a": schema}, folder=tmp_path)
        rows = arriving([(1, 5, 1, "a")])
        harness.feed({"a": rows.rename_columns(schema.names), "b": rows})


@pytest.mark.parametrize("stage", ["where", "with_columns"])
def test_what_cannot_be_bound_is_refused_before_anything_runs(stage: str, tmp_path: Path) -> None:
    source = ts.stream(event_time="at")
    staged = source.where("z > 1") if stage == "where" else source.with_columns(z="nothing + 1")
    with pytest.raises(ts.UsageError, match=r"expression-name|column-missing"):
        windows(staged).standalone(checkpoint=tmp_path).run([arriving([(1, 1, 1, "a")])])


KINDS = {
    "tumbling": ts.tumbling("1 minute"),
    "sliding": ts.sliding("1 minute", "20 seconds"),
    "sessions": ts.sessions("15 seconds"),
    "counted": ts.count_windows(3),
    "all": ts.global_window(),
}


def described(stream: Any, kind: str, mode: str, lateness: int, in_order: bool) -> Any:
    grouped = stream.group_by("k").window(KINDS[kind])
    made = grouped.aggregate(n=agg.count(), total=agg.sum("p"), list=agg.list("q")).accumulation(mode)
    made = made.trigger(early=ts.trigger.after_count(2)) if kind == "all" else made
    made = made.allowed_lateness(f"{lateness} seconds") if kind in ("tumbling", "sliding", "sessions") else made
    return made.in_order() if in_order else made


def run_with_restarts(job: Any, batches: list[pa.Table], restarts: list[bool], root: Path) -> list[Any]:
    """What the panes are in the end, and the counts of the ledger."""
    running = job.standalone(checkpoint=root)
    for number, again in enumerate(restarts, 1):
        running.run(batches[:number])
        running = job.standalone(checkpoint=root) if again else running
    running.run(batches, drain=True)
    rows = ts.Root(root).panes().to_table().to_pylist()
    late = ts.Root(root).late().to_table().to_pylist()
    return [
        [{name: value for name, value in row.items() if name != "list"} | {"list": sorted(row["list"] or [])}
         for row in rows if row["k"] != LEFT_OUT],
        sorted((row["reason"], row["at"]) for row in late if row["k"] != LEFT_OUT),
    ]  # fmt: skip


@given(
    DRAWN_BATCHES,
    st.sampled_from([*KINDS]),
    st.sampled_from(["accumulating", "discarding", "retracting"]),
    st.sampled_from([0, 10, 200]),
    st.booleans(),
    st.lists(st.booleans(), max_size=3),
)
def test_any_windows_in_any_cut_with_restarts(
    batches: list[Any], kind: str, mode: str, lateness: int, in_order: bool, restarts: list[bool],
) -> None:  # fmt: skip
    source = ts.stream(event_time="at")
    staged = source.with_columns(p=col("p") * col("q"), was=col("p")).where("was > 0")
    restarts = restarts[: len(batches)]
    plain = [arriving(by_python(rows)) for rows in batches]
    rows = [arriving(rows) for rows in batches]
    with TemporaryDirectory(dir=SCRATCH) as folder:
        without_stages = described(source, kind, mode, lateness, in_order)
        wanted = run_with_restarts(without_stages, plain, [], Path(folder, "plain"))
        job = described(staged, kind, mode, lateness, in_order)
        made = run_with_restarts(job, rows, restarts, Path(folder, "staged"))
    # Panes of a checkpoint are in no order, and a restart takes a number.
    assert _without_numbers(made[0]) == _without_numbers(wanted[0])
    assert made[1] == wanted[1]


def _without_numbers(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(repr({name: value for name, value in row.items() if name != "checkpoint"}) for row in rows)


def by_source(stream: Any) -> Any:
    return stream.watermark(by="q", idle_timeout="1 minute")


GENERATORS = {
    "bounded": lambda s: s.watermark(watermark.bounded("5 seconds")),
    "fixed": lambda s: s.watermark(watermark.fixed("5 seconds")),
    "punctuated": lambda s: s.watermark(watermark.punctuated("at", flag="flag")),
    "sources": by_source,
}


@pytest.mark.parametrize("generator", GENERATORS)
@given(batches=DRAWN_BATCHES)
def test_whatever_the_watermark_goes_by(generator: str, batches: list[list[Any]]) -> None:
    schema = STAGED_SCHEMA.append(pa.field("flag", pa.bool_()))

    def run(stream: Any, rows_of: Any) -> list[Any]:
        harness = windows(GENERATORS[generator](stream)).harness(schema)
        tables, seconds = [harness.advance_processing_time("2024-01-01")], 0
        for rows in batches:
            table = arriving(rows_of(rows))
            flags = pa.array([second % 3 == 0 for second, *_ in rows], pa.bool_())
            tables.append(harness.feed(table.append_column("flag", flags)))
            seconds += 40
            tables.append(harness.advance_processing_time(f"2024-01-01T00:{seconds // 60:02d}:{seconds % 60:02d}Z"))
        names = ["window_start", "k", "n", "total", "timing", "kind"]
        return [[row for row in t.select(names).to_pylist() if row["k"] != LEFT_OUT] for t in tables]

    source = ts.stream(event_time="at")
    staged = source.where("p > 0").with_columns(p="p * q")
    assert run(staged, list) == run(source, by_python)


@pytest.mark.parametrize("setting", range(len(SETTINGS)))
def test_ctis_are_made_of_all_rows(setting: int) -> None:
    """Those that are left out, too, in their order; and ones that the settings drop are in no ledger."""
    given_rows = [(n * 2, n, "orders") for n in range(12)] + [
        (3, 12, "orders"),
        (90, 13, "orders"),
        (95, 14, "orders"),
    ]
    table = cti_rows(*given_rows)
    table = table.set_column(3, "k", pa.array(["a" if n % 3 else LEFT_OUT for n in range(table.num_rows)]))
    job = cti_job(SETTINGS[setting])
    staged = ts.stream(
        event_time="t", offset="at", origin="src", lifetime=ts.lifetime("end", shape="point", shape_column="shape")
    ).where(col("k") != LEFT_OUT)
    grouped = staged.watermark(watermark.ctis(SETTINGS[setting])).group_by("k").window(ts.tumbling("10 seconds"))
    filtered = grouped.aggregate(n=agg.count(), times=agg.list("t")).allowed_lateness(None, ledger_columns=["at"])
    results = []
    for described_job in (job, filtered.named("job")):
        harness = described_job.harness(table.schema)
        panes = [harness.feed(table.slice(first, 5)) for first in range(0, table.num_rows, 5)] + [harness.finish()]
        ledger = [row["at"] for row in harness.ledger().to_pylist() if row["k"] != LEFT_OUT]
        results.append(([[row for row in t.to_pylist() if row["k"] != LEFT_OUT] for t in panes], ledger))
        assert LEFT_OUT not in harness.ledger()["k"].to_pylist() or described_job is job
    assert results[0] == results[1]


def test_a_row_that_is_left_out_needs_no_key_and_keeps_its_source_awake() -> None:
    source = ts.stream(event_time="at").watermark(by="q", idle_timeout="1 minute").where(col("k").isNotNull())
    harness = windows(source).harness(STAGED_SCHEMA)
    harness.advance_processing_time("2024-01-01T00:00:00Z")
    harness.feed(arriving([(5, 1, 1, "a"), (5, 1, 2, "b")]))
    assert harness.feed(arriving([(300, 1, 1, None), (290, 1, 2, "b")])).num_rows > 0
    assert harness.counters()["filtered"] == 1
    assert "null_key" not in harness.counters()
    assert harness.ledger().num_rows == 0


@pytest.mark.parametrize("runner", ["standalone", "harness", "by hand"])
def test_messages_that_are_left_out_are_not_known(runner: str, tmp_path: Path) -> None:
    source = ts.stream(event_time="at", offset="q").where("p > 0")
    made = windows(source).messages(retain="1 hour")
    rows = [arriving([(1, 5, 1, "a"), (2, 0, 2, "a")]), arriving([(2, 0, 2, "a"), (1, 5, 1, "a"), (3, 7, 3, "a")])]
    running = RUNNERS[runner](made, STAGED_SCHEMA, tmp_path)
    panes = running.run(rows)
    assert [(row["n"], row["total"]) for row in panes] == [(2, 12)]
    totals = Checkpoint.open(tmp_path).newest().manifest.totals  # type: ignore[union-attr]
    assert (totals["filtered"], totals["duplicates"]) == (2, 1)


def test_identities_are_not_computed(tmp_path: Path) -> None:
    source = ts.stream(event_time="at", offset="q", origin="k").with_columns(q="q + 1")
    with pytest.raises(UsageError) as error:
        windows(source).messages().harness(STAGED_SCHEMA)
    assert error.value.code == "stage-identity"
    other = ts.stream("b", event_time="at", offset="q")
    with pytest.raises(UsageError) as error:
        ts.stream("a", event_time="at", offset="q").with_columns(q="q + 1").join(
            other, on="k", within=("0 seconds", "1 second"), identity=True
        )
    assert error.value.code == "stage-identity"


LATE = [arriving([(300, 1, 1, "a")]), arriving([(5, 4, 2, "a"), (6, None, 3, "a")])]


def with_late(stream: Any, known: bool) -> Any:
    grouped = stream.group_by("k").window(ts.tumbling("1 minute"))
    made = grouped.aggregate(n=agg.count(), total=agg.sum("p")).allowed_lateness("1 second").retain_windows("1 day")
    return made.messages(identity="q", retain="1 day") if known else made


CHANGES = {
    "nothing": ("p > 0", "p * 2", (1, 8)),
    "a column": ("p > 0", "p * 3", (1, 12)),
    "a filter": ("p is null", "coalesce(p, 7)", (1, 7)),
    "no column": ("p > 0", None, (1, 4)),
    "neither": (None, None, (2, 4)),
}


def staged_by(condition: str | None, product: str | None) -> Any:
    stream: Any = ts.stream(event_time="at")
    stream = stream.where(condition) if condition else stream
    return stream.with_columns(p=product) if product else stream


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_put_back_runs_through_the_stages_of_then(change: str, tmp_path: Path) -> None:
    """Nulls that arrived are values, too."""
    condition, product, result_then = CHANGES[change]
    with_late(staged_by("p > 0 or p is null", "p * 2"), known=False).standalone(checkpoint=tmp_path).run(LATE)
    assert ts.Root(tmp_path).late().to_table().num_rows == 2
    running = with_late(staged_by(condition, product), known=False).standalone(checkpoint=tmp_path)
    running.run(LATE)
    running.reprocess_late()
    newest = ts.Root(tmp_path).panes(net=True).to_table().sort_by("window_start").to_pylist()[0]
    assert (newest["n"], newest["total"]) == result_then


def test_rows_that_the_state_refused_come_back_as_the_operator_saw_them(tmp_path: Path) -> None:
    with_late(staged_by("p > 0", "p * 2"), known=True).standalone(checkpoint=tmp_path).run(LATE)
    [row] = ts.Root(tmp_path).late().to_table().to_pylist()
    assert (row["p"], row["received_p"], row["computed_columns"]) == (8, None, None)
    running = with_late(staged_by("p > 0", "p * 3"), known=True).standalone(checkpoint=tmp_path)
    running.run(LATE)
    running.reprocess_late()
    newest = ts.Root(tmp_path).panes(net=True).to_table().sort_by("window_start").to_pylist()[0]
    assert (newest["n"], newest["total"]) == (1, 8)


def test_a_row_that_was_late_before_there_were_stages_runs_through_them(tmp_path: Path) -> None:
    with_late(staged_by(None, None), known=False).standalone(checkpoint=tmp_path).run(LATE)
    running = with_late(staged_by("p is null", "coalesce(p, 7)"), known=False).standalone(checkpoint=tmp_path)
    running.run(LATE)
    running.reprocess_late()
    newest = ts.Root(tmp_path).panes(net=True).to_table().sort_by("window_start").to_pylist()[0]
    assert (newest["n"], newest["total"]) == (1, 7)


def per_key(stream: Any) -> Any:
    grouped = stream.group_by("k").window(ts.tumbling("10 seconds"))
    made = grouped.aggregate(n=agg.count(), total=agg.sum("p")).allowed_lateness("1 hour")
    return made.accumulation("retracting")


def whole(stream: Any) -> Any:
    windows_of_all = stream.group_by().window(ts.tumbling("1 minute"))
    made = windows_of_all.aggregate(rows=agg.count(), sum=agg.sum("total"))
    return made.allowed_lateness("1 hour").named("all")


@given(DRAWN_BATCHES)
def test_results_are_filtered_between_operators_with_what_takes_them_back(batches: list[list[Any]]) -> None:
    """The net is that of the last panes of the first operator."""
    job = whole(per_key(ts.stream(event_time="at")).where("n >= 2 and total > 3").with_columns(total="total * 10"))
    harness = job.harness(STAGED_SCHEMA)
    tables = [harness.feed(arriving(rows)) for rows in batches] + [harness.finish()]
    net: dict[Any, Any] = {}
    for row in (row for table in tables for row in table.to_pylist()):
        net[row["window_start"]] = (row["rows"], row["sum"]) if row["kind"] == "emit" else None
    groups: dict[Any, list[int]] = {}
    for at, p, _, k in (row for rows in batches for row in rows):
        groups.setdefault((at // 10, k), []).append(p)
    wanted: dict[int, list[int]] = {}
    for (tens, _), values in groups.items():
        numbers = [p for p in values if p is not None]
        if len(values) >= 2 and numbers and sum(numbers) > 3:
            wanted.setdefault(tens // 6, []).append(10 * sum(numbers))
    found = {int(start.timestamp()) // 60: value for start, value in net.items() if value and value[0]}
    assert found == {minute: (len(sums), sum(sums)) for minute, sums in wanted.items()}


def test_a_selection_is_what_the_next_one_sees(tmp_path: Path) -> None:
    job = per_key(ts.stream(event_time="at")).select("k", start="window_start", half=col("total") / 2)
    job.standalone(checkpoint=tmp_path).run([arriving([(1, 5, 1, "a"), (2, 2, 2, "a")])], drain=True)
    assert job.operators == ("windows", "windows_prepared")
    [row] = ts.Root(tmp_path).panes().to_table().to_pylist()
    assert [*row] == ["checkpoint", "k", "kind", "pane_time", "start", "half"]
    assert (row["k"], row["half"]) == ("a", 3.5)
    assert 'windows_prepared = windows.select("k", start="window_start", half="total / 2")' in str(job.explain())


def test_two_filters_of_one_stream_are_two_operators(tmp_path: Path) -> None:
    source = ts.stream(event_time="at")
    job = source.where("p > 3").join(source.where("p <= 3"), on="k", within=("-9 seconds", "9 seconds"))
    assert job.operators == ("input_prepared", "input_prepared2", "joined")
    job.standalone(checkpoint=tmp_path).run([arriving([(1, 5, 1, "a"), (2, 2, 2, "a"), (3, 3, 3, "a")])], drain=True)
    pairs = {(row["left_p"], row["right_p"]) for row in ts.Root(tmp_path).panes().to_table().to_pylist()}
    assert pairs == {(5, 2), (5, 3)}


def test_a_stream_that_is_filtered_runs_by_itself(tmp_path: Path) -> None:
    job = ts.stream(event_time="at").where("p > 3").named("large")
    job.standalone(checkpoint=tmp_path).run([arriving([(1, 5, 1, "a"), (2, 2, 2, "a")])], drain=True)
    assert [row["p"] for row in ts.Root(tmp_path).panes().to_table().to_pylist()] == [5]
    assert Checkpoint.open(tmp_path).newest().manifest.totals["filtered"] == 1  # type: ignore[union-attr]


def joined(stream: Any) -> Any:
    return stream.join(ts.stream("other", event_time="at"), on="k", within=("-5 seconds", "5 seconds"))


def named(stream: Any = None) -> Any:
    return ts.stream("one", event_time="at") if stream is None else stream


def upper_keys() -> Any:
    return ts.stream(event_time="at").with_columns(k=fn.upper("k"))


EVOLVED: dict[str, tuple[Any, Any, str]] = {
    "another filter": (windows(staged_by("p > 0", None)), windows(staged_by("p > 1", None)), ""),
    "another column": (windows(staged_by(None, "p + 1")), windows(staged_by(None, "p + 2")), ""),
    "a key": (windows(staged_by(None, None)), windows(upper_keys()), "kept by k"),
    "a time": (
        windows(ts.stream(event_time="at")),
        windows(ts.stream(event_time="at").with_columns(at=col("at"))),
        "kept by at",
    ),
    "beside a key": (
        windows(ts.stream(event_time="at").with_columns(k=fn.upper("k"))),
        windows(ts.stream(event_time="at").where("q > 0").with_columns(k=fn.upper("k"), p="p + 1")),
        "",
    ),
    "input that is taken back": (
        whole(per_key(ts.stream(event_time="at")).where("n > 1")),
        whole(per_key(ts.stream(event_time="at")).where("n > 2")),
        "takes rows back",
    ),
    "a column of a join": (joined(named().with_columns(p="p + 1")), joined(named().with_columns(p="p + 2")), ""),
    "a key of a join": (
        joined(named().with_columns(p="p + 1")),
        joined(named().with_columns(p="p + 1", k=fn.upper("k"))),
        "which one_prepared, in front of it",
    ),
    "a key of a join, new": (joined(named()), joined(named().with_columns(k=fn.upper("k"))), "kept by k"),
    "a key of a join, gone": (joined(named().with_columns(k=fn.upper("k"))), joined(named()), "kept by k"),
    "through another operator": (
        windows(ts.stream(event_time="at").with_columns(k=fn.upper("k")).deduplicate("q", name="once")),
        windows(ts.stream(event_time="at").with_columns(k=fn.lower("k")).deduplicate("q", name="once")),
        "kept by k, which once",
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", EVOLVED)
def test_what_may_change(change: str, tmp_path: Path) -> None:
    before, after, why = EVOLVED[change]

    def batches(job: OperatorStream, *rows: list[Any]) -> Any:
        tables = [arriving(part) for part in rows]
        return [dict.fromkeys(job.streams, table) if len(job.streams) > 1 else table for table in tables]

    first, second = [(1, 5, 1, "a"), (2, 2, 2, "a")], [(30, 5, 3, "b")]
    before.standalone(checkpoint=tmp_path).run(batches(before, first))
    schema = dict.fromkeys(after.streams, STAGED_SCHEMA) if len(after.streams) > 1 else STAGED_SCHEMA
    plan = after.plan(tmp_path, schema=schema)
    assert bool(plan.refusals) == bool(why)
    running = after.standalone(checkpoint=tmp_path, policy=Policy(dropped="accept"))
    if not why:
        running.run(batches(after, first, second))
        assert " -> " in str(plan)
        return
    with pytest.raises(IncompatibleError, match=why) as error:
        running.run(batches(after, first, second))
    assert error.value.code == "configuration-changed"
    assert why in str(plan)


def test_the_manifest_says_it(tmp_path: Path) -> None:
    windows(staged_by("p > 0", "p * 2")).standalone(checkpoint=tmp_path).run(LATE[:1])
    head = Checkpoint.open(tmp_path).newest().manifest  # type: ignore[union-attr]
    assert {"stages/1", "expressions/1"} <= {*head.needs}
    kinds = [stage["kind"] for stage in head.operators["windows"].configuration["stages"]]
    assert kinds == ["where", "with_columns"]
    assert head.operators["windows"].types == {"at": "timestamp[us, tz=UTC]", "p": "int64", "k": "string"}


def refused(code: str, call: Any) -> None:
    with pytest.raises(UsageError) as error:
        call()
    assert error.value.code == code


def test_what_is_refused_at_once() -> None:
    source = ts.stream(event_time="at")
    refused("stage-column", lambda: source.with_columns())
    refused("stage-column", lambda: source.select())
    refused("stage-column", lambda: source.select("k", k=col("p")))
    refused("expression-text", lambda: source.where("p >"))
    refused("expression-bool", lambda: source.where(col("p") > 0 and col("q") > 0))
    refused("expression-type", lambda: source.where(5 + 5j))


@pytest.mark.parametrize("name", ["computed_columns", "expectations", "received_p"])
@pytest.mark.parametrize("place", ["read by a stage", "a key"])
def test_columns_of_the_ledger_have_names_of_their_own(name: str, place: str, tmp_path: Path) -> None:
    """At the start, not at the first batch."""
    schema = STAGED_SCHEMA.append(pa.field(name, pa.string()))
    source: Any = ts.stream(event_time="at").with_columns(p="p + 1").expect("p", "p > 0")
    if place == "read by a stage":
        source = ts.stream(event_time="at").expect("named", f"{name} <> 'x'").with_columns(p="p + 1")
    grouped = source.group_by(*(["k"] if place != "a key" else ["k", name])).window(ts.tumbling("1 minute"))
    refused("name-taken", lambda: grouped.aggregate(n=agg.sum("p")).harness(schema))


@pytest.mark.parametrize("condition", ["null", "cast(null as boolean)", "p > 0 and null"])
def test_a_condition_that_is_never_true_leaves_all_rows_out(condition: str) -> None:
    harness = windows(ts.stream(event_time="at").where(condition)).harness(STAGED_SCHEMA)
    harness.feed(arriving([(1, 1, 1, "a"), (2, 0, 1, "a")]))
    assert harness.finish().num_rows == 0
    assert harness.counters()["filtered"] == 2
    harness = windows(ts.stream(event_time="at").expect("never", condition)).harness(STAGED_SCHEMA)
    harness.feed(arriving([(1, 1, 1, "a"), (2, 0, 1, "a")]))
    assert harness.counters()["expectation"] == 2


def test_what_does_not_fit_the_rows() -> None:
    source = ts.stream(event_time="at")
    refused("expression-name", lambda: windows(source.where("pp > 0")).harness(STAGED_SCHEMA))
    refused("expression-type", lambda: windows(source.where("p + 1")).harness(STAGED_SCHEMA))
    refused("column-missing", lambda: windows(source.select("p", "k")).harness(STAGED_SCHEMA))
    refused("column-missing", lambda: windows(source.select("at", "p", "k", "nothing")).harness(STAGED_SCHEMA))
    taken = whole(per_key(source).with_columns(kind=when(col("n") > 1, "a").otherwise("b")))
    refused("stage-column", lambda: taken.harness(STAGED_SCHEMA))
    refused(
        "time-zone",
        lambda: windows(source.with_columns(d=fn.hour("at", zone="Europe/Berlinn"))).harness(STAGED_SCHEMA),
    )


@pytest.mark.parametrize("death", ["before-manifest:5", "after-manifest:5", "before-manifest:2"])
def test_killed_at_a_side_of_the_commit(death: str, tmp_path: Path) -> None:
    process = Forked("tests.children.computed", tmp_path / "killed", death)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    roots = [tmp_path / "killed", tmp_path / "alone"]
    for root in roots:
        computed_sums().standalone(checkpoint=root).run(orders(), drain=True)
    assert_equal(*roots)


def test_rewound_and_fed_again(tmp_path: Path) -> None:
    roots = [tmp_path / "rewound", tmp_path / "alone"]
    computed_sums().standalone(checkpoint=roots[0]).run(orders()[:6])
    ts.Root(roots[0]).rewind(4).execute()
    for root in roots:
        computed_sums().standalone(checkpoint=root).run(orders(), drain=True)
    assert_equal(*roots)


def assert_equal(root: Path, other: Path) -> None:
    assert panes(root) == panes(other)
    ledgers = [
        sorted(
            (row["item"], row["price"], row["reason"])
            for row in ts.Root(each).late(operator="sums").to_table().to_pylist()
        )
        for each in (root, other)
    ]
    assert ledgers[0] == ledgers[1] != []
    totals = [Checkpoint.open(each).newest().manifest.totals for each in (root, other)]  # type: ignore[union-attr]
    assert totals[0] == totals[1]
    assert totals[0]["sums.filtered"] == 32
