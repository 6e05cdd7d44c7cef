"""The manifests of a root as one listing has them: which count, and which should be there and are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidestate.recovery.log.boundary import Boundary
from tidestate.recovery.log.manifest import Ids
from tidestate.recovery.log.ranges import ids_text, missing_ranges
from tidestate.statestore.errors import CorruptionError


@dataclass(frozen=True)
class Listing:
    """``stored``: ids of all manifests that lie here, ascending; at or below the boundary only pinned ones count.
    ``begins``: the id that the root began with.
    """

    stored: Sequence[int]
    boundary: Boundary
    begins: int

    @property
    def left(self) -> list[int]:
        """Ids above the boundary, ascending."""
        return [number for number in self.stored if number > self.boundary.id]

    @property
    def missing(self) -> list[Ids]:
        """Ranges of ids that were not collected, and lack a manifest though a newer one is there."""
        return missing_ranges(self.left, self._first)

    @property
    def least(self) -> int:
        """The lowest id that the newest checkpoint can have: it is never collected, and a fork begins with one. 0
        where there may be none.
        """
        return self._first if self.boundary.number or self.begins > 1 else 0

    @property
    def _first(self) -> int:
        return max(self.boundary.id + 1, self.begins)

    def missing_within(self, first: int, last: int | None) -> list[Ids]:
        """Of ``missing`` what lies between two ids."""
        among = [(max(a, first), b if last is None else min(b, last)) for a, b in self.missing]
        return [(a, b) for a, b in among if a <= b]


def manifests_gone(lost: Sequence[Ids]) -> CorruptionError:
    """The error for ranges of ids without manifests."""
    return CorruptionError(
        "manifests are gone, and nobody knows what those checkpoints put out and which files they need: put them "
        "back, or go back to one before them (tidestate rewind)",
        code="manifest-gone",
        ids=ids_text(lost),
    )


def newer_manifests_gone(root: str, newest: int, beyond: int) -> CorruptionError:
    """The error for a root with traces of checkpoint ``beyond``, above its newest manifest."""
    return CorruptionError(
        "this root has been further: it has traces of checkpoints whose manifests are gone: put them back",
        code="root-further",
        root=root,
        newest=newest,
        traces_up_to=beyond,
    )
