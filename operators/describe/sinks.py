"""What takes the panes of a job: a function of the user's. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from tidestate.recovery.log.outputs import DeliveryId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_P = TypeVar("_P")
Sink = Callable[[_P, DeliveryId], bool | None]
"""Called with the panes of one checkpoint and the identity of this delivery. False, or `Refused`, is a refusal: the
sink has not taken them, and they are offered again. Any other error ends the job.
"""
ArrowSink = Sink[pa.Table]
"""A sink that takes tables."""
SparkSink = Callable[["DataFrame", DeliveryId], bool | None]
"""A sink that takes DataFrames of Spark."""


class Refused(Exception):
    """Raised by a sink that cannot accept a delivery now."""
