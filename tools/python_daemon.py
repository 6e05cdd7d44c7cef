"""Spark's daemon of Python workers, on the PySpark that is installed: ``spark.python.daemon.module`` of `tools.java`.

Spark puts a zip of PySpark's sources first on the path of its workers. Nothing in a zip is kept compiled, so each
daemon and each worker compiles what it imports as it starts. A Python without PySpark needs the zip.

What our tasks import is imported here once, and not by each worker: a session starts two, and another one after each
task that failed.
"""

import runpy
import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec


def begin_with_imports() -> None:
    """Import what tasks of ours do, unless this Python lacks it."""
    with suppress(ImportError):
        for name in (
            "tidestate.operators.spark.tasks",
            "tidestate.operators.windows.plan",
            "pyarrow.dataset",
        ):
            import_module(name)


if __name__ == "__main__":
    given = list(sys.path)
    sys.path[:] = [path for path in given if not path.endswith("pyspark.zip")]
    if find_spec("pyspark") is None:
        sys.path[:] = given
    begin_with_imports()
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
