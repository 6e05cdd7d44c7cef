"""On the path of a server this makes each of its Python processes one of a place that lets nobody change or read
settings of Spark, and keeps no DataFrame.
"""

from __future__ import annotations

from typing import Any, NoReturn

from pyspark.errors import AnalysisException
from pyspark.sql.connect.conf import RuntimeConf
from pyspark.sql.connect.dataframe import DataFrame


def _refuse(*_: Any, **_named: Any) -> NoReturn:
    raise AnalysisException("[CONFIG_NOT_AVAILABLE] Configuration is not available.")


RuntimeConf.set = RuntimeConf.get = _refuse
DataFrame.cache = DataFrame.persist = _refuse
