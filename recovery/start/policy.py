"""What a job does at its start if something is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from tidestate.statestore.arguments import called
from tidestate.statestore.errors import UsageError

Second = Literal["takeover", "refuse"]
Damaged = Literal["stop", "reset"]
SparkDiffers = Literal["rewrite", "stop"]
LostMessages = Literal["stop", "rebuild", "replay", "forget"]
Dropped = Literal["ask", "refuse", "accept"]


@called("a policy", 'Policy(second="refuse")')
@dataclass(frozen=True)
class Policy:
    """Choices for the start of a job. They do not affect results, so they may differ from start to start.

    ``second``: if another driver runs this job, take over (``"takeover"``: the other one stops at its next commit,
    which is not published) or refuse to start (``"refuse"``). ``damaged``: if the newest checkpoint is damaged or
    gone, ``"stop"``, or ``"reset"`` to the newest intact one. ``spark``: if Spark's own checkpoint differs from ours,
    ``"rewrite"`` it or ``"stop"``. ``messages``: if files of stored messages are damaged or gone, ``"stop"``, or
    start without them: for a ``"rebuild"`` by hand, or a ``"replay"``, for which the job reads its source again by
    itself; or ``"forget"`` all that is missing, also from an earlier loss. ``dropped``: if a changed job lacks what
    stored values belong to, drop them unless that may be a renaming (``"ask"``), never (``"refuse"``), or always
    (``"accept"``). Raises `UsageError` for any other value, and for a
    rebuild, a replay or ``forget`` with a reset.
    """

    second: Second = "takeover"
    damaged: Damaged = "stop"
    spark: SparkDiffers = "rewrite"
    messages: LostMessages = "stop"
    dropped: Dropped = "ask"

    def __post_init__(self) -> None:
        choices = (
            (self.second, Second),
            (self.damaged, Damaged),
            (self.spark, SparkDiffers),
            (self.messages, LostMessages),
            (self.dropped, Dropped),
        )
        both = self.messages != "stop" and self.damaged == "reset"
        if both or any(choice not in get_args(known) for choice, known in choices):
            raise UsageError(
                "the policy must be Policy(second=takeover|refuse, damaged=stop|reset, spark=rewrite|stop, "
                "messages=stop|rebuild|replay|forget, dropped=ask|refuse|accept), and damaged=reset cannot be "
                "combined with messages=rebuild|replay|forget",
                code="policy",
                **vars(self),
            )
