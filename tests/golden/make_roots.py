"""Make the root of a new kind of job: ``python -m tests.golden.make_roots NAME …``. One that is there stays: it is of
the version that made it.

A root is made by a job that stops after its first batches; what is expected of its continuation is what the same
version puts out for the batches that follow when it takes all of them without a stop. Roots on Spark are made by
``tests/golden/make_spark_roots.py``.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from tests.golden.continued import (
    ROOTS,
    Run,
    continued,
    newest_id,
    put_out,
    read_root,
    schema_texts,
    step_text,
    written,
)
from tests.golden.inputs import Case
from tests.golden.jobs import CASES
from tests.helpers.checkout import ROOT
from tidestate import OperatorStream

STORES = ("parquet", "rocksdb", "memory")


def make(name: str, case: Case, store: str, folder: Path) -> None:
    """The root, and what lies next to it."""
    about = described(case, store)
    kept = ROOTS / name
    kept.mkdir(parents=True)
    write_json(kept / "description.json", about)
    write_json(kept / "input.json", [step_text(step) for step in case.after])
    stopped = Run(about, case.job, case.schemas, folder / "root", folder / "cache")
    stopped.take(case.before)
    stopped.close()
    pack(folder / "root", kept / "root.tar.gz")
    write_json(kept / "expected.json", undisturbed(about, case, folder / "whole"))
    check(name, case.job, folder)


def described(case: Case, store: str) -> dict[str, Any]:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {
        "commit": commit[:7],
        "runner": case.runner,
        "store": store,
        "partitions": case.partitions,
        "schemas": schema_texts(case.schemas),
        **written(case.job),
    }


def undisturbed(about: dict[str, Any], case: Case, folder: Path) -> dict[str, Any]:
    """What a job puts out that takes all batches without a stop, of those that follow the root; then at its end."""
    run = Run(about, case.job, case.schemas, folder, folder.parent / "other-cache")
    run.take(case.before)
    after = newest_id(folder)
    if case.patient:
        run = Run(about, case.job, case.schemas, folder, folder.parent / "other-cache")
    run.take(case.after)
    following, after = put_out(folder, after), newest_id(folder)
    run.drain()
    drained = put_out(folder, after)
    run.close()
    return {"continued": following, "drained": drained}


def check(name: str, job: OperatorStream, folder: Path) -> None:
    """The root goes on so when it is unpacked."""
    stored = read_root(name)
    assert continued(stored, job, folder / "unpacked") == stored.expected, name


def pack(root: Path, archive: Path) -> None:
    with tarfile.open(archive, "w:gz", compresslevel=9) as packed:
        packed.add(root, "root")


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def main(names: list[str]) -> None:
    logging.getLogger("tidestate").setLevel(logging.ERROR)
    for place, (name, case) in enumerate(CASES.items()):
        if name not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                make(name, case(), STORES[place % len(STORES)], Path(folder))
            except Exception as error:
                print(name, type(error).__name__, str(error)[:1500])


if __name__ == "__main__":
    main(sys.argv[1:])
