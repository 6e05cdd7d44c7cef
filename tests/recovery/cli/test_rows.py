"""The verbs that print rows, and the one that checks: what they print. `test_cli` has processes and exit codes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.checkout import ROOT
from tests.helpers.command import copy as copy
from tests.helpers.command import json_here, tidestate_here
from tests.helpers.example_root import damaged
from tests.helpers.example_root import root as root
from tests.helpers.process import LONG
from tidestate import agg
from tidestate.recovery.cli.main import app
from tidestate.recovery.cli.printing import Format, json_of, print_rows
from tidestate.recovery.inspect.rows import difference
from tidestate.statestore.errors import TidestateError

pytestmark = pytest.mark.slow

__all__ = ["copy"]


@pytest.mark.slow
def test_state_of_any_checkpoint_by_key_window_and_time(root: Path) -> None:
    slices = json_here("state", root, "--at", 3, "--json")
    assert sorted((row["slice_end"], row["k"], row["n"]) for row in slices) == [
        ("1970-01-01T00:00:20Z", "a", 1),
    ]
    made = json_here("show", root, 3, "--json")[0]["created"]
    assert json_here("state", root, "--at", made, "--json") == slices
    fired = ["state", root, "--at", 3, "--table", "groups", "--json"]
    assert [row["k"] for row in json_here(*fired, "--key", "k=a")] == ["a"]
    assert json_here(*fired, "--key", "k=a", "--key", "n=7") == []
    assert len(json_here(*fired, "--window", "1970-01-01T00:00:10")) == 2
    assert len(json_here(*fired, "--since", "1970-01-01T00:00:10", "--until", "1970-01-01T00:00:11")) == 2
    assert json_here(*fired, "--since", "1970-01-01T00:00:11") == []


@pytest.mark.slow
def test_panes_and_ledger_are_those_of_the_files(root: Path) -> None:
    panes = json_here("panes", root, "--json")
    named = [(m["id"], ref) for m in evidence.manifests(root) for ref in m.get("panes", [])]
    assert [row["checkpoint"] for row in panes] == [number for number, ref in named for _ in range(ref["rows"])]
    fourth = json_here("panes", root, "--from", 4, "--to", 4, "--json")
    assert [row["k"] for row in fourth] == ["c", "a", "a"]
    assert [row["kind"] for row in json_here("panes", root, "--key", "kind=retract", "--json")] == ["retract"] * 2
    assert [row["reason"] for row in json_here("late", root, "--json")] == [
        "very_late",
        "null_key",
        "null_event_time",
    ]


@pytest.mark.slow
def test_difference_of_two_checkpoints_by_key(root: Path) -> None:
    found = json_here("diff", root, 3, 5, "--table", "groups", "--key", "window_end=1970-01-01T00:00:10", "--json")
    assert [(row["change"], row["k"], row["n"], row["total"]) for row in found] == [
        ("was", "a", 2, 4),
        ("is", "a", 4, 15),
        ("added", "c", 1, 7),
    ]
    back = json_here("diff", root, 5, 3, "--table", "groups", "--json")
    assert [row["change"] for row in back if row["k"] == "c"] == ["removed"]


def test_rows_in_the_formats_of_other_tools(root: Path, tmp_path: Path) -> None:
    tables = []
    for form in ("parquet", "arrow", "csv"):
        path = tmp_path / form
        arguments = ["panes", str(root), "--format", form, "--output", str(path)]
        assert CliRunner().invoke(app, arguments).exit_code == 0
        tables.append(path.read_bytes())
    parquet = pq.read_table(io.BytesIO(tables[0]))
    assert pa.ipc.open_stream(tables[1]).read_all().equals(parquet)
    assert pa.csv.read_csv(io.BytesIO(tables[2]))["k"].to_pylist() == parquet["k"].to_pylist()
    assert parquet.num_rows == len(json_here("panes", root, "--json"))


def test_a_table_fits_the_terminal_and_says_when_there_is_more(root: Path) -> None:
    done = tidestate_here("panes", root, "--limit", 2, columns=60)
    printed = [line.rstrip() for line in done.stdout.splitlines()]
    assert max(map(len, printed)) <= 60
    assert [line for line in printed if line.startswith("row")] == ["row 1", "row 2"]
    assert "window_start  1970-01-01 00:00:00" in printed
    assert "more than 2 rows" in done.stdout
    unwrapped = tidestate_here("panes", root, "--limit", 2).stdout.splitlines()
    assert [len(line) > 80 for line in unwrapped[:3]] == [True] * 3
    assert "more than" not in tidestate_here("panes", root).stdout


@pytest.mark.parametrize("form", [Format.json, Format.csv, Format.arrow, Format.parquet])
def test_a_limit_is_the_number_of_rows_in_every_format(tmp_path: Path, form: Format) -> None:
    parts = [pa.table({"n": pa.array(range(start, start + 3))}) for start in (0, 3)]
    read: dict[Format, Callable[[Path], list[int]]] = {
        Format.json: lambda path: [json.loads(line)["n"] for line in path.read_text().splitlines()],
        Format.csv: lambda path: pa.csv.read_csv(path)["n"].to_pylist(),
        Format.arrow: lambda path: pa.ipc.open_stream(path.read_bytes()).read_all()["n"].to_pylist(),
        Format.parquet: lambda path: pq.read_table(path)["n"].to_pylist(),
    }
    for limit in (0, 1, 2, 3, 4, 5, 6, 7, None):
        path = tmp_path / f"{limit}"
        print_rows(parts, form, path, limit)
        assert read[form](path) == list(range(6))[:limit]


@pytest.mark.long  # in every run that of `test_cli`
def test_a_reader_that_goes_away_is_no_error(root: Path) -> None:
    line = f"set -o pipefail; {sys.executable} -m tidestate.recovery.cli.main state {root} --format csv | head -1"
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--key", "nobody=1"], "read-column"),
        (["--key", "n=many"], "read-value"),
        (["--key", "n"], "read-value"),
        (["--window", "yesterday"], "read-value"),
        (["--table", "nothing"], "no-such-table"),
        (["--operator", "nobody"], "no-such-operator"),
        (["--at", "99"], "no-such-checkpoint"),
        (["--at", "1999-12-31"], "no-such-checkpoint"),
        (["--at", "yesterday"], "rewind-to"),
    ],
)
def test_what_is_not_there_is_reported(root: Path, options: list[str], code: str) -> None:
    if LONG or code == "no-such-table":
        done = tidestate_here("state", root, *options)
        assert done.returncode in (4, 5)
        assert f"[{code}]" in done.stderr
        assert done.stdout == ""
    answer = CliRunner().invoke(app, ["state", str(root), *options])
    assert isinstance(answer.exception, TidestateError)
    assert (answer.exception.code, answer.stdout) == (code, "")


def test_operators_of_a_chain_are_asked_by_name(tmp_path: Path) -> None:
    schema = pa.schema([("t", pa.timestamp("us", tz="UTC")), ("k", pa.string())])
    first = (
        ts.stream(event_time="t")
        .group_by("k")
        .window(ts.tumbling("1 minute"))
        .aggregate(n=agg.count())
        .named("first")
    )
    second = (
        first.allowed_lateness("0 seconds")
        .group_by()
        .window(ts.tumbling("1 hour"))
        .aggregate(n=agg.sum("n"))
        .allowed_lateness("0 seconds")
        .named("second")
    )
    tested = second.harness(schema, folder=tmp_path)
    tested.feed([{"t": 0, "k": "a"}, {"t": 90_000_000, "k": "b"}])
    tested.feed([{"t": 1, "k": "late"}])
    assert [row["n"] for row in json_here("state", tmp_path, "--json")] == [1]
    assert [row["k"] for row in json_here("state", tmp_path, "--operator", "first", "--json")] == ["b"]
    assert [row["k"] for row in json_here("late", tmp_path, "--operator", "first", "--json")] == ["late"]
    assert json_here("late", tmp_path, "--json") == []
    assert "the ledger of second; there are 1 of first: --operator" in tidestate_here("late", tmp_path).stdout
    assert "operator" in tidestate_here("show", tmp_path).stdout
    assert [row["events"] for row in json_here("list", tmp_path, "--json")] == [0, 2, 1]


def test_a_whole_root_is_reported_to_be_whole(root: Path) -> None:
    done = tidestate_here("verify", root, "--read-data")
    assert done.returncode == 0
    assert done.stdout.startswith("intact: 7 checkpoints")
    assert json.loads(tidestate_here("verify", root, "--json").stdout)["good"] == 7


@pytest.mark.parametrize("name", ["manifest", "chain", "gone", "cut", "bytes"])
def test_damage_is_found_and_named(copy: Path, name: str) -> None:
    code, kind, path = damaged(copy, name)
    done = tidestate_here("verify", copy, "--read-data", 100, "--json")
    assert done.returncode == code
    found = json.loads(done.stdout)
    assert found["findings"][0]["kind"] == kind
    assert found["findings"][0]["path"].endswith(path)
    if name in ("gone", "cut", "bytes"):
        assert found["good"] is None or found["good"] < evidence.manifests(copy)[-1]["id"]
    if name == "bytes":
        assert tidestate_here("verify", copy).returncode == 0  # only who reads the data can know


def test_a_difference_of_values_of_any_type() -> None:
    def table(*rows: tuple[int, Any, Any]) -> pa.Table:
        kinds = (pa.int64(), pa.list_(pa.struct([("a", pa.float64())])), pa.map_(pa.string(), pa.int64()))
        columns = list(zip(*rows, strict=True)) or [[], [], []]
        return pa.table([pa.array(c, kind) for c, kind in zip(columns, kinds, strict=True)], names=["k", "l", "m"])

    before = table(
        (1, [{"a": float("nan")}], [("x", 1)]), (2, [], None), (3, None, []), (4, [{"a": 1.0}], [("x", 1)])
    )
    after = table((1, [{"a": float("nan")}], [("x", 1)]), (2, None, None), (4, [{"a": 1.0}], [("x", 2)]), (5, [], []))
    found = difference(before, after, ["k"])
    assert list(zip(found["k"].to_pylist(), found["change"].to_pylist(), strict=True)) == [
        (2, "was"),
        (2, "is"),
        (3, "removed"),
        (4, "was"),
        (4, "is"),
        (5, "added"),
    ]
    assert difference(before, before, ["k"]).num_rows == difference(table(), table(), ["k"]).num_rows == 0


def test_whole_numbers_are_numbers_in_json_however_they_are_stored() -> None:
    whole = {"sum": Decimal(1), "long": Decimal(-(10**37)), "even": Decimal("1E+3"), "listed": [Decimal(0)]}
    assert json.loads(json_of(whole)) == {"sum": 1, "long": -(10**37), "even": 1000, "listed": [0]}
    assert json.loads(json_of([Decimal("1.50"), Decimal("2.0"), Decimal("NaN")])) == ["1.50", "2.0", "NaN"]
