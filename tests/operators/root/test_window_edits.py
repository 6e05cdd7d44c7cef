"""Windows of a root that are put, deleted and retired: plans, their execution, and the verb `window`."""

from __future__ import annotations

import json
import random
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import tidestate as ts
from tests.helpers.bundles import other_needs
from tests.helpers.operator_messages import SECOND, Message, description, operator, table
from tests.helpers.process import few, in_turn
from tidestate import ConflictError, FencedError, NotFoundError, Root, UsageError, agg
from tidestate.recovery.cli.main import app
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.stores import Memory, Parquet, RocksDB

SCHEMA = pa.schema([("t", pa.timestamp("us", tz="UTC")), ("k", pa.string()), ("v", pa.int64())])
START = datetime(1970, 1, 1, tzinfo=UTC)
KINDS = {
    "tumbling": ts.tumbling("10 seconds"),
    "sliding": ts.sliding("10 seconds", "5 seconds"),
    "session": ts.sessions("3 seconds"),
    "rolling": ts.rolling("2 seconds"),
}
EDITED = sorted(KINDS.keys() - {"rolling"})


def job_of(kind: str) -> Any:
    job = ts.stream(event_time="t", watermark_delay="2 seconds").group_by("k").window(KINDS[kind])
    return job.aggregate(n=agg.count(), total=agg.sum("v"), big=agg.max("v")).allowed_lateness("1000 seconds")


def batch(*rows: tuple[int, str, int]) -> pa.Table:
    columns = [pa.array([t * SECOND for t, _, _ in rows], SCHEMA.field("t").type)]
    return pa.table([*columns, [k for _, k, _ in rows], [v for _, _, v in rows]], schema=SCHEMA)


FIRST = [batch((1, "a", 5), (2, "a", 6), (8, "b", 1)), batch((13, "a", 5), (14, "b", 6))]


def run(root: Path, kind: str, batches: list[pa.Table], store: Any = None, **more: Any) -> pa.Table:
    runner = job_of(kind).standalone(checkpoint=root, store=store or Parquet(), partitions=2, **more)
    before = Root(root).panes().count_rows() if root.exists() else 0
    runner.run(batches)
    return Root(root).panes().to_table().slice(before)


def at(second: int) -> datetime:
    return START + timedelta(seconds=second)


def called(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["window", *map(str, arguments)], env={"COLUMNS": "80"})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    run(tmp_path / "root", "tumbling", FIRST)
    return tmp_path / "root"


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_window_is_put_by_a_checkpoint_of_its_own_and_the_job_goes_on_from_it(root: Path) -> None:
    before, newest = files(root), Checkpoint.open(root).ids()[-1]
    plan = Root(root).put_window(at(10), key="a", events=7, values={"total": 99})
    assert str(plan).splitlines() == [
        "to put         1970-01-01 00:00:10 to 1970-01-01 00:00:20 of k=a",
        "operator       windows",
        "before         n=1 total=5 big=5 events=1 panes=0",
        "after          n=7 total=99 big=5 events=7 panes=0",
        f"as checkpoint  {newest + 1}, of the kind edit",
        "nothing was changed: .execute() does it",
    ]
    assert files(root) == before
    done = plan.execute()
    assert (done.done, done.as_dict()["checkpoint"]) == (True, newest + 1)
    manifest, was = (Root(root).manifest(number) for number in (newest + 1, newest))
    assert (manifest.kind, manifest.epoch) == ("edit", was.epoch + 1)
    assert other_needs(manifest.needs) == ["edited-windows/1", *other_needs(was.needs)]
    assert (manifest.watermark_us, manifest.input, manifest.totals) == (was.watermark_us, was.input, was.totals)
    assert not Root(root).verify(read_data=100.0).findings
    assert (Root(root).get_window(at(10), key="a") or {})["total"] == 99
    assert (Root(root).at(newest).get_window(at(10), key="a") or {})["total"] == 5
    events = {(one.checkpoint, one.kind, one.what) for one in Root(root).history(at(10), key="a").events}
    assert (newest + 1, "edit", "an edit by hand: windows were put or removed") in events
    assert (newest + 1, "became", "put") in events
    panes = run(root, "tumbling", [*FIRST, batch((25, "c", 0))])
    (pane,) = [row for row in panes.to_pylist() if row["k"] == "a"]
    assert (pane["n"], pane["total"], pane["big"]) == (7, 99, 5)
    with pytest.raises(ConflictError, match="plan-moved"):
        plan.execute()


