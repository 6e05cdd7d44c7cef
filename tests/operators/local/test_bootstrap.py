"""Roots that begin with state from a batch, without Spark: by the standalone runner, and by the verb."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as how
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.checkout import ROOT
from tests.helpers.command import tidestate
from tests.helpers.process import LONG, few
from tests.helpers.spark_inputs import job, sample, two_streams
from tests.helpers.spark_runs import output
from tests.servers.s3 import s3_endpoint as s3_endpoint
from tests.servers.s3 import s3_root as s3_root
from tests.twins import streams
from tests.twins.naive import Twin
from tidestate import agg
from tidestate.operators.engine.bootstrap import offset_text
from tidestate.operators.local.bootstrap import Archive, streams_of
from tidestate.operators.local.history_files import HistoryFiles, schema_of
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import DeliveryId
from tidestate.recovery.log.spark_log import file_url, local_file
from tidestate.statestore.errors import ConflictError, IncompatibleError, UsageError


def write(path: Path, *tables: pa.Table) -> list[Path]:
    path.mkdir(parents=True, exist_ok=True)
    for number, table in enumerate(tables):
        pq.write_table(table, path / f"{number:04d}.parquet")
    return sorted(path.iterdir())


@pytest.mark.slow
@how(max_examples=80 if LONG else 3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(streams.settings(), streams.batches(), st.integers(1, 3), st.data())
def test_history_is_one_batch_in_which_nothing_is_late(
    tmp_path_factory: pytest.TempPathFactory, setting: Any, stream: list[Any], pieces: int, data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("root")
    past = data.draw(st.integers(1, len(stream)))
    history, rest = [event for one in stream[:past] for event in one], stream[past:]
    runner = streams.description(setting).standalone(checkpoint=root, partitions=2)
    cut = [history[number::pieces] for number in range(pieces)]
    runner.bootstrap([streams.arrow(one) for one in cut])
    for _ in range(2):  # the second call goes on where the first stopped
        streams.description(setting).standalone(checkpoint=root).run(map(streams.arrow, rest)) if rest else None
    if rest:
        streams.description(setting).standalone(checkpoint=root).run(map(streams.arrow, rest), drain=True)
    else:
        return
    twin = Twin(setting).run([history, *rest])
    assert evidence.panes(root)[0] == dict_of(twin.panes[0])
    assert sum(evidence.panes(root), start=dict_of([])) == dict_of([row for panes in twin.panes for row in panes])
    assert evidence.ledger(root, streams.SCHEMA.names) == dict_of(twin.ledger)


def dict_of(rows: list[Any]) -> Any:
    from collections import Counter

    return Counter(rows)


def test_what_is_refused_and_what_is_not(tmp_path: Path) -> None:
    tables = sample(3, 40)
    runner = job().standalone(checkpoint=tmp_path / "root")
    assert not runner.begun
    with pytest.raises(UsageError, match="no-input"):
        runner.bootstrap([])
    assert not (tmp_path / "root").exists()
    runner.bootstrap(tables[0])
    assert runner.begun
    for again in (runner, job().standalone(checkpoint=tmp_path / "root")):
        with pytest.raises(UsageError, match="bootstrap-used"):
            again.bootstrap(tables[0])
    job().standalone(checkpoint=tmp_path / "run").run(tables)
    with pytest.raises(UsageError, match="bootstrap-used"):
        job().standalone(checkpoint=tmp_path / "run").bootstrap(tables[0])
    assert [m["kind"] for m in evidence.manifests(tmp_path / "root")] == ["fence", "bootstrap"]
    # Batches are what comes after, from their beginning.
    job().standalone(checkpoint=tmp_path / "root").run(tables[1:])
    assert evidence.manifests(tmp_path / "root")[-1]["totals"]["events"] == 120
    with pytest.raises(IncompatibleError, match="input-differs"):
        job().standalone(checkpoint=tmp_path / "root").run(tables)


@pytest.mark.parametrize("deliver", [True, False])
def test_a_sink_gets_the_panes_or_not(tmp_path: Path, deliver: bool) -> None:
    seen: list[tuple[int, int]] = []

    def sink(panes: pa.Table, one: DeliveryId) -> None:
        seen.append((one.checkpoint, panes.num_rows))

    tables = sample(4, 100)
    made = job().standalone(checkpoint=tmp_path / "root", sink=sink).bootstrap(tables[:2], deliver=deliver)
    assert made.num_rows
    assert seen == ([(2, made.num_rows)] if deliver else [])
    job().standalone(checkpoint=tmp_path / "root", sink=sink).run(tables[2:])
    assert (2 in dict(seen)) is deliver
    assert max(dict(seen)) > 2
    # Recorded they are, either way.
    assert len(output(tmp_path / "root", "panes")[0]) == made.num_rows


@pytest.mark.parametrize("moment", few(["before-manifest:2", "after-manifest:2"], 0))
def test_killed_and_done_again(tmp_path: Path, moment: str) -> None:
    program = (
        "import os, signal, sys\n"
        "from dataclasses import replace\n"
        "from tests.helpers.spark_inputs import job, sample\n"
        "def hook(moment, number):\n"
        f"    if f'{{moment}}:{{number}}' == {moment!r}: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"runner = job().standalone(checkpoint={str(tmp_path / 'root')!r})\n"
        "runner._hook = hook\n"
        "runner.bootstrap(sample(3, 50)[:2])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    runner = job().standalone(checkpoint=tmp_path / "root")
    assert runner.begun is moment.startswith("after")
    if not runner.begun:
        runner.bootstrap(sample(3, 50)[:2])
    job().standalone(checkpoint=tmp_path / "root").run(sample(3, 50)[2:], drain=True)
    whole = [pa.concat_tables(sample(3, 50)[:2]), sample(3, 50)[2]]
    job().standalone(checkpoint=tmp_path / "alone").run(whole, drain=True)
    assert output(tmp_path / "root", "panes") == output(tmp_path / "alone", "panes")
    assert output(tmp_path / "root", "late") == output(tmp_path / "alone", "late")


# In every run: the same on a disk, and what is different on S3 by `tests.statestore.storage`, a whole job there by
# `tests.operators.local.test_remote_roots`.
@pytest.mark.long
@pytest.mark.slow
def test_on_s3(s3_root: str, tmp_path: Path) -> None:
    tables = sample(4, 60)
    job().standalone(checkpoint=s3_root).bootstrap(tables[:2])
    panes = job().standalone(checkpoint=s3_root).run(tables[2:], drain=True)
    alone = job().standalone(checkpoint=tmp_path / "alone").run([pa.concat_tables(tables[:2]), *tables[2:]])
    head = Checkpoint.open(s3_root).head()
    assert head is not None
    assert head.manifest.totals["events"] == 240
    assert panes.num_rows > 0
    assert alone.num_rows > 0


def test_a_chain_of_two_streams(tmp_path: Path) -> None:
    left, right = sample(3, 40, seed=1), sample(3, 40, seed=2)
    both = [{"orders": one, "prices": other} for one, other in zip(left, right, strict=True)]
    two_streams().standalone(checkpoint=tmp_path / "root").bootstrap(both[0])
    two_streams().standalone(checkpoint=tmp_path / "root").run(both[1:], drain=True)
    two_streams().standalone(checkpoint=tmp_path / "alone").run(both, drain=True)
    assert output(tmp_path / "root", "panes") == output(tmp_path / "alone", "panes")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"t": {"0": 100, "1": 98}}, '{"t":{"0":100,"1":98}}'),
        ('{"t": {"0": 7}}\n', '{"t":{"0":7}}'),
        ("12", "12"),
        ("-", "-"),
        ('{"offset": 3, "at": {"x": 1}}', '{"offset":3,"at":{"x":1}}'),
    ],
)
def test_offsets_as_spark_writes_them(given: Any, text: str) -> None:
    assert offset_text(given, "a source") == text


@pytest.mark.parametrize(
    "given", ["latest", '{"t":{"0":-1}}', {"t": {"0": "7"}}, {"t": {"0": True}}, {"t": {"0": 1}, "u": 3}]
)
def test_offsets_that_are_none(given: Any) -> None:
    with pytest.raises(UsageError, match="bootstrap-offsets"):
        offset_text(given, "a source")
    for wrong in ({}, {"t": {}}, "12", {"t": {"a": 1}}):
        with pytest.raises(UsageError, match="bootstrap-offsets"):
            offset_text(wrong, "kafka")


@given(st.text(st.characters(blacklist_characters="/\0", blacklist_categories=["Cs"]), min_size=1))
def test_names_of_files_there_and_back(name: str) -> None:
    path = os.path.abspath(f"/data/{name}")
    assert str(local_file(file_url(path))) == path


def test_columns_in_sparks_words() -> None:
    found = schema_of("t timestamp, `k` STRING,v bigint, p decimal(10, 2)")
    assert found.field("t").type == pa.timestamp("us", tz="UTC")
    assert found.field("p").type == pa.decimal128(10, 2)
    assert found.names == ["t", "k", "v", "p"]
    for wrong in ("t", "t timestamp k string", "t array<int>", "t decimal"):
        with pytest.raises(UsageError, match="bootstrap-schema"):
            schema_of(wrong)


def test_a_time_without_room_in_microseconds_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"t": pa.array([2**60], pa.timestamp("ms", "UTC"))}), tmp_path / "a.parquet")
    with pytest.raises(UsageError, match="bootstrap-input"):
        list(HistoryFiles.find([str(tmp_path)]).batches(["t"]))


def test_files_of_any_format_lead_to_the_same_state(tmp_path: Path) -> None:
    tables = sample(2, 80)
    write(tmp_path / "parquet", *tables)
    (tmp_path / "csv").mkdir()
    (tmp_path / "json").mkdir()
    (tmp_path / "arrow").mkdir()
    for number, table in enumerate(tables):
        plain = table.set_column(0, "t", table["t"].cast(pa.timestamp("us")).cast(pa.string()))
        pa.csv.write_csv(plain, tmp_path / "csv" / f"{number}.csv")
        lines = (json.dumps(row) + "\n" for row in plain.to_pylist())
        (tmp_path / "json" / f"{number}.json").write_text("".join(lines))
        with pa.ipc.new_file(tmp_path / "arrow" / f"{number}.arrow", table.schema) as sink:
            sink.write_table(table.set_column(0, "t", table["t"].cast(table.schema.field("t").type)))
    columns = schema_of("t timestamp, k string, v bigint, id bigint")
    found = []
    for form in ("parquet", "csv", "json", "arrow"):
        files = HistoryFiles.find([str(tmp_path / form)], columns)
        Archive.of(job().graph.description, {"input": files}).bootstrap(tmp_path / f"root-{form}", standalone=True)
        found.append(output(tmp_path / f"root-{form}", "panes"))
    assert found[0][0]
    # CSV cannot tell an empty text from none, and null keys are rejected; there are no empty keys here.
    assert found.count(found[0]) == 4


def test_history_of_other_types_and_fields_of_structs(tmp_path: Path) -> None:
    """A file of Polars, say: text of other layouts, nanoseconds, and a key inside of a struct."""
    (table, more) = sample(2, 60)
    who = pa.StructArray.from_arrays([table["k"].combine_chunks().cast(pa.large_string())], ["name"])
    times = table["t"].cast(pa.timestamp("ns", tz="UTC"))
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"t": times, "who": who, "v": table["v"]}), tmp_path / "in" / "0.parquet")
    described = (
        ts.stream(event_time="t").group_by("who.name").window(ts.tumbling("10 seconds")).aggregate(total=agg.sum("v"))
    )
    archive = Archive.of(described.graph.description, {"input": HistoryFiles.find([str(tmp_path / "in")])})
    archive.bootstrap(tmp_path / "root", standalone=True)
    later = more.append_column("who", pa.StructArray.from_arrays([more["k"].combine_chunks()], ["name"]))
    panes = described.standalone(checkpoint=tmp_path / "root").run([later], drain=True)
    assert panes.num_rows > 0
    assert panes.schema.field("who.name").type == pa.string()


def test_files_that_change_or_are_none(tmp_path: Path) -> None:
    (first, _) = write(tmp_path / "input", *sample(2, 40))
    archive = Archive.of(job().graph.description, {"input": HistoryFiles.find([str(tmp_path / "input")])})

    def touch(_rows: int) -> None:
        os.utime(first, (1, 1))

    with pytest.raises(ConflictError, match="bootstrap-files-changed"):
        archive.bootstrap(tmp_path / "root", on_rows=touch)
    assert not job().standalone(checkpoint=tmp_path / "root").begun
    Archive.of(job().graph.description, {"input": HistoryFiles.find([str(tmp_path / "input")])}).bootstrap(
        tmp_path / "root"
    )
    (tmp_path / "broken.parquet").write_text("no parquet")
    (tmp_path / "strange.txt").write_text("no parquet")
    for wrong in ("nowhere", "broken.parquet", "*.*"):
        with pytest.raises(UsageError, match="bootstrap-input"):
            HistoryFiles.find([str(tmp_path / wrong)])


def test_streams_of_descriptions() -> None:
    joined = ts.stream(event_time="t").join(ts.stream(event_time="t"), on="k", within=("0 seconds", "1 second"))
    found = [streams_of(made.graph.description) for made in (job(), two_streams(), joined)]
    assert found == [["input"], ["orders", "prices"], ["left", "right"]]


def verb(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return tidestate("bootstrap", "tests.helpers.spark_inputs:job", folder / "root", *arguments)


@pytest.mark.slow
def test_the_verb_says_first_what_it_would_do(tmp_path: Path) -> None:
    write(tmp_path / "input", *sample(3, 50))
    dry = verb(tmp_path, "--input", tmp_path / "input", "--partitions", 2)
    assert (dry.returncode, dry.stderr) == (0, "")
    assert "3 files, 150 rows" in dry.stdout
    assert "2023-12-31 23:" in dry.stdout or "2024-01-01 00:" in dry.stdout
    assert "t, k, v, id" in dry.stdout
    assert "--confirm" in dry.stdout
    assert not (tmp_path / "root").exists()
    plan = json.loads(verb(tmp_path, "--input", tmp_path / "input", "--json").stdout)
    assert plan["streams"]["input"]["rows"] == 150
    done = json.loads(verb(tmp_path, "--input", tmp_path / "input", "--confirm", "--json").stdout)
    assert (done["kind"], done["events"], done["spark_batch"]) == ("bootstrap", 150, 0)
    again = verb(tmp_path, "--input", tmp_path / "input", "--confirm")
    assert again.returncode == 5
    assert "[bootstrap-used]" in again.stderr
    assert len(again.stderr.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code"),
    few(
        [
            ((), "bootstrap-input"),
            (("--input", "/nowhere/*.parquet"), "bootstrap-input"),
            (("--stream", "left"), "read-value"),
            (("--stream", "left=input", "--stream", "right=input"), "streams"),
            (("--input", "input", "--offsets", "latest", "--confirm"), "bootstrap-offsets"),
            (("--input", "input", "--schema", "k array<int>"), "bootstrap-schema"),
            (("--input", "input", "--schema", "k string"), "column-missing"),
        ],
        1,
        3,
        6,
    ),
)
def test_the_verb_refuses_in_a_line(tmp_path: Path, arguments: tuple[str, ...], code: str) -> None:
    write(tmp_path / "input", *sample(1, 20))
    given = [
        one.replace("input", str(tmp_path / "input")) if one[-5:] == "input" and one[0] != "-" else one
        for one in arguments
    ]
    done = verb(tmp_path, *given)
    assert done.returncode == 5, done.stdout
    assert f"[{code}]" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "root").exists()


INPUTS = "tests.helpers.spark_inputs"


@pytest.mark.slow
@pytest.mark.parametrize("name", few(["nowhere:job", f"{INPUTS}:nothing", f"{INPUTS}:START", "tests"], 0, 2))
def test_a_job_that_cannot_be_loaded(tmp_path: Path, name: str) -> None:
    done = tidestate("bootstrap", name, tmp_path / "root", "--input", tmp_path)
    assert done.returncode == 5
    assert "[bootstrap-job]" in done.stderr


@pytest.mark.long
@pytest.mark.slow
def test_a_broken_verb_hinders_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "strange-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: strange\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[tidestate.commands]\nbroken = nowhere:verb\nhello = hello_verb:app\n")
    (tmp_path / "hello_verb.py").write_text(
        "import typer\napp = typer.Typer(add_completion=False)\n"
        "@app.command()\ndef greet() -> None:\n    'Say hello.'\n    print('hello')\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    if LONG:
        listed = tidestate("--help", stdout=subprocess.PIPE)
        assert listed.returncode == 0
        assert "hello" in listed.stdout
        assert "bootstrap" in listed.stdout
        assert listed.stderr.count("[verb-broken]") == 1
        assert tidestate("nothing", stdout=subprocess.PIPE).returncode == 2
        assert "verb-broken" not in tidestate("list", tmp_path, stdout=subprocess.PIPE).stderr
    assert tidestate("hello", stdout=subprocess.PIPE).stdout == "hello\n"
    broken = tidestate("broken", stdout=subprocess.PIPE)
    assert broken.returncode == 5
    assert "package=strange" in broken.stderr


@pytest.mark.long
def test_verbs_are_loaded_when_they_are_asked_for() -> None:
    program = "import sys, tidestate.recovery.cli.main; print([name for name in sys.modules if '.operators' in name])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    program = (
        "import sys\nfrom tidestate.recovery.cli.main import app\ntry:\n    app(['bootstrap', '--help'])\n"
        "except SystemExit:\n    pass\n"
        "heavy = ('pyspark', 'tidestate.operators.describe.windowed', 'pandas')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")


@pytest.mark.parametrize("form", ["parquet", "csv", "json", "arrow"])
def test_files_of_which_no_column_is_read_have_their_rows(tmp_path: Path, form: str) -> None:
    table, path = pa.table({"v": list(range(15))}), tmp_path / f"0.{form}"
    if form == "parquet":
        pq.write_table(table, path)
    elif form == "csv":
        pa.csv.write_csv(table, path)
    elif form == "json":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    grouped = ts.stream(processing_time=True).group_by().window(ts.tumbling("10 seconds"))
    description = grouped.aggregate(n=agg.count()).graph.description
    archive = Archive(description, {"input": HistoryFiles.find([str(path)], None)})
    assert archive.survey(lambda _rows: None)["input"].rows == 15
    assert archive.bootstrap(tmp_path / "root", standalone=True).counters["events"] == 15
