"""What a job does at its start when something is not as it should be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from tidestate.statestore.errors import UsageError

Second = Literal["takeover", "refuse"]
Damaged = Literal["stop", "reset"]
SparkDiffers = Literal["rewrite", "stop"]


@dataclass(frozen=True)
class Policy:
    """Choices for the start of a job; none is part of what it computes, so each start may choose anew.

    ``second``: when another driver runs this checkpoint, take it over (that one stops at its next commit, with
    nothing published), or refuse to start. ``damaged``: when the newest checkpoint cannot be used, or is gone, stop,
    or reset to the newest whole one. ``spark``: when Spark's own checkpoint is not what ours says, rewrite it, or
    stop. Raises `UsageError` for another choice.
    """

    second: Second = "takeover"
    damaged: Damaged = "stop"
    spark: SparkDiffers = "rewrite"

    def __post_init__(self) -> None:
        choices = ((self.second, Second), (self.damaged, Damaged), (self.spark, SparkDiffers))
        if any(choice not in get_args(known) for choice, known in choices):
            raise UsageError(
                "a policy is Policy(second=takeover|refuse, damaged=stop|reset, spark=rewrite|stop)",
                code="policy",
                second=self.second,
                damaged=self.damaged,
                spark=self.spark,
            )
