"""What the seed decides. Each decision has a place, and its value depends on the seed and the place alone.

So to leave out one fault changes no other decision until the processes themselves act otherwise: what fails can be
made smaller step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import xxhash

_T = TypeVar("_T")

FAULTS: dict[str, tuple[float, ...]] = {
    "error": (0.01, 0.03),
    "lost": (0.01, 0.03),
    "late": (0.005, 0.02),
    "duplicate": (0.01, 0.05),
    "slow": (0.005, 0.02),
    "throttle": (0.5,),
    "full": (1.0,),
    "listing": (0.5,),
    "die": (0.003, 0.01),
    "stall": (0.002, 0.006),
    "refuse": (0.05, 0.2),
    "sink-error": (0.02, 0.05),
    "sink-lost": (0.03, 0.1),
    "attempt-dies": (0.1, 0.3),
    "attempt-twice": (0.2, 0.5),
    "skew": (0.5,),
    "order": (0.3,),
}
"""Kinds of faults, and the rates that a seed may choose for each. Of ``throttle`` and ``full`` it is the rate within
their periods.
"""


@dataclass(frozen=True)
class Options:
    """What a run leaves out of its seed: kinds of faults, single ones, actors by their place in the plan, batches."""

    off: frozenset[str] = frozenset()
    quiet: frozenset[str] = frozenset()
    dropped: frozenset[int] = frozenset()
    batches: int | None = None
    planted: str = ""


@dataclass
class Chance:
    """The decisions of a seed. ``fired``: the places of the faults that have happened, in order."""

    seed: int
    options: Options = field(default_factory=Options)
    calm: bool = False
    fired: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rates = {kind: self._rate(kind, rates) for kind, rates in FAULTS.items()}

    def _rate(self, kind: str, rates: Sequence[float]) -> float:
        if kind in self.options.off or self.share("weather", kind) < 0.45:
            return 0.0
        return self.one_of(rates, "rate", kind)

    def number(self, *place: object) -> int:
        """64 bits."""
        return xxhash.xxh64_intdigest("/".join(map(str, place)).encode(), seed=self.seed)

    def share(self, *place: object) -> float:
        """From 0 to below 1."""
        return self.number(*place) / 2**64

    def between(self, low: float, high: float, *place: object) -> float:
        """A number of this range, small ones as likely as large ones: uniform in the logarithm."""
        return float(low * (high / low) ** self.share(*place))

    def whole(self, low: int, high: int, *place: object) -> int:
        """A whole number of this range, both ends included."""
        return low + self.number(*place) % (high - low + 1)

    def one_of(self, choices: Sequence[_T], *place: object) -> _T:
        """One of these."""
        return choices[self.number(*place) % len(choices)]

    def enabled(self, kind: str) -> bool:
        """Whether faults of this kind may happen now."""
        return not self.calm and self._rates[kind] > 0

    def happens(self, kind: str, *place: object) -> bool:
        """Whether a fault of this kind happens here."""
        rate = 0.0 if self.calm else self._rates[kind]
        if rate == 0.0 or self.share(kind, *place) >= rate:
            return False
        key = "/".join(map(str, (kind, *place)))
        if key in self.options.quiet:
            return False
        self.fired.append(key)
        return True
