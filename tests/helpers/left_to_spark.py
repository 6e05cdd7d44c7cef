"""What the direct scan finds, or why it leaves that to Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tidestate.operators.spark.scan.decide import NeedsJvmError

Found = TypeVar("Found")


def found_or_reason(find: Callable[[], Found]) -> Found | str:
    """What ``find`` returns; the reason as text where Spark must read."""
    try:
        return find()
    except NeedsJvmError as why:
        return str(why)
