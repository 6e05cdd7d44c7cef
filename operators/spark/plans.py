"""The analysed plan of a DataFrame as values: from the JVM, or, of Spark Connect, from the text that explains it."""

from __future__ import annotations

from pyspark.sql import DataFrame

from tidestate.operators.spark.platform import is_connect
from tidestate.operators.spark.scan.analysed import PlanStep


def analysed_plan(frame: DataFrame, *, columns: bool = False) -> PlanStep:
    """The plan of a DataFrame, with ``columns`` those and expressions too, which only a classic session tells."""
    if is_connect(frame):
        from tidestate.operators.spark.connect.plan_text import plan_explained

        return plan_explained(frame)
    from tidestate.operators.spark.scan.extract import plan_of_jvm

    return plan_of_jvm(frame, columns=columns)
