"""Make the roots again: ``python -m tests.golden.make_roots [NAME …]``, in a checkout of the commit that they name.

`tests/golden/` is copied into that checkout for it. A root is made by a job that stops after its first batches; what
is expected of its continuation is what the same version puts out for the batches that follow when it takes all of
them without a stop. Roots on Spark are made by ``tests/golden/make_spark_roots.py``.
"""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from tests.golden.continued import ROOTS, Job, continued, newest_id, put_out, read_root, schema_texts, step_text
from tests.golden.inputs import Case
from tests.golden.jobs import CASES
from tests.helpers.checkout import ROOT
from tidestate.operators.describe.chain import Chain
from tidestate.operators.describe.configuration import configuration_of

STORES = ("parquet", "rocksdb", "memory")


def make(name: str, case: Case, store: str, folder: Path) -> None:
    """The root, and what lies next to it."""
    about = described(case, store)
    kept = ROOTS / name
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    write_json(kept / "description.json", about)
    write_json(kept / "input.json", [step_text(step) for step in case.after])
    stopped = Job(about, case.job, case.schemas, folder / "root", folder / "cache")
    stopped.take(case.before)
    stopped.close()
    pack(folder / "root", kept / "root.tar.gz")
    write_json(kept / "expected.json", undisturbed(about, case, folder / "whole"))
    check(name, folder)


def described(case: Case, store: str) -> dict[str, Any]:
    chained = isinstance(case.job, Chain)
    operators = case.job.operators if chained else (case.job,)
    inputs = dict(zip(case.job.names, case.job.inputs, strict=True)) if chained else {}
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {
        "commit": commit[:7],
        "runner": case.runner,
        "store": store,
        "partitions": case.partitions,
        "schemas": schema_texts(case.schemas),
        "operators": [configuration_of(one) for one in operators],
        "inputs": inputs,
    }


def undisturbed(about: dict[str, Any], case: Case, folder: Path) -> dict[str, Any]:
    """What a job puts out that takes all batches without a stop, of those that follow the root; then at its end."""
    job = Job(about, case.job, case.schemas, folder, folder.parent / "other-cache")
    job.take(case.before)
    after = newest_id(folder)
    if case.patient:
        job = Job(about, case.job, case.schemas, folder, folder.parent / "other-cache")
    job.take(case.after)
    following, after = put_out(folder, after), newest_id(folder)
    job.drain()
    drained = put_out(folder, after)
    job.close()
    return {"continued": following, "drained": drained}


def check(name: str, folder: Path) -> None:
    """The root goes on so when it is unpacked."""
    stored = read_root(name)
    assert continued(stored, folder / "unpacked") == stored.expected, name


def pack(root: Path, archive: Path) -> None:
    with tarfile.open(archive, "w:gz", compresslevel=9) as packed:
        packed.add(root, "root")


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def main(names: list[str]) -> None:
    logging.getLogger("tidestate").setLevel(logging.ERROR)
    for place, (name, case) in enumerate(CASES.items()):
        if names and name not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                make(name, case(), STORES[place % len(STORES)], Path(folder))
            except Exception as error:
                print(name, type(error).__name__, str(error)[:1500])


if __name__ == "__main__":
    main(sys.argv[1:])
