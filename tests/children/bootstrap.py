"""A bootstrap on Spark in a process that dies: ``python -m tests.children.bootstrap FOLDER FILES MOMENT``."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.helpers.spark_inputs import SCHEMA, job
from tools.java import local_session


def main(folder: Path, files: int, death: str) -> None:
    """Bootstrap from the first files of ``folder/input``, up to the moment."""

    def hook(moment: str, _checkpoint_id: int) -> None:
        if moment == death:
            os.killpg(os.getpid(), signal.SIGKILL)

    spark = local_session("bootstrap")
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder / "input"))
    paths = sorted(map(str, (folder / "input").iterdir()))[:files]
    begun = job().on_spark(stream, checkpoint=folder / "root", partitions=2, paths={"direct_scan"})
    begun.with_hook(hook).bootstrap(spark.read.schema(SCHEMA).parquet(*paths))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
