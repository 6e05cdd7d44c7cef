"""Spark's daemon of Python workers, on the PySpark that is installed: ``spark.python.daemon.module`` of `tools.java`.

Spark puts a zip of PySpark's sources first on the path of its workers. Nothing in a zip is kept compiled, so each
daemon and each worker compiles what it imports as it starts. A Python without PySpark needs the zip.
"""

import runpy
import sys
from importlib.util import find_spec

if __name__ == "__main__":
    given = list(sys.path)
    sys.path[:] = [path for path in given if not path.endswith("pyspark.zip")]
    if find_spec("pyspark") is None:
        sys.path[:] = given
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
