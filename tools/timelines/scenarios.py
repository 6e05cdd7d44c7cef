"""What happens in each picture of `docs/WINDOWS.md`; the description it happens to stands there, above the picture.

A story is steps divided by ``|``: ``5@3`` is an event of value 5 at minute 3 (several in one step are one batch),
``W10`` moves the watermark to minute 10, ``P5`` the clock to minute 5, ``end`` ends the input.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scenario:
    """Steps, and the stretch of event time (or of message numbers) that is drawn, in minutes after 12:00."""

    story: str
    low: int = 0
    high: int = 20
    numbered: bool = False
    minute: int = 5

    @property
    def steps(self) -> list[str]:
        """Steps, one text each."""
        return [step.strip() for step in self.story.split("|")]


_MODES = Scenario("5@3 | 7@6 | 3@8 | W10 | 4@5")
_FAR = Scenario("5@3 | W12 | 3@9 | 7@7 | W14 | 4@9 | 2@11")

SCENARIOS: dict[str, Scenario] = {
    "tumbling": Scenario("5@3 | 3@12 | 7@8 | W10 | 4@17 | W20"),
    "sliding": Scenario("5@3 | 7@8 | W5 | W10 | 3@12 | W15 | W20", low=-5),
    "session": Scenario("5@2 | 7@5 | 4@14 | W10 | W19"),
    "session-merge": Scenario("5@2 | 7@10 | W8 | 3@6 | W15"),
    "count": Scenario("5@3 | 7@8 | 3@1 | 4@12 | 6@9 | end", high=6, numbered=True, minute=1),
    "count-hopping": Scenario("5@3 | 7@8 | 3@1 | 4@12 | 6@9 | 2@14 | end", high=8, numbered=True, minute=1),
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
    "accumulating": _MODES,
    "discarding": _MODES,
    "retracting": _MODES,
    "rule-event": _FAR,
    "rule-window": _FAR,
}
