"""Panes from before and after a change of the job, printed together."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import tidestate as ts
from tests.helpers.process import few
from tests.helpers.spark_inputs import sample
from tidestate import Aggregation, agg
from tidestate.recovery.cli.main import app
from tidestate.recovery.inspect.rows import Wanted, output_rows
from tidestate.recovery.log.checkpoint import Checkpoint

TABLES = sample(6, 40)


def job(**aggregates: object) -> Aggregation:
    began = ts.stream(event_time="t", watermark_delay="5 seconds").group_by("k").window(ts.tumbling("10 seconds"))
    return began.aggregate(n=agg.count(), **aggregates)  # type: ignore[arg-type]


def printed(root: Path, form: str) -> Path:
    target = root.parent / f"panes.{form}"
    done = CliRunner().invoke(app, ["panes", str(root), "--format", form, "--output", str(target)])
    assert done.exit_code == 0, done.output
    return target


def test_columns_that_came_and_went_are_null_elsewhere(tmp_path: Path) -> None:
    root = tmp_path / "root"
    job(low=agg.min("v")).standalone(checkpoint=root).run(TABLES[:3])
    job(high=agg.max("v")).standalone(checkpoint=root).run(TABLES, drain=True)
    checkpoint = Checkpoint.open(root)
    parts = list(output_rows(checkpoint, checkpoint.outputs(), "panes", "windows", Wanted()))
    expected = pa.concat_tables(parts, promote_options="default")
    for name in ("low", "high"):
        assert 0 < expected[name].null_count < expected.num_rows
    assert pq.read_table(printed(root, "parquet")) == expected
    assert pa.ipc.open_stream(printed(root, "arrow").read_bytes()).read_all() == expected
    of_csv = pa.csv.read_csv(printed(root, "csv"))
    assert of_csv.column_names == expected.column_names
    for name in ("n", "low", "high"):
        assert of_csv[name].to_pylist() == expected[name].to_pylist()


@pytest.mark.parametrize("form", few(["csv", "parquet", "arrow"], 2))
def test_one_name_for_two_things_is_refused_before_anything_is_written(tmp_path: Path, form: str) -> None:
    root, target = tmp_path / "root", tmp_path / "panes"
    job(x=agg.sum("v")).standalone(checkpoint=root).run(TABLES[:3])
    job().standalone(checkpoint=root).run(TABLES[:4])
    job(x=agg.max("t")).standalone(checkpoint=root).run(TABLES, drain=True)
    done = CliRunner().invoke(app, ["panes", str(root), "--format", form, "--output", str(target)])
    assert done.exit_code != 0
    assert getattr(done.exception, "code", "") == "read-columns" or "read-columns" in done.output
    assert not target.exists()