@pytest.mark.parametrize(("kind", "store"), few(in_turn(EDITED, [Memory, Parquet, RocksDB]), 0, 4, 8))
def test_edits_of_a_root_are_those_of_a_dictionary(tmp_path: Path, kind: str, store: Any) -> None:
    """Each window that has fired is put or deleted; the windows, and what late events add to them, are as if so."""
    chance, root = random.Random(f"{kind}{store.__name__}"), tmp_path / "root"
    given = [batch(*((chance.randint(0, 12) + 9 * n, chance.choice("abc"), n) for _ in range(5))) for n in range(4)]
    settings = {"cache_dir": str(tmp_path / "cache")} if store is RocksDB else {}
    run(root, kind, given, store(**settings))
    for _ in range(6):
        rows = Root(root).windows().to_table().to_pylist()
        mark = START + timedelta(microseconds=Root(root).operator().watermark_us or 0)
        row = chance.choice([one for one in rows if kind != "sliding" or one["window_end"] <= mark])
        keys = {"key": row["k"]}
        if chance.random() < 0.5:
            assert Root(root).del_window(row["window_start"], **keys).execute().windows == 1
            rows.remove(row)
        else:
            changed = {"n": chance.randint(1, 9), "total": chance.randint(0, 99)}
            Root(root).put_window(row["window_start"], **keys, values=changed).execute()
            row |= {**changed, "events": changed["n"]}
        assert Root(root).windows().to_table().to_pylist() == rows
    late = chance.choice(rows)
    time = late["window_start"] + timedelta(seconds=1)
    more = batch((int((time - START).total_seconds()), late["k"], 1000))
    run(root, kind, [*given, more], store(**settings))
    found = Root(root).get_window(late["window_start"], key=late["k"]) or {}
    assert (found["n"], found["total"], found["big"]) == (late["n"] + 1, late["total"] + 1000, 1000)


def test_windows_and_messages_of_a_range_are_retired(tmp_path: Path) -> None:
    root, rows = tmp_path / "root", [Message("x", n, n * 3, "ab"[n % 2], n) for n in range(1, 9)]
    job = description(ts.tumbling("6 seconds"), allowed=1000)
    with operator(job, root, Parquet(), partitions=3) as running:
        running.add_messages(table(rows))
        running.flush()
        with pytest.raises(UsageError, match="running"):
            Root(root).retire(0, 12 * SECOND).execute()
    plan = Root(root).retire(0, 12 * SECOND)
    assert "to remove      3 windows, 3 messages" in str(plan)
    assert plan.execute().done
    left = Root(root).windows(key="a", values=["n"]).to_table()["window_start"].to_pylist()
    assert left == [at(12), at(18), at(24)]
    assert Root(root).messages().to_table()["offset"].to_pylist() == [4, 5, 6, 7, 8]
    assert "there is nothing to retire" in str(Root(root).retire(0, 12 * SECOND).execute())
    with operator(job, root, Parquet()) as running:
        assert running.add_messages(table(rows))["duplicates"] == len(rows)
        assert running.get_window(12 * SECOND, key="a")["middle"] == 4.0  # type: ignore[index]


ORDERED = pa.schema([*SCHEMA, ("part", pa.string()), ("off", pa.int64())])


def ordered(*rows: tuple[int, str, int, str, int]) -> pa.Table:
    times, *others = zip(*rows, strict=True)
    columns = [pa.array([t * SECOND for t in times], SCHEMA.field("t").type), *map(list, others)]
    return pa.table(columns, schema=ORDERED)


@pytest.mark.parametrize(("kind", "origin"), in_turn(EDITED, ["part", None]))
def test_offsets_that_windows_store_stay_as_put_until_messages_extend_them(
    tmp_path: Path, kind: str, origin: str | None
) -> None:
    stream = ts.stream(event_time="t", watermark_delay="2 seconds", offset="off", origin=origin)
    job = stream.group_by("k").window(KINDS[kind]).aggregate(n=agg.count(), total=agg.sum("v"))
    job = job.allowed_lateness("1000 seconds").window_offsets()
    first = [ordered((1, "a", 5, "x", 4), (2, "a", 6, "x", 7), (13, "b", 1, "x", 8), (30, "b", 1, "x", 9))]
    job.standalone(checkpoint=tmp_path).run(first)
    root, name = Root(tmp_path), origin and "x"

    def found(start: datetime) -> Any:
        row = root.get_window(start, key="a") or {}
        return row.get("n"), row.get("total"), row.get("offsets")

    def one(low: int, high: int) -> list[dict[str, Any]]:
        return [{"origin": name, "start_offset": low, "last_offset": high}]

    start = at(1 if kind == "session" else 0)
    assert found(start) == (2, 11, one(4, 7))
    root.put_window(start, key="a", values={"n": 5}).execute()
    assert found(start) == (5, 11, one(4, 7)), "what is not put stays"
    plan = root.put_window(start, key="a", offsets={name: (3, 20)})
    assert "start_offset" in str(plan)
    plan.execute()
    assert found(start) == (5, 11, one(3, 20))
    end = at(59) if kind == "session" else None
    new = {"key": "a", "end": end, "events": 2, "values": {"total": 1}}
    open_ = at(50)
    if kind != "sliding":  # which may not be put before it is due
        root.put_window(open_, offsets={name: (30, 40)}, **new).execute()
        assert found(open_) == (2, 1, one(30, 40))
    for wrong in ({}, {name: (2, 1)}, {name: (1,)}, {("x" if origin is None else 3): (1, 2)}):
        with pytest.raises(UsageError, match="window-value"):
            root.put_window(start, key="a", offsets=wrong)
    later = [ordered((2, "a", 1, "x", 25), (52, "a", 1, "x", 35), (53, "a", 1, "x", 45))]
    job.standalone(checkpoint=tmp_path).run([*first, *later])
    assert found(start) == (6, 12, one(3, 25))
    if kind != "sliding":
        assert found(open_) == (4, 3, one(30, 45))
    if kind == "tumbling":  # a new one without offsets: of some of its messages they are not known
        root.put_window(at(70), key="a", events=2, values={"total": 1}).execute()
        assert found(at(70)) == (2, 1, None)


