"""The manifests of a root as one listing shows them: which count, and which are missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidestate.recovery.log.boundary import Boundary
from tidestate.recovery.log.manifest import Ids
from tidestate.recovery.log.ranges import missing_ranges


@dataclass(frozen=True)
class Listing:
    """``stored``: ids of all manifest files, ascending; at or below the boundary only pinned ones count. ``begins``:
    the first id of the root.
    """

    stored: Sequence[int]
    boundary: Boundary
    begins: int

    @property
    def ids(self) -> list[int]:
        """Ids above the boundary, ascending."""
        return [number for number in self.stored if number > self.boundary.id]

    @property
    def missing(self) -> list[Ids]:
        """Ranges of ids above the boundary without a manifest, below the newest that is there."""
        return missing_ranges(self.ids, self._first)

    @property
    def least_head(self) -> int:
        """The lowest id that the newest checkpoint can have, which is never collected; 0 if there may be none."""
        return self._first if self.boundary.number or self.begins > 1 else 0

    @property
    def _first(self) -> int:
        return max(self.boundary.id + 1, self.begins)

    def within(self, first: int, last: int | None) -> list[int]:
        """The part of ``ids`` between two ids."""
        return [one for one in self.ids if first <= one and (last is None or one <= last)]

    def missing_within(self, first: int, last: int | None) -> list[Ids]:
        """The part of ``missing`` between two ids."""
        among = [(max(a, first), b if last is None else min(b, last)) for a, b in self.missing]
        return [(a, b) for a, b in among if a <= b]
