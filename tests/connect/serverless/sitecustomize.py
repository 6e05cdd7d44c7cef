"""On the path of a server this makes the process of each query one of a place that lets nobody change settings of
Spark, nor read any but those that PySpark itself does, and keeps no DataFrame.
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

READ_BY_US = ("spark.sql.caseSensitive", "spark.sql.streaming.fileSource.log.compactInterval")


def _refuse(*_: Any, **_named: Any) -> NoReturn:
    from pyspark.errors import AnalysisException

    raise AnalysisException("[CONFIG_NOT_AVAILABLE] Configuration is not available.")


if any("foreach_batch_worker" in word for word in sys.orig_argv):
    from pyspark.sql.connect.conf import RuntimeConf
    from pyspark.sql.connect.dataframe import DataFrame

    _get = RuntimeConf.get
    RuntimeConf.set = DataFrame.cache = DataFrame.persist = _refuse
    RuntimeConf.get = lambda conf, name, *default: (_refuse if name in READ_BY_US else _get)(conf, name, *default)
