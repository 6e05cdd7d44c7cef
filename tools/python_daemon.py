"""Spark's daemon of Python workers, on the PySpark that is installed: ``spark.python.daemon.module`` of `tools.java`.

Spark puts a zip of PySpark's sources first on the path of its workers. Nothing in a zip is kept compiled, so each
daemon and each worker compiles what it imports as it starts.
"""

import runpy
import sys

if __name__ == "__main__":
    sys.path[:] = [path for path in sys.path if not path.endswith(".zip")]
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
