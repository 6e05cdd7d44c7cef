"""Which platform a session has."""

from __future__ import annotations

from pyspark.sql import SparkSession

from tidestate.operators.spark.platform import Platform, is_connect


def platform_of(session: SparkSession) -> Platform:
    """The platform of a session, without what the other kind needs: a client of Spark Connect may have no py4j."""
    if is_connect(session):
        from tidestate.operators.spark.connect.platform import ConnectPlatform

        return ConnectPlatform(session)
    from tidestate.operators.spark.classic_platform import ClassicPlatform

    return ClassicPlatform(session)