@pytest.mark.parametrize("origin", ["part", None])
def test_the_verb_takes_offsets_that_windows_store(tmp_path: Path, origin: str | None) -> None:
    stream = ts.stream(event_time="t", offset="off", origin=origin).group_by("k").window(KINDS["tumbling"])
    job = stream.aggregate(n=agg.count()).window_offsets()
    job.standalone(checkpoint=tmp_path).run([ordered((1, "a", 5, "x", 4))])
    options = [tmp_path, "put", "--start", "1970-01-01", "--key", "k=a", "--confirm", "--json", "--offsets"]
    done = called(*options, "x=3:17" if origin else "3:17")
    assert done.exit_code == 0, done.output
    expected = [{"origin": origin and "x", "start_offset": 3, "last_offset": 17}]
    assert (Root(tmp_path).get_window(0, key="a") or {})["offsets"] == expected
    for wrong in ("x=3", "=3:17", "3:17" if origin else "x=3:17"):
        failed = called(*options, wrong)
        assert failed.exit_code != 0
        assert re.search("read-value|window-value", f"{failed.output}{failed.exception!r}"), failed.output


def test_the_verb_edits_a_side_of_a_join(tmp_path: Path) -> None:
    left, right = (ts.stream(event_time="t", watermark_delay="2 seconds") for _ in "lr")
    job = left.join_sessions(right, on="k", gap="5 seconds")
    rows = batch((1, "a", 5), (2, "a", 6), (8, "b", 1), (13, "a", 5))
    job.standalone(checkpoint=tmp_path, partitions=2).run([{"left": rows, "right": rows}])
    of_side = ["--side", "left", "--start", "1970-01-01T00:00:13", "--key", "k=a"]
    row = json.loads(called(tmp_path, "get", *of_side, "--json").stdout)
    assert (row["window_start"], row["events"]) == ("1970-01-01 00:00:13", 1)
    planned = called(tmp_path, "put", *of_side, "--end", "1970-01-01T00:00:30").output
    assert "1970-01-01 00:00:13 to 1970-01-01 00:00:30 of k=a" in planned
    assert "dry run" in planned
    span = ["--side", "left", "--start", "1970-01-01T00:00:10", "--end", "1970-01-01T00:00:20", "--confirm"]
    retired = json.loads(called(tmp_path, "retire", *span, "--json").stdout)
    assert (retired["side"], retired["messages"], retired["windows"]) == ("left", 1, 0)
    assert "there is no such window" in called(tmp_path, "get", *of_side).output
    assert "nothing to retire" in called(tmp_path, "delete", *of_side, "--confirm").output
    for wrong, code in (
        (["put", *of_side, "--end", "1970-01-01T00:00:30", "--value", "n=1"], "window-value"),
        (["get", "--side", "middle", *of_side[2:]], "sides"),
        (["delete", *of_side[2:]], "sides"),
        (["retire", *span[:4]], "window-bounds"),
        (["put", *of_side], "window-bounds"),
    ):
        failed = called(tmp_path, *wrong)
        assert failed.exit_code != 0
        assert code in f"{failed.output}{failed.exception!r}", failed.output


