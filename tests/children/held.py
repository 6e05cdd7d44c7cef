"""A Spark job whose sinks keep what they get in files, and which stops taking: to be killed while it is held.

``python -m tests.children.held INPUT ROOT RECEIVED MODE``. After the first delivery ``unready`` is a sink that is not
ready, ``refuse`` a late sink that refuses; ``open`` takes everything to the end of the input.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.feather as feather
from pyspark.sql import DataFrame

from tests.helpers.arrow_rows import arrow_of
from tests.helpers.spark_inputs import SCHEMA, job
from tidestate.operators import DeliveryId
from tools.demo.job import say
from tools.java import local_session


class Files:
    """Both sinks: what is delivered is a file of its id, whole or not at all."""

    def __init__(self, folder: Path, mode: str) -> None:
        self._folder, self._mode, self._took = folder, mode, 0

    def _held(self) -> bool:
        if self._took:
            say("held")
        return bool(self._took)

    def ready(self) -> bool:
        return self._mode != "unready" or not self._held()

    def __call__(self, rows: DataFrame, one: DeliveryId) -> bool:
        if self._mode == "refuse" and one.operator and self._held():
            return False
        partial = self._folder / f".{one}"
        feather.write_feather(arrow_of(rows), partial)
        partial.rename(self._folder / str(one))
        self._took += 1
        return True


def main(folder: str, root: str, received: str, mode: str) -> None:
    """Run to the end of the input; in the other modes until the kill."""
    session = local_session("held")
    stream = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(folder)
    files = Files(Path(received), mode)
    query = job().on_spark(stream, checkpoint=root, sink=files, late_sink=files, partitions=2).start()
    query.processAllAvailable()
    query.stop(drain=True)
    session.stop()
    say("done", checkpoint=query.checkpoint_id)


if __name__ == "__main__":
    main(*sys.argv[1:])
