"""The job of `spark_inputs` standalone over a folder of files, in a process that dies of its own hand.

``python -m tests.children.parquet_folder FOLDER ROOT MOMENT:ID``.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import tidestate as ts
from tests.helpers.spark_inputs import SCHEMA, job
from tidestate.operators.describe.sinks import Sinks
from tidestate.operators.local.standalone import StandaloneRunner
from tidestate.statestore.spec.store import Parquet


def main(folder: str, root: str, death: str) -> None:
    """Run to the death, or to the end."""

    def hook(moment: str, checkpoint_id: int) -> None:
        if death == f"{moment}:{checkpoint_id}":
            os.kill(os.getpid(), signal.SIGKILL)

    runner = StandaloneRunner(job().graph.description, root, Parquet(), Sinks(), 2, hook)
    runner.run(ts.ParquetFolder(Path(folder), files_per_batch=1, schema=SCHEMA), progress=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
