"""Make roots of new kinds on Spark, as `make_roots`: ``python -m tests.golden.make_spark_roots NAME …``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.golden.continued import ROOTS, newest_id, put_out, read_root, step_text
from tests.golden.inputs import BEFORE, Case
from tests.golden.make_roots import STORES, described, pack, write_json
from tests.golden.on_spark import NAMES, SparkRun, continued_on_spark, spark_case
from tidestate.operators.spark import in_driver
from tidestate.recovery.log.checkpoint import Checkpoint
from tools.java import local_session


def make(spark: Any, name: str, case: Case, store: str, folder: Path) -> None:
    """The root, and what lies next to it."""
    about = described(case, store) | {"batches": BEFORE}
    kept = ROOTS / name
    kept.mkdir(parents=True)
    write_json(kept / "description.json", about)
    write_json(kept / "input.json", [step_text(step) for step in case.after])
    stopped = SparkRun(spark, about, case.job, folder / "stopped" / "root")
    stopped.take(case.before, first=0)
    stopped.query.stop()
    pack(stopped.root, kept / "root.tar.gz")
    whole = SparkRun(spark, about, case.job, folder / "whole" / "root")
    whole.take([*case.before, *case.after], first=0)
    following, after = put_out(whole.root, _id_of_batch(whole.root, BEFORE - 1)), newest_id(whole.root)
    whole.query.stop(drain=True)
    write_json(kept / "expected.json", {"continued": following, "drained": put_out(whole.root, after)})
    stored = read_root(name)
    assert continued_on_spark(spark, stored, case.job, folder / "unpacked") == stored.expected, name


def _id_of_batch(root: Path, batch: int) -> int:
    """The checkpoint of a batch of Spark."""
    manifests = Checkpoint.open(root).history()
    return next(one.id for one in manifests if one.kind == "batch" and one.spark and one.spark.batch_id == batch)


def main(names: list[str]) -> None:
    in_driver.LIMITS = in_driver.Limits(file_bytes=-1, state_bytes=-1)
    spark = local_session("golden", **{"spark.sql.adaptive.enabled": "false"})
    for place, name in enumerate(NAMES):
        if name not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            make(spark, f"on_spark_{name}", spark_case(name), STORES[place % len(STORES)], Path(folder))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
