"""The benchmarks: their peers compute what we do, and their rows are what scripts read. Figures are not tested."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tools.bench import __main__ as bench
from tools.bench import alone, cases, scale, table
from tools.bench.bids import Bids

FIELDS = ["name", "events_per_s", "peer", "peer_events_per_s", "ratio", "aim", "commit"]


@pytest.mark.parametrize("sessions", [False, True])
def test_the_peers_compute_the_same_panes(sessions: bool) -> None:
    described = alone.bids(alone.GAP_US if sessions else None)
    raced = alone.race(described, sessions, Bids(50, 1_000, 12, 100))
    assert raced.equal
    assert raced.panes > 100


def test_a_batch_is_a_function_of_its_number(tmp_path: Path) -> None:
    bids = Bids(100, 500, 3, 50, draw="moving", loading=2)
    bids.write(tmp_path / "input")
    written = [pq.read_table(path) for path in sorted((tmp_path / "input").glob("bids-00001-*"))]
    assert pa.concat_tables(written).equals(bids.table(1))
    assert bids.begin_us(2) - bids.begin_us(0) == 1_900_000_000


def test_each_case_has_a_name_of_its_own() -> None:
    names = [case.title for case in cases.CASES]
    assert len(set(names)) == len(names)


def test_rows_have_these_fields_and_failures_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_setting: cases.Setting) -> cases.Measured:
        raise ValueError("no such luck")

    made = [
        cases.Case("fails", "itself", ">= 1", fails),
        cases.Case("differs", "itself", None, lambda _: cases.Measured(1, 2, 0.5, equal=False)),
        cases.Case("equal", "itself", "<= 2", lambda _: cases.Measured(300.4, 200, 1.502, detail={"panes": 7})),
    ]
    monkeypatch.setattr(bench, "CASES", made)
    run = CliRunner().invoke(bench.app, ["all", "--json"])
    assert run.exit_code == 1
    rows = [json.loads(line) for line in run.stdout.splitlines()]
    assert [list(row) for row in rows] == [[*FIELDS, "error"], [*FIELDS, "error"], FIELDS]
    assert "no such luck" in rows[0]["error"]
    assert rows[2]["events_per_s"] == 300
    alone = CliRunner().invoke(bench.app, ["all", "--json", "--detail", "--case", "EQUAL"])
    assert alone.exit_code == 0
    assert json.loads(alone.stdout.splitlines()[-1])["panes"] == 7


def test_a_part_of_a_page_is_replaced_again_and_again(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- cases -->\n<!-- /cases -->\nafter\n")
    for text in ("one\n", "two\n"):
        table.insert(page, "cases", text)
        assert page.read_text() == f"before\n<!-- cases -->\n{text}<!-- /cases -->\nafter\n"


@pytest.mark.long
def test_a_checkpoint_asks_s3_for_what_it_changes_and_not_for_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file for each partition that has changed, a part of the manifest, the manifest; two lists, and no read."""
    monkeypatch.setattr("tidestate.recovery.log.manifest.INLINE_PARTITIONS", 4)  # small jobs have parts, too
    rows = list(scale.run([8, 12], [4], warm=2))
    assert [[row[name] for name in ("put", "list", "get", "head", "delete")] for row in rows] == [
        [4 + 2, 2, 0, 0, 0]
    ] * 2
    assert [row["dollars"] for row in rows] == [4e-05, 4e-05]
