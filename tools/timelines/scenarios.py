"""What happens in each picture of the pages about windows; the description stands there, above the picture.

A story is steps divided by ``|``: ``5@3`` is an event of value 5 at minute 3, or at offset 3 (several in one step are
one batch), ``5@0-10`` one that names its window, ``W10`` moves the watermark to minute 10, ``P5`` the clock to minute
5, ``feed`` takes back what came too late, ``end`` ends the input.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Scenario:
    """Steps, and the stretch of the axis that is drawn: minutes after 12:00, message numbers or offsets.

    ``follows``: the watermark follows the input, and not ``W`` alone.
    """

    story: str
    low: int = 0
    high: int = 20
    axis: Literal["time", "number", "offset"] = "time"
    minute: int = 5
    follows: bool = False

    @property
    def steps(self) -> list[str]:
        """The steps of the story, in order, each as its text."""
        return [step.strip() for step in self.story.split("|")]


def _offsets(story: str, high: int) -> Scenario:
    return Scenario(story, high=high, axis="offset", minute=1, follows=True)


_MODES = Scenario("5@3 | 7@6 | 3@8 | W10 | 4@5")
_EACH = Scenario("5@3 7@6 3@8 4@2 | 2@9 | W10 | 6@5 1@4")
_FAR = Scenario("5@3 | W12 | 3@9 | 7@7 | W14 | 4@9 | 2@11")

SCENARIOS: dict[str, Scenario] = {
    "tumbling": Scenario("5@3 | 3@12 | 7@8 | W10 | 4@17 | W20"),
    "sliding": Scenario("5@3 | 7@8 | W5 | W10 | 3@12 | W15 | W20", low=-5),
    "rolling": Scenario("5@3 | 7@9 | W10 | 4@6 | 3@15 | W16", low=-8),
    "session": Scenario("5@2 | 7@5 | 4@14 | W10 | W19"),
    "session-merge": Scenario("5@2 | 7@10 | W8 | 3@6 | W15"),
    "count": Scenario("5@3 | 7@8 | 3@1 | 4@12 | 6@9 | end", high=6, axis="number", minute=1),
    "count-hopping": Scenario("5@3 | 7@8 | 3@1 | 4@12 | 6@9 | 2@14 | end", high=8, axis="number", minute=1),
    "offsets": _offsets("5@0 | 7@1 | 3@3 | 4@2 | 6@5 | 2@1 | 8@8 | 9@3 | end", 12),
    "offsets-hopping": _offsets("5@0 | 7@3 | 4@5 | 3@2 | end", 8),
    "offsets-session": _offsets("5@0 | 7@2 | 4@8 | 3@4 | 6@9 | end", 12),
    "processing-time": Scenario("P2 | 5@2 | P7 | 7@7 | P12 | 4@12 | P20"),
    "of-input": Scenario("5@0-10 | 7@0-10 | 4@10-20 | 3@0-10 | end", follows=True),
    "global": Scenario("5@3 | 7@8 | 3@12 | W10 | 4@17 | 6@16 | end"),
    "on-time": Scenario("5@3 | 7@8 | W10 | 4@6 | 3@12 | W20"),
    "on-time-non-empty": Scenario("5@3 | 7@8 | W10 | 4@13 6@16 | W20"),
    "early-every-element": Scenario("5@3 | 7@8 3@5 | 4@12 | W10 | W20"),
    "early-after-count": Scenario("5@3 | 7@8 | 3@5 | 4@6 2@2 6@9 | 8@4 | W10"),
    "early-every-processing-time": Scenario("5@3 | P4 | P5 | 7@8 | P7 | P10 | P15 | W10"),
    "early-after-processing-time": Scenario("5@3 | P4 | 7@8 | P5 | P8 | 3@6 | P13 | W10"),
    "early-every-event-time": Scenario("5@3 | W3 | 7@8 | W6 | W8 | W9 | W10", high=15),
    "late-every-element": Scenario("5@3 | 7@8 | W10 | 4@6 | 3@9 2@2 | W20"),
    "late-after-count": Scenario("5@3 | 7@8 | W10 | 4@6 | 3@9 | 2@2 | W20"),
    "late-after-processing-time": Scenario("5@3 | 7@8 | W10 | 4@6 | P3 | 3@9 | P5 | W20"),
    "closing": Scenario("5@3 | 7@8 | W10 | 4@6 | W15 | W20"),
    "closing-always": Scenario("5@3 | 7@8 | W10 | W15 | W20"),
    "only-updated": Scenario("5@3 | P5 | P10 | 7@8 | P15 | W10"),
    "any-of": Scenario("5@3 | 7@8 | P3 | P5 | 4@6 | W10", high=15),
    "all-of": Scenario("5@3 | 4@6 | 7@8 | W10 | 3@9", high=15),
    "repeatedly": Scenario("5@3 | 7@8 | 4@6 | 3@9 | 2@2 | W10 | W15", high=15),
    "or-finally": Scenario("5@3 | 7@8 | 4@6 | W10 | 3@9 | W20"),
    "per-element": _EACH,
    "per-element-retracting": _EACH,
    "accumulating": _MODES,
    "discarding": _MODES,
    "retracting": _MODES,
    "rule-event": _FAR,
    "rule-window": _FAR,
    "feed": Scenario("5@3 | W12 | 7@8 | feed | W15 | 4@6 | W20 | feed"),
}