def test_who_dies_before_the_manifest_has_changed_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Root(root).windows().to_table()
    plan = Root(root).del_window(at(10), key="a")
    with monkeypatch.context() as patched:
        patched.setattr(Checkpoint, "publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            plan.execute()
    assert Root(root).windows().to_table() == rows
    assert not Root(root).verify(read_data=100.0).findings
    assert plan.execute().done
    assert Root(root).windows().to_table().num_rows == rows.num_rows - 1
    last = Root(root).history(at(10), key="a").events[-1]
    assert (last.checkpoint, last.what) == (plan.id, "gone: 1970-01-01 00:00:10 to 1970-01-01 00:00:20")


def test_a_run_that_goes_on_is_fenced(tmp_path: Path) -> None:
    running = job_of("tumbling").harness(SCHEMA, folder=tmp_path, partitions=2)
    running.feed(FIRST[0])
    Root(tmp_path).del_window(at(0), key="a", force=True).execute()
    with pytest.raises(FencedError, match="fenced"):
        running.feed(FIRST[1])
    assert Root(tmp_path).get_window(at(0), key="a") is None


def test_what_cannot_be_edited_is_refused_before_anything_is_written(root: Path, tmp_path: Path) -> None:
    before = files(root)
    for code, call in {
        "window-value": lambda: Root(root).put_window(at(0), key="a", values={"x": 1}),
        "window-bounds": lambda: Root(root).put_window(at(1), key="a", events=1),
        "window-key": lambda: Root(root).del_window(at(0)),
        "root-at": lambda: Root(root).at(2).del_window(at(0), key="a"),
    }.items():
        with pytest.raises(UsageError, match=code):
            call()
    with pytest.raises(UsageError, match="nothing is to be put"):
        Root(root).put_window(at(0), key="a")
    with pytest.raises(UsageError, match="a result for each name"):
        Root(root).put_window(at(0), key="a", values=["total"])  # type: ignore[arg-type]
    assert files(root) == before
    run(tmp_path / "sliding", "sliding", FIRST)
    with pytest.raises(UsageError, match="window-waits"):
        Root(tmp_path / "sliding").del_window(at(10), key="a")
    run(tmp_path / "rolling", "rolling", FIRST)
    with pytest.raises(UsageError, match="window-edit"):
        Root(tmp_path / "rolling").del_window(START + timedelta(seconds=-1, microseconds=1), key="a")
    with pytest.raises(NotFoundError):
        Root(tmp_path / "none").del_window(at(0), key="a")


def test_a_rewind_undoes_an_edit(root: Path) -> None:
    newest = Checkpoint.open(root).ids()[-1]
    Root(root).del_window(at(10), key="a").execute()
    plan = Root(root).rewind(newest)
    assert f"edits of windows, which no replay brings back: {newest + 1}" in str(plan)
    assert plan.execute().as_dict()["edits"] == (newest + 1,)
    assert (Root(root).get_window(at(10), key="a") or {})["n"] == 1
    panes = run(root, "tumbling", [*FIRST, batch((25, "c", 0))])
    assert {row["k"] for row in panes.to_pylist()} == {"a", "b"}


def test_the_verb_prints_its_plan_and_executes_it_when_it_is_confirmed(root: Path) -> None:
    options = [root, "put", "--start", "1970-01-01T00:00:10", "--key", "k=a", "--value", "total=12"]
    before, planned = files(root), called(*options)
    assert planned.exit_code == 0, planned.output
    assert "before" in planned.output
    assert "dry run, nothing was changed" in planned.output
    assert max(map(len, planned.output.splitlines())) <= 80
    assert files(root) == before
    done = json.loads(called(*options, "--confirm", "--json").stdout)
    assert (done["done"], done["after"]["total"], done["before"]["total"]) == (True, 12, 5)
    row = json.loads(called(root, "get", *options[2:6], "--json").stdout)
    assert (row["total"], row["window_start"]) == (12, "1970-01-01 00:00:10")
    assert "total" in called(root, "get", *options[2:6]).output
    assert json.loads(called(root, "delete", *options[2:6], "--confirm", "--json").stdout)["windows"] == 1
    assert json.loads(called(root, "get", *options[2:6], "--json").stdout) is None
    assert "there is no such window" in called(root, "get", *options[2:6]).output
    assert "nothing to delete" in called(root, "delete", *options[2:6], "--confirm").output
    span = ["--start", "1970-01-01", "--end", "1970-01-01T00:00:10"]
    retired = json.loads(called(root, "retire", *span, "--confirm", "--json").stdout)
    assert (retired["windows"], retired["messages"]) == (2, 0)
    for wrong, code in (
        (["get", "--start", "x"], "read-value"),
        (["retire", "--start", "1970-01-01"], "window-bounds"),
        (["delete", *options[2:6], "--events", "1"], "window-value"),
        (["put", *options[2:6], "--offsets", "x=1"], "read-value"),
    ):
        failed = called(root, *wrong)
        assert failed.exit_code != 0
        assert code in f"{failed.output}{failed.exception!r}", failed.output
